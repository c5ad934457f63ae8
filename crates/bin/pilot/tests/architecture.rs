//! Every file and folder that ARCHITECTURE.md names in a code span exists. A path is relative to the repository or to `crates/`;
//! `{a,b}` stands for several; a name without a folder is a source file somewhere in the tree.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of the data directory, which are not in the repository.
const DATA_DIR: [&str; 5] = ["run/", "spill/", "usage/", "staging/", "tooling/"];

/// What a name without a folder ends with when it is a source file.
const SOURCES: [&str; 4] = [".rs", ".c", ".py", ".js"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The code spans of a text that are paths of the repository, braces expanded.
fn paths(text: &str) -> BTreeSet<String> {
    let prose = text.split("```").step_by(2);
    let spans = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
    spans
        .filter(|span| is_path(span))
        .flat_map(expand)
        .collect()
}

fn is_path(span: &str) -> bool {
    // As in `code/ID/`.
    let is_placeholder = |part: &str| part.chars().all(|letter| letter.is_ascii_uppercase());
    if span.starts_with('/')
        || span.contains(|letter: char| letter.is_whitespace() || letter == '…')
    {
        return false;
    }
    let mut parts = span.trim_end_matches('/').split('/');
    (span.contains('/') || SOURCES.iter().any(|end| span.ends_with(end)))
        && !DATA_DIR.contains(&span)
        && !parts.any(is_placeholder)
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expand(path: &str) -> Vec<String> {
    let Some((head, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let (choices, tail) = rest.split_once('}').unwrap();
    choices
        .split(',')
        .flat_map(|choice| expand(&format!("{head}{choice}{tail}")))
        .collect()
}

/// The names of all source files.
fn names(folders: &[&str]) -> BTreeSet<String> {
    let mut folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut names = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                names.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
    }
    names
}

#[test]
fn every_path_that_the_architecture_names_exists() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let names = names(&["bench", "crates", "node", "python", "tests"]);
    let paths = paths(&text);
    assert!(paths.len() > 50, "only {} paths were found", paths.len());
    let exists = |path: &String| {
        let from_root = root().join(path).exists();
        from_root || root().join("crates").join(path).exists() || names.contains(path)
    };
    let missing: Vec<&String> = paths.iter().filter(|path| !exists(path)).collect();
    assert!(missing.is_empty(), "not in the tree: {missing:#?}");
}

#[test]
fn paths_are_told_from_other_code_spans() {
    let text = "`a/{b,c}.rs`, `d/`, `e.py`: `pilot.toml`, `POST /x`, `/fn/NAME/…`, `logs/NAME/`, `/tmp`, `staging/`, `Type::new`\n\
                ```\n`not/this`\n```\n`f`";
    let found: Vec<String> = paths(text).into_iter().collect();
    assert_eq!(found, ["a/b.rs", "a/c.rs", "d/", "e.py"]);
}
