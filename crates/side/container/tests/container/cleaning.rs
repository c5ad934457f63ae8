//! After a cleaning nothing is left of a use; otherwise the container is not reused.

use std::sync::Arc;

use pilot_model::FunctionSpec;
use pilot_model::ports::{PrewarmedRuntime, RuntimeHost};
use pilot_model::runtime_key::RuntimeKey;

use crate::support::{BUSYBOX, PYTHON, Spec, Stage, answer, prewarmed, problem, shell, specialise};

/// When asked to, leaves something behind in every possible way; otherwise reports what it finds.
const LITTER: &str = r#"
import ctypes, json, os, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
PLACES = ["/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/mnt/volume"]
IPC_CREAT = 0o1000

def leave():
    for place in PLACES:
        if place != "/dev/mqueue":
            os.makedirs(place + "/deep" * 60); open(place + "/.hidden", "w").write("secret")
            os.symlink("/etc", place + "/link"); os.mkfifo(place + "/pipe")
            os.makedirs(place + "/closed/in"); os.chmod(place + "/closed", 0)
    open("/tmp/held", "w"); os.mkdir("/tmp/gone")
    assert libc.mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0, os.strerror(ctypes.get_errno())
    assert libc.shmget(0x1234, 4096, IPC_CREAT | 0o600) >= 0
    assert libc.msgget(0x1234, IPC_CREAT | 0o600) >= 0
    assert libc.semget(0x1234, 1, IPC_CREAT | 0o600) >= 0
    server = socket.socket(); server.bind(("127.0.0.1", 7777)); server.listen(); server.set_inheritable(True)
    hidden = socket.socket(socket.AF_UNIX); hidden.bind("\0hidden"); hidden.listen(); hidden.set_inheritable(True)
    subprocess.Popen(["python3", "-c", "import os, time; os.setsid(); os.fork(); time.sleep(1000)"], close_fds=False,
                     start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    signal.setitimer(signal.ITIMER_REAL, 500)

def look():
    found = {place: os.listdir(place) for place in PLACES + ["/run"] if os.listdir(place)}
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in ("1", str(os.getpid()))]
    if others: found["processes"] = others
    for table in ("shm", "msg", "sem"):
        lines = open("/proc/sysvipc/" + table).read().splitlines()[1:]
        if lines: found[table] = lines
    listening = [line for line in open("/proc/net/tcp").read().splitlines()[1:] if line.split()[3] == "0A"]
    if listening: found["tcp"] = listening
    if "hidden" in open("/proc/net/unix").read(): found["unix"] = True
    if signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0): found["timer"] = True
    fds = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3]
    if fds: found["descriptors"] = fds
    for place in PLACES[:3] + ["/mnt/volume"]:
        if os.stat(place).st_mode & 0o7777 != 0o1777: found["mode of " + place] = oct(os.stat(place).st_mode)
    if "LEFT" in os.environ: found["environment"] = True
    peak = int(open("/sys/fs/cgroup/memory/memory.max_usage_in_bytes").read()) if os.path.exists("/sys/fs/cgroup/memory") else 0
    if peak > 60 << 20: found["peak"] = peak
    return found

if json.load(sys.stdin) == "leave":
    big = b"x" * (100 << 20); del big
    os.environ["LEFT"] = "1"; os.chdir("/tmp")
    leave()
    print(json.dumps(sorted(look())))
else:
    print(json.dumps(look()))
"#;

fn litter() -> Spec<'static> {
    Spec {
        image: PYTHON,
        contract: "shim",
        command: &["python3", "litter.py"],
        code: &[("litter.py", LITTER)],
        ..Spec::default()
    }
}

