//! Machines with missing features: a daemon that is not root, and one without cgroups. It reports at its start and under `/readyz`
//! what is not enforced, and serves. In strict mode it refuses to start.

use std::process::{Command, Stdio};

use pilot_harness::{
    Daemon, DaemonOptions, Machine, Project, eventually, needs_root, skip, terminate,
};
use serde_json::json;

use crate::{ECHO, answer, daemon, daemon_with, plain};

/// What each machine lacks, in the words of the warning.
const LACKING: [(Machine, &[&str]); 2] = [
    (
        Machine::WithoutRoot,
        &[
            "users: the daemon is not root: all functions run as its own user",
            "memory_mb, cpu and process counts are not limited",
        ],
    ),
    (
        Machine::WithoutCgroups,
        &["memory_mb, cpu and process counts are not limited"],
    ),
];

fn on(machine: Machine) -> DaemonOptions {
    DaemonOptions {
        machine,
        ..DaemonOptions::default()
    }
}

/// What is not enforced, from `/readyz`.
fn reasons(daemon: &Daemon) -> Vec<String> {
    let readiness = daemon.get("/readyz").ok().json();
    assert_eq!(readiness["ready"], true);
    let reasons = readiness["reasons"].as_array().unwrap();
    reasons
        .iter()
        .map(|reason| reason.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_machine_that_lacks_something_is_served_on_and_what_is_not_enforced_is_said() {
    needs_root!();
    // What this machine lacks is said in any case.
    let own = reasons(&daemon());
    for (machine, lacking) in LACKING {
        let daemon = daemon_with(on(machine));
        let mut said = reasons(&daemon);
        said.retain(|reason| !own.contains(reason));
        assert_eq!(said.len(), lacking.len(), "{machine:?}: {said:?}");
        let log = daemon.log();
        for (reason, words) in said.iter().zip(lacking) {
            assert!(reason.contains(words), "{machine:?}: {reason}");
            assert!(
                log.contains(&format!("not enforced on this machine: {reason}")),
                "{machine:?}: {log}"
            );
        }
        if machine == Machine::WithoutRoot && !std::path::Path::new("/usr/bin/python3").exists() {
            skip("/usr/bin/python3, for a function without root");
            continue;
        }
        daemon.upload_code("lab", &plain(), ECHO);
        assert_eq!(answer(&daemon, "lab", json!({"k": 1})), json!({"k": 1}));
        daemon.upload_code("spawned", &json!({"template": "off"}), ECHO);
        assert_eq!(answer(&daemon, "spawned", json!(2)), json!(2));
    }
}

#[test]
fn memory_is_known_and_limited_without_cgroups() {
    needs_root!();
    for (machine, _) in LACKING {
        if machine == Machine::WithoutRoot && !std::path::Path::new("/usr/bin/python3").exists() {
            skip("/usr/bin/python3, for a function without root");
            continue;
        }
        let measured = daemon_with(on(machine));
        measured.upload_code("lab", &plain(), ECHO);
        assert_eq!(answer(&measured, "lab", json!(1)), json!(1));
        eventually("the memory of a worker is known", || {
            let workers = &measured.describe("lab")["workers"];
            let idle = workers["idle"].as_u64()?;
            (idle > 0 && workers["memory_bytes"].as_u64()? > 1 << 16).then_some(())
        });
    }
    let limited = daemon_with(DaemonOptions {
        config: Some("[limits]\nmemory_mb = 1\n".to_owned()),
        ..on(Machine::WithoutCgroups)
    });
    limited.upload_code("lab", &json!({"scale": {"idle_s": 900}}), ECHO);
    assert_eq!(answer(&limited, "lab", json!(1)), json!(1));
    eventually("an idle worker is ended for its memory", || {
        (limited.describe("lab")["workers"]["idle"] == 0).then_some(())
    });
}

#[test]
fn strict_mode_refuses_a_machine_that_lacks_something_and_names_it() {
    needs_root!();
    for (machine, lacking) in LACKING {
        for by_argument in [true, false] {
            let mut options = on(machine);
            if by_argument {
                options.arguments.push("--strict".to_owned());
            } else {
                options.config = Some("strict = true\n".to_owned());
            }
            let (code, log) = Daemon::refuses_to_start(env!("CARGO_BIN_EXE_pilot"), options);
            assert_eq!(code, Some(1), "{machine:?}: {log}");
            let refusal = log.lines().find(|line| line.contains("strict mode: "));
            let refusal = refusal.unwrap_or_else(|| panic!("{machine:?}: {log}"));
            for words in lacking {
                assert!(refusal.contains(words), "{machine:?}: {refusal}");
            }
        }
    }
}

#[test]
fn strict_mode_serves_where_nothing_is_missing() {
    needs_root!();
    let missing = reasons(&daemon());
    if !missing.is_empty() {
        skip(&format!("a machine that lacks nothing: {missing:?}"));
        return;
    }
    let daemon = daemon_with(DaemonOptions {
        arguments: vec!["--strict".to_owned()],
        ..DaemonOptions::default()
    });
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(answer(&daemon, "lab", json!(1)), json!(1));
}

#[test]
fn a_strict_umask_of_the_administrator_keeps_no_function_from_its_files() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut daemon = Command::new("sh")
        .args(["-c", "umask 077; exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_pilot"), "serve", "--data-dir"])
        .arg(&data)
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pilot = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_pilot"))
            .args(arguments)
            .args(["--endpoint", &format!("unix:{}", data.display())])
            .output()
            .unwrap()
    };
    eventually("it answers", || {
        pilot(&["list"]).status.success().then_some(())
    });
    let project = Project::function("lab", ECHO, "");
    let deployed = pilot(&["deploy", &project.path().display().to_string()]);
    assert!(deployed.status.success(), "{deployed:?}");
    let invoked = pilot(&["invoke", "lab", "--data", "7"]);
    assert_eq!(
        String::from_utf8_lossy(&invoked.stdout),
        "7\n",
        "{invoked:?}"
    );
    terminate(&mut daemon);
}
