"""The comparison: `daemon` and `rivals` are what is measured, `load` measures, `rows` says what, `table` prints."""
