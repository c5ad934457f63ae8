//! The three values of `contract`, and what a container can and cannot reach.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use pilot_container::ContainerGroup;
use pilot_model::ports::{
    MemoryShortage, PassedRequest, RuntimeHost as _, StreamedBody, WorkerFault,
};
use serde_json::{Value, json};

use crate::cleaning::adapted;
use crate::support::{
    BUSYBOX, PYTHON, Spec, Stage, VOLUME_BYTES, answer, call, error, fault, host_in, prewarmed,
    problem, shell, specialise, text,
};

pub(crate) async fn an_image_that_is_not_there_is_named_with_what_to_do(stage: Stage) {
    let host = stage.host();
    let spec = Spec {
        image: "nobody/has-this:9",
        contract: "http",
        ..Spec::default()
    };
    let version = stage.version("missing", &spec);
    let error = problem(&prewarmed(&host, &version).await.unwrap_err());
    assert!(error.contains("'nobody/has-this:9'"), "{error}");
    assert!(error.contains("docker pull nobody/has-this:9"), "{error}");
    assert_eq!(stage.containers(), "");
}

pub(crate) async fn a_program_gets_the_event_and_its_output_is_the_answer(stage: Stage) {
    let script = r#"
read line
case $line in
  '{"say":"env"}') env; id -u; pwd; cat /proc/self/status; echo x 2>/dev/null >>handler.sh || echo read-only ;;
  '{"say":"nothing"}') ;;
  *) echo "to the log" >&2; echo "{\"got\": $line}" ;;
