//! Functions with `network = "outbound"` on the real machine, in network namespaces of the test: what they can and cannot
//! reach, who can reach them, and that nothing is left behind however the daemon ends. It has its own harness because daemons
//! must be forked from a process with one thread. Skipped without root.

mod support;
#[path = "outbound/world.rs"]
mod world;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, Uid, setresuid};
use pilot_model::ports::{Answer, Engine, StartError, Worker};
use pilot_model::{FunctionSpec, Version, WorkerId};
use pilot_sandbox::{ForkEngine, Isolation, Machine, OUTBOUND_CIDR_DEFAULT, Spawner};
use pilot_sys::process::{self, Side};
use serde_json::{Value, json};
use world::{DNS, HOST, HOST_IN_LAN, METADATA, MTU, NEIGHBOUR, PORT, ROUTER, SERVER, World};

fn main() {
    if support::is_skipped(CHECKS, "only root may make network namespaces to try in") {
        return;
    }
    // A daemon's spawner becomes a child of this process when the daemon ends, so the test can wait for it.
    prctl::set_child_subreaper(true).expect("a subreaper");
    let resolvers = tempfile::NamedTempFile::new().expect("a temporary file");
    let world = world::enter(resolvers.path());
    if let Some(why) = kernel_lacks() {
        return support::skip(CHECKS, &why);
    }
    let before = world::inventory();
    println!("before: {before:?}");

    let (said, daemon) = daemon(|_| {
        let engine = Daemon::start();
        engine.run(reaches(&engine, &world));
    });
    drop(said);
    assert!(matches!(
        waitpid(daemon, None),
        Ok(WaitStatus::Exited(_, 0))
    ));
    spawner_ends();
    let after: Vec<String> = world::inventory();
    assert_eq!(
        before,
        after
            .into_iter()
            .filter(|name| name != world::LAN)
            .collect::<Vec<_>>()
    );
    println!("a daemon that ends leaves nothing");

    let (mut said, daemon) = self::daemon(|mut say| {
        let engine = Daemon::start();
        engine.run(async {
            let _function = engine.function("left", "outbound").await;
            say.write_all(b"!").expect("somebody listens");
            std::future::pending().await
        });
    });
    said.read_exact(&mut [0]).expect("the daemon came up");
    let during = world::inventory();
    assert!(
        during
            .iter()
            .any(|name| name.starts_with(&format!("table pilotlight_{daemon}_"))),
        "{during:?}"
    );
    assert!(
        during.contains(&format!("{} forwards", world::UPLINK)),
        "{during:?}"
    );
    kill(daemon, Signal::SIGKILL).expect("it lives");
    assert!(matches!(
        waitpid(daemon, None),
        Ok(WaitStatus::Signaled(..))
    ));
    spawner_ends();
    let after = world::inventory();
    assert_eq!(
        before,
        after
            .into_iter()
            .filter(|name| name != world::LAN)
            .collect::<Vec<_>>()
    );
    println!("a daemon that is killed leaves nothing");

    forwarding_of_a_killed_daemon(&before);
    two_daemons(&before);

    let (said, daemon) = self::daemon(|_| {
        let nobody = Uid::from_raw(65_534);
        setresuid(nobody, nobody, nobody).expect("another user");
        let engine = Daemon::start();
        engine.run(is_refused(&engine));
    });
    drop(said);
    assert!(matches!(
        waitpid(daemon, None),
        Ok(WaitStatus::Exited(_, 0))
    ));
    println!("a machine that cannot do it says so");
    println!("{CHECKS} passed, 0 failed");
}

/// Number of checks; each prints one line.
const CHECKS: u32 = 13;

