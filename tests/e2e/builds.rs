//! Builds: what is installed is what was hashed, limits, and messages about the network.

use std::io::Write as _;

use pilot_harness::{ArchiveEntry, Daemon, DaemonOptions, archive};
use serde_json::{Value, json};

use crate::{ECHO, answer, daemon, daemon_with, plain};

fn upload(daemon: &Daemon, files: &[(&str, &str)]) -> Value {
    let entries: Vec<ArchiveEntry> = files
        .iter()
        .map(|(name, text)| ArchiveEntry::text(name, text))
        .collect();
    daemon.upload("lab", &plain(), &archive(&entries)).1
}

/// The daemon's resident memory, bytes.
fn memory(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn a_requirements_file_cannot_hide_a_line_from_its_hash() {
    let daemon = daemon();
    for end in ["\r", "\x0c", "\u{2028}", "\u{85}"] {
        let hidden = format!("six==1.17.0\n# x{end}./evil\n");
        let event = upload(&daemon, &[("app.py", ECHO), ("requirements.txt", &hidden)]);
        assert_eq!(event["code"], "bad_requirements", "{event}");
        let message = event["message"].as_str().unwrap();
        assert!(
            message.starts_with("requirements.txt:2: has the character"),
            "{message}"
        );
    }
    let coded = [
        ("app.py", ECHO),
        ("requirements.txt", "# coding: utf-7\nsix+AA0-\n"),
    ];
    assert_eq!(upload(&daemon, &coded)["code"], "bad_requirements");
}

#[test]
fn a_source_that_needs_too_much_memory_to_compile_hurts_nobody() {
    let daemon = daemon_with(DaemonOptions {
        config: Some("[build]\nmemory_mb = 256\n".to_owned()),
        ..DaemonOptions::default()
    });
    daemon.upload_code("neighbour", &plain(), ECHO);
    let before = memory(&daemon);
    // 2 MB in one expression.
    let large = format!("x = [{}]\n{ECHO}", "(1,a),".repeat(350_000));
    let event = upload(&daemon, &[("app.py", &large)]);
    assert_ne!(event["event"], "done", "{event}");
    assert!(memory(&daemon) < before + (64 << 20));
    assert_eq!(answer(&daemon, "neighbour", json!(7)), 7);
    // Only the file that takes too much is left out.
    let beside = format!("x = 1\n{ECHO}");
    let event = upload(
        &daemon,
        &[
            ("app.py", &beside),
            ("big.py", &large),
            ("small.py", "y = 1\n"),
        ],
    );
    assert_eq!(event["event"], "done", "{event}");
    let code = daemon
        .data_dir()
        .join("code")
        .join(event["version"].as_str().unwrap());
    let compiled: Vec<String> = std::fs::read_dir(code.join("__pycache__"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(compiled.len(), 2, "{compiled:?}");
}

#[test]
fn an_extended_header_of_100_mb_does_not_reach_the_daemons_memory() {
    let daemon = daemon();
    let before = memory(&daemon);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::XHeader);
    header.set_size(100 << 20);
    header.set_cksum();
    gzip.write_all(header.as_bytes()).unwrap();
    for _ in 0..100 {
        gzip.write_all(&vec![b'x'; 1 << 20]).unwrap();
    }
    let packed = gzip.finish().unwrap();
    assert!(packed.len() < 1 << 20);
    let (_, event) = daemon.upload("lab", &plain(), &packed);
    assert_eq!(event["code"], "bad_archive", "{event}");
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains("extended header")
    );
    assert!(memory(&daemon) < before + (16 << 20));
}

#[test]
fn an_index_that_is_not_reached_is_named_and_no_requirement_is_blamed() {
    let daemon = daemon_with(DaemonOptions {
        environment: [
            ("PIP_INDEX_URL", "http://127.0.0.1:1/simple"),
            ("PIP_RETRIES", "0"),
            ("PIP_NO_INDEX", "0"),
            ("PIP_FIND_LINKS", ""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        ..DaemonOptions::default()
    });
    let event = upload(
        &daemon,
        &[("app.py", ECHO), ("requirements.txt", "six==1.17.0\n")],
    );
    assert_eq!(event["code"], "registry_unreachable", "{event}");
    let message = event["message"].as_str().unwrap();
    assert!(
        message.contains("127.0.0.1:1 could not be reached from the daemon's machine"),
        "{message}"
    );
    assert!(!message.contains("six"), "{message}");
}

#[test]
fn a_build_reaches_registries_only_and_the_error_says_what_to_change() {
    let daemon = daemon();
    let line = "six @ https://elsewhere.example/six-1-py3-none-any.whl\n";
    let event = upload(&daemon, &[("app.py", ECHO), ("requirements.txt", line)]);
    assert_eq!(event["code"], "registry_unreachable", "{event}");
    let message = event["message"].as_str().unwrap();
    assert!(
        message.contains("builds may not connect to elsewhere.example:443"),
        "{message}"
    );
    assert!(
        message.contains("hosts in [build] of pilotd.toml"),
        "{message}"
    );
}

#[test]
fn a_daemon_with_wheels_only_builds_nothing() {
    let daemon = daemon_with(DaemonOptions {
        config: Some("[build]\nsources = \"wheels-only\"\n".to_owned()),
        ..DaemonOptions::default()
    });
    let setup = "raise SystemExit('built')\n";
    for line in ["./p", "--no-binary :all:\nsix==1.17.0"] {
        let files = [
            ("app.py", ECHO),
            ("requirements.txt", line),
            ("p/setup.py", setup),
        ];
        let event = upload(&daemon, &files);
        assert_eq!(event["code"], "bad_requirements", "{event}");
        assert!(
            event["message"]
                .as_str()
                .unwrap()
                .contains("is built from its source")
        );
    }
}
