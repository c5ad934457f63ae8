//! Invocations whose callers do not wait: accepted means on the disk, and run at least once, whatever happens to the daemon.
//!
//! The handlers tell a witness in the test that they ran. The witness outlives the daemon.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use pilot_harness::{
    Connection, Daemon, DaemonOptions, Request, Response, eventually, eventually_within,
};
use serde_json::{Value, json};

use crate::{ECHO, daemon, daemon_with, plain};

/// The crash test may leave thousands of events to a debug build on a busy machine.
const DRAINED: Duration = Duration::from_secs(120);

const PATH: &str = "/2015-03-31/functions/lab/invocations";

fn event(body: &Value) -> Request {
    Request::new("POST", PATH)
        .header("x-amz-invocation-type", "Event")
        .body(body.to_string())
}

/// Counts the runs that handlers tell it, and lets them go on only while it is open.
struct Witness {
    port: u16,
    open: Arc<AtomicBool>,
    runs: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Witness {
    fn start(open: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let witness = Self {
            port: listener.local_addr().unwrap().port(),
            open: Arc::new(AtomicBool::new(open)),
            runs: Arc::default(),
        };
        let (open, runs) = (Arc::clone(&witness.open), Arc::clone(&witness.runs));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (open, runs) = (Arc::clone(&open), Arc::clone(&runs));
                thread::spawn(move || hear(stream, &open, &runs));
            }
        });
        witness
    }

    fn runs(&self) -> BTreeMap<String, usize> {
        self.runs.lock().unwrap().clone()
    }

    /// A handler that tells this witness the `id` of its event, and waits until the witness has noted it.
    fn handler(&self) -> String {
        format!(
            "import socket\ndef handler(event, context):\n    with socket.create_connection(('127.0.0.1', {})) as s:\n        \
             s.sendall((str(event['id']) + '\\n').encode())\n        assert s.recv(3) == b'ok\\n'\n    return {{'saw': event['id']}}\n",
            self.port
        )
    }
}

fn hear(stream: TcpStream, open: &AtomicBool, runs: &Mutex<BTreeMap<String, usize>>) {
    let mut line = String::new();
    let mut reader = BufReader::new(&stream);
    // A worker that was ended sends nothing.
    if reader.read_line(&mut line).unwrap_or(0) == 0 || !line.ends_with('\n') {
        return;
    }
    if !open.load(Ordering::Relaxed) {
        // The handler waits until its worker is ended.
        line.clear();
        let _ = reader.read_line(&mut line);
        return;
    }
    *runs
        .lock()
        .unwrap()
        .entry(line.trim().to_owned())
        .or_default() += 1;
    let _ = (&stream).write_all(b"ok\n");
}

fn host() -> Value {
    json!({"network": "host"})
}

/// The invocations that wait or run (`async`), or the dead letters (`dlq`).
fn listed(daemon: &Daemon, what: &str) -> Vec<Value> {
    let text = daemon.cli_ok(&[what, "list", "--json", "--limit", "1000"]);
    serde_json::from_str(&text).unwrap()
}

fn dead_letters(daemon: &Daemon, count: usize) -> Vec<Value> {
    eventually("the dead letters", || {
        let letters = listed(daemon, "dlq");
        (letters.len() == count).then_some(letters)
    })
}

#[test]
fn an_event_is_202_and_after_kill_9_at_once_it_runs() {
    let witness = Witness::start(false);
    let mut daemon = daemon();
    daemon.upload_code("lab", &host(), &witness.handler());
    let response = daemon.send(&event(&json!({"id": "first"})));
    assert_eq!(response.status, 202, "{}", response.text());
    assert_eq!(response.text(), "");
    assert_eq!(response.header("x-amzn-requestid").map(str::len), Some(36));
    daemon.kill();
    assert!(witness.runs().is_empty(), "no attempt had ended");
    witness.open.store(true, Ordering::Relaxed);
    daemon.resume();
    eventually("the run", || {
        witness.runs().contains_key("first").then_some(())
    });
    eventually("its end", || {
        listed(&daemon, "async").is_empty().then_some(())
    });
    assert_eq!(witness.runs()["first"], 1);
}

