//! Extensions of `runtime = "provided"`, in their own processes and in the function's process: the events that they receive, who
//! waits for them, and their time to end.
//!
//! The extension in these tests shares the host's network, reports its events to the test, and continues when the test says so.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

use pilot_harness::{Daemon, Project, Request, eventually, needs_root};
use serde_json::{Value, json};

use super::{BOOTSTRAP, provided_lab};
use crate::{answer, daemon};

/// An extension as in AWS's documentation that reports to the test. It ends some time after the runtime.
const EXTENSION: &str = r#"
import http.client, json, os, socket, time
watch = socket.create_connection(("127.0.0.1", int(os.environ["WATCH"])))
words = watch.makefile("rw")
def say(what):
    print(json.dumps(what), file=words, flush=True)
api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
def ask(method, path, headers, body=None):
    api.request(method, "/2020-01-01/extension/" + path, body, headers)
    answer = api.getresponse()
    return answer.headers, json.loads(answer.read())
headers, function = ask("POST", "register", {"Lambda-Extension-Name": "watch"}, json.dumps({"events": ["INVOKE", "SHUTDOWN"]}))
own = {"Lambda-Extension-Identifier": headers["Lambda-Extension-Identifier"]}
open("/tmp/registered", "w").close()
say({"registered": function["functionName"]})
words.readline()
open("/tmp/asked", "w").close()
while True:
    _, event = ask("GET", "event/next", own)
    say(event)
    if event["eventType"] == "SHUTDOWN":
        break
    words.readline()
    open("/tmp/done-" + event["requestId"], "w").close()
while os.getppid() != 1:
    time.sleep(0.001)
time.sleep(0.2)
say({"ended": True})
"#;

/// Starts the runtime when its extension has registered, as Lambda does.
const START: &str = "python3 extension.py &\nuntil [ -e /tmp/registered ]; do sleep 0.01; done\nexec python3 bootstrap.py\n";

/// Returns the extension's progress at the time of the call. Reports to the test that the runtime is about to poll.
const CODE: &str = r#"
import os, socket
with socket.create_connection(("127.0.0.1", int(os.environ["WATCH"]))) as watch:
    watch.sendall(b'{"runtime": "begins"}\n')
def handler(event, headers):
    names = os.listdir("/tmp")
    return {"asked": "asked" in names, "done": sorted(name[5:] for name in names if name.startswith("done-"))}
"#;

/// Longest time of every step.
const TIME_MAX: Duration = Duration::from_secs(20);

/// Receives the reports of extensions.
struct Watch {
    port: u16,
    heard: Receiver<Heard>,
    /// Whether they continue only when the test says so.
    holds: Arc<AtomicBool>,
}

/// A report of an extension. `Null`: its connection has ended, and so has its process.
struct Heard {
    said: Value,
    /// The number of its connection.
    by: usize,
    is_held: bool,
    stream: TcpStream,
}

impl Heard {
    fn go_on(mut self) {
        if self.is_held {
            go(&mut self.stream);
        }
    }
}

/// Lets an extension continue. One that has ended does not receive it.
fn go(stream: &mut TcpStream) {
    drop(writeln!(stream, "go"));
}

impl Watch {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, heard) = channel();
        let holds = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&holds);
        // The threads end with the test's process.
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let (tell, held) = (tell.clone(), Arc::clone(&held));
                std::thread::spawn(move || listen(number, &stream, &held, &tell));
            }
        });
        Self { port, heard, holds }
    }

    /// The next matching report. Extensions with other reports continue.
    #[track_caller]
    fn hears(&self, what: &str, fits: impl Fn(&Heard) -> bool) -> Heard {
        loop {
            let heard = self.heard.recv_timeout(TIME_MAX);
            let heard = heard.unwrap_or_else(|_| panic!("waited in vain for {what}"));
            if fits(&heard) {
                return heard;
            }
            heard.go_on();
        }
    }

    fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }
}

