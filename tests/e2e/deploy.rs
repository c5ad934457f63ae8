//! Deployments: reports, versions, environments, and that the old version serves until the new one does.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use pilot_harness::{ArchiveEntry, Need, Project, archive, eventually_within, needs};
use serde_json::json;

use crate::{ECHO, answer, daemon, lab, plain};

#[test]
fn a_deploy_reports_version_template_memory_imports_and_forkability() {
    let daemon = daemon();
    let report = daemon.upload_code(
        "lab",
        &plain(),
        "import json, decimal\n\ndef handler(event, context):\n    return 1\n",
    );
    assert_eq!(report["name"], "lab");
    assert_eq!(report["number"], 1);
    assert_eq!(report["changed"], true);
    assert_eq!(report["version"].as_str().map(str::len), Some(16));
    assert_eq!(report["url_path"], "/fn/lab/");
    let template = &report["template"];
    assert_eq!(template["forkable"], true, "{template}");
    assert!(
        template["memory_bytes"].as_u64() > Some(1 << 20),
        "{template}"
    );
    assert!(
        template["python"].as_str().unwrap().starts_with("3."),
        "{template}"
    );
    let imports = template["imports"].as_array().unwrap();
    assert!(!imports.is_empty(), "{template}");
    let times: Vec<f64> = imports
        .iter()
        .map(|import| import["ms"].as_f64().unwrap())
        .collect();
    assert!(
        times.is_sorted_by(|a, b| a >= b),
        "slowest first: {times:?}"
    );
}

#[test]
fn the_command_line_prints_the_report() {
    let daemon = daemon();
    let project = Project::function("lab", ECHO, "");
    let printed = daemon.deploy(&project);
    assert!(printed.contains("lab"), "{printed}");
    let version = daemon.describe("lab")["version"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        printed.contains(&version[..8]),
        "{version} is not in {printed}"
    );
}

#[test]
fn deploying_the_same_again_changes_nothing() {
    let daemon = lab(ECHO, plain());
    let again = daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(again["changed"], false, "{again}");
    assert_eq!(again["number"], 1, "{again}");
}

#[test]
fn a_new_version_takes_over_with_the_next_number() {
    let daemon = lab("def handler(event, context):\n    return 'old'\n", plain());
    assert_eq!(answer(&daemon, "lab", json!({})), "old");
    let report = daemon.upload_code(
        "lab",
        &plain(),
        "def handler(event, context):\n    return 'new'\n",
    );
    assert_eq!(report["number"], 2);
    assert_eq!(answer(&daemon, "lab", json!({})), "new");
}

#[test]
fn going_back_to_an_old_version_is_a_deploy_like_any_other() {
    let old = "def handler(event, context):\n    return 'old'\n";
    let daemon = lab(old, plain());
    daemon.upload_code(
        "lab",
        &plain(),
        "def handler(event, context):\n    return 'new'\n",
    );
    daemon.upload_code("lab", &plain(), old);
    assert_eq!(answer(&daemon, "lab", json!({})), "old");
}

#[test]
fn a_change_of_configuration_alone_is_a_new_version() {
    let code = "import os\ndef handler(event, context):\n    return os.environ.get('LEVEL')\n";
    let daemon = lab(code, json!({"environment": {"LEVEL": "info"}}));
    assert_eq!(answer(&daemon, "lab", json!({})), "info");
    let report = daemon.upload_code("lab", &json!({"environment": {"LEVEL": "debug"}}), code);
    assert_eq!(report["changed"], true);
    assert_eq!(answer(&daemon, "lab", json!({})), "debug");
}

#[test]
fn an_invocation_that_runs_during_a_deploy_finishes_on_the_old_version() {
    let slow = "import time\ndef handler(event, context):\n    print('begun', flush=True)\n    time.sleep(1.5)\n    return 'old'\n";
    let daemon = lab(slow, plain());
    thread::scope(|scope| {
        let running = scope.spawn(|| answer(&daemon, "lab", json!({})));
        pilot_harness::eventually("the old version is busy", || {
            (daemon.workers("lab", "busy") == 1).then_some(())
        });
        daemon.upload_code(
            "lab",
            &plain(),
            "def handler(event, context):\n    return 'new'\n",
        );
        assert_eq!(answer(&daemon, "lab", json!({})), "new");
        assert_eq!(running.join().unwrap(), "old");
    });
}

#[test]
fn requests_never_fail_while_versions_change() {
    let code = |number: u32| format!("def handler(event, context):\n    return {number}\n");
    let daemon = lab(&code(0), plain());
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut seen = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                seen.push(answer(&daemon, "lab", json!({})).as_u64().unwrap());
            }
            seen
        });
        for number in 1..5 {
            daemon.upload_code("lab", &plain(), &code(number));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = client.join().unwrap();
        assert!(
            seen.is_sorted(),
            "a version came back after a newer one: {seen:?}"
        );
    });
    assert_eq!(answer(&daemon, "lab", json!({})), 4);
}

