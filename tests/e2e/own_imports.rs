//! Packages that read variables or replace modules when they are imported, and variables that an interpreter reads when it starts: a
//! function must not notice that its worker was forked.

use std::fs::{self, Permissions};
use std::io::{Cursor, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pilot_harness::{
    Daemon, Need, Project, descendants, eventually, eventually_within, is_gone, needs, needs_root,
};
use serde_json::{Value, json};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::{answer, daemon};

/// A package that has one module, as a file for `requirements.txt`.
fn wheel(name: &str, source: &str) -> Vec<u8> {
    wheel_of(name, &[(&format!("{name}.py"), source)])
}

/// A package with these files, as a file for `requirements.txt`.
pub(crate) fn wheel_of(name: &str, files: &[(&str, &str)]) -> Vec<u8> {
    let info = format!("{name}-1.0.dist-info");
    let about = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n");
    let how = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let (metadata, kind, record) = (
        format!("{info}/METADATA"),
        format!("{info}/WHEEL"),
        format!("{info}/RECORD"),
    );
    let own = [(metadata.as_str(), about.as_str()), (&kind, how)];
    let all: Vec<_> = files.iter().copied().chain(own).collect();
    let listed = all.iter().map(|(path, _)| format!("{path},,\n"));
    let record_text = listed.collect::<String>() + &format!("{record},,\n");
    let mut file = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, text) in all
        .into_iter()
        .chain([(record.as_str(), record_text.as_str())])
    {
        file.start_file(path, SimpleFileOptions::default()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }
    file.finish().unwrap().into_inner()
}

/// Reads a variable when it is imported.
const READS: &str = "import os\nMODE = os.environ.get('READS_MODE', 'unset')\nPID = os.getpid()\n";

const USES: &str =
    "import os, sys, reads\n\ndef handler(event, context):\n    return [reads.MODE, reads.PID]\n";

/// A function with the package `reads` in its requirements.
fn function(name: &str, code: &str, keys: &str) -> Project {
    Project::function(name, code, keys)
        .file("reads-1.0-py3-none-any.whl", wheel("reads", READS))
        .file("requirements.txt", "./reads-1.0-py3-none-any.whl\n")
}

fn reason(daemon: &Daemon, function: &str) -> Value {
    let template = &daemon.describe(function)["template"];
    assert_eq!(template["forkable"], true, "{template}");
    template["reason"].clone()
}

#[test]
fn a_variable_that_a_package_reads_at_import_counts_for_its_function_alone() {
    let daemon = daemon();
    daemon.deploy(&function("plain", USES, "environment = { OTHER = \"x\" }"));
    let own = function("own", USES, "environment = { READS_MODE = \"mine\" }");
    let said = daemon.deploy(&own);
    let why = "its template does its own imports, because reads reads READS_MODE at import";
    assert!(said.contains(why), "{said}");
    daemon.deploy(&function("also", USES, ""));
    let (plain, own, also) = (
        answer(&daemon, "plain", json!({})),
        answer(&daemon, "own", json!({})),
        answer(&daemon, "also", json!({})),
    );
    assert_eq!((&plain[0], &own[0]), (&json!("unset"), &json!("mine")));
    assert_eq!(plain, also, "both are forked from the same imports");
    assert_eq!(reason(&daemon, "plain"), Value::Null);
    assert_eq!(reason(&daemon, "own"), why);
}

#[test]
fn after_a_restart_such_a_function_begins_with_its_own_imports() {
    const SLOW_WITHOUT: Duration = Duration::from_secs(8);
    let mut daemon = daemon();
    let slow = format!(
        "{READS}\nimport time\nif MODE == 'unset': time.sleep({})\n",
        SLOW_WITHOUT.as_secs()
    );
    let own = Project::function("own", USES, "environment = { READS_MODE = \"mine\" }")
        .file("reads-1.0-py3-none-any.whl", wheel("reads", &slow))
        .file("requirements.txt", "./reads-1.0-py3-none-any.whl\n");
    let begun = Instant::now();
    daemon.deploy(&own);
    assert!(
        begun.elapsed() >= SLOW_WITHOUT,
        "its deployment tried the shared imports"
    );
    let said = reason(&daemon, "own");
    daemon.kill();
    daemon.resume();
    let begun = Instant::now();
    assert_eq!(answer(&daemon, "own", json!({}))[0], "mine");
    assert!(
        begun.elapsed() < SLOW_WITHOUT,
        "the shared imports were made again"
    );
    assert_eq!(reason(&daemon, "own"), said);
}

#[test]
fn a_template_that_is_made_again_begins_with_its_own_imports() {
    needs_root!();
    let daemon = daemon();
    daemon.deploy(&function(
        "own",
        USES,
        "environment = { READS_MODE = \"mine\" }",
    ));
    for pid in interpreters(&daemon) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        eventually("it is gone", || is_gone(pid).then_some(()));
    }
    eventually_within(Duration::from_secs(20), "it serves again", || {
        let response = daemon.invoke("own", &json!({}));
        let failed = response.header("x-amz-function-error").is_some();
        (response.status == 200 && !failed).then(|| assert_eq!(response.json()[0], "mine"))
    });
    // The templates of the interpreter and of the function, and a worker. Shared imports would have a template, too.
    eventually("there are three interpreters", || {
        (interpreters(&daemon).len() == 3).then_some(())
    });
}