/// All processes are killed, so none can put anything back. The next daemon does.
fn forwarding_of_a_killed_daemon(before: &[String]) {
    let (mut said, daemon) = self::daemon(|mut say| {
        let engine = Daemon::start();
        engine.run(async {
            let _function = engine.function("killed", "outbound").await;
            say.write_all(b"!").expect("somebody listens");
            std::future::pending().await
        });
    });
    said.read_exact(&mut [0]).expect("the daemon came up");
    let spawner = spawner_of(daemon);
    // Neither sees the other one end.
    for process in [daemon, spawner] {
        kill(process, Signal::SIGSTOP).expect("it lives");
    }
    for process in [daemon, spawner] {
        kill(process, Signal::SIGKILL).expect("it lives");
        assert!(matches!(
            waitpid(process, None),
            Ok(WaitStatus::Signaled(..))
        ));
    }
    let forwards = format!("{} forwards", world::UPLINK);
    assert!(world::inventory().contains(&forwards));
    assert_eq!(
        pilot_sandbox::forwarding_left_behind(),
        Ok([world::UPLINK, world::LAN].map(str::to_owned).into())
    );
    let (mut said, next) = self::daemon(|mut say| {
        let engine = Daemon::start();
        say.write_all(b"!").expect("somebody listens");
        say.read_exact(&mut [0]).expect("the word to end");
        engine.run(async {});
    });
    said.read_exact(&mut [0]).expect("the daemon came up");
    is_as(before);
    said.write_all(b"!").expect("it listens");
    assert_eq!(waitpid(next, None), Ok(WaitStatus::Exited(next, 0)));
    assert_eq!(pilot_sandbox::forwarding_left_behind(), Ok(Vec::new()));
    println!("what daemons leave when all their processes are killed is put back by the next one");
}

/// Two daemons with a range of two addresses.
fn two_daemons(before: &[String]) {
    let start = |name: &'static str| {
        let (mut said, daemon) = self::daemon(move |mut say| {
            let engine = Daemon::in_range("10.213.7.0/30");
            engine.run(async {
                let function = engine.function(name, "outbound").await;
                let mut word = [0];
                loop {
                    let reached = function.reaches(SERVER).await;
                    say.write_all(if reached { b"y" } else { b"n" })
                        .expect("somebody listens");
                    say.read_exact(&mut word).expect("what to do");
                    match &word {
                        b"?" => {}
                        b"+" => no_address_is_left(&engine).await,
                        _ => return,
                    }
                }
            });
        });
        let mut reached = [0];
        said.read_exact(&mut reached).expect("the daemon came up");
        assert_eq!(&reached, b"y", "{name}");
        (said, daemon, spawner_of(daemon))
    };
    let again = |said: &mut UnixStream, word: &[u8]| {
        let mut reached = [0];
        said.write_all(word).expect("it listens");
        said.read_exact(&mut reached).expect("it answers");
        assert_eq!(&reached, b"y");
    };
    let ends = |(mut said, daemon, spawner): (UnixStream, Pid, Pid)| {
        said.write_all(b".").expect("it listens");
        for process in [daemon, spawner] {
            assert_eq!(waitpid(process, None), Ok(WaitStatus::Exited(process, 0)));
        }
    };
    let mut one = start("of-one");
    let mut two = start("of-two");
    again(&mut one.0, b"?");
    again(&mut two.0, b"+");
    ends(one);
    let forwards = format!("{} forwards", world::UPLINK);
    assert!(world::inventory().contains(&forwards));
    again(&mut two.0, b"?");
    ends(two);
    is_as(before);
    println!("two daemons share a range of addresses, and the last one puts everything back");
}

async fn no_address_is_left(daemon: &Daemon) {
    let version = version(daemon.dir.path(), "one-more", "outbound");
    let error = daemon
        .engine
        .prepare(&version)
        .await
        .expect_err("a refusal");
    let error = error.to_string();
    assert!(
        error.contains("10.213.7.0/30") && error.contains("outbound_cidr"),
        "{error}"
    );
}

/// Waits until the machine's network is as it was. Devices end shortly after the last process that used them.
fn is_as(before: &[String]) {
    let changes = world::device_changes();
    loop {
        let now: Vec<String> = world::inventory()
            .into_iter()
            .filter(|name| name != world::LAN)
            .collect();
        if now == before {
            return;
        }
        if !now.iter().any(|name| name.starts_with("pilot")) {
            assert_eq!(now, before);
        }
        world::wait_for(&changes);
    }
}

/// The only child of a daemon.
fn spawner_of(daemon: Pid) -> Pid {
    let children = format!("/proc/{daemon}/task/{daemon}/children");
    let children = std::fs::read_to_string(children).expect("the daemon lives");
    let spawner = children.split_whitespace().next().expect("a child");
    Pid::from_raw(spawner.parse().expect("a process id"))
}

