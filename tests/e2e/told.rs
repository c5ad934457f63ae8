//! What the logs say, and what a function cannot make them say: the log of a function, and the daemon's own log.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilot_harness::{
    ArchiveEntry, Daemon, DaemonOptions, Request, archive, eventually, eventually_within,
    groups_of, needs_root,
};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use crate::access::with_control_address;
use crate::{ECHO, daemon_with, lab, plain};

/// Prints its event's text.
const PRINT: &str = "def handler(event, context):\n    print(event)\n";

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_report_line_that_a_function_prints_is_shown_as_the_functions_own() {
    let daemon = lab(PRINT, plain());
    let forged = "REPORT RequestId: x\tDuration: 0.01 ms\n1 p - REPORT RequestId: y";
    daemon.invoke("lab", &json!(forged)).ok();
    let log = eventually("it is written", || {
        let log = daemon.cli_ok(&["logs", "lab"]);
        log.contains("platform REPORT").then_some(log)
    });
    for forged in [
        " function REPORT RequestId: x\tDuration",
        " function 1 p - REPORT RequestId: y",
    ] {
        assert!(log.contains(forged), "{log}");
    }
    assert_eq!(log.matches(" platform REPORT").count(), 1, "{log}");
    let json = lines(&daemon.cli_ok(&["logs", "lab", "--json"]));
    let platform: Vec<_> = json
        .iter()
        .filter(|line| line["source"] == "platform")
        .collect();
    assert_eq!(platform.len(), 3, "START, END, REPORT: {json:?}");
}

/// An answer of one piece is complete with its head.
#[test]
fn what_an_application_prints_is_in_the_log_of_its_request_also_with_several_at_once() {
    const CODE: &str = "
import sys

async def asgi(scope, receive, send):
    assert scope['type'] == 'http', scope
    print('asgi says', scope['query_string'].decode())
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': b'ok'})

def wsgi(environ, start_response):
    print('wsgi says', environ['QUERY_STRING'], file=sys.stderr)
    start_response('200 OK', [])
    return [b'ok']
";
    let daemon = daemon_with(DaemonOptions::default());
    for interface in ["asgi", "wsgi"] {
        let handler = format!("app:{interface}");
        let keys = json!({"handler": handler, "interface": interface, "concurrency": 4});
        daemon.upload_code(interface, &keys, CODE);
        for number in 0..3 {
            let response = daemon.get(&format!("/fn/{interface}/?{number}")).ok();
            let id = response.header("x-amzn-requestid").unwrap().to_owned();
            let text = format!("{interface} says {number}");
            eventually("it is in the log of its request", || {
                let json = lines(&daemon.cli_ok(&["logs", interface, "--request", &id, "--json"]));
                let is_there = json.iter().any(|line| line["text"] == *text);
                is_there.then_some(())
            });
        }
    }
}

#[test]
fn no_caller_gets_what_another_one_s_invocation_printed_in_the_same_worker() {
    const CODE: &str = "
import threading
together = threading.Barrier(3)

def handler(event, context):
    print('secret of', event)
    together.wait(20)
";
    let daemon = daemon_with(DaemonOptions::default());
    let keys = json!({"concurrency": 3, "scale": {"max": 1}, "timeout_s": 30});
    daemon.upload_code("lab", &keys, CODE);
    let mut connections: Vec<_> = (0..3).map(|_| daemon.connect()).collect();
    for (number, connection) in connections.iter_mut().enumerate() {
        let request = Request::new("POST", "/2015-03-31/functions/lab/invocations");
        connection.send(
            &request
                .header("x-amz-log-type", "Tail")
                .body(number.to_string()),
        );
    }
    for mut connection in connections {
        let response = connection.receive("POST").ok();
        let tail = response.header("x-amz-log-result").unwrap_or_default();
        let tail = String::from_utf8(STANDARD.decode(tail).unwrap()).unwrap();
        assert!(tail.contains("REPORT"), "{tail}");
        assert!(!tail.contains("secret"), "{tail}");
    }
    eventually("all of it is in the log, and nobody's", || {
        let json = lines(&daemon.cli_ok(&["logs", "lab", "--json"]));
        let secrets: Vec<_> = json
            .iter()
            .filter(|line| {
                line["text"]
                    .as_str()
                    .is_some_and(|text| text.starts_with("secret"))
            })
            .collect();
        assert!(secrets.iter().all(|line| line["request_id"].is_null()));
        (secrets.len() == 3).then_some(())
    });
}

