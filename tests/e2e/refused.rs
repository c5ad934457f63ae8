//! Deployments that must be refused: each error says what to change, and the old version keeps serving.

use pilot_harness::{ArchiveEntry, Daemon, Project, Request, archive, multipart, needs_root};
use serde_json::{Value, json};

use crate::{ECHO, answer, daemon, plain};

const GOOD: &str = "def handler(event, context):\n    return 'the old one'\n";

/// A daemon with a working version of `lab`.
#[track_caller]
fn serving() -> Daemon {
    crate::lab(GOOD, plain())
}

/// Deploys `project` over it. It must be refused with all of `words`, and the old version must serve.
#[track_caller]
fn refused(project: &Project, words: &[&str]) {
    let daemon = serving();
    let printed = daemon.deploy_fails(project);
    for word in words {
        assert!(printed.contains(word), "no {word:?} in: {printed}");
    }
    still_serving(&daemon);
}

#[track_caller]
fn still_serving(daemon: &Daemon) {
    assert_eq!(answer(daemon, "lab", json!({})), "the old one");
    assert_eq!(daemon.describe("lab")["number"], 1);
}

/// Uploads `entries` over it, which must be refused.
#[track_caller]
fn archive_refused(entries: &[ArchiveEntry]) -> Value {
    let mut all = vec![ArchiveEntry::text("app.py", ECHO)];
    all.extend_from_slice(entries);
    upload_refused(&archive(&all))
}

#[track_caller]
fn upload_refused(bytes: &[u8]) -> Value {
    let daemon = serving();
    let (status, event) = daemon.upload("lab", &plain(), bytes);
    assert!(
        status >= 400 || event["event"] == "failed",
        "{status} {event}"
    );
    let message = event["message"].as_str().unwrap_or("");
    assert!(!message.is_empty(), "no message: {event}");
    still_serving(&daemon);
    event
}

#[test]
fn a_form_that_has_a_part_twice() {
    let daemon = serving();
    let code = archive(&[ArchiveEntry::text("app.py", ECHO)]);
    let spec = ("spec", "application/json", &b"{}"[..]);
    let code = ("code", "application/gzip", &code[..]);
    for (parts, twice) in [
        ([code, code, spec], "'code' twice"),
        ([spec, spec, code], "'spec' twice"),
    ] {
        let (kind, form) = multipart(&parts);
        let request = Request::new("PUT", "/_pilot/v1/functions/lab");
        let refused = daemon.send(&request.header("content-type", &kind).body(form));
        assert_eq!(refused.status, 400);
        let text = refused.text();
        assert!(text.contains(twice), "{text}");
    }
    still_serving(&daemon);
}

#[test]
fn a_handler_module_that_is_not_there() {
    refused(
        &Project::empty()
            .file("other.py", "x = 1\n")
            .manifest("lab", "handler = \"app.handler\""),
        &["app"],
    );
}

#[test]
fn a_handler_attribute_that_is_not_there() {
    refused(
        &Project::function("lab", "def handle(event, context):\n    pass\n", ""),
        &["handler", "app"],
    );
}

#[test]
fn a_handler_that_cannot_be_called() {
    refused(&Project::function("lab", "handler = 5\n", ""), &["handler"]);
}

#[test]
fn an_import_that_fails_shows_its_traceback() {
    refused(
        &Project::function("lab", "import json\nimport no_such_module_here\n", ""),
        &[
            "Unable to import module",
            "no_such_module_here",
            "app.py",
            "line 2",
        ],
    );
}

#[test]
fn an_exception_at_import_shows_its_traceback() {
    refused(
        &Project::function("lab", "def load():\n    return 1 / 0\n\nload()\n", ""),
        &["ZeroDivisionError", "line 2", "load"],
    );
}

#[test]
fn a_syntax_error_shows_its_line() {
    refused(
        &Project::function("lab", "def handler(event, context:\n", ""),
        &["SyntaxError", "app.py"],
    );
}

#[test]
fn a_module_that_exits_while_it_is_imported() {
    refused(
        &Project::function("lab", "import sys\nsys.exit(3)\n", ""),
        &["exit"],
    );
}

#[test]
fn a_module_that_kills_itself_while_it_is_imported() {
    refused(
        &Project::function("lab", "import os\nos.kill(os.getpid(), 9)\n", ""),
        &["lab"],
    );
}

#[test]
fn a_module_that_takes_all_memory_while_it_is_imported() {
    needs_root!();
    refused(
        &Project::function(
            "lab",
            "x = bytearray(3 << 30)\nfor at in range(0, len(x), 4096):\n    x[at] = 1\n",
            "memory_mb = 64",
        ),
        &["memory"],
    );
}

