//! The engine on the real machine: templates, forks, calls, ends. It has its own harness because the spawner must be forked
//! before there are threads. Skipped without root.

mod support;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pilot_model::ports::{Answer, Engine, Input, InputKind, StartError, Worker, WorkerFault};
use pilot_model::{EnvironmentId, FunctionSpec, Version, WorkerId};
use pilot_sandbox::{ForkEngine, Isolation, Machine, Spawner};
use support::version;
use tokio::time::timeout;

const CODE: &str = r#"
import ctypes, fcntl, mmap, os, socket, subprocess, sys, threading, time
COUNT = 0
SHARED = mmap.mmap(-1, 1 << 30)
def handler(event, context):
    global COUNT
    COUNT += 1
    kind = event.get("kind") if isinstance(event, dict) else None
    if kind == "print":
        print("to python"); os.write(1, b"to the descriptor\n"); sys.stderr.write("to stderr\n")
    if kind == "open":
        with open("/dev/stdout", "a") as stdout:
            stdout.write("opened\n")
        os.mkfifo("/tmp/pipe")
        refused = []
        for mode in (0o020000, 0o060000, 0o140000):
            try:
                os.mknod("/tmp/node", mode | 0o600, os.makedev(1, 3))
            except OSError as error:
                refused.append(error.errno)
        os.unlink("/tmp/pipe")
        return [refused, open("/proc/1/cmdline").read().strip(chr(0))]
    if kind == "locks":
        files = [open(f"/tmp/locked-{n}", "w") for n in range(event["thousands"])]
        for file in files:
            for at in range(1000):
                fcntl.lockf(file, fcntl.LOCK_EX, 1, at * 2)
        time.sleep(event["seconds"])
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(62, 0, 0, 0, 0)  # PR_SCHED_CORE, PR_SCHED_CORE_GET
        return [open("/proc/locks").read(), ctypes.get_errno()]
    if kind == "keep":
        kept, receiver = [], socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind("\0receiver")
        while True:
            kept += socket.recv_fds(receiver, 1, 1)[1]
    if kind == "send":
        file = os.memfd_create("sent")
        for _ in range(event["mb"]):
            os.write(file, bytes(1 << 20))
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        while sender.connect_ex("\0receiver") != 0:
            time.sleep(0.01)
        return socket.send_fds(sender, [b"x"], [file])
    if kind == "touch":
        for at in range(event["from"], event["to"]):
            SHARED[at << 20 : (at + 1) << 20] = bytes(1 << 20)
        return SHARED[event["to"] << 19]
    if kind == "lower":
        command = "for score in -1000 0 299; do echo $score 2>/dev/null > /proc/self/oom_score_adj; done; cat /proc/self/oom_score_adj"
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout
    if kind == "exit":
        sys.exit(3)
    if kind == "kill":
        os.kill(os.getpid(), 11)
    if kind == "memory":
        return len(bytearray(1 << 30))
    if kind == "input":
        with context.inputs.raw("photo").map() as photo:
            return [photo[:].decode(), open("/proc/self/maps").read().count("photo")]
    if kind == "raise":
        raise ValueError("no")
    return {"count": COUNT, "pid": os.getpid(), "uid": os.getuid(), "status": open("/proc/self/status").read() if kind == "status" else None,
            "tmp": os.listdir("/tmp"), "root": sorted(os.listdir("/"))}
"#;

fn main() {
    if support::is_skipped(7, "limits and users of their own need root") {
        return;
    }
    let isolation = Isolation::probe(1_900_000_000);
    for missing in isolation.missing() {
        println!("not enforced here: {missing}");
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = support::engine_config(dir.path());
    let spawner = Spawner::launch(&isolation).expect("a spawner");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let machine = Machine::new(config, spawner, isolation).expect("a machine");
        let engine = ForkEngine::new(Arc::clone(&machine));
        run(&engine, dir.path()).await;
        has_its_own_user(&engine, dir.path()).await;
        holds_few_locks(&engine, dir.path()).await;
        leaves_little_behind(&engine, dir.path()).await;
        closes_at_once(&engine, &machine, dir.path()).await;
        environments_end_with_their_versions(&engine, dir.path()).await;
        bears_what_imports_leave_behind(&engine, dir.path()).await;
    });
    println!("7 passed, 0 failed");
}