/// A worker of one request, and of several.
#[test]
fn what_was_printed_before_a_worker_dies_or_a_response_takes_too_long_is_in_the_log() {
    const DIES: &str = "
import os, sys

def handler(event, context):
    print('last words of', event)
    sys.stdout.flush()
    os._exit(3)
";
    const STREAMS: &str = "
import asyncio

async def app(scope, receive, send):
    assert scope['type'] == 'http', scope
    print('begun')
    await send({'type': 'http.response.start', 'status': 200, 'headers': []})
    await send({'type': 'http.response.body', 'body': b'part', 'more_body': True})
    await asyncio.sleep(20)
";
    let daemon = daemon_with(DaemonOptions::default());
    let is_in_log = |function: &str, text: &str| {
        eventually("it is in the log", || {
            let json = lines(&daemon.cli_ok(&["logs", function, "--json"]));
            let count = json.iter().filter(|line| line["text"] == text).count();
            assert!(count <= 1, "{json:?}");
            (count == 1).then_some(())
        });
    };
    for concurrency in [1, 4] {
        let name = format!("dies-{concurrency}");
        daemon.upload_code(&name, &json!({"concurrency": concurrency}), DIES);
        for event in [1, 2] {
            daemon.invoke(&name, &json!(event));
            is_in_log(&name, &format!("last words of {event}"));
        }
    }
    for concurrency in [1, 4] {
        let name = format!("streams-{concurrency}");
        let keys = json!({"interface": "asgi", "handler": "app.app", "timeout_s": 1, "concurrency": concurrency});
        daemon.upload_code(&name, &keys, STREAMS);
        let mut connection = daemon.connect();
        connection.send(&Request::new("GET", &format!("/fn/{name}/")));
        is_in_log(&name, "begun");
    }
}

/// A client that hangs up; a thread that prints after the answer; a program on the Runtime API whose time is over.
#[test]
fn what_was_printed_by_a_worker_that_is_ended_is_in_the_log() {
    const CODE: &str = "
import os, socket, threading, time

def tell():
    return socket.create_connection(('127.0.0.1', int(os.environ['TELL'])))

def later(test):
    test.recv(1)
    print('after the answer', flush=True)
    test.close()

def handler(event, context):
    if event == 'wait':
        print('begun', flush=True)
        tell()
        time.sleep(20)
    threading.Thread(target=later, args=(tell(),)).start()
";
    const PROGRAM: &str = "
import os, time, urllib.request

api = os.environ['AWS_LAMBDA_RUNTIME_API']
urllib.request.urlopen(f'http://{api}/2018-06-01/runtime/invocation/next').read()
print('polled', flush=True)
time.sleep(20)
";
    let daemon = daemon_with(DaemonOptions::default());
    let is_in_log = |function: &str, text: &str| {
        eventually("it is in the log", || {
            let json = lines(&daemon.cli_ok(&["logs", function, "--json"]));
            json.iter().any(|line| line["text"] == text).then_some(())
        });
    };
    let ear = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = ear.local_addr().unwrap().port().to_string();
    let keys = json!({"network": "host", "environment": {"TELL": port}, "timeout_s": 60});
    daemon.upload_code("lab", &keys, CODE);
    daemon.invoke("lab", &json!("return")).ok();
    let (mut thread, _) = ear.accept().unwrap();
    thread.write_all(b"x").unwrap();
    assert_eq!(thread.read(&mut [0]).unwrap(), 0, "it has printed");
    daemon.scale("lab", 0);
    is_in_log("lab", "after the answer");
    let mut connection = daemon.connect();
    let path = "/2015-03-31/functions/lab/invocations";
    connection.send(&Request::new("POST", path).body(b"\"wait\""));
    drop(ear.accept().unwrap());
    drop(connection);
    is_in_log("lab", "begun");
    let keys = json!({"runtime": "provided", "command": ["python3", "app.py"], "timeout_s": 1});
    daemon.upload_code("program", &keys, PROGRAM);
    let response = daemon.invoke("program", &json!(1));
    assert!(response.text().contains("timed out"), "{}", response.text());
    is_in_log("program", "polled");
}

