//! The line of a key or value in a manifest's text, found by its path. Used only after an error. A text that is not TOML has no
//! lines.

use std::ops::Range;

use toml::de::DeTable;

use crate::spec::SpecError;

/// The line, from 1, of the byte at `offset`.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|byte| **byte == b'\n').count() + 1
}

/// The line of a key. `path` is the key with the tables around it.
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

/// The line of the invalid key. If the text has no such key: the line of the nearest table around it.
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