/// The template of an environment runs as long as one of its versions is deployed, also if the functions' own templates were evicted.
/// Where memory is short, it goes if no function's template is forked from it.
async fn environments_end_with_their_versions(engine: &ForkEngine, dir: &Path) {
    const USES: &str = "import package\ndef handler(event, context): return package.NUMBER\n";
    let [one, other] = ["one", "other"].map(|name| with_package(dir, name, USES));
    let number = async || {
        let worker = engine.start(&one, WorkerId(1)).await.expect("a worker");
        call(&worker, "{}").await.expect("an answer").0
    };
    engine.prepare(&one).await.expect("a template");
    engine.prepare(&other).await.expect("a template");
    assert_eq!(templates(engine), (1, 2));
    let first = number().await;

    assert_eq!(engine.relieve(u64::MAX), 0, "both use it");
    engine.evict(&one);
    assert_eq!(engine.relieve(u64::MAX), 0, "the other one uses it");
    engine.evict(&other);
    assert_eq!(templates(engine), (1, 0));
    assert_eq!(number().await, first, "its imports were not made again");

    engine.evict(&one);
    // The worker's end takes a moment, and its function's node stays until then.
    let relieved = async || engine.relieve(1) > 0;
    eventually("it ends where memory is short", relieved).await;
    assert_eq!(templates(engine), (0, 0));
    assert_ne!(number().await, first);

    engine.prepare(&other).await.expect("a template");
    engine.forget(&one);
    assert_eq!(templates(engine).0, 1);
    engine.evict(&other);
    engine.forget(&other);
    let gone = async || templates(engine) == (0, 0);
    eventually("it ends with its last version", gone).await;

    // Nobody is forked from it, because a function that fails is not deployed.
    let fails = with_package(dir, "fails", "import package, nothing_there\n");
    engine.prepare(&fails).await.expect_err("a failure");
    assert_eq!(templates(engine), (0, 0));
    println!("an environment's template ends with its last version");
}

/// A version with a package in its environment that has another number in each template.
fn with_package(dir: &Path, name: &str, code: &str) -> Arc<Version> {
    let packages = dir.join("packages");
    std::fs::create_dir_all(&packages).expect("a folder");
    let package = "import os\nNUMBER = os.urandom(8).hex()\n";
    std::fs::write(packages.join("package.py"), package).expect("a file");
    let mut version = Version::clone(&version(dir, name, code, &spec()));
    version.environment.id = EnvironmentId::from_hex("package");
    let python = version.environment.python.as_mut().expect("an interpreter");
    python.packages_dir = Some(packages);
    python.imports = vec!["package".to_owned()];
    Arc::new(version)
}

