//! Secrets: set through the control API, encrypted on disk, and given to workers and to nobody else.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Output, Stdio};

use pilot_harness::{Daemon, DaemonOptions, Project, Request, Response, eventually};
use serde_json::{Value, json};

use crate::access::with_control_address;
use crate::{answer, daemon, daemon_with};

/// Returns the variables that it is asked for, and the files.
const TELLS: &str = r#"
import os
def handler(event, context):
    told = {name: os.environ.get(name) for name in event.get("names", [])}
    for path in event.get("files", []):
        told[path] = {"text": open(path).read(), "mode": oct(os.stat(path).st_mode & 0o777), "own": os.stat(path).st_uid == os.getuid()}
    return told
"#;

const DB: &str = "[functions.lab.secrets]\nDB = \"db-password\"\n";

/// Runs the command line with this standard input.
#[track_caller]
fn fed(daemon: &Daemon, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = daemon.command(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[track_caller]
fn set(daemon: &Daemon, name: &str, value: &str) -> String {
    let output = fed(daemon, &["secret", "set", name], value.as_bytes());
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn lab(keys: &str) -> Project {
    Project::function("lab", TELLS, keys)
}

fn names(names: &[&str]) -> Value {
    json!({ "names": names })
}

/// Whether a file below a folder has these bytes.
fn contains(folder: &Path, wanted: &[u8]) -> Option<String> {
    fs::read_dir(folder).unwrap().flatten().find_map(|entry| {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            return contains(&path, wanted);
        }
        let bytes = entry
            .file_type()
            .unwrap()
            .is_file()
            .then(|| fs::read(&path))?
            .ok()?;
        let found = bytes.windows(wanted.len()).any(|window| window == wanted);
        found.then(|| path.display().to_string())
    })
}

#[test]
fn a_secret_is_in_the_handlers_environment_and_nowhere_else() {
    let daemon = daemon();
    set(&daemon, "db-password", "hunter2-of-the-test\n");
    let deployed = daemon.deploy(&lab(DB));
    assert!(!deployed.contains("hunter2"), "{deployed}");
    let told = answer(&daemon, "lab", names(&["DB"]));
    assert_eq!(told["DB"], "hunter2-of-the-test");
    for text in [
        daemon.cli_ok(&["describe", "lab"]),
        daemon.cli_ok(&["describe", "lab", "--json", "--values"]),
        daemon.cli_ok(&["secret", "list"]),
        daemon.cli_ok(&["secret", "list", "--json"]),
        daemon.logs("lab"),
        daemon.log(),
        daemon.get("/metrics").text(),
    ] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    let listed = daemon.cli_ok(&["secret", "list"]);
    assert!(
        listed.contains("db-password") && listed.contains("lab"),
        "{listed}"
    );
    assert!(
        daemon
            .cli_ok(&["describe", "lab"])
            .contains("DB: 'db-password'")
    );
    assert_eq!(contains(&daemon.data_dir(), b"hunter2-of-the-test"), None);
    for file in ["secrets.json", "secrets.key"] {
        let mode = fs::metadata(daemon.data_dir().join(file)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    // No process was started with it: not a template, not the daemon.
    for pid in pilot_harness::descendants(daemon.pid())
        .into_iter()
        .chain([daemon.pid()])
    {
        let started_with = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(
            !String::from_utf8_lossy(&started_with).contains("hunter2"),
            "{pid}"
        );
    }
}

#[test]
fn a_secret_is_a_file_that_the_function_alone_reads() {
    let daemon = daemon();
    let key = tempfile::NamedTempFile::new().unwrap();
    fs::write(key.path(), "-----BEGIN KEY-----\n").unwrap();
    daemon.cli_ok(&[
        "secret",
        "set",
        "tls",
        "--from-file",
        key.path().to_str().unwrap(),
    ]);
    let keys = "[functions.lab.secrets]\nKEY = { secret = \"tls\", file = \"tls.key\" }\n";
    for template in ["", "template = \"off\"\n"] {
        daemon.deploy(&lab(&format!("{template}{keys}")));
        let path = "/run/secrets/tls.key";
        let told = answer(&daemon, "lab", json!({"names": ["KEY"], "files": [path]}));
        assert_eq!(told["KEY"], path);
        let expected = json!({"text": "-----BEGIN KEY-----\n", "mode": "0o400", "own": true});
        assert_eq!(told[path], expected, "{template}");
    }
    // The template, which has no secrets, does not see the folder's files.
    let at_import = "import os\nSEEN = os.listdir('/run/secrets')\ndef handler(event, context):\n    return SEEN\n";
    daemon.deploy(&Project::function("lab", at_import, keys));
    assert_eq!(answer(&daemon, "lab", json!({})), json!([]));
}

#[test]
fn a_module_that_reads_a_secret_at_import_is_told_what_to_do() {
    let daemon = daemon();
    set(&daemon, "db-password", "hunter2");
    let code = "import os\nDB = os.environ[\"DB\"]\ndef handler(event, context):\n    return DB\n";
    let refused = daemon.deploy_fails(&Project::function("lab", code, DB));
    assert!(refused.contains("KeyError"), "{refused}");
    assert!(
        refused.contains("after the fork") && refused.contains("template = \"off\""),
        "{refused}"
    );
    let keys = format!("template = \"off\"\n{DB}");
    daemon.deploy(&Project::function("lab", code, &keys));
    assert_eq!(answer(&daemon, "lab", json!({})), "hunter2");
    let hook = "import os\nfrom snapshot_restore_py import register_after_restore\nDB = None\n@register_after_restore\ndef read():\n    global DB\n    DB = os.environ[\"DB\"]\ndef handler(event, context):\n    return DB\n";
    daemon.deploy(&Project::function("lab", hook, DB));
    assert_eq!(answer(&daemon, "lab", json!({})), "hunter2");
}

#[test]
fn every_kind_of_python_function_has_its_secrets() {
    let daemon = daemon();
    set(&daemon, "db-password", "hunter2");
    let asynchronous =
        "import os\nasync def handler(event, context):\n    return os.environ['DB']\n";
    for keys in ["", "concurrency = 4\n", "reuse = \"once\"\n"] {
        for code in [asynchronous, &asynchronous.replace("async ", "")] {
            daemon.deploy(&Project::function("lab", code, &format!("{keys}{DB}")));
            for _ in 0..2 {
                assert_eq!(answer(&daemon, "lab", json!({})), "hunter2", "{keys}{code}");
            }
        }
    }
    let asgi = "import os\nasync def app(scope, receive, send):\n    if scope['type'] != 'http':\n        return\n    await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    await send({'type': 'http.response.body', 'body': os.environ['DB'].encode()})\n";
    let wsgi = "import os\ndef app(environ, start):\n    start('200 OK', [])\n    return [os.environ['DB'].encode()]\n";
    // A thread at import: workers are forked from the level above.
    let threaded = format!(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n{wsgi}"
    );
    for (interface, code) in [("asgi", asgi), ("wsgi", wsgi), ("wsgi", &threaded)] {
        let keys = format!("handler = \"app.app\"\ninterface = \"{interface}\"\n{DB}");
        daemon.deploy(&Project::function("lab", code, &keys));
        assert_eq!(daemon.get("/fn/lab/").ok().text(), "hunter2", "{code}");
    }
}

#[test]
fn other_runtimes_have_their_secrets() {
    let daemon = daemon();
    set(&daemon, "db-password", "hunter2");
    set(&daemon, "tls", "key");
    let both =
        "[functions.lab.secrets]\nDB = \"db-password\"\nKEY = { secret = \"tls\", file = \"k\" }\n";
    let server = "import os, http.server\nclass H(http.server.BaseHTTPRequestHandler):\n    def do_GET(self):\n        self.send_response(200)\n        self.end_headers()\n        self.wfile.write((os.environ['DB'] + open(os.environ['KEY']).read()).encode())\nhttp.server.HTTPServer(('', int(os.environ['PORT'])), H).serve_forever()\n";
    let project = Project::empty().file("server.py", server).manifest(
        "lab",
        &format!("runtime = \"http\"\ncommand = [\"python3\", \"server.py\"]\n{both}"),
    );
    daemon.deploy(&project);
    assert_eq!(daemon.get("/fn/lab/").ok().text(), "hunter2key");
    let code = "import os\ndef handler(event, headers):\n    return os.environ['DB'] + open(os.environ['KEY']).read()\n";
    daemon.deploy(&crate::runtimes::provided(code, both));
    assert_eq!(answer(&daemon, "lab", json!({})), "hunter2key");
    let code = "const fs = require('fs'); exports.handler = async () => process.env.DB + fs.readFileSync(process.env.KEY, 'utf8');\n";
    let project = Project::empty().file("index.js", code).manifest(
        "lab",
        &format!("runtime = \"node\"\nhandler = \"index.handler\"\n{both}"),
    );
    daemon.deploy(&project);
    assert_eq!(answer(&daemon, "lab", json!({})), "hunter2key");
}

#[test]
fn nothing_of_a_secret_is_left_in_a_sandbox_that_is_used_again() {
    let daemon = daemon();
    set(&daemon, "db-password", "hunter2");
    let code = "import os\ndef handler(event, headers):\n    return [os.environ.get('DB'), os.listdir('/run/secrets')]\n";
    let with = "owner = \"team\"\n[functions.lab.secrets]\nDB = { secret = \"db-password\", file = \"k\" }\n";
    daemon.deploy(&crate::runtimes::provided(code, with));
    assert_eq!(
        answer(&daemon, "lab", json!({})),
        json!(["/run/secrets/k", ["k"]])
    );
    daemon.deploy(&crate::runtimes::provided(code, "owner = \"team\"\n"));
    let again = eventually(
        "a cleaned sandbox serves the version without secrets",
        || {
            let response = daemon.invoke("lab", &json!({})).ok();
            Some(response.json())
        },
    );
    assert_eq!(again, json!([null, []]));
    // And one that forks: its sandboxes are cleaned for the next worker of the function.
    let folder = "import os\ndef handler(event, context):\n    return os.listdir('/run/secrets')\n";
    let keys = "reuse = \"once\"\n[functions.fork.secrets]\nDB = { secret = \"db-password\", file = \"k\" }\n";
    daemon.deploy(&Project::function("fork", folder, keys));
    for _ in 0..10 {
        assert_eq!(answer(&daemon, "fork", json!({})), json!(["k"]));
    }
}

#[test]
fn a_changed_secret_reaches_new_workers_and_running_invocations_finish() {
    let daemon = daemon();
    set(&daemon, "db-password", "before");
    let code = "import os, time\ndef handler(event, context):\n    time.sleep(event.get('s', 0))\n    return [os.environ['DB'], os.getpid()]\n";
    daemon.deploy(&Project::function(
        "lab",
        code,
        &format!("scale = {{ min = 1 }}\n{DB}"),
    ));
    let first = answer(&daemon, "lab", json!({}));
    assert_eq!(first[0], "before");
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| answer(&daemon, "lab", json!({"s": 2})));
        eventually("the slow one runs", || {
            (daemon.workers("lab", "busy") == 1).then_some(())
        });
        let told = set(&daemon, "db-password", "after");
        assert!(told.contains("new workers of lab have it"), "{told}");
        assert_eq!(answer(&daemon, "lab", json!({}))[0], "after");
        assert_eq!(slow.join().unwrap()[0], "before");
    });
    for _ in 0..5 {
        assert_eq!(answer(&daemon, "lab", json!({}))[0], "after");
    }
    assert_eq!(
        daemon.describe("lab")["summary"]["number"]
            .as_u64()
            .or(daemon.describe("lab")["number"].as_u64()),
        Some(1)
    );
}

#[test]
fn a_missing_secret_is_named_with_the_command_and_one_in_use_is_kept() {
    let daemon = daemon();
    let refused = daemon.deploy_fails(&lab(DB));
    assert!(
        refused.contains("'db-password'") && refused.contains("pilot secret set db-password"),
        "{refused}"
    );
    set(&daemon, "db-password", "hunter2");
    daemon.deploy(&lab(DB));
    let output = daemon.cli(&["secret", "rm", "db-password"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("used by lab") && said(&output).contains("--force"),
        "{}",
        said(&output)
    );
    assert_eq!(answer(&daemon, "lab", names(&["DB"]))["DB"], "hunter2");
    daemon.cli_ok(&["secret", "rm", "db-password", "--force"]);
    let gone = daemon.invoke("lab", &json!({}));
    assert_eq!(gone.status, 502, "{}", gone.text());
    assert!(
        gone.text().contains("pilot secret set db-password"),
        "{}",
        gone.text()
    );
    let output = daemon.cli(&["secret", "rm", "db-password"]);
    assert!(said(&output).contains("no secret"), "{}", said(&output));
    set(&daemon, "db-password", "again");
    eventually("it serves again", || {
        (daemon.invoke("lab", &json!({})).status == 200).then_some(())
    });
}

#[test]
fn a_rollback_to_a_version_whose_secret_is_gone_names_the_secret_alone() {
    let daemon = daemon();
    set(&daemon, "db-password", "hunter2");
    daemon.deploy(&lab(DB));
    daemon.deploy(&lab(""));
    daemon.cli_ok(&["secret", "rm", "db-password", "--force"]);
    let said = said(&daemon.cli(&["rollback", "lab"]));
    assert!(said.contains("pilot secret set db-password"), "{said}");
    assert!(!said.contains("standard library"), "{said}");
}

#[test]
fn a_value_is_read_from_input_or_a_file_and_bounded() {
    let daemon = daemon();
    for (input, kept) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("ü", "ü")] {
        set(&daemon, "db-password", input);
        daemon.deploy(&lab(DB));
        assert_eq!(
            answer(&daemon, "lab", names(&["DB"]))["DB"],
            kept,
            "{input:?}"
        );
    }
    for (input, words) in [
        (&b""[..], "empty"),
        (b"\n", "empty"),
        (&[b'x'; 65_539], "65536"),
        (b"a\0b", "NUL"),
        (b"\xff\xfe", "UTF-8"),
    ] {
        let output = fed(&daemon, &["secret", "set", "db-password"], input);
        assert!(!output.status.success(), "{words}");
        assert!(said(&output).contains(words), "{}", said(&output));
    }
    assert_eq!(answer(&daemon, "lab", names(&["DB"]))["DB"], "ü");
    for name in ["../x", ".hidden", "a b", ""] {
        let output = fed(&daemon, &["secret", "set", name], b"x");
        assert_eq!(output.status.code(), Some(2), "{name}: {}", said(&output));
    }
    let long = Request::new("PUT", "/_pilot/v1/secrets/long").body(vec![b'x'; 70_000]);
    assert_eq!(daemon.send(&long).status, 413);
}

#[test]
fn what_is_typed_is_not_shown() {
    use nix::sys::termios::{LocalFlags, tcgetattr};
    let daemon = daemon();
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut command = daemon.command(&["secret", "set", "db-password"]);
    command
        .stdin(Stdio::from(pty.slave.try_clone().unwrap()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let shows = || {
        tcgetattr(&pty.slave)
            .unwrap()
            .local_flags
            .contains(LocalFlags::ECHO)
    };
    assert!(shows());
    eventually("the terminal is silent", || (!shows()).then_some(()));
    let mut keyboard = fs::File::from(pty.master.try_clone().unwrap());
    keyboard.write_all(b"hunter2\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("value of db-password"),
        "{}",
        said(&output)
    );
    assert!(!said(&output).contains("hunter2"), "{}", said(&output));
    assert!(shows(), "and shows again what is typed");
    daemon.deploy(&lab(DB));
    assert_eq!(answer(&daemon, "lab", names(&["DB"]))["DB"], "hunter2");
}

#[test]
fn without_its_key_the_daemon_says_which_file_is_missing_and_loses_nothing() {
    let mut daemon = daemon();
    set(&daemon, "db-password", "hunter2");
    daemon.deploy(&lab(DB));
    daemon.stop();
    let (key, secrets) = (
        daemon.data_dir().join("secrets.key"),
        daemon.data_dir().join("secrets.json"),
    );
    let (text, before) = (
        fs::read_to_string(&key).unwrap(),
        fs::read(&secrets).unwrap(),
    );
    let serve = |daemon: &Daemon| {
        let data_dir = daemon.data_dir();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_pilot"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data_dir)
            .output()
            .unwrap();
        assert!(!output.status.success());
        said(&output)
    };
    fs::remove_file(&key).unwrap();
    let refused = serve(&daemon);
    assert!(
        refused.contains("secrets.key") && refused.contains("missing"),
        "{refused}"
    );
    fs::write(&key, format!("{}\n", "0".repeat(64))).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = serve(&daemon);
    assert!(
        refused.contains("secrets.key") && refused.contains("another key"),
        "{refused}"
    );
    assert_eq!(fs::read(&secrets).unwrap(), before);
    fs::write(&key, text).unwrap();
    daemon.resume();
    assert_eq!(answer(&daemon, "lab", names(&["DB"]))["DB"], "hunter2");
}

/// One request to the control API over TCP, with a token.
#[track_caller]
fn over(control: std::net::SocketAddr, request: Request, token: &str) -> Response {
    let request = request
        .header("connection", "close")
        .header("authorization", &format!("Bearer {token}"));
    pilot_harness::Connection::open(control).exchange(&request)
}

#[test]
fn a_token_reaches_the_secrets_of_its_owner_alone() {
    let (daemon, control) = with_control_address("");
    let token = |arguments: &[&str]| {
        let all = [&["token", "create"], arguments].concat();
        daemon.cli_ok(&all).trim().to_owned()
    };
    let a = token(&["a", "--role", "deploy", "--owner", "team-a"]);
    let b = token(&["b", "--role", "deploy", "--owner", "team-b"]);
    let caller = token(&["c", "--role", "invoke"]);
    set(&daemon, "shared", "of-the-operator");
    let put = |name: &str, query: &str| {
        Request::new("PUT", &format!("/_pilot/v1/secrets/{name}{query}")).body("of-team-a")
    };
    assert_eq!(over(control, put("db", ""), &a).json()["owner"], "team-a");
    assert_eq!(over(control, put("db", "?owner=team-a"), &b).status, 403);
    assert_eq!(over(control, put("db", ""), &caller).status, 403);
    let list = Request::new("GET", "/_pilot/v1/secrets");
    assert_eq!(over(control, list.clone(), &b).json(), json!([]));
    assert_eq!(over(control, list.clone(), &caller).status, 403);
    assert_eq!(over(control, list, &a).json().as_array().unwrap().len(), 1);
    let delete = Request::new("DELETE", "/_pilot/v1/secrets/db?owner=team-a");
    assert_eq!(over(control, delete, &b).status, 403);
    // Neither another owner's nor the operator's can be named by a deployment.
    let endpoint = format!("http://{control}");
    let deploy = |token: &str, name: &str, keys: &str| {
        let project = Project::function(name, TELLS, keys);
        let mut command = daemon.command(&[
            "deploy",
            project.path().to_str().unwrap(),
            "--endpoint",
            &endpoint,
        ]);
        command.env("PILOT_TOKEN", token).output().unwrap()
    };
    let wants =
        |name: &str, secret: &str| format!("[functions.{name}.secrets]\nDB = \"{secret}\"\n");
    for (token, secret) in [(&b, "db"), (&b, "shared"), (&a, "shared")] {
        let output = deploy(token, "stolen", &wants("stolen", secret));
        assert!(
            said(&output).contains("does not exist"),
            "{}",
            said(&output)
        );
    }
    let output = deploy(&a, "own", &wants("own", "db"));
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(answer(&daemon, "own", names(&["DB"]))["DB"], "of-team-a");
    // The operator's own functions have the shared one.
    daemon.deploy(&Project::function("lab", TELLS, &wants("lab", "shared")));
    assert_eq!(
        answer(&daemon, "lab", names(&["DB"]))["DB"],
        "of-the-operator"
    );
}

#[test]
fn values_of_variables_are_shown_only_if_they_are_asked_for() {
    let daemon = daemon();
    daemon.deploy(&lab("environment = { LEVEL = \"v4lue\" }\n"));
    for text in [
        daemon.cli_ok(&["describe", "lab"]),
        daemon.cli_ok(&["describe", "lab", "--json"]),
        daemon.describe("lab").to_string(),
    ] {
        assert!(text.contains("LEVEL") && !text.contains("v4lue"), "{text}");
    }
    let asked = daemon.cli_ok(&["describe", "lab", "--values"]);
    assert!(asked.contains("LEVEL=v4lue"), "{asked}");
    assert_eq!(answer(&daemon, "lab", names(&["LEVEL"]))["LEVEL"], "v4lue");
}

#[test]
fn a_file_of_variables_is_not_uploaded() {
    let daemon = daemon();
    let code =
        "import os\ndef handler(event, context):\n    return sorted(os.listdir('/var/task'))\n";
    let project = Project::function("lab", code, "")
        .file(".env", "PASSWORD=hunter2\n")
        .file(".env.local", "PASSWORD=hunter2\n")
        .file("conf/.env", "PASSWORD=hunter2\n");
    daemon.deploy(&project);
    let seen = answer(&daemon, "lab", json!({}));
    assert!(!seen.to_string().contains(".env"), "{seen}");
    assert_eq!(contains(&daemon.data_dir().join("code"), b"hunter2"), None);
}

#[test]
fn a_systemd_credential_is_the_key() {
    let credentials = tempfile::tempdir().unwrap();
    fs::write(credentials.path().join("pilotlight.key"), "5".repeat(64)).unwrap();
    let folder = credentials.path().display().to_string();
    let daemon = daemon_with(DaemonOptions {
        environment: vec![("CREDENTIALS_DIRECTORY".to_owned(), folder)],
        ..DaemonOptions::default()
    });
    set(&daemon, "db-password", "hunter2");
    assert!(!daemon.data_dir().join("secrets.key").exists());
    daemon.deploy(&lab(DB));
    assert_eq!(answer(&daemon, "lab", names(&["DB"]))["DB"], "hunter2");
}
