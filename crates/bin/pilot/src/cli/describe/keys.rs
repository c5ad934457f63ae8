//! Every documented key of `pilot.toml` is read and shown: it changes the checked configuration and what `describe` prints.

use std::collections::BTreeSet;

use pilot_model::deployment::FunctionDescription;
use pilot_model::manifest::Manifest;
use pilot_model::{FunctionConfig, FunctionSpec};

use super::super::list;
use super::configuration;
use super::tests::a_description;

/// A key, what it needs beside it, and a line that gives it a value other than its default.
const KEYS: &[(&str, &str, &str)] = &[
    ("path", "", "path = \"src\""),
    ("runtime", "", "runtime = \"node\""),
    (
        "command",
        "runtime = \"provided\"",
        "command = [\"./serve\"]",
    ),
    ("ready", WEB, "ready = \"/healthz\""),
    ("image", "runtime = \"container\"", "image = \"qr:1\""),
    ("component", "runtime = \"wasm\"", "component = \"a.wasm\""),
    ("contract", IMAGE, "contract = \"provided\""),
    ("root", IMAGE, "root = \"read-only\""),
    ("volume_mb", IMAGE, "volume_mb = 64"),
    ("handler", "", "handler = \"other.call\""),
    ("interface", "", "interface = \"asgi\""),
    ("root_path", APPLICATION, "root_path = \"\""),
    ("memory_mb", "", "memory_mb = 300"),
    ("timeout_s", "", "timeout_s = 7"),
    ("cpu", "", "cpu = 0.5"),
    ("network", "", "network = \"outbound\""),
    ("environment", "", "environment = { LEVEL = \"debug\" }"),
    ("min", "", "scale = { min = 1 }"),
    ("max", "", "scale = { max = 9 }"),
    ("spare", "", "scale = { spare = 1 }"),
    ("idle_s", "", "scale = { idle_s = 9 }"),
    ("policy", "", "scale = { policy = \"auto\" }"),
    ("max_wait_s", "", "scale = { max_wait_s = 2 }"),
    ("reserved", "", "scale = { reserved = 3 }"),
    ("owner", "", "owner = \"shop\""),
    ("layers", "", "layers = [\"tools\"]"),
    ("inputs", "", "inputs = { image = \"s3://photos/one\" }"),
    ("inputs_by_request", "", "inputs_by_request = true"),
    ("drop_ins", "", "drop_ins = false"),
    ("invokes", "", "invokes = [\"next\"]"),
    (
        "by_reference",
        "invokes = [\"next\"]",
        "by_reference = false",
    ),
    (
        "initscript",
        "",
        "initscript = { module = \"init.wasm\", allow = [\"s3://photos\"] }",
    ),
    (
        "shared_initscript",
        "",
        "shared_initscript = { module = \"init.wasm\", allow = [\"s3://photos\"] }",
    ),
    ("keep_alive", "", "keep_alive = { behaviour = \"freeze\" }"),
    (
        "cpu_limit",
        "",
        "cpu_limit = { period_ms = 20, weight = 400 }",
    ),
    ("async", "", "async = { retries = 1 }"),
    (
        "triggers",
        "",
        "triggers = [{ type = \"schedule\", cron = \"0 3 * * *\" }]",
    ),
    ("concurrency", "", "concurrency = 8"),
    ("reuse", "", "reuse = \"once\""),
    ("template", "", "template = \"off\""),
    ("secrets", "", "secrets = { DB_PASSWORD = \"db-password\" }"),
    (
        "cors",
        "",
        "cors = { allow_origins = [\"https://a.example\"] }",
    ),
];
const APPLICATION: &str = "interface = \"asgi\"";
const WEB: &str = "runtime = \"http\"\ncommand = [\"serve\"]";
const IMAGE: &str = "runtime = \"container\"\nimage = \"qr:1\"";
/// Read, but not part of the checked configuration: where the code and the layers are.
const OF_THE_UPLOAD: [&str; 2] = ["path", "layers"];

/// The triggers are not part of the configuration that `describe` prints. They have a section of their own.
const IN_A_SECTION: &str = "triggers";
/// Keys that `docs/containers.md` documents, and not the README.
const OF_CONTAINERS: [&str; 2] = ["root", "volume_mb"];

/// The first function of a manifest with these lines. `None`: they are refused.
fn written(beside: &str, line: &str) -> Option<FunctionSpec> {
    let text =
        format!("[layers.tools]\npath = \"tools.zip\"\n[functions.invert]\n{beside}\n{line}\n");
    let manifest = Manifest::parse(&text, "pilot.toml").ok()?;
    manifest.functions.into_values().next()
}

fn checked(spec: Option<&FunctionSpec>) -> Option<FunctionConfig> {
    spec?.check(&"invert".parse().unwrap()).ok()
}

fn shown(spec: Option<&FunctionSpec>) -> Option<String> {
    let description = FunctionDescription {
        summary: list::tests::a_summary(),
        config: checked(spec)?,
        forecast: None,
        ..a_description()
    };
    Some(configuration(&description, "http://h"))
}

#[test]
fn every_documented_key_changes_what_is_checked() {
    for (key, beside, line) in KEYS {
        let (with, without) = (written(beside, line), written(beside, ""));
        assert_ne!(with, without, "{key} is not read");
        if !OF_THE_UPLOAD.contains(key) {
            let (with, without) = (checked(with.as_ref()), checked(without.as_ref()));
            assert!(with.is_some(), "{key}: {line} is refused");
            assert_ne!(with, without, "{key} has no effect");
        }
    }
}

#[test]
fn each_key_of_the_manifest_that_was_set_is_shown() {
    for (key, beside, line) in KEYS {
        if !OF_THE_UPLOAD.contains(key) && *key != IN_A_SECTION {
            let (with, without) = (written(beside, line), written(beside, ""));
            assert_ne!(
                shown(with.as_ref()),
                shown(without.as_ref()),
                "{key} is not shown"
            );
        }
    }
}

#[test]
fn these_are_the_keys_of_the_readme() {
    let readme = include_str!("../../../../../../README.md");
    let section = readme.split("## pilot.toml").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let documented: BTreeSet<&str> = section.lines().filter_map(key_of).collect();
    let tested = KEYS.iter().map(|(key, ..)| *key);
    let tested: BTreeSet<&str> = tested.filter(|key| !OF_CONTAINERS.contains(key)).collect();
    assert_eq!(documented, tested);
}

/// The key that a line documents: `key = …` in an example, or `` | `key` | `` in the table.
fn key_of(line: &str) -> Option<&str> {
    let word = line
        .strip_prefix("| `")
        .and_then(|row| row.split('`').next());
    let word = word.or_else(|| Some(line.split_once(" = ")?.0))?;
    let is_key = word
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (is_key && !word.is_empty()).then_some(word)
}
