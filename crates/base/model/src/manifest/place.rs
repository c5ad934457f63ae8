//! Where in a manifest's text something stands, found by its path. Only asked once something is wrong; a text that is not TOML
//! has no places.

use std::ops::Range;

use toml::de::DeTable;

use crate::spec::SpecError;

/// The line, from 1, of the byte at `offset`.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// The line of a key, given with the tables around it.
pub(super) fn line_of_key(text: &str, path: &[&str]) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let (last, tables) = path.split_last()?;
    let mut table = document.get_ref();
    for name in tables {
        table = table.get(*name)?.get_ref().as_table()?;
    }
    let (key, _) = table.get_key_value(*last)?;
    let Range { start, .. } = key.span();
    Some(line_at(text, start))
}

/// The line of the key that does not do; where it was left out, or stands deeper than the error says, of what is around it.
pub(super) fn line_of_value(text: &str, error: &SpecError) -> Option<usize> {
    let mut path = vec!["functions", error.function.as_str()];
    path.extend(error.key.split('.'));
    while path.len() > 1 {
        if let Some(line) = line_of_key(text, &path) {
            return Some(line);
        }
        path.pop();
    }
    None
}
