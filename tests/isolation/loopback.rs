//! Functions with `network = "host"` share the host's loopback device. What the daemon serves and calls there belongs to one function
//! alone: the Lambda Runtime API, and the function's own server.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use pilot_harness::{ArchiveEntry, archive, descendants};
use serde_json::{Value, json};

use crate::ground::{Ground, VICTIMS_SECRET};
use crate::{Attempt, Verdict};

/// A client of the Runtime API, over a new connection per request and from a process of its own for each answer.
const CLIENT: &str = r#"
import http.client, json, os, subprocess, sys

def ask(method, path, body=None):
    connection = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    connection.request(method, "/2018-06-01/runtime/" + path, body)
    response = connection.getresponse()
    return response.headers, response.read()

if len(sys.argv) > 1:
    ask("POST", f"invocation/{sys.argv[1]}/response", sys.argv[2])
    sys.exit()
while True:
    headers, event = ask("GET", "invocation/next")
    subprocess.run([sys.executable, __file__, headers["lambda-runtime-aws-request-id"], event.decode()], check=True)
"#;

/// Asks the listeners at these ports of the loopback device for the next event, and answers in the name of its function.
const SCANNER: &str = r#"
import concurrent.futures, http.client

def ask(port):
    got = []
    for method, path in (
        ("GET", "/2018-06-01/runtime/invocation/next"),
        ("POST", "/2018-06-01/runtime/init/error"),
        ("POST", "/2018-06-01/runtime/invocation/x/response"),
        ("POST", "/2020-01-01/extension/register"),
    ):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request(method, path, "{}" if method == "POST" else None, {"Lambda-Extension-Name": "x"})
            response = connection.getresponse()
            headers, body = response.headers, response.read()
            if any(name.lower().startswith("lambda-") for name in headers) or b"errorType" in body:
                got.append([port, path, response.status, body.decode(errors="replace")[:80]])
        except (OSError, http.client.HTTPException):
            pass
    return got

def handler(event, context):
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        got = [one for many in pool.map(ask, event) for one in many]
    return [bool(got), [event, got]]
"#;

pub(crate) fn attempts() -> Vec<Attempt> {
    vec![
        Attempt::new(
            "network host: another's Runtime API answers nothing",
            runtime_api_of_another,
        ),
        Attempt::new(
            "network host: nobody gets a function's requests by listening on its port",
            port_of_another,
        ),
    ]
}

fn deploy(ground: &Ground, name: &str, keys: &Value, code: &str) -> Value {
    let archive = archive(&[ArchiveEntry::text("app.py", code)]);
    ground.daemon.upload(name, keys, &archive).1
}

fn runtime_api_of_another(ground: &Ground) -> Verdict {
    let daemon = &ground.daemon;
    let command = json!(["/usr/bin/env", "python3", "-u", "app.py"]);
    let keys =
        json!({"runtime": "provided", "command": command, "network": "host", "timeout_s": 20});
    let event = deploy(ground, "client", &keys, CLIENT);
    if event["event"] != "done" {
        return Verdict::Fail(format!("the victim does not come up: {event}"));
    }
    // Its worker waits for an event while the other one looks for it.
    let first = daemon.invoke("client", &json!([VICTIMS_SECRET])).ok();
    assert_eq!(first.json(), json!([VICTIMS_SECRET]));
    let keys = json!({"network": "host", "timeout_s": 30});
    daemon.upload_code("scanner", &keys, SCANNER);
    let seen = daemon
        .invoke("scanner", &json!(ports_of(daemon.pid())))
        .ok()
        .json();
    let next = daemon.invoke("client", &json!([VICTIMS_SECRET])).ok();
    assert_eq!(
        next.json(),
        json!([VICTIMS_SECRET]),
        "the victim still serves"
    );
    for name in ["client", "scanner"] {
        daemon.cli_ok(&["remove", name]);
    }
    match seen[0] == true {
        true => Verdict::Fail(seen.to_string()),
        false => Verdict::Pass(seen.to_string()),
    }
}

/// The ports at which this process and those below it listen. Others on this machine are not to be disturbed, and may be anything.
fn ports_of(pid: i32) -> BTreeSet<u16> {
    let mut own = descendants(pid);
    own.push(pid);
    let sockets: BTreeSet<String> = own
        .into_iter()
        .filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok())
        .flatten()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let ports = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, address, _, "0A", _, _, _, _, _, inode, ..] = fields[..] else {
            return None;
        };
        let port = u16::from_str_radix(address.rsplit(':').next()?, 16).ok()?;
        sockets
            .contains(&format!("socket:[{inode}]"))
            .then_some(port)
    });
    let ports: BTreeSet<u16> = ports.collect();
    assert!(!ports.is_empty(), "the daemon listens nowhere");
    ports
}

/// A server that was to listen on a port of the host's network has lost it to somebody else.
fn port_of_another(ground: &Ground) -> Verdict {
    let told = TcpListener::bind("127.0.0.1:0").unwrap();
    let code = format!(
        "import os, socket, time\n\
         told = socket.create_connection(('127.0.0.1', {}))\n\
         told.sendall(os.environ['PORT'].encode() + b'\\n')\n\
         told.recv(1)\n\
         time.sleep(1)\n",
        told.local_addr().unwrap().port()
    );
    let thief = std::thread::spawn(move || {
        let (mut victim, _) = told.accept().unwrap();
        let mut port = String::new();
        while !port.ends_with('\n') {
            let mut byte = [0];
            victim.read_exact(&mut byte).unwrap();
            port.push(char::from(byte[0]));
        }
        let port: u16 = port.trim().parse().unwrap();
        let stolen = TcpListener::bind(("127.0.0.1", port)).unwrap();
        stolen.set_nonblocking(true).unwrap();
        victim.write_all(b"x").unwrap();
        let mut heard = Vec::new();
        // Until the victim has ended.
        victim
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        while !matches!(victim.read(&mut [0]), Ok(0)) {
            if let Ok((connection, _)) = stolen.accept() {
                heard.extend(first_bytes(connection));
            }
        }
        String::from_utf8_lossy(&heard).into_owned()
    });
    let command = json!(["/usr/bin/env", "python3", "app.py"]);
    let keys = json!({"runtime": "http", "command": command, "network": "host", "ready": "/ready"});
    let event = deploy(ground, "robbed", &keys, &code);
    let heard = thief.join().unwrap();
    if event["event"] == "done" || !heard.is_empty() {
        return Verdict::Fail(format!("{event}: {heard}"));
    }
    Verdict::Pass(event.to_string())
}

fn first_bytes(mut connection: TcpStream) -> Vec<u8> {
    connection.set_nonblocking(false).unwrap();
    connection
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let mut bytes = vec![0; 1000];
    let len = connection.read(&mut bytes).unwrap_or(0);
    bytes.truncate(len);
    if len > 0 {
        let _ = connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }
    bytes
}
