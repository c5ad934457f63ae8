//! Runtimes that do not fork: programs that poll the Lambda Runtime API, HTTP servers, and Node.js. Nothing of a use is left for the
//! next one.

mod commands;
mod crash;
mod extensions;
mod http;
mod leftovers;
mod node;
mod provided;
mod reuse;

use pilot_harness::{Daemon, Project, eventually};

use crate::daemon;

/// A Runtime API client that uses only the standard library and calls `app.handler(event, headers)`.
const BOOTSTRAP: &str = r#"
import http.client, json, os, sys, traceback
sys.path.insert(0, os.environ["LAMBDA_TASK_ROOT"])
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
RUNTIME = "/2018-06-01/runtime/"

def ask(method, path, body=None, headers={}):
    api.request(method, RUNTIME + path, body, headers)
    answer = api.getresponse()
    return answer, answer.read()

def error_of(error):
    return json.dumps({"errorType": type(error).__name__, "errorMessage": str(error), "stackTrace": traceback.format_tb(error.__traceback__)})

try:
    import app
except Exception as error:
    ask("POST", "init/error", error_of(error), {"Lambda-Runtime-Function-Error-Type": "Runtime.ImportError"})
    sys.exit(1)
while True:
    asked, event = ask("GET", "invocation/next")
    request = "invocation/" + asked.headers["Lambda-Runtime-Aws-Request-Id"]
    try:
        result = app.handler(json.loads(event), asked.headers)
        ask("POST", request + "/response", json.dumps(result))
    except Exception as error:
        ask("POST", request + "/error", error_of(error), {"Lambda-Runtime-Function-Error-Type": type(error).__name__})
"#;

/// A project with a Runtime API function, `lab`, with this code.
pub(crate) fn provided(code: &str, keys: &str) -> Project {
    Project::empty()
        .file("bootstrap.py", BOOTSTRAP)
        .file("app.py", code)
        .manifest(
            "lab",
            &format!("runtime = \"provided\"\ncommand = [\"python3\", \"bootstrap.py\"]\n{keys}"),
        )
}

/// A daemon with that function.
#[track_caller]
fn provided_lab(code: &str, keys: &str) -> Daemon {
    let daemon = daemon();
    daemon.deploy(&provided(code, keys));
    daemon
}

/// A project with an HTTP function, `lab`, with this Python code as its server.
fn server(code: &str, keys: &str) -> Project {
    Project::empty().file("server.py", code).manifest(
        "lab",
        &format!("runtime = \"http\"\ncommand = [\"python3\", \"server.py\"]\n{keys}"),
    )
}

/// A daemon with that function.
#[track_caller]
fn server_lab(code: &str, keys: &str) -> Daemon {
    let daemon = daemon();
    daemon.deploy(&server(code, keys));
    daemon
}

/// A daemon with a Node.js function, `lab`, with this `index.js`.
#[track_caller]
fn node_lab(code: &str, keys: &str) -> Daemon {
    let daemon = daemon();
    daemon.deploy(
        &Project::empty()
            .file("index.js", code)
            .manifest("lab", &format!("runtime = \"node\"\n{keys}")),
    );
    daemon
}

/// Waits until every runtime of a function's key is clean and free again.
#[track_caller]
fn all_clean(daemon: &Daemon, function: &str) {
    eventually("its runtimes are clean and free", || {
        let own = &daemon.describe(function)["runtimes"]["own"];
        let busy = own["leased"].as_u64()? + own["cleaning"].as_u64()?;
        (busy == 0 && own["available"].as_u64() >= Some(1)).then_some(())
    });
}
