//! The registry of an older build (`fixtures/registry`): it opens, its versions keep their ids, and its functions answer.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pilot_harness::{ArchiveEntry, Daemon, archive, needs_root, skip};
use rusqlite::{Connection, params};
use serde_json::{Value, json};

use crate::{ECHO, answer, lab, plain};

/// A row of `versions.json`.
#[derive(serde::Deserialize)]
struct Version {
    name: String,
    number: u64,
    id: String,
    folder: String,
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/e2e/fixtures/registry")
}

fn versions() -> Vec<Version> {
    serde_json::from_str(&fs::read_to_string(fixture().join("versions.json")).unwrap()).unwrap()
}

/// The versions that their names mean.
fn live() -> BTreeMap<String, Version> {
    // Later ones replace earlier ones.
    let named = |version: Version| (version.name.clone(), version);
    versions().into_iter().map(named).collect()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.unwrap().success());
}

/// A daemon whose data directory is the fixture's.
fn older() -> Daemon {
    // The interpreters of this machine, as today's daemon finds them.
    let mut daemon = lab(ECHO, plain());
    let index = ArchiveEntry::text("index.js", "exports.handler = async () => 1;\n");
    let (status, event) = daemon.upload("node", &json!({ "runtime": "node" }), &archive(&[index]));
    assert_eq!(status, 200, "{event}");
    daemon.stop();
    let data = daemon.data_dir();
    let found = Connection::open(data.join("registry.sqlite")).unwrap();
    let of = |kind: &str| -> (String, String) {
        let query =
            format!("SELECT {kind}, {kind}_prefix FROM environments WHERE {kind} IS NOT NULL");
        found
            .query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
    };
    let interpreters = ["python", "node"].map(|kind| (kind, of(kind)));
    drop(found);

    fs::remove_dir_all(&data).unwrap();
    fs::create_dir_all(data.join("code")).unwrap();
    for part in ["registry.sqlite", "environments"] {
        copy(&fixture().join(part), &data.join(part));
    }
    for version in versions() {
        let code = fixture().join("project").join(version.folder);
        copy(&code, &data.join("code").join(version.id));
    }
    let registry = Connection::open(data.join("registry.sqlite")).unwrap();
    for (kind, (executable, prefix)) in interpreters {
        let change = format!(
            "UPDATE environments SET {kind} = ?1, {kind}_prefix = ?2 WHERE {kind} IS NOT NULL"
        );
        registry
            .execute(&change, params![executable, prefix])
            .unwrap();
    }
    drop(registry);
    daemon.resume();
    daemon
}

#[test]
fn the_registry_of_an_older_build_keeps_its_ids() {
    needs_root!();
    let daemon = older();
    let listed = daemon.get("/_pilot/v1/functions").ok().json();
    let listed: BTreeMap<&str, (&Value, &Value)> = listed
        .as_array()
        .unwrap_or_else(|| panic!("{listed}"))
        .iter()
        .map(|row| {
            (
                row["name"].as_str().unwrap(),
                (&row["version"], &row["number"]),
            )
        })
        .collect();
    let live = live();
    assert_eq!(listed.len(), live.len(), "{listed:?}");
    for (name, version) in &live {
        let (id, number) = listed[name.as_str()];
        assert_eq!(
            (id, number),
            (&json!(version.id), &json!(version.number)),
            "{name}"
        );
        assert_eq!(daemon.describe(name).get("problem"), None, "{name}");
    }
}

#[test]
fn the_functions_of_an_older_build_answer() {
    needs_root!();
    let daemon = older();
    let event = json!({"key": "ü"});
    for name in ["plain", "tuned", "minor", "defaults", "spawned", "once"] {
        let expected = json!({"event": event, "version": "1"});
        assert_eq!(answer(&daemon, name, event.clone()), expected, "{name}");
    }
    assert_eq!(answer(&daemon, "twice", event.clone())["version"], "2");
    assert_eq!(answer(&daemon, "twice:1", event.clone()), "first");
    for name in ["node", "nodejs20"] {
        assert_eq!(
            answer(&daemon, name, event.clone()),
            json!({"event": event}),
            "{name}"
        );
    }
    assert_eq!(answer(&daemon, "provided", event.clone()), event);
    for name in ["packages", "modules"] {
        assert_eq!(answer(&daemon, name, event.clone()), "hello", "{name}");
    }
    for name in ["asgi", "wsgi", "http"] {
        if name == "wsgi" && daemon.log().contains(NO_OUTBOUND) {
            skip("a kernel with nftables, for the function wsgi, which has network = \"outbound\"");
            continue;
        }
        let response = daemon.get(&format!("/fn/{name}/"));
        assert_eq!((response.status, response.text().as_str()), (200, name));
    }
}

/// What a daemon says at its start if the kernel has no nftables.
const NO_OUTBOUND: &str = "not available on this machine: network = \"outbound\"";

/// Deploys a function of the fixture's project again. Its environment is empty, so its id is the same on every machine.
fn deploy_again(daemon: &Daemon, project: &Path) -> Value {
    let printed = daemon.cli_ok(&[
        "deploy",
        "--json",
        "--function",
        "provided",
        &project.display().to_string(),
    ]);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

#[test]
fn a_function_of_an_older_build_is_unchanged_when_it_is_deployed_again() {
    needs_root!();
    let daemon = older();
    let id = &live()["provided"].id;
    let report = deploy_again(&daemon, &fixture().join("project"));
    assert_eq!(
        (&report["changed"], &report["version"]),
        (&json!(false), &json!(id))
    );

    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    copy(&fixture().join("project"), &project);
    let manifest = fs::read_to_string(project.join("pilot.toml")).unwrap();
    let changed = manifest.replace("some.thing", "another.thing");
    fs::write(project.join("pilot.toml"), changed).unwrap();
    let report = deploy_again(&daemon, &project);
    assert_eq!(
        (&report["changed"], &report["number"]),
        (&json!(true), &json!(2))
    );
    assert_ne!(report["version"], json!(id));
}