/// Forks a daemon, which reports through the socket.
fn daemon(body: impl FnOnce(UnixStream)) -> (UnixStream, Pid) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    match process::fork_with(nix::sched::CloneFlags::empty()).expect("a process") {
        Side::Parent(daemon) => (ours, daemon),
        Side::Child => {
            // A check that fails in the parent must not leave it running, with the test's output open.
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            drop(ours);
            let ended = catch_unwind(AssertUnwindSafe(|| body(theirs)));
            process::exit_now(i32::from(ended.is_err()))
        }
    }
}

/// Waits for processes that became this one's children: the daemon's spawner, which ends last, and places, which are killed.
fn spawner_ends() {
    while !matches!(
        waitpid(None, None).expect("a spawner"),
        WaitStatus::Exited(_, 0)
    ) {}
}

/// Of the users of functions.
const FIRST_UID: u32 = 1_900_000_000;

struct Daemon {
    engine: ForkEngine,
    machine: Arc<Machine>,
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    workers: AtomicU64,
}

impl Daemon {
    fn start() -> Self {
        Self::with(|_| {})
    }

    fn in_range(range: &str) -> Self {
        Self::with(|config| config.outbound_cidr = range.parse().expect("a range"))
    }

    fn with(change: impl FnOnce(&mut pilot_sandbox::EngineConfig)) -> Self {
        let isolation = Isolation::probe(FIRST_UID);
        for feature in isolation.unavailable() {
            println!("not available here: {feature}");
        }
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut config = support::engine_config(dir.path());
        change(&mut config);
        let spawner = Spawner::launch(&isolation).expect("a spawner");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let machine = Machine::new(config, spawner, isolation).expect("a machine");
        let engine = ForkEngine::new(Arc::clone(&machine));
        drop(entered);
        Self {
            engine,
            machine,
            dir,
            runtime,
            workers: AtomicU64::new(0),
        }
    }

    fn run(&self, checks: impl Future<Output = ()>) {
        self.runtime.block_on(checks);
        self.engine.close();
        assert!(
            self.runtime.block_on(self.machine.vacated()),
            "all has ended"
        );
    }

    async fn function(&self, name: &str, network: &str) -> Function<'_> {
        let version = version(self.dir.path(), name, network);
        self.engine.prepare(&version).await.expect("a template");
        Function {
            worker: self.worker(&version).await,
            version,
            daemon: self,
        }
    }

    async fn worker(&self, version: &Arc<Version>) -> Arc<dyn Worker> {
        let id = WorkerId(self.workers.fetch_add(1, Ordering::Relaxed));
        self.engine.start(version, id).await.expect("a worker")
    }
}

struct Function<'a> {
    daemon: &'a Daemon,
    version: Arc<Version>,
    worker: Arc<dyn Worker>,
}

impl Function<'_> {
    /// The result of an attempt, or why it failed.
    async fn attempt(&self, kind: &str, with: Value) -> Result<Value, String> {
        call(&self.worker, kind, with).await
    }

    async fn reaches(&self, address: impl Into<IpAddr>) -> bool {
        let to = json!({"host": address.into(), "port": PORT});
        self.attempt("tcp", to).await.is_ok()
    }
}

/// What this kernel does not have, if functions cannot have a network for that reason alone.
fn kernel_lacks() -> Option<String> {
    let isolation = Isolation::probe(FIRST_UID);
    isolation
        .unavailable()
        .find(|why| why.contains("make the table: Operation not supported"))
}

/// All checks of a function while its daemon runs.
async fn reaches(daemon: &Daemon, world: &World) {
    let one = daemon.function("one", "outbound").await;
    println!("during: {:?}", world::inventory());
    reaches_others(&one).await;
    reaches_no_host(&one, world).await;
    let (two, address) = nobody_reaches(&one, world).await;
    takes_its_share(&one).await;
    leaves_the_machine_no_router(&one, address, world).await;
    let none = daemon.function("none", "none").await;
    assert!(!none.reaches(SERVER).await);
    println!("a function without network reaches nothing");
    takes_its_device_along(two);
}

