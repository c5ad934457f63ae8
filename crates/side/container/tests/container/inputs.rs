//! Inputs of functions in containers: files that are there for one invocation.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use pilot_model::FailedInput;
use pilot_model::ports::{Answer, Call, Input, InputKind, Worker};
use pilot_sys::{memfd, unnamed};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixListener;

use crate::support::{PYTHON, Spec, Stage, call, prewarmed, shell, specialise, text};

fn input(name: &str, content: &str) -> Input {
    let mut file = memfd::create(c"test").unwrap();
    file.write_all(content.as_bytes()).unwrap();
    // As the daemon's.
    file.set_permissions(Permissions::from_mode(0o444)).unwrap();
    memfd::seal(file.as_fd()).unwrap();
    Input {
        name: name.to_owned(),
        kind: InputKind::Memory {
            len: content.len() as u64,
        },
        descriptor: Arc::new(memfd::reopen(file.as_fd()).unwrap()),
        object: None,
        decoded: None,
    }
}

fn call_with(inputs: Vec<Input>, event: &Value) -> Call {
    let mut call = call(&event.to_string());
    call.inputs = inputs;
    Arc::make_mut(&mut call.head).failed_inputs = vec![FailedInput {
        name: "no-mask".to_owned(),
        problem: "there is no such object".to_owned(),
    }];
    call
}

async fn answer(worker: &Arc<dyn Worker>, call: Call) -> Value {
    match worker.call(call).await {
        Ok(Answer::Result(body, _)) => serde_json::from_str(&text(&body)).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn a_program_finds_the_paths_of_its_inputs_in_its_environment(stage: Stage) {
    let script = r#"
read path
gone=$(cat "$path" 2>/dev/null || echo gone)
echo "$gone $(cat "$PILOT_INPUT_THE_IMAGE") $PILOT_FAILED_INPUT_NO_MASK $PILOT_INPUT_THE_IMAGE"
echo x 2>/dev/null >>"$PILOT_INPUT_THE_IMAGE" && echo written || true
"#;
    let host = stage.host();
    let version = stage.version("inputs", &shell(&[("handler.sh", script)]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let mut before = "/none".to_owned();
    for content in ["one", "two"] {
        let inputs = vec![input("the-image", content)];
        let mut call = call_with(inputs, &Value::Null);
        call.payload = before.clone().into();
        let said = answer(&worker, call).await;
        let said = said.as_str().unwrap();
        let (said, path) = said.rsplit_once(' ').unwrap();
        assert_eq!(said, format!("gone {content} there is no such object"));
        path.clone_into(&mut before);
    }
    // A program that is the owner of a file can change its mode. Only a seal keeps it from writing.
    let mut unsealed = input("the-image", "");
    unsealed.descriptor = Arc::new(tempfile::tempfile().unwrap().into());
    let refused = worker.call(call_with(vec![unsealed], &Value::Null)).await;
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(refused.contains("data.spill_mb"), "{refused}");
    worker.retire();
    drop(worker);
    runtime.clean().await.unwrap();
}

/// A server that answers with the content of its inputs, of a file that the event names, and with what else it sees of the holder.
const SERVER: &str = r#"
import http.server, json, os
def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return type(error).__name__
def writes(path):
    try:
        open(path, "r+b").close()
        return True
    except OSError:
        return False
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.headers["Pilot-Input-Image"]
        holder = "/proc/" + path.split("/")[2]
        with open(holder + "/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        answer = {
            "image": read(path), "path": path, "before": read(event["before"]), "mask": self.headers["Pilot-Failed-Input-No-Mask"],
            "writes": writes(path), "environment": read(holder + "/environ"), "mine": fields["Uid"].split()[0] == str(os.getuid()),
            "capabilities": int(fields["CapPrm"], 16) + int(fields["CapBnd"], 16),
        }
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *ignored):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

pub(crate) async fn a_server_gets_files_for_one_request_and_nothing_else(stage: Stage) {
    let host = stage.host();
    let spec = Spec {
        image: PYTHON,
        contract: "http",
        command: &["python3", "-c", SERVER],
        ..Spec::default()
    };
    let version = stage.version("inputs-server", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let mut before = "/none".to_owned();
    for content in ["one", "two", "three"] {
        let call = call_with(vec![input("image", content)], &json!({"before": before}));
        let mut said = answer(&worker, call).await;
        let path = said["path"].take();
        path.as_str().unwrap().clone_into(&mut before);
        assert_eq!(
            said,
            json!({
                "image": content, "path": null, "before": "FileNotFoundError", "mask": "there is no such object", "writes": false,
                "environment": "", "mine": true, "capabilities": 0,
            })
        );
    }
    // The holder keeps nobody waiting, and the cleaned container has none.
    worker.retire();
    drop(worker);
    runtime.clean().await.unwrap();
}

/// Connects to what the invocation names, and answers with the file whose path it is told there.
const ASKS: &str = r#"
import os, socket
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["PILOT_INIT_SCRIPT"])
with open(line.makefile().readline().strip()) as file:
    print(file.read(), end="")
"#;

/// As a script that goes on beside the program does.
pub(crate) async fn a_program_is_shown_an_input_while_it_runs(stage: Stage) {
    let host = stage.host();
    let spec = Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "-c", ASKS],
        ..Spec::default()
    };
    let version = stage.version("inputs-later", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let (listener, theirs) = unnamed::listening().unwrap();
    let mut call = call(&Value::Null.to_string());
    call.inputs = vec![Input {
        name: ":init".to_owned(),
        kind: InputKind::Script,
        descriptor: Arc::new(theirs),
        object: None,
        decoded: None,
    }];
    let listener = UnixListener::from_std(listener).unwrap();
    let shows = async {
        let (mut line, _) = listener.accept().await.unwrap();
        let shown = worker.show(vec![input("", "later")]).await.unwrap();
        let path = format!("{}\n", shown.paths[0]);
        line.write_all(path.as_bytes()).await.unwrap();
        shown
    };
    let (said, shown) = tokio::join!(answer(&worker, call), shows);
    assert_eq!(said, json!("later"));
    drop(shown);
    worker.retire();
    drop(worker);
    runtime.clean().await.unwrap();
}