#[test]
fn a_template_that_was_killed_is_not_counted() {
    needs_root!();
    let daemon = daemon();
    let counts = |level: &str, count: u32| {
        let line = format!("pilot_templates{{level=\"{level}\"}} {count}\n");
        daemon.get("/metrics").text().contains(&line)
    };
    daemon.deploy(&function("plain", USES, ""));
    // The template of the shared imports that this deployment tried is the other function's.
    daemon.deploy(&function(
        "own",
        USES,
        "environment = { READS_MODE = \"mine\" }",
    ));
    assert!(counts("environment", 1));
    for pid in interpreters(&daemon) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    eventually("it is not counted", || {
        counts("environment", 0).then_some(())
    });
}

#[test]
fn functions_without_a_template_are_not_counted() {
    let daemon = daemon();
    daemon.upload_code(
        "spawned",
        &json!({"template": "off"}),
        "def handler(event, context): pass\n",
    );
    answer(&daemon, "spawned", json!({}));
    let text = daemon.get("/metrics").text();
    assert!(
        text.contains("pilot_templates{level=\"interpreter\"} 1\n"),
        "{text}"
    );
    assert!(
        text.contains("pilot_templates{level=\"function\"} 0\n"),
        "{text}"
    );
}

fn interpreters(daemon: &Daemon) -> Vec<i32> {
    let mut found = descendants(daemon.pid());
    found.retain(|pid| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program.to_string_lossy().contains("python")
    });
    found
}

#[test]
fn a_variable_that_the_code_sets_before_it_imports_a_package_counts() {
    let daemon = daemon();
    let code = format!("import os\nos.environ['READS_MODE'] = 'code'\nprint('once')\n{USES}");
    daemon.deploy(&function("lab", &code, ""));
    assert_eq!(answer(&daemon, "lab", json!({}))[0], "code");
    assert_eq!(
        reason(&daemon, "lab"),
        "its template does its own imports, because reads reads READS_MODE at import, and the code sets it first"
    );
}

#[test]
fn a_package_that_replaces_modules_does_so_before_others_are_imported() {
    let daemon = daemon();
    // As gevent.monkey and requests: one replaces a class, and the other has made a subclass of it.
    let gevent = "def patch_all():\n    import socket\n    class Cooperative(socket.socket): pass\n    socket.socket = Cooperative\n";
    let client = "import socket\nclass Connection(socket.socket): pass\n";
    let code = "import gevent\ngevent.patch_all()\nimport client\n\
                def handler(event, context):\n    return [base.__name__ for base in client.Connection.__mro__[1:3]]\n";
    daemon.deploy(
        &Project::function("lab", code, "")
            .file("gevent-1.0-py3-none-any.whl", wheel("gevent", gevent))
            .file("client-1.0-py3-none-any.whl", wheel("client", client))
            .file(
                "requirements.txt",
                "./client-1.0-py3-none-any.whl\n./gevent-1.0-py3-none-any.whl\n",
            ),
    );
    assert_eq!(
        answer(&daemon, "lab", json!({})),
        json!(["Cooperative", "socket"])
    );
    let reason = reason(&daemon, "lab");
    assert!(
        reason
            .as_str()
            .unwrap()
            .contains("gevent replaces modules of Python"),
        "{reason}"
    );
}