/// To other hosts, with the host's address.
async fn reaches_others(one: &Function<'_>) {
    let seen = one.attempt("network", json!({})).await;
    let seen = seen.expect("its network");
    assert_eq!(seen["devices"], json!(["eth0", "lo"]));
    // At most loopback's own.
    assert!(!seen["inet6"].to_string().contains("eth0"), "{seen}");
    assert_eq!(seen["resolv"], json!(format!("nameserver {SERVER}\n")));
    for address in [SERVER, ROUTER] {
        let to = json!({"host": address, "port": PORT, "size": 300_000});
        assert_eq!(one.attempt("tcp", to).await, Ok(json!(HOST)), "{address}");
        let to = json!({"host": address, "port": PORT});
        assert_eq!(one.attempt("udp", to).await, Ok(json!(HOST)), "{address}");
    }
    let to = json!({"host": SERVER, "port": PORT});
    assert_eq!(one.attempt("path_mtu", to).await, Ok(json!(MTU)));
    let name = one.attempt("name", json!({"host": "server.example"})).await;
    assert_eq!(name, Ok(json!(SERVER)));
    println!("a function reaches other hosts, by name too");
}

/// At none of the host's addresses, although it serves at all of them.
async fn reaches_no_host(one: &Function<'_>, World { host, internet, .. }: &World) {
    assert!(host.reaches(Ipv4Addr::LOCALHOST.into(), PORT));
    assert!(host.reaches(HOST.into(), PORT) && internet.reaches(HOST.into(), PORT));
    let gateway = Ipv4Addr::new(169, 254, 1, 1);
    let range = OUTBOUND_CIDR_DEFAULT.network();
    for address in [Ipv4Addr::LOCALHOST, HOST, gateway, range] {
        assert!(!one.reaches(address).await, "{address}");
        let to = json!({"host": address, "port": PORT});
        one.attempt("udp", to).await.expect_err("no answer");
    }
    for address in ["255.255.255.255", "198.51.100.255"] {
        let to = json!({"host": address, "port": PORT});
        one.attempt("broadcast", to).await.expect_err("no answer");
    }
    // Not with another source address either.
    for source in [HOST, Ipv4Addr::new(10, 213, 0, 2)] {
        let to = json!({"host": SERVER, "port": PORT, "source": source});
        one.attempt("udp", to).await.expect_err("no answer");
    }
    println!("a function does not reach its host");
    // The resolver, but not the credentials.
    for address in METADATA {
        assert!(host.reaches(address.into(), PORT), "{address}");
        assert!(!one.reaches(address).await, "{address}");
        let to = json!({"host": address, "port": DNS});
        let answer = one.attempt("udp", to).await;
        answer.expect("an answer, to what was no question");
    }
    println!("a function does not reach the addresses at which clouds serve credentials");
}

/// A second function, which listens, and its address.
async fn nobody_reaches<'a>(
    one: &Function<'a>,
    World { host, internet, .. }: &World,
) -> (Function<'a>, Ipv4Addr) {
    let two = one.daemon.function("two", "outbound").await;
    let listening = two.attempt("listen", json!({"port": PORT})).await;
    let address = listening.expect("it listens");
    let address: Ipv4Addr = serde_json::from_value(address).expect("an address");
    assert!(OUTBOUND_CIDR_DEFAULT.contains(&address));
    let beside = one.daemon.worker(&two.version).await;
    let to = json!({"host": address, "port": PORT});
    let answer = call(&beside, "tcp", to).await;
    answer.expect("a worker of the same function reaches it");
    assert!(two.reaches(SERVER).await);
    assert!(!one.reaches(address).await, "from another function");
    assert!(!host.reaches(address.into(), PORT), "from the host");
    assert!(!internet.reaches(address.into(), PORT), "from outside");
    // Not even for a packet that needs no answer.
    let port = PORT + 1;
    let hears = two.attempt("hear", json!({"port": port})).await;
    hears.expect("it listens");
    let say = |word: &str| json!({"host": address, "port": port, "word": word});
    let said = one.attempt("say", say("from another function")).await;
    said.expect("it does not see that it is lost");
    let host = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    host.send_to(b"from the host", (address, port))
        .expect_err("a refusal");
    let said = call(&beside, "say", say("from itself")).await;
    said.expect("a worker of the same function reaches it");
    let heard = two.attempt("heard", json!({"until": "from itself"})).await;
    assert_eq!(heard, Ok(json!(["from itself"])));
    println!("nobody reaches a function");
    (two, address)
}