/// How many templates of environments and of functions are running.
fn templates(engine: &ForkEngine) -> (usize, usize) {
    let all = engine.templates();
    let count = |level: &str| all.iter().filter(|one| one.level == level).count();
    (count("environment"), count("function"))
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A package, and code that uses it. Both try to become other users while a template imports them.
const PACKAGE: &str = r#"
import os
def attempts():
    tried = {}
    for number in (0, 999, 1001, *range(1990, 2020), 65534):
        for name in ("setuid", "seteuid", "setgid", "setegid"):
            tried[f"{name}({number})"] = lambda name=name, number=number: getattr(os, name)(number)
    tried.update({f"setresuid{three}": lambda three=three: os.setresuid(*three) for three in ((-1, -1, 0), (-1, 2001, -1), (2001, 1000, 1000))})
    tried.update({f"setreuid{two}": lambda two=two: os.setreuid(*two) for two in ((0, -1), (-1, 2001))})
    tried["setgroups"] = lambda: os.setgroups([0])
    became = []
    for name, attempt in tried.items():
        try:
            attempt()
            became.append(name)
        except OSError:
            pass
    os.setresuid(1000, 1000, 1000), os.setresuid(-1, -1, -1)
    return [became, os.getresuid(), os.getresgid(), open("/proc/self/uid_map").read().split()]
OF_PACKAGE = attempts()
"#;

/// Every environment and every function has a user that no other one has, nobody can become another one, not even as a template, and the
/// files of a template are its workers'.
async fn has_its_own_user(engine: &ForkEngine, dir: &Path) {
    let code = "import os, tried\nOF_TEMPLATE = tried.attempts()\nopen('/tmp/file', 'w').close()\n\
                def handler(event, context):\n    open('/tmp/file', 'a').close()\n    \
                return [tried.OF_PACKAGE, OF_TEMPLATE, tried.attempts(), os.stat('/tmp/file').st_uid]\n";
    let mut users = Vec::new();
    for (name, package) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let packages = dir.join(package);
        std::fs::create_dir_all(&packages).expect("a folder");
        std::fs::write(packages.join("tried.py"), PACKAGE).expect("a file");
        let mut version = (*version(dir, &format!("user-{name}"), code, &spec())).clone();
        version.environment.id = pilot_model::EnvironmentId::from_hex(package);
        if let Some(python) = &mut version.environment.python {
            python.packages_dir = Some(packages);
            python.imports = vec!["tried".to_owned()];
        }
        let version = Arc::new(version);
        engine.prepare(&version).await.expect("a template");
        let worker = engine.start(&version, WorkerId(1)).await.expect("a worker");
        let (text, _) = call(&worker, "{}").await.expect("an answer");
        println!("{text}");
        let seen: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        for of in 0..3 {
            assert_eq!(
                seen[of][0],
                serde_json::json!([]),
                "nobody became another user"
            );
            assert_eq!(seen[of][1], serde_json::json!([1000, 1000, 1000]));
        }
        assert_eq!(seen[3], 1000, "the template's file is the worker's");
        assert_eq!(
            seen[1][3], seen[2][3],
            "a worker is in the namespace of its template"
        );
        // Ranges: the first id inside, outside, and their number. Those of the package: `0 …`, `1000 …`.
        users.push((package, seen[0][3][4].clone(), seen[1][3][4].clone()));
        drop(worker);
    }
    assert_eq!(
        users[0].1, users[1].1,
        "they share the environment's template"
    );
    let distinct: std::collections::HashSet<_> = [&users[0].1, &users[2].1]
        .into_iter()
        .chain(users.iter().map(|(_, _, own)| own))
        .map(ToString::to_string)
        .collect();
    assert_eq!(distinct.len(), 5, "{users:?}");
    println!("nobody becomes another function's user");
}

/// Its import leaves a process behind, which computes, or stops the template, when a worker says so.
const LEAVES_BEHIND: &str = r#"
import ctypes, os, signal, socket
TEMPLATE = os.getpid()
server = socket.create_server(("127.0.0.1", 9999))
if os.fork() == 0:
    while True:
        connection, _ = server.accept()
        said = connection.recv(10)
        if said == b"burn" and os.fork() == 0:
            connection.close()
            ctypes.CDLL(None).prctl(15, b"left-to-burn")
            while True:
                pass
        if said == b"stop":
            os.kill(TEMPLATE, signal.SIGSTOP)
        connection.close()
server.close()
def handler(event, context):
    with socket.create_connection(("127.0.0.1", 9999)) as connection:
        connection.sendall(event["kind"].encode())
        connection.recv(1)
"#;