#[test]
fn requirements_are_installed_once_and_shared_by_equal_sets() {
    needs!(Need::Network);
    let daemon = daemon();
    let code = "import six\ndef handler(event, context):\n    return six.__version__\n";
    let upload = |name: &str, requirements: &str| {
        let files = archive(&[
            ArchiveEntry::text("app.py", code),
            ArchiveEntry::text("requirements.txt", requirements),
        ]);
        let (status, event) = daemon.upload(name, &plain(), &files);
        assert!(
            status == 200 && event["event"] == "done",
            "{status} {event}"
        );
        event
    };
    assert_eq!(upload("one", "six==1.17.0\n")["environment_reused"], false);
    assert_eq!(
        upload("two", "# a comment\nsix==1.17.0\n")["environment_reused"],
        true
    );
    for name in ["one", "two"] {
        assert_eq!(answer(&daemon, name, json!({})), "1.17.0");
    }
    assert_eq!(
        daemon.describe("one")["environment"],
        daemon.describe("two")["environment"]
    );
}

#[test]
fn dependencies_of_a_pyproject_are_installed() {
    needs!(Need::Network);
    let daemon = daemon();
    let project = Project::function(
        "lab",
        "import six\ndef handler(event, context):\n    return six.__version__\n",
        "",
    )
    .file(
        "pyproject.toml",
        "[project]\nname = \"lab\"\nversion = \"0\"\ndependencies = [\"six==1.17.0\"]\n",
    );
    daemon.deploy(&project);
    assert_eq!(answer(&daemon, "lab", json!({})), "1.17.0");
}

#[test]
fn a_template_with_a_second_thread_is_reported_and_the_function_works_all_the_same() {
    let code = "import threading, time\n\
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n\
        def handler(event, context):\n    return threading.active_count()\n";
    let daemon = daemon();
    let report = daemon.upload_code("lab", &plain(), code);
    assert_eq!(report["template"]["forkable"], false, "{report}");
    let reason = report["template"]["reason"].as_str().unwrap();
    assert!(reason.contains("thread"), "{reason}");
    assert_eq!(
        answer(&daemon, "lab", json!({})),
        2,
        "the thread runs in the worker"
    );
}

#[test]
fn files_beside_the_handler_are_there_and_cannot_be_written() {
    let code = "import errno, os\n\
        def handler(event, context):\n    \
            text = open('data/words.txt').read()\n    \
            try:\n        open('data/words.txt', 'w')\n    \
            except OSError as error:\n        return [text, os.getcwd(), errno.errorcode[error.errno]]\n";
    let daemon = daemon();
    daemon.deploy(&Project::function("lab", code, "").file("data/words.txt", "beside"));
    let said = answer(&daemon, "lab", json!({}));
    assert_eq!(said[0], "beside");
    assert_eq!(said[1], "/var/task");
    assert!(said[2] == "EROFS" || said[2] == "EACCES", "{said}");
}

#[test]
fn a_handler_in_a_package_is_found() {
    let daemon = daemon();
    let project = Project::empty()
        .file("shop/__init__.py", "")
        .file("shop/orders.py", "from .prices import PEAR\ndef total(event, context):\n    return PEAR * event['pieces']\n")
        .file("shop/prices.py", "PEAR = 3\n")
        .manifest("lab", "handler = \"shop.orders.total\"");
    daemon.deploy(&project);
    assert_eq!(answer(&daemon, "lab", json!({"pieces": 4})), 12);
}

#[test]
fn up_deploys_every_function_of_the_manifest() {
    let daemon = daemon();
    let project = Project::empty()
        .file("a/app.py", "def handler(event, context):\n    return 'a'\n")
        .file("b/app.py", "def handler(event, context):\n    return 'b'\n")
        .file(
            "pilot.toml",
            "[functions.a]\npath = \"a\"\n[functions.b]\npath = \"b\"\n",
        );
    daemon.cli_ok(&["up", &project.path().display().to_string()]);
    assert_eq!(answer(&daemon, "a", json!({})), "a");
    assert_eq!(answer(&daemon, "b", json!({})), "b");
}

#[test]
fn a_removed_function_is_gone_and_can_come_back() {
    let daemon = lab(ECHO, plain());
    daemon.cli_ok(&["remove", "lab"]);
    assert_eq!(daemon.invoke("lab", &json!({})).status, 404);
    assert_eq!(daemon.get("/_pilot/v1/functions/lab").status, 404);
    daemon.upload_code("lab", &plain(), ECHO);
    assert_eq!(answer(&daemon, "lab", json!(5)), 5);
}

#[test]
fn ctrl_c_says_how_far_a_deployment_is() {
    let daemon = daemon();
    let project = Project::function("slow", &format!("import time\ntime.sleep(5)\n{ECHO}"), "");
    let mut child = daemon
        .command(&["deploy", &project.path().display().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut told = lines.by_ref().map_while(Result::ok);
    let trial = told.find(|line| line.contains("1 file,"));
    assert!(trial.is_some(), "the daemon has the code");
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let said: Vec<String> = told.collect();
    assert!(
        said.last().is_some_and(|line| line.contains(
            "interrupted: the daemon has the code of 'slow' and goes on with its deployment"
        )),
        "{said:?}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(130));
    eventually_within(Duration::from_secs(30), "the daemon deploys it", || {
        (daemon.cli(&["describe", "slow"]).status.success()).then_some(())
    });
}