esac
"#;
    let host = stage.host();
    let version = stage.version("program", &shell(&[("handler.sh", script)]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();

    let (body, output) = answer(&worker, r#"{"a": 1}"#).await;
    assert_eq!(body, r#"{"got": {"a": 1}}"#);
    assert_eq!(output, "to the log\n");

    let (body, _) = answer(&worker, r#"{"say":"env"}"#).await;
    let seen: String = serde_json::from_str(&body).unwrap();
    for line in [
        "OWN=own value",
        "AWS_LAMBDA_FUNCTION_NAME=program",
        "AWS_LAMBDA_FUNCTION_VERSION=7",
        "AWS_LAMBDA_REQUEST_ID=request-1",
        "PILOT_VOLUME=/mnt/volume",
        "HOME=/root",
        "/.pilot/code",
        "0",
        "read-only",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(seen.lines().any(|seen| seen == line), "{line} in {seen}");
    }
    let (body, _) = answer(&worker, r#"{"say":"nothing"}"#).await;
    assert_eq!(body, "null");
}

pub(crate) async fn a_program_that_fails_is_an_error_with_its_last_words(stage: Stage) {
    let script = "echo first >&2; echo 'no such customer' >&2; echo half; exit 3";
    let host = stage.host();
    let version = stage.version("fails", &shell(&[("handler.sh", script)]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let (body, done) = error(&worker, "{}").await;
    assert_eq!(body["errorType"], "Runtime.ExitError");
    let message = body["errorMessage"].as_str().unwrap();
    assert!(message.contains("exit status 3"), "{message}");
    assert!(message.ends_with("no such customer"), "{message}");
    assert_eq!(text(&done.output), "first\nno such customer\n");
    // The worker continues to serve.
    assert!(worker.is_alive());
    error(&worker, "{}").await;
}

pub(crate) async fn a_program_that_is_not_there_is_named(stage: Stage) {
    let host = stage.host();
    let mut spec = shell(&[]);
    spec.command = &["./nothing-here"];
    let version = stage.version("absent", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let (body, _) = error(&worker, "{}").await;
    assert_eq!(body["errorType"], "Runtime.InvalidEntrypoint");
    let message = body["errorMessage"].as_str().unwrap();
    assert!(message.contains("./nothing-here"), "{message}");
    assert!(message.contains("No such file"), "{message}");
}

pub(crate) async fn an_image_for_another_architecture_is_named(stage: Stage) {
    load_foreign_image(&stage);
    let host = stage.host();
    let said = "the image is for s390x, and this machine is ";
    for contract in ["http", "shim"] {
        let spec = Spec {
            image: FOREIGN,
            contract,
            command: &["/program"],
            ..Spec::default()
        };
        let version = stage.version(contract, &spec);
        let runtime = prewarmed(&host, &version).await.unwrap();
        let told = match specialise(&runtime, &version).await {
            Err(not_started) => problem(&not_started),
            Ok(worker) => error(&worker, "{}").await.0["errorMessage"].to_string(),
        };
        assert!(told.contains("/program") && told.contains(said), "{told}");
    }
}

const FOREIGN: &str = "pilot-test/foreign:1";

/// An image for IBM Z with the beginning of a program, in the form of `docker save`.
fn load_foreign_image(stage: &Stage) {
    let dir = stage.dir.path();
    // elf.h: `EM_S390` is 22.
    let mut program = b"\x7fELF\x02\x02\x01".to_vec();
    program.resize(64, 0);
    program[17] = 2;
    program[19] = 22;
    std::fs::create_dir_all(dir.join("root/tmp")).unwrap();
    std::fs::write(dir.join("root/program"), program).unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.join("root/program"), executable).unwrap();
    let run = |words: &[&str]| {
        let output = Command::new(words[0])
            .args(&words[1..])
            .current_dir(dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output.stdout)
    };
    run(&["tar", "-cf", "layer.tar", "-C", "root", "."]);
    let digest = run(&["sha256sum", "layer.tar"]);
    let layer = format!("sha256:{}", digest.split(' ').next().unwrap());
    let config = json!({
        "architecture": "s390x", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": [FOREIGN], "Layers": ["layer.tar"]}]);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    let files = ["manifest.json", "config.json", "layer.tar"];
    run(&[&["tar", "-cf", "image.tar"], &files[..]].concat());
    let archive = dir.join("image.tar").display().to_string();
    stage.engine.docker(&["load", "--input", &archive]);
}

pub(crate) async fn a_program_that_nobody_waits_for_is_ended(stage: Stage) {
    let script = r#"
read line
if [ "$line" = '"count"' ]; then ps | grep -c '[s]leep 1000'; exit 0; fi
echo begun >&2
sleep 1000 & sleep 1000
"#;
    let host = stage.host();
    let version = stage.version("slow", &shell(&[("handler.sh", script)]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(300), worker.call(call("{}"))).await;
    assert!(waited.is_err());
    worker.kill();
    assert_eq!(worker.last_output().await, "begun\n");
    drop(worker);
    runtime.clean().await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    assert_eq!(answer(&worker, "\"count\"").await.0, "0");
}

pub(crate) async fn a_large_event_that_is_not_read_and_one_that_is_echoed(stage: Stage) {
    let script =
        r#"if [ -e /tmp/once ]; then cat; else touch /tmp/once; exec <&-; echo '"unread"'; fi"#;
    let host = stage.host();
    let version = stage.version("large", &shell(&[("handler.sh", script)]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let event = format!("\"{}\"", "x".repeat(2 << 20));
    assert_eq!(answer(&worker, &event).await.0, "\"unread\"");
    assert_eq!(answer(&worker, &event).await.0.len(), event.len());
    let event = format!("\"{}\"", "x".repeat(7 << 20));
    let (body, _) = error(&worker, &event).await;
    assert_eq!(body["errorType"], "Function.ResponseSizeTooLarge");
}

const SERVER: &str = r#"
import http.server, os, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = ("%s %s %s %s %s" % (self.path, body.decode(), os.environ["K_SERVICE"], os.environ["K_REVISION"], os.environ["IMAGE"])).encode()
        print("served", flush=True)
        self.send_response(200); self.send_header("content-length", str(len(answer))); self.end_headers(); self.wfile.write(answer)
    def do_GET(self):
        self.send_response(200 if self.path == "/healthz" else 404); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *args): pass
def ended(*args):
    open("/mnt/volume/ended", "w").write("politely"); sys.exit(0)
signal.signal(signal.SIGTERM, ended)
http.server.ThreadingHTTPServer(("0.0.0.0", int(os.environ["PORT"])), Handler).serve_forever()
"#;

fn server() -> Spec<'static> {
    Spec {
        image: PYTHON,
        contract: "http",
        command: &["python3", "-c", SERVER],
        ready: Some("/healthz"),
        ..Spec::default()
    }
}

pub(crate) fn post(path: &str, body: &'static str) -> PassedRequest {
    http::Request::post(path)
        .header("host", "here")
        .header("content-length", body.len())
        .body(StreamedBody::new(
            Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}),
        ))
        .unwrap()
}

pub(crate) async fn a_server_is_reached_and_told_its_port(stage: Stage) {
    let host = stage.host();
    for network in ["none", "outbound", "host"] {
        let mut spec = server();
        spec.network = Some(network);
        let version = stage.version(&format!("web-{network}"), &spec);
        let runtime = prewarmed(&host, &version).await.unwrap();
        let worker = specialise(&runtime, &version).await.unwrap();
        let response = worker.pass(post("/a?b=c", "hello")).await.unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            text(&body),
            format!("/a?b=c hello web-{network} web-{network}-00007 python")
        );
        assert!(worker.resources().memory().pss > 1 << 20);
    }
}

pub(crate) async fn a_server_is_asked_to_end_and_waited_for(stage: Stage) {
    let host = stage.host();
    let version = stage.version("polite", &server());
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let folder = stage.folders().remove(0);
    let volume = stage
        .dir
        .path()
        .join("run/containers")
        .join(folder)
        .join("volume");
    worker.retire();
    drop(worker);
    let began = Instant::now();
    // What it wrote when it was asked to end is removed by the cleaning, so this looks during the cleaning.
    let written = async {
        while !volume.join("ended").exists() {
            tokio::task::yield_now().await;
        }
    };
    let (written, cleaned) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(5), written),
        runtime.clean()
    );
    written.unwrap();
    cleaned.unwrap();
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_eq!(std::fs::read_dir(volume).unwrap().count(), 0);
}

/// Writes to its volume until it cannot, and says how much and why. With `"look"`, says what is there.
const FILLER: &str = r#"
import errno, json, os, sys
if json.load(sys.stdin) == "look":
    print(json.dumps(os.listdir("/mnt/volume")))
    sys.exit(0)
written, why = 0, None
block = os.urandom(1 << 20)
try:
    with open("/mnt/volume/file", "wb") as file:
        while written < 256 << 20:
            file.write(block); file.flush(); written += len(block)
except OSError as error:
    why = errno.errorcode[error.errno]
print(json.dumps([written, why]))
"#;

pub(crate) async fn a_full_volume_is_told_to_who_filled_it_and_fills_nothing_else(stage: Stage) {
    if let Err(why) = pilot_container::available() {
        println!("*** SKIPPED: volumes cannot be limited here: {why} ***");
        return;
    }
    let host = stage.host();
    let mut spec = Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "fill.py"],
        code: &[("fill.py", FILLER)],
        ..Spec::default()
    };
    spec.memory_mb = Some(256);
    let full = stage.version("full", &spec);
    let neighbour = stage.version("neighbour", &spec);
    let runtime = prewarmed(&host, &full).await.unwrap();
    let other = prewarmed(&host, &neighbour).await.unwrap();
    let worker = specialise(&runtime, &full).await.unwrap();
    let (written, why): (u64, Option<String>) =
        serde_json::from_str(&answer(&worker, "\"fill\"").await.0).unwrap();
    assert_eq!(why.as_deref(), Some("ENOSPC"), "{written}");
    assert!(
        written < VOLUME_BYTES && written > VOLUME_BYTES / 2,
        "{written}"
    );
    // The neighbour's volume is another one.
    let beside = specialise(&other, &neighbour).await.unwrap();
    assert_eq!(answer(&beside, "\"look\"").await.0.trim(), "[]");
    let (again, _): (u64, Option<String>) =
        serde_json::from_str(&answer(&beside, "\"fill\"").await.0).unwrap();
    assert!(again > VOLUME_BYTES / 2, "{again}");
    // Cleaned, it is empty and has all its room again.
    drop(worker);
    runtime.clean().await.unwrap();
    let worker = specialise(&runtime, &full).await.unwrap();
    assert_eq!(answer(&worker, "\"look\"").await.0.trim(), "[]");
    drop((worker, beside, runtime, other));
    host.settled().await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let dir = stage.dir.path().display().to_string();
    assert!(!mounts.contains(&dir), "{mounts}");
}

const WRITER: &str = r#"
import errno, json, os
why = {}
for folder in ["/", "/tmp", "/var/tmp", os.environ["PILOT_VOLUME"]]:
    try:
        open(os.path.join(folder, "written"), "w").close()
    except OSError as error:
        why[folder] = errno.errorcode[error.errno]
volume = os.statvfs(os.environ["PILOT_VOLUME"])
print(json.dumps([why, volume.f_blocks * volume.f_frsize]))
"#;

pub(crate) async fn a_read_only_root_and_a_smaller_volume_are_what_a_function_asked_for(
    stage: Stage,
) {
    let host = stage.host();
    let spec = Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "write.py"],
        code: &[("write.py", WRITER)],
        root: Some("read-only"),
        volume_mb: Some(32),
        ..Spec::default()
    };
    let version = stage.version("sealed", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    for _ in 0..2 {
        let worker = specialise(&runtime, &version).await.unwrap();
        let (why, volume): (BTreeMap<String, String>, u64) =
            serde_json::from_str(&answer(&worker, "{}").await.0).unwrap();
        let refused = [("/".to_owned(), "EROFS".to_owned())];
        assert_eq!(why, BTreeMap::from(refused));
        if pilot_container::available().is_ok() {
            assert!((16 << 20..=32 << 20).contains(&volume), "{volume}");
        }
        drop(worker);
        runtime.clean().await.unwrap();
    }
    let greedy = Spec {
        volume_mb: Some(65),
        ..spec
    };
    let error = host.key(&stage.version("greedy", &greedy)).unwrap_err();
    assert!(error.to_string().contains("limits.volume_mb"), "{error}");
}

const READER: &str = r#"
import json, os
found = {}
path = os.environ.get("TLS_KEY")
if path:
    found["path"] = path
    found["text"] = open(path).read()
    found["mode"] = oct(os.stat(path).st_mode & 0o777)
    found["kind"] = [line.split()[2] for line in open("/proc/self/mounts") if line.split()[1] == os.path.dirname(path)]
else:
    try:
        found["names"] = os.listdir("/.pilot/secrets")
    except OSError as error:
        found["names"] = []
print(json.dumps(found))
"#;

pub(crate) async fn secrets_are_files_in_memory_for_their_function_alone(stage: Stage) {
    let host = stage.host();
    let spec = Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "read.py"],
        code: &[("read.py", READER)],
        secret_files: &[("TLS_KEY", "tls-key", "tls.key")],
        ..Spec::default()
    };
    let version = stage.version("with", &spec);
    let without = Spec {
        secret_files: &[],
        ..spec
    };
    let other = stage.version("without", &without);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let found: Value = serde_json::from_str(&answer(&worker, "{}").await.0).unwrap();
    assert_eq!(found["path"], "/.pilot/secrets/tls.key", "{found}");
    assert_eq!(found["text"], "the key\n");
    assert_eq!(found["mode"], "0o400");
    assert_eq!(found["kind"], json!(["tmpfs"]), "{found}");
    drop(worker);
    runtime.clean().await.unwrap();
    let worker = specialise(&runtime, &other).await.unwrap();
    let found: Value = serde_json::from_str(&answer(&worker, "{}").await.0).unwrap();
    assert_eq!(found["names"], json!([]), "{found}");
    drop((worker, runtime));
    host.settled().await;
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&stage.dir.path().display().to_string()));
}