#[test]
fn an_attempt_after_a_kill_has_the_trigger_of_the_accepted_invocation() {
    let witness = Witness::start(false);
    let inbox = tempfile::tempdir().unwrap();
    let mut daemon = daemon_with(DaemonOptions {
        config: Some(format!(
            "[connections.inbox]\nkind = \"folder\"\npath = \"{}\"\nfunctions = [\"lab\"]\n",
            inbox.path().display()
        )),
        ..DaemonOptions::default()
    });
    // The event of a folder has no id.
    let code = witness
        .handler()
        .replace("event['id']", "event.get('id', 'file')");
    let mut keys = host();
    keys["triggers"] = json!([{"type": "folder", "path": inbox.path()}]);
    daemon.upload_code("lab", &keys, &code);
    std::fs::write(inbox.path().join("file"), "1").unwrap();
    assert_eq!(daemon.send(&event(&json!({"id": "sent"}))).status, 202);
    eventually("both are on the disk", || {
        (listed(&daemon, "async").len() == 2).then_some(())
    });
    daemon.kill();
    assert!(witness.runs().is_empty(), "no attempt had ended");
    witness.open.store(true, Ordering::Relaxed);
    daemon.resume();
    for trigger in ["datasource", "http"] {
        let line =
            format!("faas_invocations_total{{faas_name=\"lab\",faas_trigger=\"{trigger}\"}} 1\n");
        eventually_within(DRAINED, trigger, || {
            daemon.get("/metrics").text().contains(&line).then_some(())
        });
    }
}