#[test]
fn a_module_of_the_code_has_priority_over_one_that_packages_have_imported() {
    let daemon = daemon();
    let code = "import config, uses\n\ndef handler(event, context):\n    return [config.WHOSE, uses.config.WHOSE]\n";
    let project = |name: &str| {
        Project::function(name, code, "")
            .file(
                "config-1.0-py3-none-any.whl",
                wheel("config", "WHOSE = 'theirs'\n"),
            )
            .file(
                "uses-1.0-py3-none-any.whl",
                wheel("uses", "import config\n"),
            )
            .file(
                "requirements.txt",
                "./config-1.0-py3-none-any.whl\n./uses-1.0-py3-none-any.whl\n",
            )
    };
    daemon.deploy(&project("plain"));
    daemon.deploy(&project("own").file("config.py", "WHOSE = 'mine'\n"));
    assert_eq!(
        answer(&daemon, "plain", json!({})),
        json!(["theirs", "theirs"])
    );
    assert_eq!(answer(&daemon, "own", json!({})), json!(["mine", "mine"]));
    assert_eq!(reason(&daemon, "plain"), Value::Null);
    assert_eq!(
        reason(&daemon, "own"),
        "its template does its own imports, because the code has config.py, and the packages have imported another module config"
    );
}

#[test]
fn a_module_of_the_code_has_priority_over_one_of_python() {
    let code = "import uuid\n\ndef handler(event, context):\n    return uuid.WHOSE\n";
    let daemon = daemon();
    for template in ["on", "off"] {
        let keys = format!("template = \"{template}\"");
        let project = Project::function(template, code, &keys);
        daemon.deploy(&project.file("uuid.py", "WHOSE = 'mine'\n"));
        assert_eq!(answer(&daemon, template, json!({})), "mine");
    }
}

/// What an interpreter has read when it started.
const STARTED: &str = "import sys, time, reads\n\ndef handler(event, context):\n    \
                       return [hash('abc'), sys.flags.optimize, sys.warnoptions, sys.flags.utf8_mode, sys.dont_write_bytecode, \
                       time.tzname[0], reads.MODE]\n";

