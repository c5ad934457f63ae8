"""The comparison: `rivals` are the other servers, `rows` are the measurements, `table` prints them."""