/// The last one: a template that is stopped does not report the ends of its workers, so that closing the engine waits for them.
async fn bears_what_imports_leave_behind(engine: &ForkEngine, dir: &Path) {
    let version = version(dir, "leaves", LEAVES_BEHIND, &spec());
    engine.prepare(&version).await.expect("a template");
    let worker = engine.start(&version, WorkerId(1)).await.expect("a worker");
    call(&worker, r#"{"kind":"burn"}"#)
        .await
        .expect("an answer");
    let ends = Instant::now() + Duration::from_secs(60);
    let pause = Duration::from_millis(20);
    let mut usual = None;
    loop {
        assert!(Instant::now() < ends, "its weight is still {usual:?}");
        match (weight_of("left-to-burn"), usual) {
            (Some(now), Some(usual)) if now * 50 <= usual => break,
            (now, _) => usual = now.or(usual),
        }
        tokio::time::sleep(pause).await;
    }
    loop {
        assert!(Instant::now() < ends, "a fork gives the weight back");
        let forked = engine.start(&version, WorkerId(2)).await;
        drop(forked.expect("a worker"));
        if weight_of("left-to-burn") == usual {
            break;
        }
    }
    println!("what a template has left behind gives way, and not to forks");

    call(&worker, r#"{"kind":"stop"}"#)
        .await
        .expect("an answer");
    let error = engine
        .start(&version, WorkerId(3))
        .await
        .expect_err("a stopped template");
    let error = error.to_string();
    assert!(error.contains("its template does not fork"), "{error}");
    engine
        .start(&version, WorkerId(4))
        .await
        .expect("a worker of the next template");
    println!("a template that does not fork is built again");
}

/// The CPU weight of the group of the process with this name, in the units of the machine's version of cgroups.
fn weight_of(name: &str) -> Option<u64> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut names = processes.map(|entry| entry.path()).filter(|process| {
        std::fs::read_to_string(process.join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    let groups = std::fs::read_to_string(names.next()?.join("cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        let files = [
            format!("/sys/fs/cgroup/{controllers}{group}/cpu.shares"),
            format!("/sys/fs/cgroup/cpu{group}/cpu.shares"),
            format!("/sys/fs/cgroup{group}/cpu.weight"),
        ];
        let is_cpu = controllers.is_empty() || controllers.split(',').any(|one| one == "cpu");
        let mut texts = files
            .iter()
            .filter_map(|file| std::fs::read_to_string(file).ok());
        texts.next().filter(|_| is_cpu)?.trim().parse().ok()
    })
}

/// Locks are memory of the kernel that no control group is charged for. A worker with some thousands goes on, sees nobody's locks, and
/// has no core scheduling.
async fn holds_few_locks(engine: &ForkEngine, dir: &Path) {
    let version = version(dir, "locks", CODE, &spec());
    engine.prepare(&version).await.expect("a template");
    let few = engine.start(&version, WorkerId(1)).await.expect("a worker");
    let many = engine.start(&version, WorkerId(2)).await.expect("a worker");
    let (few, many) = tokio::join!(
        call(&few, r#"{"kind":"locks","thousands":4,"seconds":6}"#),
        call(&many, r#"{"kind":"locks","thousands":30,"seconds":30}"#),
    );
    let said = few.expect("an answer").0;
    assert_eq!(said, format!(r#"["", {}]"#, libc::ENOSYS));
    let fault = many.expect_err("a failure");
    assert!(fault.to_string().contains("10,000 locks"), "{fault:?}");
    println!("a worker with many locks ends: {fault}");
}

/// What ended workers leave to others of their function counts for it. A worker does not begin with what the last one has left.
async fn leaves_little_behind(engine: &ForkEngine, dir: &Path) {
    let [leaves, shares, other] =
        ["leaves", "shares", "other"].map(|name| version(dir, name, CODE, &spec()));
    for version in [&leaves, &shares, &other] {
        engine.prepare(version).await.expect("a template");
    }
    let neighbour = engine.start(&other, WorkerId(1)).await.expect("a worker");
    let receiver = engine.start(&leaves, WorkerId(2)).await.expect("a worker");
    let give = async {
        loop {
            // Once the function's processes are ended, starts may fail.
            if let Ok(worker) = engine.start(&leaves, WorkerId(3)).await {
                let sent = timeout(
                    Duration::from_secs(5),
                    call(&worker, r#"{"kind":"send","mb":70}"#),
                );
                let _ = sent.await;
            }
        }
    };
    let kept = tokio::select! {
        kept = call(&receiver, r#"{"kind":"keep"}"#) => kept,
        () = give => unreachable!("it gives without end"),
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("it keeps what it gets"),
    };
    let fault = kept.expect_err("a failure");
    assert!(
        fault.to_string().contains("had left more memory"),
        "{fault:?}"
    );
    println!("a function whose workers leave much to each other ends: {fault}");

    for at in [0, 90] {
        let worker = engine.start(&shares, WorkerId(4)).await.expect("a worker");
        let event = format!(r#"{{"kind":"touch","from":{at},"to":{}}}"#, at + 90);
        assert_eq!(call(&worker, &event).await.expect("an answer").0, "0");
        drop(worker);
        // Its sandbox is cleaned meanwhile.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    call(&neighbour, "{}").await.expect("an answer");
}

/// A worker that ends shortly before its template: its sandbox is not kept, neither because nobody reports the worker's end any more,
/// nor because it was being cleaned.
async fn closes_at_once(engine: &ForkEngine, machine: &Machine, dir: &Path) {
    for round in 0..20 {
        let version = version(dir, &format!("closed-{round}"), CODE, &spec());
        engine.prepare(&version).await.expect("a template");
        let worker = engine.start(&version, WorkerId(1)).await.expect("a worker");
        call(&worker, "{}").await.expect("an answer");
        drop(worker);
        tokio::time::sleep(Duration::from_micros(round / 4 * 500)).await;
        let begun = Instant::now();
        engine.close();
        assert!(machine.vacated().await, "round {round}: all has ended");
        assert!(begun.elapsed() < Duration::from_secs(1), "round {round}");
    }
    println!("an engine that closes leaves nothing");
}

/// Descriptors reach the worker with the call; more than it takes are refused.
async fn takes_inputs(worker: &Arc<dyn Worker>) {
    let photo = tempfile::tempfile().expect("a file");
    (&photo).write_all(b"pixels").expect("a write");
    let input = Input {
        name: "photo".to_owned(),
        kind: InputKind::Memory { len: 6 },
        descriptor: Arc::new(photo.into()),
        object: None,
        decoded: None,
    };
    // With a large event the frame does not fit into the socket's buffer at once.
    for padding in [0, 1 << 20] {
        let event = format!(r#"{{"kind":"input","padding":"{}"}}"#, "x".repeat(padding));
        let mut call = pilot_testkit::event_call("1", &event);
        call.inputs = vec![input.clone()];
        match worker.call(call).await {
            Ok(Answer::Result(body, _)) => assert!(body.starts_with(b"[\"pixels\""), "{body:?}"),
            other => panic!("{other:?}"),
        }
    }
}

/// A program in a sandbox cannot lower its OOM score.
async fn keeps_its_oom_score(worker: &Arc<dyn Worker>) {
    let (score, _) = call(worker, r#"{"kind":"lower"}"#)
        .await
        .expect("an answer");
    if has_sys_resource() {
        assert_eq!(score, r#""300\n""#, "the kernel would end others first");
    } else {
        println!("not shown here, without CAP_SYS_RESOURCE: a program cannot lower its OOM score");
    }
}

async fn run(engine: &ForkEngine, dir: &Path) {
    let version = version(dir, "f", CODE, &spec());
    let report = engine.prepare(&version).await.expect("a template");
    println!("{report:?}");
    assert!(report.forkable, "{:?}", report.reason);

    let worker = engine.start(&version, WorkerId(1)).await.expect("a worker");
    let (text, _) = call(&worker, "{}").await.expect("an answer");
    println!("{text}");
    assert!(
        text.contains("\"count\": 1") || text.contains("\"count\":1"),
        "{text}"
    );
    let (_, output) = call(&worker, r#"{"kind":"print"}"#)
        .await
        .expect("an answer");
    assert_eq!(output, "to python\nto the descriptor\nto stderr\n");
    let (said, output) = call(&worker, r#"{"kind":"open"}"#)
        .await
        .expect("an answer");
    assert_eq!(output, "opened\n");
    assert_eq!(said, r#"[[1, 1, 1], "pilot: sandboxes"]"#);
    let (status, _) = call(&worker, r#"{"kind":"status"}"#)
        .await
        .expect("an answer");
    for line in [
        "CapEff:\\t0000000000000000",
        "CapBnd:\\t0000000000000000",
        "NoNewPrivs:\\t1",
        "Seccomp:\\t2",
    ] {
        assert!(status.contains(line), "{line} not in {status}");
    }
    keeps_its_oom_score(&worker).await;
    println!("memory {:?}", worker.resources().memory());
    takes_inputs(&worker).await;

    let fault = call(&worker, r#"{"kind":"exit"}"#)
        .await
        .expect_err("a failure");
    assert!(
        matches!(fault, WorkerFault::Exited { code: 3, .. }),
        "{fault:?}"
    );
    for (kind, check) in [("kill", "signal 11"), ("memory", "more memory")] {
        let worker = engine.start(&version, WorkerId(2)).await.expect("a worker");
        let fault = call(&worker, &format!(r#"{{"kind":"{kind}"}}"#))
            .await
            .expect_err("a failure");
        assert!(fault.to_string().contains(check), "{fault:?}");
    }

    let bad = self::version(dir, "bad", "import nothing_there\n", &spec());
    let error = engine.prepare(&bad).await.expect_err("a failure");
    assert!(
        matches!(&error, StartError::Import { body, .. } if body.contains("nothing_there")),
        "{error:?}"
    );

    for (name, template) in [("on", "on"), ("off", "off")] {
        let spec = FunctionSpec {
            template: Some(template.to_owned()),
            ..spec()
        };
        let version = self::version(dir, name, CODE, &spec);
        engine.prepare(&version).await.expect("a template");
        let mut took = Vec::new();
        for id in 0..if template == "on" { 300 } else { 20 } {
            let begun = Instant::now();
            let worker = engine
                .start(&version, WorkerId(id))
                .await
                .expect("a worker");
            let ready = begun.elapsed();
            call(&worker, "{}").await.expect("an answer");
            took.push((begun.elapsed(), ready, worker.stamps()));
            drop(worker);
            if id % 3 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        took.sort_by_key(|(whole, ..)| *whole);
        let (whole, ready, stamps) = took[took.len() / 2];
        println!(
            "template {name}: p50 {whole:?} (ready {ready:?}: fork {:?} sandbox {:?} init {:?}), p99 {:?}",
            stamps.forked.since(stamps.asked),
            stamps.sandboxed.since(stamps.forked),
            stamps.initialised.since(stamps.sandboxed),
            took[took.len() * 99 / 100].0
        );
    }
}

async fn call(worker: &Arc<dyn Worker>, event: &str) -> Result<(String, String), WorkerFault> {
    match support::call(worker, event).await? {
        Answer::Result(body, done) | Answer::Error(body, done) => Ok((
            String::from_utf8_lossy(&body).into_owned(),
            String::from_utf8_lossy(&done.output).into_owned(),
        )),
        Answer::Http { .. } => panic!("an HTTP answer to an event"),
    }
}

/// Whether this process, and so the spawner, has `CAP_SYS_RESOURCE` (capabilities(7)). Root in a container often has not.
fn has_sys_resource() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let mask = u64::from_str_radix(mask.expect("a mask").trim(), 16);
    mask.expect("a number") & (1 << 24) != 0
}

fn spec() -> FunctionSpec {
    FunctionSpec {
        memory_mb: Some(128),
        ..FunctionSpec::default()
    }
}
