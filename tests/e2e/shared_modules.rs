//! Modules of an environment's packages that the code of several functions imports: one template imports them for all of these, and no
//! function notices.

use std::time::{Duration, Instant};

use pilot_harness::{Daemon, Project, eventually};
use serde_json::{Value, json};

use crate::own_imports::wheel_of;
use crate::{answer, daemon};

const HEAVY: &str =
    "import os, parts.light\nMODE = os.environ.get('HEAVY_MODE', 'unset')\nPID = os.getpid()\n";

/// What it needs is a file of the function.
const NEEDS: &str = "import settings, os\nPID = os.getpid()\n";

/// It leaves something open.
const OPEN: &str = "import socket\nlistener = socket.create_server(('127.0.0.1', 0))\n";

/// It waits for what only a function with a variable has.
const WAITS: &str =
    "import os, time\nwhile 'HEAVY_MODE' not in os.environ: time.sleep(0.1)\nPID = os.getpid()\n";

/// It ends the template that imports it.
const ENDS: &str = "import os\nos._exit(3)\n";

const USES: &str = "import os, sys\nimport parts.heavy\n\ndef handler(event, context):\n    return [parts.heavy.PID, parts.heavy.MODE]\n";

/// Another handler in the same folder, so that the environment is the same.
const WITHOUT: &str =
    "import sys, parts\ndef handler(event, context):\n    return 'parts.heavy' in sys.modules\n";

/// A function with a package of several modules in its requirements.
fn function(name: &str, code: &str, keys: &str) -> Project {
    let wheel = wheel_of(
        "parts",
        &[
            ("parts/__init__.py", ""),
            ("parts/light.py", ""),
            ("parts/heavy.py", HEAVY),
            ("parts/needs.py", NEEDS),
            ("parts/open.py", OPEN),
            ("parts/ends.py", ENDS),
            ("parts/waits.py", WAITS),
        ],
    );
    Project::function(name, code, keys)
        .file("parts-1.0-py3-none-any.whl", wheel)
        .file("requirements.txt", "./parts-1.0-py3-none-any.whl\n")
        .file("settings.py", "")
        .file("without.py", WITHOUT)
}

fn restart(daemon: &mut Daemon) {
    daemon.kill();
    daemon.resume();
}

fn environments(daemon: &Daemon) -> Option<u32> {
    let metrics = daemon.get("/metrics").text();
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("pilot_templates{level=\"environment\"} "))?;
    line.parse().ok()
}

#[test]
fn functions_with_the_same_modules_share_their_imports() {
    let mut daemon = daemon();
    for name in ["one", "other", "third"] {
        daemon.deploy(&function(name, USES, ""));
        assert_eq!(
            daemon.describe(name)["template"]["modules"],
            json!(["parts.heavy"])
        );
    }
    daemon.deploy(&function("without", USES, "handler = \"without.handler\""));
    assert_eq!(
        daemon.describe("without")["template"]["modules"],
        Value::Null
    );
    let imported_by = |daemon: &Daemon| {
        ["one", "other", "third"].map(|name| answer(daemon, name, json!({}))[0].clone())
    };
    for is_restarted in [false, true] {
        if is_restarted {
            restart(&mut daemon);
        }
        let [one, other, third] = imported_by(&daemon);
        assert!(one != other, "nobody knew that there would be two");
        assert_eq!(other, third, "both are forked from the same imports");
        assert_eq!(answer(&daemon, "without", json!({})), false);
        assert_eq!(environments(&daemon), Some(2));
    }
    // What the deployment found out stays, also if it is deployed again.
    daemon.deploy(&function("third", USES, "timeout_s = 7"));
    daemon.deploy(&function("other", USES, ""));
    for name in ["other", "third"] {
        assert_eq!(
            daemon.describe(name)["template"]["modules"],
            json!(["parts.heavy"])
        );
    }
    for name in ["one", "other", "third"] {
        daemon.cli_ok(&["remove", name]);
    }
    eventually("the template of their modules has ended", || {
        (environments(&daemon) == Some(1)).then_some(())
    });
    daemon.cli_ok(&["remove", "without"]);
    eventually("the template of their environment has ended, too", || {
        (environments(&daemon) == Some(0)).then_some(())
    });
}

#[test]
fn a_function_that_would_notice_shared_modules_imports_them_itself() {
    let mut daemon = daemon();
    daemon.deploy(&function("one", USES, ""));
    daemon.deploy(&function(
        "other",
        USES,
        "environment = { HEAVY_MODE = \"mine\" }",
    ));
    for is_restarted in [false, true] {
        if is_restarted {
            restart(&mut daemon);
        }
        for _ in 0..2 {
            assert_eq!(answer(&daemon, "one", json!({}))[1], "unset");
            assert_eq!(answer(&daemon, "other", json!({}))[1], "mine");
        }
    }
    assert_eq!(daemon.describe("other")["template"]["reason"], Value::Null);
}