async fn litters_and_is_cleaned(stage: &Stage, spec: &Spec<'_>) {
    let host = stage.host();
    let version = stage.version("litter", spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    for _ in 0..3 {
        let worker = specialise(&runtime, &version).await.unwrap();
        let (left, _) = answer(&worker, "\"leave\"").await;
        for kind in [
            "/mnt/volume",
            "/dev/mqueue",
            "msg",
            "sem",
            "shm",
            "tcp",
            "unix",
            "environment",
        ] {
            assert!(
                left.contains(&format!("\"{kind}\"")),
                "{kind} was not left: {left}"
            );
        }
        worker.retire();
        drop(worker);
        runtime.clean().await.unwrap();
        let worker = specialise(&runtime, &version).await.unwrap();
        assert_eq!(answer(&worker, "\"look\"").await.0, "{}");
        drop(worker);
        runtime.clean().await.unwrap();
    }
}

pub(crate) async fn a_cleaned_container_has_nothing_of_the_use_before(stage: Stage) {
    litters_and_is_cleaned(&stage, &litter()).await;
}

pub(crate) async fn a_root_function_leaves_nothing_either(stage: Stage) {
    let name = "pilot-test/root:1";
    stage
        .engine
        .build(name, &format!("FROM {PYTHON}\nUSER root\n"));
    let mut spec = litter();
    spec.image = name;
    litters_and_is_cleaned(&stage, &spec).await;
}

pub(crate) async fn a_function_that_writes_to_its_image_is_not_reused_and_told_why(stage: Stage) {
    let host = stage.host();
    for (name, script, names) in [
        ("adds", "echo x >/app/new", "/app"),
        ("changes", "echo x >>/etc/passwd", "/etc"),
        ("removes", "rm /etc/group", "/etc"),
    ] {
        let version = stage.version(name, &shell(&[("handler.sh", script)]));
        let runtime = prewarmed(&host, &version).await.unwrap();
        let worker = specialise(&runtime, &version).await.unwrap();
        answer(&worker, "").await;
        drop(worker);
        let error = problem(&runtime.clean().await.unwrap_err());
        assert!(error.contains(names), "{name}: {error}");
        assert!(error.contains("$PILOT_VOLUME"), "{name}: {error}");
        let report = host.report(&version).reason.unwrap();
        assert!(report.contains("are not reused"), "{report}");
    }
}

pub(crate) async fn process_1_cannot_be_tampered_with(stage: Stage) {
    let script = r#"
read what
case $what in
  kill) for n in 1 2 9 15 19; do kill -$n 1; done; echo alive ;;
  call) [ -e /.pilot/socket ] && nc local:/.pilot/socket </dev/null; echo $? ;;
  write) echo x >/.pilot/new || echo x >/.pilot/shim || rm /.pilot/shim || echo refused ;;
  memory) dd if=/proc/1/mem of=/dev/null bs=1 count=1 || readlink /proc/1/fd/3 || cat /proc/1/environ || echo refused ;;
  nice) renice -n 5 -p 1 && echo changed || echo refused ;;
  dev) rm /dev/full; echo done ;;
  hosts) echo 127.0.0.1 bank >>/etc/hosts; echo done ;;
