//! Compares SPECIFICATION.md with the tests. Every promise names tests that exist, or says that it is not yet proven. A promise
//! names every end-to-end test and every escape attempt.
//!
//! A promise is a row `| ID | text | proof |`. A proof is `path::test` in backticks: the function of a Rust or Python test, a row
//! of the benchmark, or the name of an escape attempt as in the source. A path without a test is a program that is itself the
//! proof. A code span without a slash is prose.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const NOT_YET: &str = "[not yet proven]";

/// The suites of which a promise must name every test.
const SUITES: [&str; 2] = ["tests/e2e", "tests/isolation"];

#[derive(Debug)]
struct Promise {
    id: String,
    text: String,
    proof: String,
}

impl Promise {
    /// The tests that it names: (path, test).
    fn references(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let quoted = self
            .proof
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|span| span.contains('/'));
        quoted.map(|reference| match reference.split_once("::") {
            Some((path, test)) => (path, Some(test)),
            None => (reference, None),
        })
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn promises() -> Vec<Promise> {
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let id = cells[0].to_owned();
        let letters = id.split('-').next()?;
        let is_promise =
            id.contains('-') && letters.chars().all(|letter| letter.is_ascii_uppercase());
        (is_promise && !letters.is_empty()).then(|| {
            assert_eq!(cells.len(), 4, "{id}: a promise is `| ID | text | proof |`");
            Promise {
                id,
                text: cells[1].to_owned(),
                proof: cells[2].to_owned(),
            }
        })
    });
    rows.collect()
}

/// The Rust files below a folder. Their paths are relative to the repository, as the folder is.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = folder.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

/// The names of the tests of a file: functions of Rust and Python, the arguments of `Attempt::new`, and the checks of the suite
/// `container`, which `checks.rs` lists.
fn tests_of(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut names = attempts(&text);
    match path.extension().and_then(|end| end.to_str()) {
        Some("rs") => {
            names.extend(rust_tests(&text));
            if path.ends_with("tests/container/contracts.rs") {
                names.extend(functions(&text, "pub(crate) async fn "));
            }
        }
        Some("py") => names.extend(functions(&text, "def ")),
        _ => {}
    }
    names
}

/// Functions marked as tests. There may be several attributes between the mark and the function.
fn rust_tests(text: &str) -> BTreeSet<String> {
    let marks = text.match_indices("test").filter(|(at, _)| {
        let line = text[..*at].rsplit('\n').next().unwrap_or("").trim_start();
        matches!(line, "#[" | "#[tokio::")
    });
    marks
        .filter_map(|(at, _)| functions(&text[at..], "fn ").into_iter().next())
        .collect()
}

/// The names of all functions, in the order of the text.
fn functions(text: &str, keyword: &str) -> Vec<String> {
    let named = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let rest = line.strip_prefix(keyword).or_else(|| {
            line.strip_prefix("async ")
                .and_then(|line| line.strip_prefix(keyword))
        })?;
        let end = rest.find(['(', '<'])?;
        Some(rest[..end].to_owned())
    });
    named.collect()
}

/// The first string literal after each `Attempt::new(`.
fn attempts(text: &str) -> BTreeSet<String> {
    let calls = text.split("Attempt::new(").skip(1);
    calls
        .filter_map(|call| {
            let literal = call
                .trim_start()
                .trim_start_matches("format!(")
                .strip_prefix('"')?;
            Some(literal[..literal.find('"')?].to_owned())
        })
        .collect()
}

#[test]
fn every_promise_has_an_id_of_its_own_a_text_and_a_proof_or_says_that_it_has_none() {
    let promises = promises();
    assert!(
        promises.len() > 100,
        "only {} promises were found",
        promises.len()
    );
    let mut seen = BTreeSet::new();
    for promise in &promises {
        assert!(seen.insert(&promise.id), "{} is there twice", promise.id);
        assert!(!promise.text.is_empty(), "{} promises nothing", promise.id);
        let proven = promise.references().next().is_some();
        assert!(
            proven || promise.proof.contains(NOT_YET),
            "{} names no test: name one, or say {NOT_YET}",
            promise.id
        );
    }
}

#[test]
fn every_test_that_a_promise_names_is_there() {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut missing = Vec::new();
    for promise in &promises() {
        for (path, test) in promise.references() {
            let there = match test {
                None => root().join(path).is_file(),
                Some(test) => files
                    .entry(path.to_owned())
                    .or_insert_with(|| tests_of(&root().join(path)))
                    .contains(test),
            };
            if !there {
                missing.push(format!("{}: {path}::{}", promise.id, test.unwrap_or("")));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "not in the tree:\n{}",
        missing.join("\n")
    );
}

#[test]
fn every_end_to_end_test_and_escape_attempt_is_named_by_a_promise() {
    let promises = promises();
    let named: BTreeSet<(String, String)> = promises
        .iter()
        .flat_map(Promise::references)
        .filter_map(|(path, test)| Some((path.to_owned(), test?.to_owned())))
        .collect();
    let mut unnamed = Vec::new();
    let mut found = 0;
    for file in SUITES
        .into_iter()
        .flat_map(|suite| sources(Path::new(suite)))
    {
        let path = file.to_str().unwrap().to_owned();
        for test in tests_of(&root().join(&file)) {
            found += 1;
            if !named.contains(&(path.clone(), test.clone())) {
                unnamed.push(format!("`{path}::{test}`"));
            }
        }
    }
    assert!(found > 200, "only {found} tests were found");
    unnamed.sort();
    assert!(
        unnamed.is_empty(),
        "give each of these to a promise of SPECIFICATION.md:\n{}",
        unnamed.join("\n")
    );
}

#[test]
fn names_are_found_where_tests_are_and_nowhere_else() {
    let rust = "fn helper() {}\n#[test]\nfn one() {}\n#[tokio::test(start_paused = true)]\nasync fn two() {}\n\
                #[test]\n#[should_panic]\nfn three() {}\n// test fn four\n";
    let found: Vec<String> = rust_tests(rust).into_iter().collect();
    assert_eq!(found, ["one", "three", "two"]);
    let attempts = attempts(
        "Attempt::new(\n  format!(\"{worker}: a\"), x); Attempt::new(\"b c\", |g| 1); Attempt::new(name)",
    );
    assert_eq!(
        attempts,
        ["b c".to_owned(), "{worker}: a".to_owned()].into()
    );
}