fn listen(number: usize, stream: &TcpStream, holds: &AtomicBool, tell: &Sender<Heard>) {
    let pass_on = |said: Value, is_held: bool| {
        let heard = Heard {
            said,
            by: number,
            is_held,
            stream: stream.try_clone().unwrap(),
        };
        // The test may have ended.
        drop(tell.send(heard));
    };
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        let is_held = holds.load(Ordering::SeqCst);
        if !is_held {
            go(&mut stream.try_clone().unwrap());
        }
        pass_on(serde_json::from_str(&line).unwrap(), is_held);
    }
    pass_on(Value::Null, false);
}

/// A function with this extension.
#[track_caller]
fn watched(extension: &str) -> (Daemon, Watch) {
    watched_with(extension, "")
}

/// The same with more keys.
#[track_caller]
fn watched_with(extension: &str, more: &str) -> (Daemon, Watch) {
    let watch = Watch::open();
    let daemon = daemon();
    let keys = format!(
        "runtime = \"provided\"\ncommand = [\"/bin/sh\", \"start.sh\"]\nnetwork = \"host\"\ntimeout_s = 15\nscale.max = 1\n\
         environment.WATCH = \"{}\"\n{more}",
        watch.port
    );
    let project = Project::empty()
        .file("start.sh", START)
        .file("extension.py", extension)
        .file("bootstrap.py", BOOTSTRAP)
        .file("app.py", CODE)
        .manifest("lab", &keys);
    daemon.deploy(&project);
    (daemon, watch)
}

#[track_caller]
fn retire(daemon: &Daemon) {
    eventually("nobody is busy", || {
        (daemon.workers("lab", "busy") == 0).then_some(())
    });
    daemon.scale("lab", 0);
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap().as_millis()).unwrap()
}

/// A successful invocation: its request id and its result.
#[track_caller]
fn invoked(daemon: &Daemon) -> (String, Value) {
    let response = daemon.invoke("lab", &json!({})).ok();
    let id = response.header("x-amzn-requestid").unwrap().to_owned();
    assert_eq!(
        response.header("x-amz-function-error"),
        None,
        "{}",
        response.text()
    );
    (id, response.json())
}

#[test]
fn an_extension_hears_of_invocations_and_of_the_end_and_has_the_time_to_end() {
    needs_root!();
    // Long enough for the words of an extension on a slow machine.
    let (daemon, watch) = watched_with(EXTENSION, "keep_alive.grace_s = 10");
    let (id, _) = invoked(&daemon);
    let invoke = watch.hears("the event of the invocation", |heard| {
        heard.said["requestId"] == id.as_str()
    });
    assert_eq!(invoke.said["eventType"], "INVOKE");
    assert_eq!(
        invoke.said["invokedFunctionArn"],
        "arn:aws:lambda:us-east-1:000000000000:function:lab"
    );
    assert!(invoke.said["deadlineMs"].as_u64().unwrap() > now_ms());

    let before_ms = now_ms();
    retire(&daemon);
    let shutdown = watch.hears("the event of the end", |heard| {
        heard.by == invoke.by && heard.said["eventType"] == "SHUTDOWN"
    });
    assert_eq!(shutdown.said["shutdownReason"], "spindown");
    let deadline_ms = shutdown.said["deadlineMs"].as_u64().unwrap();
    assert!(
        (before_ms + 10_000..=now_ms() + 10_000).contains(&deadline_ms),
        "{deadline_ms} from {before_ms}"
    );
    watch.hears("the last words, after the runtime has ended", |heard| {
        heard.by == invoke.by && heard.said["ended"] == true
    });
    watch.hears("the end of its process", |heard| {
        heard.by == invoke.by && heard.said.is_null()
    });
    // Its own id may be there: the extension hears of an invocation when the function does.
    let done = invoked(&daemon).1["done"].to_string();
    assert!(!done.contains(&id), "{id} is of another sandbox: {done}");
}

