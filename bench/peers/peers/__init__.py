"""The comparison: `rivals` are what Pilotlight is measured beside, `rows` says what is measured, `table` prints."""