/// The folder of the hierarchy that limits memory, and the file of the limit.
fn memory_groups() -> (&'static Path, &'static str) {
    let v1 = Path::new("/sys/fs/cgroup/memory");
    if v1.is_dir() {
        (v1, "memory.limit_in_bytes")
    } else {
        (Path::new("/sys/fs/cgroup"), "memory.max")
    }
}

pub(crate) async fn containers_are_in_the_daemons_group_and_under_its_limit(stage: Stage) {
    let (root, limit) = memory_groups();
    let name = format!("pilot-test-group-{}", std::process::id());
    let total = root.join(&name);
    std::fs::create_dir(&total).unwrap();
    std::fs::write(total.join(limit), (64 << 20).to_string()).unwrap();
    let folder = format!("/{name}/containers");
    let group = ContainerGroup::Folder(folder.clone());
    let host = host_in(stage.dir.path(), &stage.address(), group);
    let hog = "held = bytearray(100 << 20)\nfor at in range(0, len(held), 4096):\n    held[at] = 1\nprint(len(held))\n";
    let spec = Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "hog.py"],
        code: &[("hog.py", hog)],
        memory_mb: Some(256),
        ..Spec::default()
    };
    let version = stage.version("hog", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let pid = stage
        .engine
        .docker(&["inspect", "--format", "{{.State.Pid}}", &stage.containers()]);
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(groups.contains(&format!(":{folder}/")), "{groups}");
    let worker = specialise(&runtime, &version).await.unwrap();
    let fault = fault(&worker, "{}").await;
    assert!(
        matches!(
            fault,
            WorkerFault::OutOfMemory {
                shortage: MemoryShortage::Total,
                ..
            }
        ),
        "{fault:?}"
    );
    drop((worker, runtime));
    host.settled().await;
    // The engine leaves the groups that it made around the containers.
    let mut hierarchies: Vec<_> = std::fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    hierarchies.push(root.to_owned());
    for hierarchy in hierarchies {
        let own = hierarchy.join(&name);
        let _ = std::fs::remove_dir(own.join("containers"));
        let _ = std::fs::remove_dir(own);
    }
    assert!(!total.exists());
}