/// With threads, with an event loop, in Node.js: what was printed after the last answer, and by an invocation that takes too long.
#[test]
fn what_a_worker_of_several_printed_is_in_the_log_when_it_runs_too_long_or_is_ended() {
    const THREADS: &str = "
import asyncio, os, socket, threading, time

def later(test):
    test.recv(1)
    print('after the answer', flush=True)
    test.close()

def handler(event, context):
    if event == 'wait':
        print('begun', flush=True)
        time.sleep(20)
    test = socket.create_connection(('127.0.0.1', int(os.environ['TELL'])))
    threading.Thread(target=later, args=(test,)).start()
";
    const NODE: &str = "
const net = require('net');

exports.handler = async (event) => {
  if (event === 'wait') {
    process.stdout.write('begun\\n');
    await new Promise((resolve) => setTimeout(resolve, 20000));
  }
  const test = net.connect(Number(process.env.TELL), '127.0.0.1');
  test.once('data', () => {
    process.stdout.write('after the answer\\n');
    test.end();
  });
};
";
    let event_loop = THREADS
        .replace("def handler", "async def handler")
        .replace("time.sleep", "await asyncio.sleep");
    let daemon = daemon_with(DaemonOptions::default());
    let ear = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = ear.local_addr().unwrap().port().to_string();
    let files = [
        ("threads", "python", "app.py", THREADS),
        ("loop", "python", "app.py", &event_loop),
        ("node", "node", "index.js", NODE),
    ];
    for (name, runtime, file, code) in files {
        let keys = json!({
            "runtime": runtime, "concurrency": 4, "timeout_s": 2, "network": "host",
            "environment": {"TELL": port}, "scale": {"max": 1},
        });
        daemon.upload_archive(name, &keys, &archive(&[ArchiveEntry::text(file, code)]));
        let is_in_log_as_nobody_s = |text: &str| {
            eventually("it is in the log", || {
                let json = lines(&daemon.cli_ok(&["logs", name, "--json"]));
                let found: Vec<_> = json.iter().filter(|line| line["text"] == text).collect();
                let is_nobody_s = found.iter().all(|line| line["request_id"].is_null());
                assert!(found.len() <= 1 && is_nobody_s, "{json:?}");
                (found.len() == 1).then_some(())
            });
        };
        daemon.invoke(name, &json!("return")).ok();
        let (mut thread, _) = ear.accept().unwrap();
        thread.write_all(b"x").unwrap();
        assert_eq!(thread.read(&mut [0]).unwrap(), 0, "it has printed");
        daemon.scale(name, 0);
        is_in_log_as_nobody_s("after the answer");
        let response = daemon.invoke(name, &json!("wait"));
        assert!(response.text().contains("timed out"), "{}", response.text());
        is_in_log_as_nobody_s("begun");
    }
}

