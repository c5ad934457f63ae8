//! Numbers that have a range.

use std::fmt::Display;

/// Refuses a value that is not in its range. Of each: the key, its range in words, and whether its value is in it.
pub(super) fn in_range<R: Display>(table: &[(&str, R, bool)]) -> Result<(), String> {
    match table.iter().find(|(_, _, fits)| !fits) {
        Some((key, range, _)) => Err(format!("{key} must be {range}")),
        None => Ok(()),
    }
}