#[test]
fn an_extension_that_does_not_end_is_ended_at_its_deadline() {
    needs_root!();
    let stays = EXTENSION.replace("time.sleep(0.2)", "time.sleep(1000)");
    assert_ne!(stays, EXTENSION);
    let (daemon, watch) = watched(&stays);
    let (id, _) = invoked(&daemon);
    let invoke = watch.hears("the event of the invocation", |heard| {
        heard.said["requestId"] == id.as_str()
    });
    let before_ms = now_ms();
    retire(&daemon);
    let shutdown = watch.hears("the event of the end", |heard| {
        heard.by == invoke.by && heard.said["eventType"] == "SHUTDOWN"
    });
    // If its function does not say otherwise, it has two seconds.
    let deadline_ms = shutdown.said["deadlineMs"].as_u64().unwrap();
    assert!(
        (before_ms + 2_000..=now_ms() + 2_000).contains(&deadline_ms),
        "{deadline_ms} from {before_ms}"
    );
    let last = watch.hears("the end of its process", |heard| {
        heard.by == invoke.by && (heard.said.is_null() || heard.said["ended"] == true)
    });
    assert!(last.said.is_null(), "it came to its end: {}", last.said);
    assert!(now_ms() >= deadline_ms);
}

#[test]
fn a_worker_is_ready_when_its_extension_has_asked_for_its_first_event() {
    needs_root!();
    let (daemon, watch) = watched(EXTENSION);
    retire(&daemon);
    watch.hold();
    let mut connection = daemon.connect();
    connection.send(&Request::new("POST", "/2015-03-31/functions/lab/invocations").body("{}"));
    let new = watch.hears("a new extension", |heard| {
        heard.is_held && heard.said["registered"] == "lab"
    });
    // The runtime polls, and must not get the event.
    watch.hears("the runtime", |heard| {
        heard.said["runtime"] == "begins" && heard.is_held
    });
    assert_eq!(daemon.workers("lab", "starting"), 1);
    new.go_on();
    let response = connection.receive("POST").ok();
    assert_eq!(response.json()["asked"], true, "{}", response.text());
}

#[test]
fn an_answer_is_not_held_back_by_an_extension_and_the_next_invocation_is() {
    needs_root!();
    let (daemon, watch) = watched(EXTENSION);
    let (first, _) = invoked(&daemon);
    watch.hears("the first invocation", |heard| {
        heard.said["requestId"] == first.as_str()
    });
    watch.hold();
    // Answered although the extension has not finished.
    let (second, seen) = invoked(&daemon);
    assert_eq!(seen["done"], json!([first]));
    let at_work = watch.hears("the second invocation", |heard| {
        heard.said["requestId"] == second.as_str()
    });
    assert!(at_work.is_held);
    let mut connection = daemon.connect();
    connection.send(&Request::new("POST", "/2015-03-31/functions/lab/invocations").body("{}"));
    eventually("the third has the worker", || {
        (daemon.workers("lab", "busy") == 1).then_some(())
    });
    at_work.go_on();
    let mut done = [first, second];
    done.sort();
    assert_eq!(connection.receive("POST").ok().json()["done"], json!(done));
}

#[test]
fn an_extension_that_registers_after_the_first_poll_hears_of_what_comes_then() {
    needs_root!();
    let code = r#"
import http.client, json, os, queue, threading
heard = queue.Queue()
def listen(registered):
    api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    api.request("POST", "/2020-01-01/extension/register", json.dumps({"events": ["INVOKE"]}), {"Lambda-Extension-Name": "late"})
    answer = api.getresponse()
    heard.put(json.loads(answer.read()))
    own = {"Lambda-Extension-Identifier": answer.headers["Lambda-Extension-Identifier"]}
    registered.set()
    while True:
        api.request("GET", "/2020-01-01/extension/event/next", headers=own)
        heard.put(json.loads(api.getresponse().read()))
def handler(event, headers):
    if event == "register":
        registered = threading.Event()
        threading.Thread(target=listen, args=[registered], daemon=True).start()
        registered.wait(10)
    return [headers["Lambda-Runtime-Aws-Request-Id"], heard.get(timeout=10)]
"#;
    let daemon = provided_lab(code, "scale.max = 1\ntimeout_s = 12");
    let registered = answer(&daemon, "lab", json!("register"));
    assert_eq!(registered[1]["functionName"], "lab");
    for _ in 0..3 {
        let answered = answer(&daemon, "lab", json!("what next?"));
        assert_eq!(answered[1]["eventType"], "INVOKE", "{answered}");
        assert_eq!(answered[1]["requestId"], answered[0], "{answered}");
    }
}