#[test]
fn no_control_character_of_a_function_reaches_whoever_reads_its_log() {
    let daemon = lab(PRINT, plain());
    let attack = "\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\u{202e}\rover";
    daemon.invoke("lab", &json!(attack)).ok();
    let is_clean = |text: &str| {
        let control = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        assert!(!text.contains(control), "{text:?}");
    };
    let log = eventually("it is written", || {
        let log = daemon.cli_ok(&["logs", "lab"]);
        log.contains("REPORT").then_some(log)
    });
    assert!(
        log.contains(r"\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m"),
        "{log}"
    );
    is_clean(&log);
    is_clean(&daemon.logs("lab"));
    let json = daemon.cli_ok(&["logs", "lab", "--json"]);
    is_clean(&json);
    let text = |line: &Value| line["text"] == attack;
    assert!(lines(&json).iter().any(text), "the exact text: {json}");
}

#[test]
fn no_control_character_of_a_deployer_reaches_whoever_describes_its_function() {
    let attack = "a\u{9b}31m\u{202e}b\u{1b}]0;title\u{7}c";
    let daemon = lab(PRINT, json!({"environment": {"ATTACK": attack}}));
    for text in [
        daemon.cli_ok(&["describe", "lab", "--values"]),
        daemon.cli_ok(&["describe", "lab", "--values", "--json"]),
        daemon.cli_ok(&["list"]),
    ] {
        let control = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        assert!(!text.contains(control), "{text:?}");
    }
    let shown = daemon.cli_ok(&["describe", "lab", "--values"]);
    assert!(shown.contains("ATTACK=a"), "{shown}");
    let exact = daemon.cli_ok(&["describe", "lab", "--values", "--json"]);
    let exact: Value = serde_json::from_str(&exact).unwrap();
    assert_eq!(exact["config"]["environment"]["ATTACK"], attack, "{exact}");
}

#[test]
fn no_control_character_of_a_file_name_reaches_whoever_deploys_it() {
    let daemon = lab(PRINT, plain());
    let project = pilot_harness::Project::function("lab", PRINT, "");
    let place = project.path().join("a\u{1b}[2Jb");
    std::os::unix::fs::symlink("/etc/passwd", place).unwrap();
    let output = daemon.cli(&["deploy", &project.path().display().to_string()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(r"a\u{1b}[2Jb: is a symbolic link"), "{said}");
}

#[test]
fn a_log_is_filtered_by_time_and_by_request() {
    let daemon = lab(PRINT, plain());
    let first = daemon.invoke("lab", &json!("first")).ok();
    let id = first.header("x-amzn-requestid").unwrap().to_owned();
    daemon.invoke("lab", &json!("second")).ok();
    let all = eventually("both are written", || {
        let all = lines(&daemon.cli_ok(&["logs", "lab", "--json"]));
        (all.len() == 8).then_some(all)
    });
    assert!(
        all.iter()
            .all(|line| line["time"].as_str().unwrap().ends_with('Z'))
    );
    let of = lines(&daemon.cli_ok(&["logs", "lab", "--json", "--request", &id]));
    assert_eq!(of.len(), 4);
    assert!(of.iter().all(|line| line["request_id"] == *id), "{of:?}");
    assert_eq!(
        daemon
            .cli_ok(&["logs", "lab", "--since", "1h"])
            .lines()
            .count(),
        8
    );
    let second = all[4]["time"].as_str().unwrap();
    let since = lines(&daemon.cli_ok(&["logs", "lab", "--json", "--since", second]));
    assert!(
        since.iter().any(|line| line["text"] == "second"),
        "{since:?}"
    );
    assert_eq!(
        daemon.cli_ok(&["logs", "lab", "--since", "2100-01-01T00:00:00Z"]),
        ""
    );
    let refused = daemon.cli(&["logs", "lab", "--since", "yesterday"]);
    assert!(!refused.status.success());
}

#[test]
fn a_log_of_an_earlier_version_is_read_and_claims_no_source() {
    let daemon = lab(PRINT, plain());
    let folder = daemon.data_dir().join("logs/lab");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("current.log"), "REPORT RequestId: old\n").unwrap();
    daemon.invoke("lab", &json!("new")).ok();
    let log = eventually("the new line is written", || {
        let log = daemon.cli_ok(&["logs", "lab"]);
        log.contains("function new").then_some(log)
    });
    let old = log.lines().next().unwrap();
    assert!(old.ends_with(" unknown  REPORT RequestId: old"), "{log}");
}

