//! How workers end between invocations: `keep_alive.stop` and `keep_alive.grace_s`, for each kind of worker.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, getpgid, getsid};
use pilot_harness::{Daemon, Project, descendants, needs_root};
use serde_json::json;

use crate::runtimes::provided;
use crate::{answer, daemon};

/// Its first invocation opens a connection to the test, over which it says what it gets. The connection ends with the worker.
const SAYS: &str = r#"
import atexit, os, signal, socket, sys, time
ear = None

def say(word):
    if ear: ear.sendall(word)

def asked(*_):
    say(b"asked ")
    time.sleep(float(os.environ["TAKES"]))
    print("printed " * 20000)
    sys.exit()

def handler(event=None, *_):
    global ear
    if ear is None:
        ear = socket.create_connection(("127.0.0.1", int(os.environ["TELL"])))
    return 1

atexit.register(say, b"ended")
signal.signal(signal.SIGTERM, asked)
"#;

const SERVES: &str = r#"
class Handler(__import__("http.server").server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_POST(self):
        handler()
        self.send_response(200); self.send_header("Content-Length", "1"); self.end_headers(); self.wfile.write(b"1")

__import__("http.server").server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"#;

const NODE: &str = r"
const net = require('node:net');
let ear = null;
exports.handler = async () => {
  if (ear === null) {
    ear = net.connect(Number(process.env.TELL), '127.0.0.1');
    await new Promise((connected) => ear.once('connect', connected));
  }
  return 1;
};
process.on('SIGTERM', () => {
  if (ear === null) process.exit(0);
  ear.write('asked ');
  console.log('printed');
  setTimeout(() => ear.end('ended', () => process.exit(0)), 1000 * Number(process.env.TAKES));
});
";

/// Every kind of worker that gets signals, with what it says if nothing is configured.
const KINDS: [(&str, &str); 7] = [
    ("forked", "ended"),
    ("shared", "ended"),
    ("asyncio", "ended"),
    ("fresh", "ended"),
    ("provided", ""),
    ("http", "asked ended"),
    ("node", ""),
];

fn project(kind: &str, keys: &str) -> Project {
    let python = |keys: &str, more: &str| Project::function("lab", &format!("{SAYS}{more}"), keys);
    match kind {
        "forked" => python(keys, ""),
        "shared" => python(&format!("concurrency = 2\n{keys}"), ""),
        "asyncio" => python(
            keys,
            "\ncall = handler\nasync def handler(event, context):\n    return call()\n",
        ),
        "fresh" => python(&format!("template = \"off\"\n{keys}"), ""),
        "provided" => provided(SAYS, keys),
        "http" => Project::empty()
            .file("server.py", format!("{SAYS}{SERVES}"))
            .manifest(
                "lab",
                &format!("runtime = \"http\"\ncommand = [\"python3\", \"server.py\"]\n{keys}"),
            ),
        _ => Project::empty()
            .file("index.js", NODE)
            .manifest("lab", &format!("runtime = \"node\"\n{keys}")),
    }
}

/// SIGTERM, and the longest grace: no worker of a slow machine is killed before it has said its words.
const PATIENT: &str = "keep_alive = { stop = \"sigterm\", grace_s = 10 }";

/// A function whose worker speaks to the test.
struct Lab {
    daemon: Daemon,
    ear: TcpListener,
}

impl Lab {
    /// `takes`: seconds from SIGTERM to its end, if it is given this time.
    fn new(kind: &str, takes: f64, keys: &str) -> Self {
        let ear = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = ear.local_addr().unwrap().port();
        let keys = format!(
            "network = \"host\"\nenvironment.TELL = \"{port}\"\nenvironment.TAKES = \"{takes}\"\n{keys}"
        );
        let daemon = daemon();
        daemon.deploy(&project(kind, &keys));
        Self { daemon, ear }
    }

    /// The connection of a new worker.
    fn worker(&self) -> TcpStream {
        assert_eq!(answer(&self.daemon, "lab", json!(null)), 1);
        let (worker, _) = self.ear.accept().unwrap();
        worker
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        worker
    }

    /// What a worker says when it is scaled away.
    fn last_words(&self) -> String {
        let worker = self.worker();
        self.daemon.scale("lab", 0);
        until_its_end(worker)
    }
}

fn until_its_end(mut worker: TcpStream) -> String {
    let mut said = String::new();
    worker.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn a_worker_gets_sigterm_and_its_grace_if_its_function_says_so() {
    needs_root!();
    for (kind, usual) in KINDS {
        let usually = Lab::new(kind, 0.0, "");
        assert_eq!(usually.last_words(), usual, "{kind}");
        let asked = Lab::new(kind, 0.3, PATIENT);
        assert_eq!(asked.last_words(), "asked ended", "{kind}");
        assert_eq!(asked.last_words(), "asked ended", "{kind}: the next one");
    }
}

#[test]
fn what_a_worker_prints_after_sigterm_is_in_the_log() {
    needs_root!();
    for kind in ["forked", "shared", "asyncio", "fresh", "node", "provided"] {
        let lab = Lab::new(kind, 0.1, PATIENT);
        assert_eq!(lab.last_words(), "asked ended", "{kind}");
        pilot_harness::eventually(&format!("{kind}: it is in the log"), || {
            lab.daemon
                .log_texts("lab")
                .contains("printed")
                .then_some(())
        });
    }
}

#[test]
fn the_last_line_of_a_worker_is_in_the_log_when_the_daemon_stops() {
    needs_root!();
    for kind in ["forked", "node"] {
        let mut lab = Lab::new(kind, 0.3, PATIENT);
        let worker = lab.worker();
        assert_eq!(lab.daemon.stop(), Some(0));
        assert_eq!(until_its_end(worker), "asked ended", "{kind}");
        lab.daemon.resume();
        let texts = lab.daemon.log_texts("lab");
        assert!(texts.contains("printed"), "{kind}: {texts}");
    }
}

#[test]
fn a_worker_is_killed_without_a_signal_if_its_function_says_so() {
    needs_root!();
    for (kind, _) in KINDS {
        let killed = Lab::new(kind, 0.0, "keep_alive.stop = \"kill\"");
        assert_eq!(killed.last_words(), "", "{kind}");
        assert_eq!(killed.last_words(), "", "{kind}: the next one");
    }
}

#[test]
fn what_still_runs_after_the_grace_is_killed() {
    needs_root!();
    for (kind, _) in KINDS {
        // Long enough that a worker on a slow machine has said that it was asked.
        let slow = Lab::new(kind, 60.0, "keep_alive.grace_s = 2");
        let begun = Instant::now();
        assert_eq!(slow.last_words(), "asked ", "{kind}");
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(2), "{kind}: {took:?}");
    }
}

#[test]
fn a_frozen_worker_is_woken_to_end_and_the_daemon_waits_for_it() {
    needs_root!();
    let keys = "keep_alive = { behaviour = \"freeze\", after_s = 0.01, grace_s = 10 }";
    let mut lab = Lab::new("forked", 0.5, keys);
    let worker = lab.worker();
    pilot_harness::eventually("it rests", || {
        (lab.daemon.workers("lab", "frozen") == 1).then_some(())
    });
    let described = lab.daemon.cli_ok(&["describe", "lab"]);
    assert!(
        described.contains("SIGTERM at the end, killed after 10 s"),
        "{described}"
    );
    assert_eq!(lab.daemon.stop(), Some(0));
    worker.set_nonblocking(true).unwrap();
    assert_eq!(
        until_its_end(worker),
        "asked ended",
        "before the daemon's end"
    );
}

#[test]
fn ctrl_c_in_the_terminal_of_the_daemon_reaches_no_other_process() {
    needs_root!();
    for (kind, _) in KINDS {
        let lab = Lab::new(kind, 0.0, "");
        let _worker = lab.worker();
        let ids = |pid| {
            let pid = Pid::from_raw(pid);
            (getpgid(Some(pid)), getsid(Some(pid)))
        };
        let (group, session) = ids(lab.daemon.pid());
        let below = descendants(lab.daemon.pid());
        assert!(!below.is_empty(), "{kind}");
        for pid in below {
            let its = ids(pid);
            // Unless it has just ended.
            if its.0.is_ok() && its.1.is_ok() {
                assert!(its.0 != group && its.1 != session, "{kind}: {pid} {its:?}");
            }
        }
    }
}

#[test]
fn a_worker_of_a_replaced_version_has_its_grace() {
    needs_root!();
    let lab = Lab::new("forked", 0.5, PATIENT);
    let worker = lab.worker();
    lab.daemon
        .deploy(&project("forked", "environment.TELL = \"0\""));
    assert_eq!(until_its_end(worker), "asked ended");
}

/// Without `keep_alive.stop`.
#[test]
fn exit_functions_run_however_a_worker_ends_between_invocations() {
    needs_root!();
    for kind in ["forked", "shared", "asyncio", "fresh"] {
        let mut lab = Lab::new(kind, 0.0, "");
        let worker = lab.worker();
        lab.daemon.deploy(&project(
            kind,
            "network = \"host\"\nenvironment.TELL = \"0\"",
        ));
        assert_eq!(until_its_end(worker), "ended", "{kind}: a new version");
        lab.daemon.cli_ok(&["rollback", "lab"]);
        let worker = lab.worker();
        assert_eq!(lab.daemon.stop(), Some(0));
        assert_eq!(until_its_end(worker), "ended", "{kind}: the daemon stops");
        lab.daemon.resume();
        let worker = lab.worker();
        lab.daemon.cli_ok(&["remove", "lab"]);
        assert_eq!(until_its_end(worker), "ended", "{kind}: it is removed");
    }
}