#[test]
fn a_failing_event_is_repeated_becomes_a_dead_letter_and_is_redriven() {
    let daemon = daemon();
    let keys = json!({"async": {"retries": 1, "retry_wait_s": 0.1}});
    let raises = "def handler(event, context):\n    raise ValueError(context.aws_request_id)\n";
    daemon.upload_code("lab", &keys, raises);
    let response = daemon.send(&event(&json!({"id": 7})));
    let id = response.header("x-amzn-requestid").unwrap().to_owned();
    let letter = dead_letters(&daemon, 1).remove(0);
    assert_eq!(letter["id"], id);
    assert_eq!(letter["condition"], "RetriesExhausted");
    assert_eq!(letter["attempts"], 2, "one retry");
    assert!(letter["error"].as_str().unwrap().contains(&id), "{letter}");
    let shown: Value = serde_json::from_str(&daemon.cli_ok(&["dlq", "show", &id])).unwrap();
    assert_eq!(shown["payload"], json!({"id": 7}));
    let refused = daemon.cli(&["async", "cancel", &id]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("dead letter"));

    daemon.upload_code("lab", &keys, ECHO);
    assert!(
        daemon
            .cli_ok(&["dlq", "redrive", &id])
            .contains("1 dead letter ")
    );
    eventually("the success", || {
        (listed(&daemon, "dlq").is_empty() && listed(&daemon, "async").is_empty()).then_some(())
    });
    let metrics = daemon.get("/metrics").text();
    assert!(
        metrics.contains("pilot_async_events_total{event=\"retried\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("pilot_async_events_total{event=\"dead\"} 1"),
        "{metrics}"
    );
}

#[test]
fn the_events_of_a_removed_function_are_dead_letters_that_can_be_purged() {
    let witness = Witness::start(false);
    let daemon = daemon();
    // One place: the first attempt holds it, so that the second event waits while the function is removed.
    let keys = json!({"network": "host", "scale": {"max": 1}, "timeout_s": 60});
    daemon.upload_code("lab", &keys, &witness.handler());
    for id in ["one", "two"] {
        assert_eq!(daemon.send(&event(&json!({"id": id}))).status, 202);
    }
    eventually("the running one", || {
        let states: Vec<_> = listed(&daemon, "async");
        states
            .iter()
            .any(|info| info["state"] == "running")
            .then_some(())
    });
    let waiting = eventually("the waiting one", || {
        let infos = listed(&daemon, "async");
        infos.into_iter().find(|info| info["state"] == "waiting")
    });
    daemon.cli_ok(&["remove", "lab"]);
    let letter = eventually("the dead letter", || {
        let letters = listed(&daemon, "dlq");
        letters
            .into_iter()
            .find(|letter| letter["id"] == waiting["id"])
    });
    assert_eq!(letter["condition"], "FunctionNotFound");
    daemon.cli_ok(&["dlq", "purge", "--function", "lab"]);
    assert!(
        !listed(&daemon, "dlq")
            .iter()
            .any(|left| left["id"] == letter["id"])
    );
}

#[test]
fn a_waiting_event_can_be_cancelled_and_a_running_one_cannot() {
    let witness = Witness::start(false);
    let daemon = daemon();
    let keys = json!({"network": "host", "scale": {"max": 1}});
    daemon.upload_code("lab", &keys, &witness.handler());
    let ids: Vec<String> = ["one", "two"]
        .iter()
        .map(|id| {
            let response = daemon.send(&event(&json!({"id": id})));
            response.header("x-amzn-requestid").unwrap().to_owned()
        })
        .collect();
    eventually("the first to run", || {
        let infos = listed(&daemon, "async");
        infos
            .iter()
            .any(|info| info["id"] == *ids[0] && info["state"] == "running")
            .then_some(())
    });
    let refused = daemon.cli(&["async", "cancel", &ids[0]]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is running"));
    daemon.cli_ok(&["async", "cancel", &ids[1]]);
    let unknown = daemon.cli(&["async", "show", &ids[1]]);
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("there is no asynchronous invocation")
    );
    assert_eq!(listed(&daemon, "async").len(), 1);
}

#[test]
fn the_record_of_an_ended_event_goes_to_a_function_or_a_file() {
    let witness = Witness::start(true);
    let daemon = daemon();
    daemon.upload_code(
        "next",
        &host(),
        &witness
            .handler()
            .replace("event['id']", "event['requestPayload']['id']"),
    );
    let raising = "def handler(event, context):\n    if event.get('bad'):\n        raise KeyError('bad')\n    return {'n': 1}\n";
    let keys =
        json!({"async": {"retries": 0, "on_success": "next", "on_failure": "file:failed.jsonl"}});
    daemon.upload_code("lab", &keys, raising);
    daemon.send(&event(&json!({"id": "fine"})));
    daemon.send(&event(&json!({"id": "bad", "bad": true})));
    eventually("the next function", || {
        witness.runs().contains_key("fine").then_some(())
    });
    let path = daemon.data_dir().join("destinations/lab/failed.jsonl");
    let record: Value = eventually("the file", || {
        let text = std::fs::read_to_string(&path).ok()?;
        text.ends_with('\n')
            .then(|| serde_json::from_str(text.trim_end()).unwrap())
    });
    let context = &record["requestContext"];
    assert_eq!(record["version"], "1.0");
    assert_eq!(context["condition"], "RetriesExhausted");
    assert_eq!(
        context["functionArn"],
        "arn:aws:lambda:us-east-1:000000000000:function:lab:$LATEST"
    );
    assert_eq!(context["approximateInvokeCount"], 1);
    assert_eq!(record["requestPayload"]["id"], "bad");
    assert_eq!(record["responseContext"]["functionError"], "Unhandled");
    assert_eq!(record["responsePayload"]["errorType"], "KeyError");
    eventually("the end", || {
        listed(&daemon, "async").is_empty().then_some(())
    });
    assert!(listed(&daemon, "dlq").is_empty(), "it went to the file");
}

#[test]
fn an_idempotency_key_is_accepted_once_also_after_a_restart() {
    let witness = Witness::start(true);
    let mut daemon = daemon();
    daemon.upload_code("lab", &host(), &witness.handler());
    let keyed = |id: &str| event(&json!({"id": id})).header("x-pilot-idempotency-key", "order 7");
    let first = daemon.send(&keyed("a"));
    assert_eq!(first.status, 202);
    assert_eq!(first.header("x-pilot-duplicate"), None);
    daemon.kill();
    daemon.resume();
    let second = daemon.send(&keyed("a"));
    assert_eq!(second.status, 202);
    assert_eq!(second.header("x-pilot-duplicate"), Some("true"));
    assert_eq!(
        second.header("x-amzn-requestid"),
        first.header("x-amzn-requestid")
    );
    let other = daemon.send(&keyed("b"));
    assert_eq!(other.status, 409, "{}", other.text());
    let waits = Request::new("POST", PATH)
        .header("x-pilot-idempotency-key", "k")
        .body("{}");
    assert_eq!(daemon.send(&waits).status, 400, "only for events");
    eventually("the end", || {
        listed(&daemon, "async").is_empty().then_some(())
    });
    // The kill may have hit the attempt: then it is a dead letter, and not repeated by itself.
    let runs = witness.runs().get("a").copied().unwrap_or(0);
    assert!(runs <= 1, "{runs}");
    assert_eq!(
        runs == 0,
        !listed(&daemon, "dlq").is_empty() && runs == 0,
        "run, or said"
    );
}

#[test]
fn a_full_queue_and_a_large_event_are_refused_and_nothing_of_them_runs() {
    let witness = Witness::start(false);
    let daemon = daemon_with(DaemonOptions {
        config: Some("[limits]\nasync_records = 4\n".to_owned()),
        ..DaemonOptions::default()
    });
    let keys = json!({"network": "host", "scale": {"max": 1}});
    daemon.upload_code("lab", &keys, &witness.handler());
    let answers: Vec<Response> = (0..4)
        .map(|id| daemon.send(&event(&json!({"id": id}))))
        .collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(
        statuses,
        [202, 202, 503, 503],
        "one function has half of the places"
    );
    assert!(
        answers[2].text().contains("limits.async_records"),
        "{}",
        answers[2].text()
    );
    assert!(answers[2].header("retry-after").is_some());
    let large = daemon.send(&event(&json!({"id": "x".repeat(1 << 20)})));
    assert_eq!(large.status, 413, "{}", large.text());
    assert!(large.text().contains("1048576"), "{}", large.text());
    let infos = listed(&daemon, "async");
    assert_eq!(infos.len(), 2, "{infos:?}");
}

#[test]
fn a_damaged_store_is_set_aside_and_the_daemon_starts() {
    let mut daemon = daemon();
    daemon.upload_code("lab", &plain(), ECHO);
    daemon.stop();
    let file = daemon.data_dir().join("async.sqlite");
    std::fs::write(&file, vec![b'x'; 10_000]).unwrap();
    for log in ["async.sqlite-wal", "async.sqlite-shm"] {
        let _ = std::fs::remove_file(daemon.data_dir().join(log));
    }
    daemon.resume();
    assert_eq!(daemon.send(&event(&json!({}))).status, 202);
    assert!(
        daemon.log().contains("is damaged and was set aside"),
        "{}",
        daemon.log()
    );
    let aside = std::fs::read_dir(daemon.data_dir())
        .unwrap()
        .flatten()
        .find(|entry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("async.sqlite.damaged-")
        });
    assert_eq!(
        std::fs::read(aside.unwrap().path()).unwrap(),
        vec![b'x'; 10_000]
    );
}

