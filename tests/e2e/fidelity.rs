//! A forked worker is as good as a fresh process: its process id, the files that were written at import, and generators that the
//! program seeded. `tests/fidelity` has the tests with real packages.

use std::collections::HashSet;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use pilot_harness::{Daemon, eventually_within, skip};
use serde_json::{Value, json};

use crate::{answer, lab};

/// Python code that waits until all calls of [`together`] run. Its function needs `network = "host"`.
const MEET: &str = "import socket\ndef meet(event):\n    socket.create_connection(('127.0.0.1', event['meet'])).recv(1)\n";

/// The answers of calls that all run until the last one has begun, so each has a worker of its own. `calls` are at most 20.
#[track_caller]
fn together(daemon: &Daemon, calls: usize, mut event: Value) -> Vec<Value> {
    let ear = TcpListener::bind("127.0.0.1:0").unwrap();
    ear.set_nonblocking(true).unwrap();
    event["meet"] = ear.local_addr().unwrap().port().into();
    thread::scope(|scope| {
        let answers = scope.spawn(|| at_once(daemon, calls, &event));
        let mut here = Vec::new();
        eventually_within(Duration::from_secs(25), "all calls run", || {
            here.extend(std::iter::from_fn(|| ear.accept().ok()));
            (here.len() == calls).then_some(())
        });
        drop(here);
        answers.join().unwrap()
    })
}

/// The answers of calls that are made at the same time.
#[track_caller]
fn at_once(daemon: &Daemon, calls: usize, event: &Value) -> Vec<Value> {
    thread::scope(|scope| {
        let callers: Vec<_> = (0..calls)
            .map(|_| scope.spawn(|| answer(daemon, "lab", event.clone())))
            .collect();
        callers
            .into_iter()
            .map(|caller| caller.join().unwrap())
            .collect()
    })
}

/// Whether the kernel lets the daemon choose process ids (`ns_last_pid`). If not, the daemon says so.
fn chooses_process_ids(daemon: &Daemon) -> bool {
    let readiness = daemon.get("/readyz").ok().json();
    let reasons = readiness["reasons"].as_array().unwrap();
    let lacks = |reason: &Value| reason.as_str().unwrap().starts_with("process ids: ");
    let is_lacking = reasons.iter().any(lacks);
    if is_lacking {
        skip("a kernel with ns_last_pid, for process ids");
    }
    !is_lacking
}

#[test]
fn no_worker_has_the_process_id_of_its_template_or_of_a_running_worker() {
    let code = "import os\nTEMPLATE = os.getpid()\ndef handler(event, context):\n    meet(event)\n    return [TEMPLATE, os.getpid()]\n";
    let keys = json!({"network": "host", "scale": {"max": 20}});
    let daemon = lab(&format!("{MEET}{code}"), keys);
    if !chooses_process_ids(&daemon) {
        return;
    }
    // The sandboxes of the second round were used before.
    for _ in 0..3 {
        let seen = together(&daemon, 20, json!({}));
        let template = seen[0][0].to_string();
        let workers: HashSet<String> = seen.iter().map(|pids| pids[1].to_string()).collect();
        assert_eq!(workers.len(), 20, "{seen:?}");
        assert!(!workers.contains(&template), "{seen:?}");
        daemon.scale("lab", 0);
    }
}

#[test]
fn a_workers_parent_is_the_init_of_its_sandbox_with_and_without_a_template() {
    let code = r#"
import os, pickle, posix, subprocess, sys
from os import getppid
AT_IMPORT = getppid()
ASK = "import os; print(os.getppid())"
def handler(event, context):
    child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True)
    kept = pickle.loads(pickle.dumps(getppid))
    return [AT_IMPORT, getppid(), os.getppid(), posix.getppid(), kept(), int(child.stdout) == os.getpid()]
"#;
    for template in ["on", "off"] {
        let daemon = lab(code, json!({"template": template}));
        let seen = answer(&daemon, "lab", json!({}));
        assert_eq!(seen, json!([1, 1, 1, 1, 1, true]), "template = {template}");
    }
}

const FILES: &str = r#"
import os, sqlite3, time
with open("/tmp/model.bin", "wb") as file:
    file.write(b"x" * 3_000_000)
