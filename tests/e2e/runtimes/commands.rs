//! The commands of Node.js packages, installed or part of the code, are on `PATH` in every runtime.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use pilot_harness::{Need, Project, needs, needs_root};
use serde_json::json;

use super::BOOTSTRAP;
use crate::{answer, daemon};

const MANIFEST: &str = r#"
[functions.python]
path = "."
handler = "app.handler"
[functions.provided]
path = "."
runtime = "provided"
command = ["python3", "bootstrap.py"]
[functions.http]
path = "."
runtime = "http"
command = ["python3", "server.py"]
[functions.node]
path = "."
runtime = "node"
"#;

const APP: &str = r#"
import subprocess
def handler(event, context):
    return subprocess.run(["greet"], capture_output=True, text=True, check=True).stdout
"#;

const SERVER: &str = r#"
import http.server, json, os
from app import handler
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = json.dumps(handler(None, None)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

const INDEX: &str = "exports.handler = async () => require('node:child_process').execFileSync('greet', { encoding: 'utf8' });\n";

/// A function of every runtime that runs `greet`, with the command's package in `folder`. The command needs the module beside it.
fn with_package(folder: &str) -> Project {
    let project = Project::empty()
        .file("pilot.toml", MANIFEST)
        .file("bootstrap.py", BOOTSTRAP)
        .file("app.py", APP)
        .file("server.py", SERVER)
        .file("index.js", INDEX)
        .file(
            &format!("{folder}/package.json"),
            r#"{"name": "greet", "version": "1.0.0", "bin": {"greet": "greet.sh"}}"#,
        )
        .file(
            &format!("{folder}/greet.sh"),
            "#!/bin/sh\ncat \"$(dirname \"$(readlink -f \"$0\")\")/word\"\n",
        )
        .file(&format!("{folder}/word"), "hello");
    let program = project.path().join(folder).join("greet.sh");
    fs::set_permissions(program, Permissions::from_mode(0o755)).unwrap();
    project
}

/// Deploys the functions and calls each.
#[track_caller]
fn all_greet(project: &Project) {
    let daemon = daemon();
    daemon.cli_ok(&["up", &project.path().display().to_string()]);
    for runtime in ["python", "provided", "http", "node"] {
        assert_eq!(answer(&daemon, runtime, json!({})), "hello", "{runtime}");
    }
}

#[test]
fn commands_of_installed_packages_are_on_path() {
    needs_root!();
    needs!(Need::Program("npm"));
    let package = r#"{"dependencies": {"greet": "file:./greet"}}"#;
    all_greet(&with_package("greet").file("package.json", package));
}

#[test]
fn commands_of_packages_in_the_code_are_on_path() {
    needs_root!();
    let project = with_package("node_modules/greet")
        .file("package.json", r#"{"dependencies": {"greet": "1"}}"#)
        .file(".pilotignore", "!node_modules/\n");
    let commands = project.path().join("node_modules/.bin");
    fs::create_dir(&commands).unwrap();
    symlink("../greet/greet.sh", commands.join("greet")).unwrap();
    all_greet(&project);
}