async fn takes_its_share(one: &Function<'_>) {
    let greedy = one.daemon.function("greedy", "outbound").await;
    let few = json!({"host": SERVER, "count": 3_000});
    greedy.attempt("flood", few).await.expect("an answer");
    let many = json!({"host": SERVER, "count": 5_000});
    greedy.attempt("flood", many).await.expect_err("no answer");
    assert!(one.reaches(SERVER).await && !greedy.reaches(SERVER).await);
    println!("a function does not take all connections");
}

/// A network that is attached later is unreachable for functions, too. The machine does not forward others to it until its
/// administrator enables that.
async fn leaves_the_machine_no_router(one: &Function<'_>, listens: Ipv4Addr, world: &World) {
    let World { internet, lan, .. } = world;
    world.attach_lan();
    let to = json!({"host": NEIGHBOUR, "port": PORT, "patience": 5});
    assert_eq!(one.attempt("tcp", to).await, Ok(json!(HOST_IN_LAN)));
    assert!(!internet.reaches(NEIGHBOUR.into(), PORT));
    assert!(!lan.reaches(listens.into(), PORT));
    println!("a net that comes later is reached, by functions alone");
    let router = "/proc/sys/net/ipv4/ip_forward";
    std::fs::write(router, "1").expect("a switch");
    // The daemon hears of it a moment later, and then takes its guard away.
    let reached = (0..10).any(|_| internet.reaches(NEIGHBOUR.into(), PORT));
    assert!(reached, "a router forwards for others");
    assert!(!one.reaches(HOST).await && !one.reaches(listens).await && one.reaches(SERVER).await);
    assert!(!internet.reaches(listens.into(), PORT));
    std::fs::write(router, "0").expect("a switch");
    let to = json!({"host": SERVER, "port": PORT, "patience": 5});
    assert_eq!(one.attempt("tcp", to).await, Ok(json!(HOST)));
    assert!(!internet.reaches(NEIGHBOUR.into(), PORT));
    println!("a machine that is a router stays one, and one that is none does not become one");
}

fn takes_its_device_along(two: Function<'_>) {
    let devices = || {
        world::inventory()
            .into_iter()
            .filter(|name| name.starts_with("pilot"))
            .count()
    };
    // A device, and that it forwards.
    let before = devices();
    let changes = world::device_changes();
    two.daemon.engine.forget(&two.version);
    drop(two);
    while devices() > before - 2 {
        world::wait_for(&changes);
    }
    println!("a function that is forgotten takes its device along");
}

async fn is_refused(daemon: &Daemon) {
    let version = version(daemon.dir.path(), "refused", "outbound");
    let error = daemon
        .engine
        .prepare(&version)
        .await
        .expect_err("a refusal");
    let StartError::Sandbox { problem } = error else {
        panic!("{error:?}");
    };
    assert!(
        problem.starts_with("network = \"outbound\" is not available on this machine: "),
        "{problem}"
    );
}

async fn call(worker: &Arc<dyn Worker>, kind: &str, with: Value) -> Result<Value, String> {
    let event = json!({"kind": kind, "with": with}).to_string();
    match support::call(worker, &event).await.expect("an answer") {
        Answer::Result(body, _) => {
            let answer: Value = serde_json::from_slice(&body).expect("JSON");
            println!("  {event} {answer}");
            match answer["reached"].as_bool() {
                Some(true) => Ok(answer["seen"].clone()),
                _ => Err(answer["seen"].to_string()),
            }
        }
        Answer::Error(body, _) => panic!("{event}: {}", String::from_utf8_lossy(&body)),
        Answer::Http { .. } => panic!("an HTTP answer to an event"),
    }
}

fn version(dir: &Path, name: &str, network: &str) -> Arc<Version> {
    let spec = FunctionSpec {
        network: Some(network.to_owned()),
        ..FunctionSpec::default()
    };
    support::version(dir, name, include_str!("outbound/app.py"), &spec)
}
