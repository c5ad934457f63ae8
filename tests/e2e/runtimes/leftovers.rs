//! A function that searches for remains of an earlier use finds nothing.

use std::fs;

use pilot_harness::{Daemon, descendants, eventually, needs_root};
use serde_json::{Value, json};

use super::{all_clean, provided_lab};
use crate::answer;

/// `leave` leaves as much as it can and reports it. `find` reports everything it finds.
const HANDLER: &str = r#"
import ctypes, glob, os, signal, socket, subprocess, sys, threading

libc = ctypes.CDLL(None, use_errno=True)
kept = []

def leave_files():
    for place in ("/tmp", "/dev/shm", "/var/tmp"):
        with open(place + "/left", "w") as file: file.write("left")
    os.makedirs("/tmp/deep/er"); os.symlink("/etc/passwd", "/tmp/link"); os.mkfifo("/tmp/pipe"); socket.socket(socket.AF_UNIX).bind("/tmp/socket")

def leave_processes():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.fork() == 0:
            while True: signal.pause()
        os._exit(0)

def leave_ipc():
    made = []
    if libc.shmget(0x1111, 4096, 0o1666) >= 0: made.append("shm")
    if libc.msgget(0x1111, 0o1666) >= 0: made.append("msg")
    if libc.semget(0x1111, 1, 0o1666) >= 0: made.append("sem")
    return made

def leave_sockets():
    for address in ("\0left", "/tmp/left.sock"):
        ear = socket.socket(socket.AF_UNIX); ear.bind(address); ear.listen(); kept.append(ear)
    ear = socket.socket(); ear.bind(("127.0.0.1", 7777)); ear.listen(); kept.append(ear)
    talk = socket.create_connection(("127.0.0.1", 7777)); kept.append(talk)

def leave_timers():
    signal.setitimer(signal.ITIMER_REAL, 3600)
    threading.Timer(3600, lambda: None).start()

def leave():
    done = {}
    for name in ("files", "processes", "ipc", "sockets", "timers"):
        done[name] = globals()["leave_" + name]()
    os.environ["LEFT"] = "left"
    os.chdir("/tmp")
    kept.append(open("/etc/passwd")); os.dup2(kept[-1].fileno(), 77)
    kept.append(bytearray(os.urandom(64 << 20)))
    return done

def find():
    processes = [int(p) for p in os.listdir("/proc") if p.isdigit()]
    found = {
        "processes": [p for p in processes if p not in (1, os.getpid())],
        "files": [p for place in ("/tmp", "/dev/shm", "/var/tmp") for p in os.listdir(place)],
        "sysv": [line.split() for table in ("shm", "msg", "sem") for line in open("/proc/sysvipc/" + table).readlines()[1:]],
        "unix": [line.split()[-1] for line in open("/proc/net/unix").readlines()[1:] if "left" in line],
        "tcp": [line.split()[1] for line in open("/proc/net/tcp").readlines()[1:] if line.split()[1].endswith(":1E61") or line.split()[2].endswith(":1E61")],
        "environment": [k for k in os.environ if k == "LEFT"],
        "folder": [] if os.getcwd() == "/var/task" else [os.getcwd()],
        "descriptors": [int(d) for d in os.listdir("/proc/self/fd") if int(d) > 10],
        "timers": [t for t in signal.getitimer(signal.ITIMER_REAL) if t],
        "memory": [n for n in kept],
    }
    for key in (0x1111,):
        if libc.shmget(key, 1, 0) >= 0 or libc.msgget(key, 0) >= 0 or libc.semget(key, 1, 0) >= 0: found["sysv"].append(key)
    return {name: what for name, what in found.items() if what}

def handler(event, headers):
    said = leave() if event == "leave" else find()
    return {"place": os.readlink("/proc/self/ns/net"), "said": said}
"#;

/// Leaves everything, and returns what is found in the same sandbox afterwards.
fn found_after(daemon: &Daemon) -> (Value, Value) {
    eventually("the same sandbox is used again", || {
        let left = answer(daemon, "lab", json!("leave"));
        all_clean(daemon, "lab");
        let found = answer(daemon, "lab", json!("find"));
        (left["place"] == found["place"]).then(|| (left["said"].clone(), found["said"].clone()))
    })
}

#[test]
fn nothing_of_a_use_is_found_by_the_next_in_a_cleaned_sandbox() {
    needs_root!();
    let daemon = provided_lab(HANDLER, "reuse = \"once\"\nscale.max = 1\nmemory_mb = 256");
    let (left, found) = found_after(&daemon);
    assert_eq!(left["ipc"], json!(["shm", "msg", "sem"]), "{left}");
    assert_eq!(found, json!({}));
}

#[test]
fn the_memory_of_the_use_before_is_not_counted() {
    needs_root!();
    let daemon = provided_lab(HANDLER, "scale.max = 1\nmemory_mb = 256");
    let left = answer(&daemon, "lab", json!("leave"));
    assert!(
        peak_mb(&daemon) > 64,
        "what is left is counted while it is used"
    );
    daemon.scale("lab", 0);
    all_clean(&daemon, "lab");
    assert_eq!(
        answer(&daemon, "lab", json!("find"))["place"],
        left["place"]
    );
    let peak = peak_mb(&daemon);
    assert!(peak < 60, "{peak} MB");
}

/// The peak memory of the control group of the only worker.
fn peak_mb(daemon: &Daemon) -> u64 {
    let is_worker = |pid: &i32| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.contains("bootstrap.py")
    };
    let worker = descendants(daemon.pid())
        .into_iter()
        .find(is_worker)
        .unwrap();
    let groups = fs::read_to_string(format!("/proc/{worker}/cgroup")).unwrap();
    let file = groups
        .lines()
        .find_map(|line| {
            let path = line
                .split_once(":memory:")
                .map(|(_, path)| ("memory", path, "memory.max_usage_in_bytes"));
            let path = path.or_else(|| {
                line.strip_prefix("0::")
                    .map(|path| ("", path, "memory.peak"))
            });
            let (controller, path, file) =
                path.filter(|(_, path, _)| path.contains("pilotlightd-"))?;
            Some(format!("/sys/fs/cgroup/{controller}{path}/{file}"))
        })
        .unwrap_or_else(|| panic!("no group in {groups}"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
    text.trim().parse::<u64>().unwrap() >> 20
}