#[test]
fn the_daemons_log_says_what_was_deployed_and_what_failed() {
    let code = "import os, time\ndef handler(event, context):\n    if event == 'exit': os._exit(3)\n    time.sleep(60)\n";
    let daemon = lab(code, json!({"timeout_s": 2}));
    daemon.invoke("lab", &json!("sleep"));
    let crash = daemon.invoke("lab", &json!("exit"));
    let id = crash.header("x-amzn-requestid").unwrap();
    let log = eventually("both are in the log", || {
        let log = daemon.log();
        (log.contains("timed out") && log.contains("crashed")).then_some(log)
    });
    let line = |words: &str| log.lines().find(|line| line.contains(words)).unwrap();
    assert!(line("deployed").contains("function=lab"), "{log}");
    let crashed = line("a worker crashed");
    for words in ["WARN", "function=lab", id, "exit status 3", "handler_ms="] {
        assert!(crashed.contains(words), "{words}: {crashed}");
    }
    let timed_out = line("an invocation timed out");
    let (_, after) = timed_out.split_once("handler_ms=").unwrap();
    let handler_ms: u32 = after.split(' ').next().unwrap().parse().unwrap();
    assert!((2_000..60_000).contains(&handler_ms), "{timed_out}");
    let (status, _) = daemon.upload("bad", &json!({"handler": "app.missing"}), b"no archive");
    assert!(status >= 200);
    assert!(
        daemon.log().contains("not deployed"),
        "a deployment that fails: {}",
        daemon.log()
    );
}

#[test]
fn a_function_that_crashes_again_and_again_does_not_flood_the_daemons_log() {
    let daemon = lab(
        "import os\ndef handler(event, context):\n    os._exit(3)\n",
        plain(),
    );
    for _ in 0..40 {
        daemon.invoke("lab", &json!(1));
    }
    let log = eventually_within(Duration::from_secs(40), "the rest is counted", || {
        let log = daemon.log();
        log.contains("more invocations failed than are logged")
            .then_some(log)
    });
    let told = log.matches("a worker crashed during an invocation").count();
    assert!((1..=15).contains(&told), "{told} lines: {log}");
    let left_out: usize = log
        .split("left_out=")
        .skip(1)
        .map(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<usize>().unwrap()
        })
        .sum();
    assert_eq!(told + left_out, 40, "{log}");
}

#[test]
fn a_template_cannot_flood_the_daemons_log() {
    needs_root!();
    // At import, a thread-less loop after the fork server has begun is not possible; a child process keeps the control socket. It waits
    // until the template has served: a flood before would fail the deployment.
    let ear = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = ear.local_addr().unwrap().port();
    let code = "import os, socket, stat\n\
        def sockets():\n    for fd in range(3, 64):\n        try:\n            if stat.S_ISSOCK(os.fstat(fd).st_mode): yield fd\n        except OSError: pass\n\
        if os.fork() == 0:\n    try: socket.create_connection(('127.0.0.1', PORT)).recv(1)\n    except OSError: pass\n    for fd in list(sockets()):\n        try:\n            s = socket.socket(fileno=os.dup(fd))\n            for n in range(3000):\n                s.send(b'{\"nonsense\": %d}' % n)\n        except OSError: pass\n    os._exit(0)\n\
        def handler(event, context):\n    return 1\n";
    let code = code.replace("PORT", &port.to_string());
    let daemon = lab(&code, json!({"network": "host"}));
    daemon.invoke("lab", &json!(1)).ok();
    // What waits now goes on. A process of the next template waits in vain.
    ear.set_nonblocking(true).unwrap();
    eventually_within(Duration::from_secs(20), "the flood is noticed", || {
        let noticed = daemon.log().contains("invalid message");
        while !noticed && ear.accept().is_ok() {}
        noticed.then_some(())
    });
    // What else would be logged.
    std::thread::sleep(Duration::from_millis(500));
    let count = daemon
        .log()
        .matches("a template sent an invalid message")
        .count();
    assert!(count <= 10, "{count} lines");
    // It goes on with a new template.
    eventually("it is served again", || {
        (daemon.invoke("lab", &json!(1)).status == 200).then_some(())
    });
}