#[test]
fn variables_that_an_interpreter_reads_at_its_start_have_their_effect() {
    let keys = "environment = { PYTHONHASHSEED = \"0\", PYTHONOPTIMIZE = \"1\", PYTHONWARNINGS = \"error\", PYTHONUTF8 = \"1\", \
                PYTHONDONTWRITEBYTECODE = \"1\", TZ = \"JST-9\" }";
    let daemon = daemon();
    daemon.deploy(&function("on", STARTED, keys));
    daemon.deploy(&function(
        "off",
        STARTED,
        &format!("template = \"off\"\n{keys}"),
    ));
    daemon.deploy(&function("plain", STARTED, ""));
    let on = answer(&daemon, "on", json!({}));
    let hash = std::process::Command::new("python3")
        .args(["-c", "print(hash('abc'))"])
        .env("PYTHONHASHSEED", "0")
        .output()
        .unwrap();
    let hash: i64 = String::from_utf8(hash.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert_eq!(on, json!([hash, 1, ["error"], 1, true, "JST", "unset"]));
    assert_eq!(answer(&daemon, "off", json!({})), on);
    let plain = answer(&daemon, "plain", json!({}));
    assert_ne!(plain[0], on[0]);
    assert_eq!(
        plain.as_array().unwrap()[1..],
        [
            json!(0),
            json!([]),
            json!(0),
            json!(false),
            json!("UTC"),
            json!("unset")
        ]
    );
    assert_eq!(
        reason(&daemon, "on"),
        "its template does its own imports, because an interpreter reads PYTHONHASHSEED, PYTHONOPTIMIZE, PYTHONUTF8, \
         PYTHONWARNINGS only when it starts"
    );
    assert_eq!(reason(&daemon, "plain"), Value::Null);
}

/// Puts a shared library with the function `answer` into a project.
fn library(project: &Project, path: &str) {
    project.write("answer.c", "int answer(void) { return 42; }\n");
    project.write(path, "");
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o", path, "answer.c"])
        .current_dir(project.path())
        .status();
    assert!(built.unwrap().success(), "no C compiler");
}

#[test]
fn libraries_of_the_code_are_found_by_name() {
    needs!(Need::Program("cc"));
    let code = "import ctypes, os\n\ndef handler(event, context):\n    \
                return [ctypes.CDLL(name).answer() for name in ('libone.so', 'libtwo.so.1')]\n";
    let daemon = daemon();
    for template in ["on", "off"] {
        let project = function(template, code, &format!("template = \"{template}\""));
        library(&project, "libone.so");
        library(&project, "lib/libtwo.so.1");
        daemon.deploy(&project);
        assert_eq!(answer(&daemon, template, json!({})), json!([42, 42]));
    }
    assert_eq!(reason(&daemon, "on"), Value::Null, "it shares its packages");
}

/// A bootstrap that answers one event after another with what its libraries say.
const WITH_LIBRARIES: &str = r#"#!/usr/bin/env python3
import ctypes, json, os, urllib.request
api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
while True:
    with urllib.request.urlopen(api + "next") as event:
        id = event.headers["Lambda-Runtime-Aws-Request-Id"]
        event.read()
    answer = [ctypes.CDLL(name).answer() for name in ("libone.so", "libtwo.so.1")]
    urllib.request.urlopen(urllib.request.Request(api + id + "/response", json.dumps(answer).encode()))
"#;

#[test]
fn libraries_of_the_code_of_other_runtimes_are_found_by_name() {
    needs!(Need::Program("cc"));
    let manifest = "[functions.provided]\npath = \"provided\"\nruntime = \"provided\"\n\
                    [functions.node]\npath = \"node\"\nruntime = \"node\"\n\
                    [functions.own]\npath = \"node\"\nruntime = \"node\"\nenvironment = { LD_LIBRARY_PATH = \"/elsewhere\" }\n";
    // A library that is found is refused because it is no addon.
    let node = "exports.handler = async () => ['libone.so', 'libtwo.so.1'].map((name) => {\n\
                  try { process.dlopen({ exports: {} }, name); } catch (error) { return /self-register/.test(error.message); }\n\
                });\n";
    let project = Project::empty()
        .file("pilot.toml", manifest)
        .file("node/index.js", node)
        .file("provided/bootstrap", WITH_LIBRARIES);
    let bootstrap = project.path().join("provided/bootstrap");
    fs::set_permissions(bootstrap, Permissions::from_mode(0o755)).unwrap();
    for function in ["node", "provided"] {
        library(&project, &format!("{function}/libone.so"));
        library(&project, &format!("{function}/lib/libtwo.so.1"));
    }
    let daemon = daemon();
    daemon.cli_ok(&["up", &project.path().display().to_string()]);
    assert_eq!(answer(&daemon, "provided", json!({})), json!([42, 42]));
    assert_eq!(answer(&daemon, "node", json!({})), json!([true, true]));
    assert_eq!(answer(&daemon, "own", json!({})), json!([false, false]));
}

#[test]
fn the_dynamic_linker_has_the_variables_of_the_function() {
    needs!(Need::Program("cc"));
    let code = "import ctypes\n\ndef handler(event, context):\n    \
                return [ctypes.CDLL('libanswer.so').answer(), ctypes.CDLL(None).answer()]\n";
    let keys = "environment = { LD_LIBRARY_PATH = \"/var/task/native\", LD_PRELOAD = \"/var/task/libfirst.so\" }";
    let project = Project::function("lab", code, keys);
    library(&project, "native/libanswer.so");
    library(&project, "libfirst.so");
    let daemon = daemon();
    daemon.deploy(&project);
    assert_eq!(answer(&daemon, "lab", json!({})), json!([42, 42]));

    // With another variable, the libraries of the code are found, too.
    let project = Project::function(
        "also",
        code,
        "environment = { LD_PRELOAD = \"/var/task/libanswer.so\" }",
    );
    library(&project, "libanswer.so");
    daemon.deploy(&project);
    assert_eq!(answer(&daemon, "also", json!({})), json!([42, 42]));
}

#[test]
fn a_value_that_the_interpreter_refuses_is_reported_by_the_deployment() {
    let daemon = daemon();
    let error = daemon.deploy_fails(&function(
        "lab",
        USES,
        "environment = { PYTHONHASHSEED = \"x\" }",
    ));
    assert!(error.contains("PYTHONHASHSEED must be"), "{error}");
}