esac
"#;
    let host = stage.host();
    let version = stage.version("hostile", &shell(&[("handler.sh", script)]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    for (attempt, answers) in [
        ("kill", "\"alive\""),
        ("write", "\"refused\""),
        ("memory", "\"refused\""),
        ("nice", "\"refused\""),
    ] {
        assert_eq!(answer(&worker, attempt).await.0, answers, "{attempt}");
    }
    assert_ne!(answer(&worker, "call").await.0, "0");
    drop(worker);
    runtime.clean().await.unwrap();
    // Changes to process 1 and to the engine's mounts are detected at the cleaning.
    for (attempt, names) in [("dev", "/dev"), ("hosts", "/etc/hosts")] {
        let runtime = prewarmed(&host, &version).await.unwrap();
        let worker = specialise(&runtime, &version).await.unwrap();
        answer(&worker, attempt).await;
        drop(worker);
        let error = problem(&runtime.clean().await.unwrap_err());
        assert!(error.contains(names), "{attempt}: {error}");
    }
    let name = "pilot-test/root:1";
    stage
        .engine
        .build(name, &format!("FROM {PYTHON}\nUSER root\n"));
    let spec = Spec {
        image: name,
        contract: "shim",
        command: &[
            "python3",
            "-c",
            "import resource; resource.prlimit(1, resource.RLIMIT_CORE, (1, 1))",
        ],
        ..Spec::default()
    };
    let version = stage.version("limits", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    answer(&worker, "").await;
    drop(worker);
    let error = problem(&runtime.clean().await.unwrap_err());
    assert!(error.contains("limits of process 1"), "{error}");
}

pub(crate) async fn a_container_takes_another_versions_code(stage: Stage) {
    let host = stage.host();
    let first = stage.version(
        "first",
        &shell(&[("handler.sh", "echo one; ls"), ("only-first", "")]),
    );
    let second = stage.version("second", &shell(&[("handler.sh", "echo two; ls")]));
    let runtime = prewarmed(&host, &first).await.unwrap();
    for (version, says) in [
        (&first, "\"one\\nhandler.sh\\nonly-first\""),
        (&second, "\"two\\nhandler.sh\""),
        (&first, "\"one\\nhandler.sh\\nonly-first\""),
    ] {
        let worker = specialise(&runtime, version).await.unwrap();
        assert_eq!(answer(&worker, "").await.0, says);
        drop(worker);
        runtime.clean().await.unwrap();
    }
    let spec = Spec {
        image: BUSYBOX,
        contract: "http",
        command: &["sh", "-c", "echo code: $(ls /.pilot/code); exit 4"],
        ..Spec::default()
    };
    let server = stage.version("server", &spec);
    let error = specialise(&runtime, &server).await.unwrap_err();
    assert!(format!("{error:?}").contains("code:\\n"), "{error:?}");
}

pub(crate) async fn adapted(runtime: &Arc<dyn PrewarmedRuntime>, to: &Arc<RuntimeKey>) {
    runtime.adapt(to).await.unwrap();
    assert_eq!(runtime.key(), *to);
}

pub(crate) async fn limits_and_network_are_applied_to_a_live_container(stage: Stage) {
    let script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; [ -e /sys/class/net/eth0 ] && echo eth0";
    let host = stage.host();
    let code = [("handler.sh", script)];
    let mut spec = shell(&code);
    spec.network = Some("outbound");
    spec.memory_mb = Some(64);
    let version = stage.version("wanted", &spec);
    let wanted = Arc::new(host.key(&version).unwrap());
    // As the pool keeps them: without owner, limits and network.
    let runtime = host.start(&Arc::new(wanted.base_key())).await.unwrap();
    adapted(&runtime, &wanted).await;
    let worker = specialise(&runtime, &version).await.unwrap();
    assert_eq!(
        answer(&worker, "").await.0,
        format!("\"{}\\neth0\"", 64 << 20)
    );
    drop(worker);
    runtime.clean().await.unwrap();

    spec.memory_mb = Some(128);
    let more = stage.version("more", &spec);
    adapted(&runtime, &Arc::new(host.key(&more).unwrap())).await;
    let worker = specialise(&runtime, &more).await.unwrap();
    assert_eq!(
        answer(&worker, "").await.0,
        format!("\"{}\\neth0\"", 128 << 20)
    );
    drop(worker);

    let other = FunctionSpec {
        runtime: Some("container".to_owned()),
        image: Some("pilot-test/other:1".to_owned()),
        ..FunctionSpec::default()
    };
    let mut version = (*version).clone();
    version.config = other.check(&"other".parse().unwrap()).unwrap();
    let other = Arc::new(host.key(&version).unwrap());
    assert!(runtime.adapt(&other).await.is_err());
}

pub(crate) async fn an_images_volume_is_cleaned_or_prevents_reuse(stage: Stage) {
    let host = stage.host();
    let dockerfile =
        format!("FROM {BUSYBOX}\nRUN mkdir /full && echo x >/full/file\nVOLUME /data\n");
    stage.engine.build("pilot-test/volume:1", &dockerfile);
    stage.engine.build(
        "pilot-test/volume:2",
        &format!("{dockerfile}VOLUME /full\n"),
    );

    let mut spec = shell(&[("handler.sh", "ls /data; echo x >/data/left")]);
    spec.image = "pilot-test/volume:1";
    let version = stage.version("volume", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    for _ in 0..2 {
        let worker = specialise(&runtime, &version).await.unwrap();
        assert_eq!(answer(&worker, "").await.0, "null");
        drop(worker);
        runtime.clean().await.unwrap();
    }
    spec.image = "pilot-test/volume:2";
    let version = stage.version("full", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    answer(&worker, "").await;
    drop(worker);
    let error = problem(&runtime.clean().await.unwrap_err());
    assert!(error.contains("/full"), "{error}");
}