#[test]
fn a_level_that_does_not_exist_is_refused_with_the_levels() {
    let home = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "loud",
            "--data-dir",
        ])
        .arg(home.path().join("data"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error, warn, info, debug, trace"), "{said}");
    let config = home.path().join("pilotd.toml");
    std::fs::write(&config, "[log]\nlevel = \"loud\"\n").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pilot"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        said.contains("log.level") && said.contains("error, warn, info"),
        "{said}"
    );
}

#[test]
fn memory_that_is_short_outside_the_function_is_not_blamed_on_its_limit() {
    needs_root!();
    let code =
        "def handler(event, context):\n    x = []\n    while True: x.append(bytearray(1 << 20))\n";
    let daemon = lab(code, json!({"memory_mb": 256}));
    let answer = daemon.invoke("lab", &json!(1)).json();
    let message = answer["errorMessage"].as_str().unwrap();
    assert!(
        message.contains("limit of 256 MB: raise memory_mb"),
        "{message}"
    );

    let files = ["memory.limit_in_bytes", "memory.max"];
    let groups = groups_of(daemon.pid());
    let mut around = groups
        .iter()
        .flat_map(|group| files.map(|file| group.join(file)));
    let around = around.find(|file| file.exists());
    let around = around.expect("the daemon's control group");
    std::fs::write(&around, (128 << 20).to_string()).unwrap();
    let answer = daemon.invoke("lab", &json!(1)).json();
    let message = answer["errorMessage"].as_str().unwrap();
    assert!(message.contains("memory_mb was not reached"), "{message}");
    assert_eq!(answer["errorType"], "Runtime.OutOfMemory");
}

#[test]
fn workers_show_their_memory_before_the_first_sample() {
    needs_root!();
    let daemon = lab(ECHO, plain());
    daemon.invoke("lab", &json!(1)).ok();
    let listed = daemon.get("/_pilot/v1/functions").ok().json();
    assert_eq!(listed[0]["workers"]["idle"], 1, "{listed}");
    assert!(
        listed[0]["workers"]["memory_bytes"].as_u64().unwrap() > 0,
        "{listed}"
    );
}

#[test]
fn the_phase_of_a_worker_that_is_not_forked_has_another_name() {
    let daemon = lab(ECHO, json!({"template": "off"}));
    let timing = |name: &str| {
        let answer = daemon.invoke(name, &json!(1));
        answer.header("server-timing").unwrap().to_owned()
    };
    let exec = timing("lab");
    assert!(
        exec.contains("exec;dur=") && !exec.contains("fork"),
        "{exec}"
    );
    daemon.upload_code("forked", &plain(), ECHO);
    assert!(timing("forked").contains("fork;dur="));
}

#[test]
fn the_page_of_the_control_api_loads_nothing_and_needs_no_token() {
    let (_daemon, control) = with_control_address("");
    let get = |path: &str| Daemon::get_at(control, path);
    let page = get("/_pilot/v1/docs").ok();
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; style-src 'sha256-"),
        "{policy}"
    );
    assert!(page.text().contains("/_pilot/v1/functions/{name}/logs"));
    assert_eq!(get("/_pilot/v1/openapi.json").status, 401);
}
