//! `make run` as a new user runs it, except that the binary is given: on a free port, with a data directory of its own.

#![expect(
    clippy::unwrap_used,
    reason = "test code, its shared functions included: a panic is how a test fails"
)]

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pilot_harness::eventually_within;
use tempfile::TempDir;

struct Run {
    child: Child,
    home: TempDir,
}

impl Run {
    fn start(listen: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let said = File::create(home.path().join("said")).unwrap();
        let child = Command::new("make")
            .arg("run")
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."))
            .env("PILOT_BIN", env!("CARGO_BIN_EXE_pilot"))
            .env("PILOT_LISTEN", listen)
            .env("PILOT_HOME", home.path())
            .stdin(Stdio::null())
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn()
            .unwrap();
        Self { child, home }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.home.path().join("said")).unwrap()
    }

    fn picture(&self) -> PathBuf {
        self.home.path().join("thumbnail.png")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            end(&self.child);
            let _ = self.child.wait();
        }
    }
}

/// Ends the script, not make: a terminal's Ctrl-C reaches both, and make waits for the script.
fn end(make: &Child) {
    for child in pilot_harness::descendants(i32::try_from(make.id()).unwrap()) {
        let arguments = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&arguments).contains("scripts/run") {
            let _ = kill(Pid::from_raw(child), Signal::SIGTERM);
        }
    }
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn make_run_shows_a_cold_and_a_warm_call_and_ends_when_told() {
    pilot_harness::needs_root!();
    let mut run = Run::start(&free_address());
    eventually_within(
        std::time::Duration::from_secs(180),
        "make run has shown everything",
        || {
            let over = run.child.try_wait().unwrap();
            assert!(over.is_none(), "make run ended: {}", run.said());
            run.said()
                .contains("Try, in another terminal")
                .then_some(())
        },
    );
    let said = run.said();
    for (part, why) in [
        ("✓ hello", "the examples are deployed"),
        ("✓ image", "the examples are deployed"),
        (
            "answer: a PNG of 256 × 256 pixels",
            "the photograph is answered",
        ),
        ("cold start", "a cold call's timeline"),
        ("request handed over", "a cold call's timeline"),
        ("warm start", "a warm call's timeline"),
    ] {
        assert!(said.contains(part), "{why}: no {part:?} in\n{said}");
    }
    let picture = fs::read(run.picture()).unwrap();
    assert!(picture.starts_with(b"\x89PNG"), "the picture is written");

    end(&run.child);
    let status = run.child.wait().unwrap();
    assert!(status.success(), "{status}: {}", run.said());
    assert!(run.said().contains("drained"), "{}", run.said());
}

#[test]
fn a_port_in_use_is_said_before_anything_is_built() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let mut run = Run::start(&address);
    assert!(!run.child.wait().unwrap().success());
    let said = run.said();
    assert!(
        said.contains(&format!("something listens on {address}")),
        "{said}"
    );
    assert!(said.contains("PILOT_LISTEN="), "{said}");
    assert!(!said.contains("Building"), "{said}");
}