#[test]
fn a_module_that_ends_before_its_children_while_it_is_imported() {
    let began = std::time::Instant::now();
    refused(
        &Project::function(
            "lab",
            "import os, time\nif os.fork() == 0:\n    time.sleep(100)\nos._exit(4)\n",
            "",
        ),
        &["exit"],
    );
    assert!(
        began.elapsed().as_secs() < 20,
        "noticed after {:?}",
        began.elapsed()
    );
}

#[test]
fn a_traceback_is_shown_once() {
    for code in [
        "print('before')\nassert False\n",
        "print('before')\nraise ValueError('no')\n",
    ] {
        let printed = daemon().deploy_fails(&Project::function("lab", code, ""));
        assert_eq!(printed.matches("Traceback").count(), 1, "{printed}");
        assert!(printed.contains("before"), "{printed}");
    }
}

#[test]
fn code_that_breaks_the_worker_itself_while_it_is_imported() {
    for code in [
        "import json\njson.dumps = None\ndef handler(event, context):\n    pass\n",
        // The template of this one works, but no worker starts.
        "import asyncio\nasyncio.new_event_loop = None\nasync def handler(event, context):\n    pass\n",
    ] {
        let words = [
            "replaces parts of the standard library",
            "do not replace them",
        ];
        refused(&Project::function("lab", code, ""), &words);
    }
}

#[test]
fn an_import_that_fails_in_a_worker_that_has_no_template() {
    let code = "import no_such_module\ndef handler(event, context):\n    pass\n";
    let words = [
        "could not be imported",
        "No module named 'no_such_module'",
        "app.py\", line 1",
    ];
    refused(
        &Project::function("lab", code, "template = \"off\""),
        &words,
    );
}

#[test]
fn a_startup_that_fails_in_every_worker() {
    let hook = "from snapshot_restore_py import register_after_restore\n@register_after_restore\ndef no():\n    raise ValueError('not here')\ndef handler(event, context):\n    pass\n";
    let lifespan = "async def app(scope, receive, send):\n    if scope['type'] == 'lifespan':\n        await receive()\n        await send({'type': 'lifespan.startup.failed', 'message': 'not here'})\n";
    for (code, keys) in [
        (hook, ""),
        (lifespan, "interface = \"asgi\"\nhandler = \"app:app\""),
    ] {
        let words = ["a worker does not start", "not here", "startup"];
        refused(&Project::function("lab", code, keys), &words);
    }
}

#[test]
fn an_unknown_key_names_the_nearest_known_one() {
    refused(
        &Project::function("lab", ECHO, "memory_md = 64"),
        &["memory_md", "memory_mb"],
    );
    refused(
        &Project::function("lab", ECHO, "scale.idel_s = 6"),
        &["idel_s", "idle_s"],
    );
}

#[test]
fn an_unknown_key_sent_past_the_command_line_names_the_nearest_one_too() {
    let daemon = serving();
    let code = archive(&[ArchiveEntry::text("app.py", ECHO)]);
    let (status, event) = daemon.upload("lab", &json!({"timeout": 3}), &code);
    assert!(
        status == 400 || event["event"] == "failed",
        "{status} {event}"
    );
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("timeout_s"), "{message}");
    still_serving(&daemon);
}

#[test]
fn a_value_out_of_range_says_what_would_do() {
    let daemon = daemon();
    for (keys, words) in [
        ("memory_mb = 1", ["memory_mb", "16"]),
        ("timeout_s = 0", ["timeout_s", "0.01"]),
        ("network = \"nnone\"", ["network", "outbound"]),
        ("runtime = \"pyhton\"", ["runtime", "python"]),
        ("handler = \"app\"", ["handler", "app.handler"]),
        ("scale.max = 0", ["scale.max", "1"]),
    ] {
        let printed = daemon.deploy_fails(&Project::function("lab", ECHO, keys));
        for word in words {
            assert!(printed.contains(word), "{keys}: no {word:?} in: {printed}");
        }
    }
}

#[test]
fn a_value_of_the_wrong_type_names_file_line_function_and_key() {
    let daemon = daemon();
    for (keys, wanted) in [
        (
            "memory_mb = \"much\"",
            "pilot.toml:3: functions.lab.memory_mb: is \"much\", must be a whole number",
        ),
        (
            "environment = { LEVEL = 5 }",
            "pilot.toml:3: functions.lab.environment.LEVEL: is 5, must be a text in quotes",
        ),
    ] {
        let printed = daemon.deploy_fails(&Project::function("lab", ECHO, keys));
        assert!(printed.contains(wanted), "{keys}: {printed}");
    }
    let files = archive(&[ArchiveEntry::text("app.py", ECHO)]);
    let (status, error) = daemon.upload("lab", &json!({"memory_mb": "much"}), &files);
    assert_eq!(status, 400, "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("memory_mb: is \"much\", must be a whole number, not below 0"),
        "{message}"
    );
}

