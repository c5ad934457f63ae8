//! The documentation is complete: the README lists every document and every command, links lead somewhere, the time limits in
//! docs/operations.md are those of the code, and figures of speed and size name results that are kept.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The part of a document below this heading, up to the next one.
fn section(text: &str, heading: &str) -> String {
    let (_, rest) = text
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no heading {heading}"));
    rest.split("\n## ").next().unwrap().to_owned()
}

/// The targets of links to files of the repository, without anchors.
fn links(text: &str) -> BTreeSet<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .map(str::to_owned)
        .collect()
}

fn documents(folder: &str) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(root().join(folder))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md"))
        .collect();
    found.sort();
    found
}

#[test]
fn the_table_of_documents_in_the_readme_is_complete() {
    let table = links(&section(&read("README.md"), "Where things are"));
    for name in documents("docs") {
        let path = format!("docs/{name}");
        assert!(table.contains(&path), "README.md does not list {path}");
    }
    for name in documents(".").iter().filter(|name| *name != "README.md") {
        assert!(table.contains(name), "README.md does not list {name}");
    }
    assert!(table.contains("docs/decisions/"));
}

#[test]
fn every_link_of_the_documents_leads_to_a_file() {
    let of_docs = documents("docs")
        .into_iter()
        .map(|name| format!("docs/{name}"));
    for path in documents(".").into_iter().chain(of_docs) {
        let folder = root().join(&path).parent().unwrap().to_owned();
        for link in links(&read(&path)) {
            assert!(folder.join(&link).exists(), "{path} links to {link}");
        }
    }
}

/// The name that GitHub gives to a heading, for links to it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_to_a_heading_leads_to_one() {
    let of_docs = documents("docs")
        .into_iter()
        .map(|name| format!("docs/{name}"));
    let mut count = 0;
    for path in documents(".").into_iter().chain(of_docs) {
        let text = read(&path);
        let targets = text.split("](").skip(1);
        for target in targets.filter_map(|rest| rest.split(')').next()) {
            let Some((file, heading)) = target.split_once('#') else {
                continue;
            };
            if target.contains("://") || !(file.is_empty() || file.ends_with(".md")) {
                continue;
            }
            let folder = Path::new(&path).parent().unwrap();
            let page = match file {
                "" => text.clone(),
                file => read(folder.join(file).to_str().unwrap()),
            };
            let headings = page.lines().filter(|line| line.starts_with('#'));
            let is_there = headings.map(anchor).any(|name| name == heading);
            assert!(is_there, "{path} links to {target}");
            count += 1;
        }
    }
    assert!(count > 50, "{count} links");
}

#[test]
fn the_readme_lists_every_command() {
    let output = Command::new(env!("CARGO_BIN_EXE_pilot"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands: BTreeSet<&str> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        // A long description continues on lines that are indented further.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    let text = section(&read("README.md"), "The command line");
    let (list, _) = text.split_once("`pilot VERB --help`").unwrap();
    let listed: BTreeSet<&str> = list.split('`').skip(1).step_by(2).collect();
    assert_eq!(listed, commands);
}

/// A constant of the code, and the row of the table in docs/operations.md that gives it.
const TIMES: [(&str, &str, &str); 10] = [
    (
        "crates/path/sandbox/src/template.rs",
        "const IMPORT_TIME_MAX: Duration = Duration::from_secs(120);",
        "| imports of a template | 120 s |",
    ),
    (
        "crates/path/sandbox/src/engine.rs",
        "const FORKED_TIME_MAX: Duration = Duration::from_secs(30);",
        "| start of a worker | 30 s if it is forked, 120 s otherwise |",
    ),
    (
        "crates/path/sandbox/src/engine.rs",
        "const IMPORTED_TIME_MAX: Duration = Duration::from_secs(120);",
        "| start of a worker | 30 s if it is forked, 120 s otherwise |",
    ),
    (
        "crates/path/pool/src/keyed.rs",
        "const START_TIME_MAX: Duration = Duration::from_secs(120);",
        "| start of a worker | 30 s if it is forked, 120 s otherwise |",
    ),
    (
        "crates/path/sandbox/src/native/runtime.rs",
        "const READY_TIME_MAX: Duration = Duration::from_secs(60);",
        "| start of a runtime that does not fork, until it is ready | 60 s; 30 s in a container |",
    ),
    (
        "crates/side/container/src/container/specialise.rs",
        "const READY_TIME_MAX: Duration = Duration::from_secs(30);",
        "| start of a runtime that does not fork, until it is ready | 60 s; 30 s in a container |",
    ),
    (
        "crates/path/gateway/src/config.rs",
        "header_timeout: Duration::from_secs(60),",
        "| a client sends the head of its next request | 60 s |",
    ),
    (
        "crates/path/gateway/src/config.rs",
        "body_timeout: Duration::from_secs(30),",
        "| a client sends more of a body | 30 s |",
    ),
    (
        "crates/path/gateway/src/config.rs",
        "patience: Duration::from_secs(60),",
        "| a client reads a response, or the next part of one | 60 s, and one second for each 4 KiB that it has read in this time |",
    ),
    (
        "crates/side/deploy/src/environment/config.rs",
        "install_time_max: Duration::from_secs(600),",
        "| installation of requirements | 600 s, or `time_s` of `[build]` |",
    ),
];

#[test]
fn the_time_limits_in_the_operations_page_are_those_of_the_code() {
    let page = read("docs/operations.md");
    for (file, constant, row) in TIMES {
        assert!(
            read(file).contains(constant),
            "{file} has no `{constant}`: change docs/operations.md and this table, too"
        );
        assert!(page.contains(row), "docs/operations.md has no row {row}");
    }
}

/// The files of results that a text names.
fn kept_results(text: &str) -> Vec<String> {
    text.split('`')
        .filter(|token| token.starts_with("bench/") && token.contains("/results/"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_figure_of_the_specification_names_a_kept_result() {
    let specification = read("SPECIFICATION.md");
    let figures = specification.lines().filter(|line| {
        let is_figure = ["| FAST-", "| SMALL-", "| TRACE-10 "]
            .iter()
            .any(|family| line.starts_with(family));
        is_figure && line.contains("measured")
    });
    let mut count = 0;
    for row in figures {
        let id = row.split('|').nth(1).unwrap().trim();
        let kept = kept_results(row);
        assert!(!kept.is_empty(), "{id} names no kept result");
        for path in kept {
            assert!(root().join(&path).exists(), "{id} names {path}");
            if !path.ends_with(".json") {
                continue;
            }
            let result: serde_json::Value = serde_json::from_str(&read(&path)).unwrap();
            for key in ["machine", "commit"] {
                assert!(result.get(key).is_some(), "{path} of {id} lacks {key:?}");
            }
        }
        count += 1;
    }
    assert!(count > 15, "{count} figures");
}