#[test]
fn modules_that_only_work_in_a_function_are_imported_there() {
    let mut daemon = daemon();
    let code = "import parts.needs\ndef handler(event, context):\n    return parts.needs.PID\n";
    // Nobody knows it until a second function has tried to share them.
    for (name, modules) in [
        ("one", json!(["parts.needs"])),
        ("other", Value::Null),
        ("third", Value::Null),
    ] {
        daemon.deploy(&function(name, code, ""));
        assert_eq!(daemon.describe(name)["template"]["modules"], modules);
    }
    for is_restarted in [false, true] {
        if is_restarted {
            restart(&mut daemon);
        }
        let [one, other, third] =
            ["one", "other", "third"].map(|name| answer(&daemon, name, json!({})));
        assert!(one != other && other != third && one != third);
    }
}

/// One deployment waits for an import that hangs in the template that was to be shared. No other one does, and no request.
#[test]
fn a_shared_import_that_hangs_is_given_up_once() {
    let mut daemon = daemon();
    let code = "import parts.waits\ndef handler(event, context):\n    return parts.waits.PID\n";
    let deployed = |daemon: &Daemon, name: &str| {
        let begun = Instant::now();
        daemon.deploy(&function(
            name,
            code,
            "environment = { HEAVY_MODE = \"mine\" }",
        ));
        begun.elapsed()
    };
    deployed(&daemon, "one");
    let given_up = Duration::from_secs(20);
    let waited = deployed(&daemon, "other");
    assert!(
        (given_up..given_up * 2).contains(&waited),
        "{waited:?}: it has not been tried, or not been given up"
    );
    let next = deployed(&daemon, "third");
    assert!(next < given_up, "{next:?}");
    restart(&mut daemon);
    let begun = Instant::now();
    for name in ["one", "other", "third"] {
        answer(&daemon, name, json!({}));
    }
    let answered = begun.elapsed();
    assert!(answered < given_up, "{answered:?}");
}

#[test]
fn modules_whose_imports_leave_something_open_are_not_shared() {
    let daemon = daemon();
    let code = "import parts.open\ndef handler(event, context):\n    return 1\n";
    daemon.deploy(&function("one", code, ""));
    let template = &daemon.describe("one")["template"];
    assert_eq!(template["modules"], Value::Null, "{template}");
    assert_ne!(template["findings"], json!([]), "{template}");
}

/// Functions that say they import what they do not: modules that end the process or do not exist, too many, and what is no name.
#[test]
fn what_a_function_claims_to_import_harms_no_other_one() {
    let forged = |names: &str| {
        format!(
            "import importlib._bootstrap\nimport parts.heavy\n\
             importlib._bootstrap._find_and_load.__self__.direct[:] = {names}\n\
             def handler(event, context):\n    return 'served'\n"
        )
    };
    let mut daemon = daemon();
    let claims = [
        ("ends", "['parts.ends']", json!(["parts.ends"])),
        ("missing", "['no.such.module']", json!(["no.such.module"])),
        ("path", "['../../etc/passwd']", Value::Null),
        (
            "many",
            "[f'parts.m{number}' for number in range(10_000)]",
            Value::Null,
        ),
    ];
    let names = || {
        let kinds = claims.iter().map(|(kind, ..)| kind);
        kinds.flat_map(|kind| ["1", "2"].map(|number| format!("{kind}-{number}")))
    };
    for (kind, names, kept) in &claims {
        // The second one has tried to share them.
        for (number, kept) in [("1", kept), ("2", &Value::Null)] {
            let name = format!("{kind}-{number}");
            daemon.deploy(&function(&name, &forged(names), ""));
            assert_eq!(daemon.describe(&name)["template"]["modules"], *kept);
        }
    }
    for name in ["one", "other", "third"] {
        daemon.deploy(&function(name, USES, ""));
    }
    let problem = daemon.deploy_fails(&function("types", &forged("[None, 1]"), ""));
    assert!(problem.contains("sent an invalid message"), "{problem}");
    restart(&mut daemon);
    for name in names().chain(names()) {
        assert_eq!(answer(&daemon, &name, json!({})), "served", "{name}");
    }
    let [_, other, third] =
        ["one", "other", "third"].map(|name| answer(&daemon, name, json!({}))[0].clone());
    assert_eq!(other, third, "they share what they import");
    let log = daemon.log();
    for name in ["ends-2", "missing-2"] {
        let said = log.lines().any(|line| {
            line.contains("its modules are not shared")
                && line.contains(&format!("function={name} "))
        });
        assert!(said, "{name}: {log}");
    }
}