/// What the clients of the crash test know.
#[derive(Default)]
struct Accepted {
    plain: Mutex<Vec<String>>,
    keyed: Mutex<Vec<String>>,
}

/// Sends events until `left` is used up. One with a key is sent again until it is acknowledged.
fn client(address: std::net::SocketAddr, number: usize, left: &AtomicUsize, accepted: &Accepted) {
    let take = || {
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        })
    };
    while let Ok(rest) = take() {
        let id = format!("{number}-{rest}");
        let is_keyed = rest % 2 == 0;
        let mut request = event(&json!({"id": id}));
        if is_keyed {
            request = request.header("x-pilot-idempotency-key", &id);
        }
        loop {
            let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                Connection::open(address).exchange(&request).status
            }));
            match answered {
                Ok(202) if is_keyed => accepted.keyed.lock().unwrap().push(id),
                Ok(202) => accepted.plain.lock().unwrap().push(id),
                // Not acknowledged: nobody knows whether it was accepted.
                _ if !is_keyed => {}
                _ => {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
            }
            break;
        }
    }
}

#[test]
fn after_many_kills_every_accepted_event_has_run_and_keys_ran_once() {
    let number = |name: &str, default: usize| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let kills = number("PILOT_CRASH_KILLS", 10);
    let events = number("PILOT_CRASH_EVENTS", 500);
    let seed = number("PILOT_CRASH_SEED", 0);
    let mut random = if seed > 0 {
        seed as u64
    } else {
        u64::from(SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos())
    };
    println!("PILOT_CRASH_SEED={random}");
    let witness = Witness::start(true);
    let mut daemon = daemon();
    let keys = json!({"network": "host", "async": {"retry_wait_s": 0.1}});
    daemon.upload_code("lab", &keys, &witness.handler());
    let left = Arc::new(AtomicUsize::new(events));
    let accepted = Arc::new(Accepted::default());
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (left, accepted) = (Arc::clone(&left), Arc::clone(&accepted));
            let address = daemon.address();
            thread::spawn(move || client(address, number, &left, &accepted))
        })
        .collect();
    for kill in 0..kills {
        // The kills are spread over the events: each comes a random time after its share of them.
        let share = events - events * (kill + 1) / (kills + 1);
        eventually("the next share of the events", || {
            (left.load(Ordering::Relaxed) <= share).then_some(())
        });
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_millis(random >> 33 & 0x1f));
        daemon.kill();
        daemon.resume();
    }
    for client in clients {
        client.join().unwrap();
    }
    eventually_within(DRAINED, "the end of all", || {
        listed(&daemon, "async").is_empty().then_some(())
    });
    let runs = witness.runs();
    let letters = listed(&daemon, "dlq");
    let interrupted: Vec<String> = letters
        .iter()
        .map(|letter| {
            assert_eq!(letter["condition"], "Interrupted", "{letter}");
            letter["key"]
                .as_str()
                .expect("only those with a key")
                .to_owned()
        })
        .collect();
    let (plain, keyed) = (
        accepted.plain.lock().unwrap(),
        accepted.keyed.lock().unwrap(),
    );
    let lost: Vec<_> = plain.iter().filter(|id| !runs.contains_key(*id)).collect();
    assert!(lost.is_empty(), "accepted and never run: {lost:?}");
    for id in keyed.iter() {
        let ran = runs.get(id).copied().unwrap_or(0);
        assert!(ran <= 1, "{id} has a key and ran {ran} times");
        assert!(
            ran == 1 || interrupted.contains(id),
            "{id} did not run, and nobody says so"
        );
    }
    let repeated = plain.iter().filter(|id| runs[*id] > 1).count();
    println!(
        "{} accepted without a key ({repeated} ran more than once), {} with one ({} interrupted)",
        plain.len(),
        keyed.len(),
        interrupted.len()
    );
    assert_eq!(
        keyed.len(),
        events.div_ceil(2),
        "a client with a key tries until it is accepted"
    );
    // What was interrupted can be repeated by hand.
    if !interrupted.is_empty() {
        daemon.cli_ok(&["dlq", "redrive", "--all"]);
        eventually_within(DRAINED, "the end of the redriven", || {
            (listed(&daemon, "async").is_empty() && listed(&daemon, "dlq").is_empty()).then_some(())
        });
        let runs = witness.runs();
        assert!(keyed.iter().all(|id| runs.contains_key(id)));
    }
    nothing_was_set_aside(&daemon.data_dir());
}

/// The store survived every kill.
fn nothing_was_set_aside(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!name.contains("damaged"), "{name}");
    }
}