const CLIENT: &str = r#"
import os, sys, urllib.request
api = "http://%s/2018-06-01/runtime/invocation/" % os.environ["AWS_LAMBDA_RUNTIME_API"]
while True:
    with urllib.request.urlopen(api + "next") as event:
        id = event.headers["Lambda-Runtime-Aws-Request-Id"]; body = event.read()
    print("handling", id, flush=True)
    urllib.request.urlopen(urllib.request.Request(api + id + "/response", data=b'{"echo": ' + body + b', "task": "' + os.environ["LAMBDA_TASK_ROOT"].encode() + b'"}', method="POST")).read()
"#;

pub(crate) async fn a_runtime_api_client_serves(stage: Stage) {
    let host = stage.host();
    for network in ["none", "host"] {
        let spec = Spec {
            image: PYTHON,
            contract: "provided",
            command: &["python3", "-c", CLIENT],
            network: Some(network),
            ..Spec::default()
        };
        let version = stage.version(&format!("lambda-{network}"), &spec);
        let runtime = prewarmed(&host, &version).await.unwrap();
        // Twice: after a cleaning the endpoint can be opened again.
        for _ in 0..2 {
            let worker = specialise(&runtime, &version).await.unwrap();
            let (body, output) = answer(&worker, r#"{"n": 1}"#).await;
            assert_eq!(body, r#"{"echo": {"n": 1}, "task": "/var/task"}"#);
            assert_eq!(output, "handling request-1\n");
            worker.retire();
            drop(worker);
            runtime.clean().await.unwrap();
        }
    }
}

pub(crate) async fn an_image_of_another_contract_fails_with_what_it_printed(stage: Stage) {
    let host = stage.host();
    let spec = Spec {
        image: BUSYBOX,
        contract: "http",
        command: &["sh", "-c", "echo I am no server >&2; exit 4"],
        ..Spec::default()
    };
    let version = stage.version("no-server", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let error = specialise(&runtime, &version).await.unwrap_err();
    let told = format!("{error:?}");
    assert!(told.contains("status 4"), "{told}");
    assert!(told.contains("I am no server"), "{told}");

    let mut spec = spec;
    spec.command = &[];
    let version = stage.version("no-command", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let error = problem(&specialise(&runtime, &version).await.unwrap_err());
    assert!(error.contains("set command in the manifest"), "{error}");
}

pub(crate) async fn memory_over_the_limit_is_out_of_memory(stage: Stage) {
    let host = stage.host();
    let spec = Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "-c", "bytearray(1 << 30)"],
        memory_mb: Some(48),
        ..Spec::default()
    };
    let version = stage.version("hungry", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let fault = fault(&worker, "{}").await;
    assert!(
        matches!(fault, WorkerFault::OutOfMemory { shortage: MemoryShortage::Own, limit_bytes, .. } if limit_bytes == 48 << 20),
        "{fault:?}"
    );
    // The kernel did not kill process 1.
    worker.kill();
    drop(worker);
    runtime.clean().await.unwrap();
}

pub(crate) async fn a_container_sees_the_network_it_was_given(stage: Stage) {
    let host = stage.host();
    let code = [(
        "handler.sh",
        "[ -e /sys/class/net/eth0 ] && echo true || echo false",
    )];
    for (network, sees) in [("none", "false"), ("outbound", "true")] {
        let mut spec = shell(&code);
        spec.network = Some(network);
        let version = stage.version(network, &spec);
        let runtime = prewarmed(&host, &version).await.unwrap();
        let worker = specialise(&runtime, &version).await.unwrap();
        assert_eq!(answer(&worker, "").await.0, sees, "{network}");
    }
}

/// Listens on the machine of the engine, at the address of clouds and at an ordinary one.
const MACHINE: &str = r#"
import socket, subprocess, sys
listening = []
for address in ("169.254.169.254", "100.100.100.200", "198.51.100.7"):
    subprocess.run(["busybox", "ip", "addr", "add", address + "/32", "dev", "lo"], check=True)
    for port in (80, 53):
        listening.append(socket.create_server((address, port)))
print("ready", flush=True)
sys.stdin.read()
"#;

const ASKS: &str = r#"
import json, socket, sys
json.load(sys.stdin)
seen = []
for address in ("169.254.169.254", "100.100.100.200", "198.51.100.7"):
    for port in (80, 53):
        try:
            socket.create_connection((address, port), timeout=2).close()
            seen.append(f"{address}:{port}")
        except OSError:
            pass
print(json.dumps(seen))
"#;

pub(crate) async fn a_container_is_kept_from_the_credentials_of_its_machine(stage: Stage) {
    let mut machine = Command::new("nsenter")
        .arg(format!("--net={}/net", stage.engine.dir().display()))
        .args(["python3", "-c", MACHINE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 5];
    machine
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    let host = stage.host();
    let code = [("handler.py", ASKS)];
    let spec = Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "handler.py"],
        code: &code,
        network: Some("outbound"),
        ..Spec::default()
    };
    let version = stage.version("asks", &spec);
    // Names are resolved, because some clouds have their resolver there.
    let allowed = json!([
        "169.254.169.254:53",
        "100.100.100.200:53",
        "198.51.100.7:80",
        "198.51.100.7:53",
    ]);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let (body, _) = answer(&worker, "{}").await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), allowed);
    // A kept container, which gets its network later.
    let wanted = Arc::new(host.key(&version).unwrap());
    let runtime = host.start(&Arc::new(wanted.base_key())).await.unwrap();
    adapted(&runtime, &wanted).await;
    let worker = specialise(&runtime, &version).await.unwrap();
    let (body, _) = answer(&worker, "{}").await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), allowed);
    drop(machine.stdin.take());
    machine.wait().unwrap();
}