#[test]
fn a_manifest_that_is_not_toml_names_its_line() {
    refused(
        &Project::empty()
            .file("app.py", ECHO)
            .file("pilot.toml", "[functions.lab]\nhandler = \n"),
        &["pilot.toml", "2"],
    );
}

#[test]
fn a_folder_without_manifest_and_code_says_so() {
    let daemon = daemon();
    let printed = daemon.deploy_fails(&Project::empty().file("notes.txt", "x"));
    assert!(printed.contains("pilot.toml"), "{printed}");
}

#[test]
fn a_requirement_that_cannot_be_installed() {
    refused(
        &Project::function("lab", ECHO, "").file("requirements.txt", "six==99.99.99\n"),
        &["six==99.99.99"],
    );
}

#[test]
fn a_requirements_file_that_is_not_one() {
    refused(
        &Project::function("lab", ECHO, "")
            .file("requirements.txt", "this is = not [a requirement\n"),
        &["requirement"],
    );
}

#[test]
fn an_interpreter_that_is_not_installed() {
    refused(
        &Project::function("lab", ECHO, "runtime = \"python3.99\""),
        &["3.99"],
    );
}

#[test]
fn an_archive_that_climbs_out() {
    let event = archive_refused(&[ArchiveEntry::text("../../climbed.py", "x")]);
    assert!(event.to_string().contains("climbed.py"), "{event}");
    archive_refused(&[ArchiveEntry::text("a/../../climbed.py", "x")]);
}

#[test]
fn an_archive_with_an_absolute_name() {
    let target = std::env::temp_dir().join(format!("pilot-absolute-{}", std::process::id()));
    let name = target.display().to_string();
    archive_refused(&[ArchiveEntry::text(&name, "x")]);
    assert!(!target.exists());
}

#[test]
fn an_archive_with_links() {
    archive_refused(&[ArchiveEntry::Symlink("passwd".into(), "/etc/passwd".into())]);
    archive_refused(&[ArchiveEntry::Hardlink(
        "passwd".into(),
        "/etc/passwd".into(),
    )]);
}

#[test]
fn an_archive_that_writes_through_a_link() {
    let target = std::env::temp_dir().join(format!("pilot-through-{}", std::process::id()));
    archive_refused(&[
        ArchiveEntry::Symlink("out".into(), std::env::temp_dir().display().to_string()),
        ArchiveEntry::text(&format!("out/pilot-through-{}", std::process::id()), "x"),
    ]);
    assert!(!target.exists());
}

#[test]
fn an_archive_with_devices_or_pipes() {
    archive_refused(&[ArchiveEntry::Device("null".into())]);
    archive_refused(&[ArchiveEntry::Fifo("pipe".into())]);
}

#[test]
fn an_archive_that_is_none_or_is_cut_off() {
    upload_refused(b"certainly not gzip");
    let whole = archive(&[ArchiveEntry::File("app.py".into(), vec![b'#'; 4096])]);
    upload_refused(&whole[..whole.len() / 2]);
    upload_refused(&[]);
}

#[test]
fn an_archive_that_unpacks_to_more_than_the_limit() {
    let event = archive_refused(&[ArchiveEntry::File("zeros.bin".into(), vec![0; 600 << 20])]);
    assert_eq!(event["code"], "too_large", "{event}");
    assert!(event.to_string().contains("zeros.bin"), "{event}");
}

#[test]
fn a_name_that_is_none() {
    let daemon = daemon();
    let code = archive(&[ArchiveEntry::text("app.py", ECHO)]);
    let (status, event) = daemon.upload("a.b", &plain(), &code);
    assert_eq!(status, 400, "{event}");
}

#[test]
fn a_first_deploy_that_fails_leaves_nothing() {
    let daemon = daemon();
    daemon.deploy_fails(&Project::function(
        "lab",
        "import no_such_module_here\n",
        "",
    ));
    assert_eq!(daemon.invoke("lab", &json!({})).status, 404);
    assert_eq!(daemon.get("/_pilot/v1/functions").ok().json(), json!([]));
}

#[test]
fn a_template_whose_report_is_longer_than_a_message() {
    let code = r#"
import sys
row = {"where": "a", "what": "b" * 2000, "instead": "c"}
sys.modules["pilot_worker.forking.findings"].Report.rows = lambda self: [row] * 200

def handler(event, context):
    return event
"#;
    refused(&Project::function("lab", code, ""), &["template"]);
}