os.makedirs("/tmp/cache/deep")
open("/tmp/cache/deep/note", "w").write("from import")
open("/dev/shm/shared", "w").write("shm")
database = sqlite3.connect("/tmp/words.db")
database.execute("create table words (word text)")
database.execute("insert into words values ('import')")
database.commit()
database.close()

def handler(event, context):
    space = os.statvfs("/tmp")
    seen = {
        "model": os.path.getsize("/tmp/model.bin"),
        "note": open("/tmp/cache/deep/note").read(),
        "shm": open("/dev/shm/shared").read(),
        "listed": sorted(os.listdir("/tmp")),
        "free": space.f_bavail * space.f_frsize,
    }
    with sqlite3.connect("/tmp/words.db") as database:
        database.execute("insert into words values (?)", (event["word"],))
        seen["words"] = [word for word, in database.execute("select word from words")]
    open("/tmp/cache/deep/note", "w").write("changed")
    os.rename("/tmp/model.bin", "/tmp/moved.bin")
    open("/dev/shm/shared", "a").write("!")
    if "meet" in event: meet(event)
    return seen
"#;

#[test]
fn every_worker_sees_the_files_that_its_template_wrote_and_no_change_of_another() {
    for reuse in ["always", "once"] {
        let keys = json!({"reuse": reuse, "network": "host", "scale": {"max": 4}});
        let daemon = lab(&format!("{MEET}{FILES}"), keys);
        for round in 0..3 {
            for seen in together(&daemon, 4, json!({"word": "worker"})) {
                assert_eq!(seen["model"], 3_000_000, "round {round}");
                assert_eq!(seen["note"], "from import", "round {round}");
                assert_eq!(seen["shm"], "shm", "round {round}");
                assert_eq!(seen["words"], json!(["import", "worker"]), "round {round}");
                assert_eq!(
                    seen["listed"],
                    json!(["cache", "model.bin", "words.db"]),
                    "round {round}"
                );
                let free = seen["free"].as_u64().unwrap();
                assert!(free <= (512 << 20) - 3_000_000, "{free} bytes are free");
            }
            daemon.scale("lab", 0);
        }
    }
}

#[test]
fn the_first_worker_after_a_restart_sees_the_files_that_its_template_wrote_meanwhile() {
    // Long after the sandbox of the first worker is made.
    let code = "import os, time\ntime.sleep(0.3)\nopen('/dev/shm/late', 'w').write('from import')\n\
        def handler(event, context):\n    return [os.listdir('/tmp'), open('/dev/shm/late').read()]\n";
    let mut daemon = lab(code, json!({}));
    daemon.stop();
    daemon.resume();
    for _ in 0..3 {
        let seen = answer(&daemon, "lab", json!({}));
        assert_eq!(seen, json!([[], "from import"]));
        daemon.scale("lab", 0);
    }
}

#[test]
fn a_template_that_fills_its_tmp_leaves_its_workers_no_space_there() {
    let code = r#"
import os
with open("/tmp/all", "wb") as file:
    try:
        while True:
            file.write(b"x" * (1 << 20))
    except OSError:
        pass

def handler(event, context):
    try:
        with open("/tmp/more", "wb") as file:
            file.write(b"x" * (1 << 20))
    except OSError as error:
        return error.strerror
    return "written"
"#;
    let daemon = lab(code, json!({"memory_mb": 1024}));
    assert_eq!(answer(&daemon, "lab", json!({})), "No space left on device");
}

#[test]
fn a_generator_that_the_program_seeded_keeps_its_state() {
    let code = "import random, time\nrandom.seed(7)\nOWN = random.Random(8)\nOTHER = random.Random()\ndef handler(event, context):\n    time.sleep(0.2)\n    return [random.random(), OWN.random(), OTHER.random()]\n";
    let daemon = lab(code, json!({"reuse": "once", "scale": {"max": 4}}));
    let seen = at_once(&daemon, 4, &json!({}));
    for at in 0..2 {
        assert!(
            seen.iter().all(|drawn| drawn[at] == seen[0][at]),
            "{seen:?}"
        );
    }
    let others: HashSet<String> = seen.iter().map(|drawn| drawn[2].to_string()).collect();
    assert_eq!(others.len(), 4, "{seen:?}");
}

#[test]
fn what_was_open_at_import_is_each_workers_own_and_the_deployment_names_it() {
    let code = r#"
import os, socket, time
# Without a hook that can replace the connection, the template would not be forked.
from snapshot_restore_py import register_after_restore
register_after_restore(list)
journal = open("/tmp/journal", "a+")
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())

def handler(event, context):
    journal.write(event["word"])
    journal.flush()
    time.sleep(0.2)
    try:
        answer = client.recv(10)
    except OSError as error:
        answer = error
    with open("/tmp/journal") as file:
        written = file.read()
    return {"journal": written, "client": repr(answer)}
"#;
    let daemon = lab(code, json!({"reuse": "once", "scale": {"max": 4}}));
    for seen in at_once(&daemon, 4, &json!({"word": "mine"})) {
        assert_eq!(seen["journal"], "mine");
        assert_eq!(seen["client"], "b''");
    }
    let report = daemon.get("/_pilot/v1/functions/lab").ok().json();
    let findings = report["template"]["findings"].to_string();
    for found in [
        "app.py:7",
        "listened on TCP 127.0.0.1",
        "app.py:8",
        "opened TCP 127.0.0.1",
    ] {
        assert!(findings.contains(found), "no {found} in {findings}");
    }
}

#[test]
fn what_the_import_did_with_files_is_so_in_each_worker() {
    let code = r#"
import fcntl, mmap, multiprocessing, os, time
os.makedirs("/tmp/work")
os.chdir("/tmp/work")
flocked = open("flocked", "w")
fcntl.flock(flocked, fcntl.LOCK_EX)
locked = open("locked", "w")
fcntl.lockf(locked, fcntl.LOCK_EX, 10, 5)
mapped = open("mapped", "w+b")
mapped.truncate(8192)
view = mmap.mmap(mapped.fileno(), 8192)
view[:6] = b"import"
queue = multiprocessing.SimpleQueue()
queue.put("waiting")
IMPORTED = os.getpid()

def is_flocked():
    with open("flocked", "w") as again:
        try:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

def is_locked(start, length):
    child = os.fork()
    if child == 0:
        try:
            fcntl.lockf(open("locked", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
        except BlockingIOError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0

def handler(event, context):
    before = view[:10].decode()
    view[6:10] = b"mine"
    time.sleep(0.2)
    return {
        "forked": os.getpid() != IMPORTED,
        "directory": os.getcwd(),
        "locks": [is_flocked(), is_locked(0, 5), is_locked(5, 1), is_locked(14, 1), is_locked(15, 5)],
        "mapped": [before, open("mapped", "rb").read(10).decode()],
        "queue": queue.get(),
    }
"#;
    let daemon = lab(code, json!({"reuse": "once", "scale": {"max": 4}}));
    let chooses_process_ids = chooses_process_ids(&daemon);
    for _ in 0..2 {
        for seen in at_once(&daemon, 4, &json!({})) {
            assert!(seen["forked"] == true || !chooses_process_ids, "{seen}");
            assert_eq!(seen["directory"], "/tmp/work");
            assert_eq!(seen["locks"], json!([true, false, true, true, false]));
            assert_eq!(seen["mapped"], json!(["import\0\0\0\0", "importmine"]));
            assert_eq!(seen["queue"], "waiting");
        }
    }
    let report = daemon.get("/_pilot/v1/functions/lab").ok().json();
    assert_eq!(report["template"]["findings"], json!([]));
}

/// Two connections of one process must see each other's locks, or the end of one removes what the other has written.
#[test]
fn an_sqlite_database_in_wal_mode_is_each_workers_own() {
    let code = r#"
import sqlite3
kept = sqlite3.connect("/tmp/words.db", isolation_level=None, check_same_thread=False)
kept.execute("pragma journal_mode = wal")
kept.execute("create table words (word text)")

def handler(event, context):
    kept.execute("insert into words values ('kept')")
    other = sqlite3.connect("/tmp/words.db", isolation_level=None)
    other.execute("insert into words values ('other')")
    other.close()
    kept.execute("insert into words values ('kept')")
    words = [word for word, in kept.execute("select word from words")]
    return [words, kept.execute("pragma integrity_check").fetchone()[0]]
"#;
    let daemon = lab(code, json!({"reuse": "once"}));
    for _ in 0..3 {
        let seen = answer(&daemon, "lab", json!({}));
        assert_eq!(seen, json!([["kept", "other", "kept"], "ok"]));
    }
    let report = daemon.get("/_pilot/v1/functions/lab").ok().json();
    let findings = report["template"]["findings"].to_string();
    assert!(
        findings.contains("opened /tmp/words.db in WAL mode at import"),
        "{findings}"
    );
}

/// SQLite knows the file of an open connection by its number, and keeps its locks for this number.
#[test]
fn two_connections_of_a_worker_see_each_others_locks_on_a_database_of_the_import() {
    let code = r#"
import sqlite3
kept = sqlite3.connect("/tmp/words.db", isolation_level=None, check_same_thread=False)
kept.execute("create table words (word text)")

def handler(event, context):
    kept.execute("begin immediate")
    kept.execute("insert into words values ('kept')")
    other = sqlite3.connect("/tmp/words.db", isolation_level=None, timeout=0.1)
    try:
        other.execute("insert into words values ('other')")
        refused = ""
    except sqlite3.OperationalError as error:
        refused = str(error)
    kept.execute("commit")
    words = [word for word, in other.execute("select word from words")]
    return [refused, words, other.execute("pragma integrity_check").fetchone()[0]]
"#;
    let daemon = lab(code, json!({"reuse": "once"}));
    for _ in 0..3 {
        let seen = answer(&daemon, "lab", json!({}));
        assert_eq!(seen, json!(["database is locked", ["kept"], "ok"]));
    }
    let report = daemon.get("/_pilot/v1/functions/lab").ok().json();
    let findings = report["template"]["findings"].to_string();
    assert!(
        findings.contains("opened /tmp/words.db of SQLite at import"),
        "{findings}"
    );
}

#[test]
fn a_template_whose_connection_a_worker_would_miss_is_not_forked() {
    let code = r#"
import os, socket, time
IMPORTED_BY = os.getpid()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
peer = server.accept()[0]

def handler(event, context):
    time.sleep(0.2)
    client.sendall(b"mine")
    return {"imported_here": IMPORTED_BY == os.getpid(), "received": peer.recv(10).decode()}
"#;
    let daemon = lab(code, json!({"scale": {"max": 4}}));
    for seen in at_once(&daemon, 4, &json!({})) {
        assert_eq!(seen, json!({"imported_here": true, "received": "mine"}));
    }
    let report = daemon.get("/_pilot/v1/functions/lab").ok().json();
    let template = &report["template"];
    assert_eq!(template["forkable"], json!(false), "{template}");
    let reason = template["reason"].to_string();
    for words in ["opened TCP 127.0.0.1:", "import the handler each time"] {
        assert!(reason.contains(words), "no {words} in {reason}");
    }
    let found = template["findings"].to_string();
    assert!(found.contains("app.py:5"), "{found}");
}

#[test]
fn a_report_that_user_code_made_up_is_cut_and_made_printable() {
    let code = r#"
import sys
row = {"where": "a\x1b[2J\n" * 40, "what": "b" * 250, "instead": "c"}
sys.modules["pilot_worker.forking.findings"].Report.rows = lambda self: [row] * 55
sys.modules["pilot_worker.forking.descriptors"].must_not_fork = lambda: "lied\n" * 1000

def handler(event, context):
    return event
"#;
    let daemon = lab(code, json!({}));
    assert_eq!(answer(&daemon, "lab", json!("served")), json!("served"));
    let report = daemon.get("/_pilot/v1/functions/lab").ok().json();
    let template = &report["template"];
    let findings = template["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 50);
    for text in ["where", "what"] {
        let text = findings[0][text].as_str().unwrap();
        assert_eq!(text.chars().count(), 200);
        assert!(!text.contains(char::is_control), "{text:?}");
    }
    let reason = template["reason"].as_str().unwrap();
    assert!(!reason.contains(char::is_control), "{reason:?}");
    assert!(reason.chars().count() < 500, "{reason}");
}
