//! `pilot serve`: the daemon, from its configuration to its end: assemble, serve, drain.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::sys::stat::Mode;
use pilot_deploy::Reserve;
use pilot_gateway::Gateway;
use pilot_sandbox::{Isolation, Spawner};
use pilot_sys::{epoll, pages};
use pilot_telemetry::logging;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::assemble::{Daemon, SPAWNER_ENDED, assemble};
use crate::busy_poll::BusyPoll;
use crate::daemon_config::DaemonConfig;
use crate::invalid::OrInvalid;
use crate::supervisor::{self, GivenSockets, Watchdog};
use crate::tls::Renewal;
use crate::{data_dir, heap, listening, open_files};

/// Runs the daemon until SIGINT or SIGTERM, then drains it. `begun` is called as soon as the process may have threads.
///
/// # Errors
/// The daemon cannot start: because of the data directory, the address, or in strict mode the machine.
pub(crate) fn run(
    config: &DaemonConfig,
    begun: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    logging::init(config.log_format, &config.log_level)?;
    raise_open_files();
    // Sandboxes read the daemon's files as other users. What must stay private has its mode from the start.
    nix::sys::stat::umask(Mode::from_bits_truncate(0o022));
    let isolation = Isolation::probe(config.limits.id_base);
    let missing: Vec<String> = isolation.missing().collect();
    for problem in &missing {
        tracing::warn!("not enforced on this machine: {problem}");
    }
    if !missing.is_empty() {
        tracing::warn!("`pilot doctor` says what to change");
    }
    if let Err(problem) = open_files::check(config.limits.total_memory_mb) {
        tracing::warn!(change = open_files::CHANGE, "open files: {problem}");
    }
    if config.strict && !missing.is_empty() {
        bail!(
            "strict mode: this machine does not enforce everything: {}",
            missing.join("; ")
        );
    }
    data_dir::prepare(&config.data_dir).or_invalid()?;
    let reserve = Arc::new(Reserve::of(&config.data_dir));
    reserve.prepare();
    let mount_point = config.data_dir.join("run/root");
    fs::create_dir_all(&mount_point)
        .with_context(|| format!("cannot create {}", mount_point.display()))?;
    prefer_to_live();
    // Before the first thread starts, because it changes the environment.
    let given = GivenSockets::take()?;
    // Before the first thread starts, because the spawner is a fork of this process.
    let spawner = Spawner::launch(&isolation)?;
    let _log = logging::start_thread().context("cannot start a thread")?;
    begun()?;
    let (runtime, busy_poll) = runtime(config.busy_poll)?;
    let served = runtime.block_on(serve(config, isolation, spawner, reserve, given, busy_poll));
    // Folders of builds that are being removed, for example. The next daemon goes on with them.
    runtime.shutdown_timeout(LAST_WORK);
    served
}

/// The runtime of the daemon, whose threads poll before they sleep.
fn runtime(longest_poll: Duration) -> anyhow::Result<(Runtime, Arc<BusyPoll>)> {
    let busy_poll = Arc::new(BusyPoll::new(longest_poll));
    let (parking, unparked) = (Arc::clone(&busy_poll), Arc::clone(&busy_poll));
    let build = || {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("pilot")
            .event_interval(EVENTS_EVERY)
            .on_thread_park(move || parking.before_sleep())
            .on_thread_unpark(move || unparked.after_sleep())
            .build()
    };
    let (runtime, epoll) = epoll::opened_by(build).context("cannot start the runtime")?;
    let runtime = runtime.context("cannot start the runtime")?;
    let epoll = epoll.into_iter().next();
    busy_poll.watch(epoll.context("the runtime has no epoll instance")?);
    Ok((runtime, busy_poll))
}

/// What only the start needs takes no memory from here on.
fn unmap_start() {
    match pages::unmap_program() {
        Ok(bytes) => tracing::debug!(
            bytes,
            "the program's file is unmapped, until it is used again"
        ),
        Err(error) => tracing::debug!(%error, "the program's file stays mapped"),
    }
}

async fn serve(
    config: &DaemonConfig,
    isolation: Isolation,
    spawner: Spawner,
    reserve: Arc<Reserve>,
    mut given: GivenSockets,
    busy_poll: Arc<BusyPoll>,
) -> anyhow::Result<()> {
    let daemon =
        assemble(config, isolation, spawner, Arc::clone(&reserve), busy_poll).map_err(|error| {
            match reserve.shortage() {
                // Then nothing is wrong with the files.
                Some(shortage) => anyhow::anyhow!("{shortage}: {error:#}"),
                None => error,
            }
        })?;
    let restored = daemon.deployer.restore();
    let mut listening = listening::bind_all(config, &mut given).await?;
    let for_nodes = daemon.nodes.iter().map(|nodes| nodes.certificate.clone());
    listening.certificates.extend(for_nodes);
    let url = functions_url(config, listening.functions);
    for certificate in &listening.certificates {
        certificate.log_validity();
    }
    let _ = daemon.certificates.set(listening.certificates.clone());
    let renewal = Renewal::of(listening.certificates)?;
    tracing::info!(
        address = %listening.functions,
        control = %listening.socket.path().display(),
        data_dir = %config.data_dir.display(),
        functions = restored.functions,
        broken = restored.broken.len(),
        "pilotlight {} serves",
        env!("CARGO_PKG_VERSION"),
    );
    let _ = daemon.functions_url.set(url);
    daemon.run_queue();
    let stop = stop_signal()?;
    let spawner_ended = daemon.engines.spawner_ended()?;
    let has_spawner = Arc::new(AtomicBool::new(true));
    let lost = Arc::clone(&has_spawner);
    let followed = daemon.observations.clone();
    let (queue, triggers) = (Arc::clone(&daemon.queue), Arc::clone(&daemon.triggers));
    let (stopped, stopped_at) = tokio::sync::oneshot::channel();
    let (nodes_stop, nodes_stopped) = tokio::sync::oneshot::channel();
    let stop = async move {
        tokio::select! {
            () = stop => {}
            () = spawner_ended => {
                tracing::error!("{SPAWNER_ENDED}");
                lost.store(false, Ordering::Relaxed);
            }
        }
        supervisor::tell(&[NotifyState::Stopping]);
        // What runs ends while the connections drain.
        triggers.hold();
        queue.hold();
        let _ = stopped.send(tokio::time::Instant::now());
        let _ = nodes_stop.send(());
        // Otherwise clients that follow a log would delay the drain.
        tokio::task::block_in_place(|| followed.logs().close());
    };
    unmap_start();
    let serving = Gateway::serve(
        listening.listeners,
        daemon.gateway.clone(),
        daemon.invoker.clone(),
        daemon.control(),
        stop,
    );
    let nodes = serve_nodes(
        &daemon,
        listening.nodes,
        nodes_stopped,
        config.limits.drain(),
    );
    let serving = async { tokio::join!(serving, nodes).0 };
    // Until the end: a supervisor that hears nothing would kill the daemon while it drains.
    let _watchdog = Watchdog::start();
    let drained = tokio::select! {
        drained = serving => drained,
        () = keep_tidy(&daemon) => unreachable!("keeping tidy does not end"),
        () = heap::keep_small() => unreachable!("keeping the heap small does not end"),
        () = renewal.run() => unreachable!("keeping certificates does not end"),
    };
    tracing::info!(
        connections = drained.connections,
        cut = drained.cut,
        "drained; stopping"
    );
    let drained_for = stopped_at.await.map_or(Duration::ZERO, |at| at.elapsed());
    end(&daemon, config.limits.drain().saturating_sub(drained_for)).await;
    // A supervisor restarts what has failed.
    ensure!(has_spawner.load(Ordering::Relaxed), SPAWNER_ENDED);
    Ok(())
}

/// Ends what a daemon without connections still does. `left`: of the time to drain.
async fn end(daemon: &Daemon, left: Duration) {
    let until = tokio::time::Instant::now() + left;
    daemon.admin.finish(until).await;
    let until = until.max(tokio::time::Instant::now() + LAST_INVOCATIONS);
    let left = until.saturating_duration_since(tokio::time::Instant::now());
    daemon.triggers.stop(left).await;
    let left = until.saturating_duration_since(tokio::time::Instant::now());
    daemon.queue.stop(left.max(LAST_INVOCATIONS)).await;
    daemon.invoker.drain(LAST_INVOCATIONS).await;
    if !daemon.engines.close().await {
        tracing::warn!("some control groups are still busy: the next daemon removes them");
    }
    daemon.invoker.settle().await;
    daemon.bus.stop();
}

/// Does not end.
async fn keep_tidy(daemon: &Daemon) {
    daemon.engines.sweep().await;
    daemon.deployer.tidy().await;
    tokio::task::block_in_place(|| daemon.forget_the_removed());
    daemon.deployer.keep_tidy(TIDY_EVERY).await;
}

/// Serves other nodes until `stopped`, if there are some.
async fn serve_nodes(
    daemon: &Daemon,
    listener: Option<TcpListener>,
    stopped: tokio::sync::oneshot::Receiver<()>,
    grace: Duration,
) {
    let (Some(nodes), Some(listener)) = (&daemon.nodes, listener) else {
        return;
    };
    // An error means that the sender is gone, and so is everything else.
    let stopped = async { drop(stopped.await) };
    let (target, memory) = (Arc::clone(&daemon.invoker), Arc::clone(&nodes.data));
    let serving = nodes
        .cluster
        .serve(listener, target, memory, stopped, grace);
    serving.await;
}

/// Where a client on this machine calls functions. With TLS, that is by the daemon's name, if it is known: most certificates are for a
/// name.
fn functions_url(config: &DaemonConfig, mut bound: SocketAddr) -> String {
    if let (Some(_), Some(name)) = (&config.tls, config.hosts.first()) {
        return format!("https://{name}:{}", bound.port());
    }
    if bound.ip().is_unspecified() {
        bound.set_ip(match bound {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let scheme = if config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://{bound}")
}

/// How often the deployer removes files that an invocation still used when its version was replaced.
const TIDY_EVERY: Duration = Duration::from_secs(60);

/// How many polls of tasks come between two looks at the sockets while a thread is busy. tokio's default is 61: those who keep both threads
/// busy, with requests without end for example, would delay everybody else by that many of their polls.
const EVENTS_EVERY: u32 = 8;

/// How long the end waits for threads that are busy.
const LAST_WORK: Duration = Duration::from_secs(2);

/// How long invocations may still run after the gateway has closed all connections.
const LAST_INVOCATIONS: Duration = Duration::from_secs(1);

/// Resolves at the first SIGINT or SIGTERM.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// When the machine has no memory left, the kernel kills others before the daemon, the spawner and the inits, which inherit this
/// (proc_pid_oom_score_adj(5)). Only root may ask for it; without root it stays as it is, and programs in sandboxes get a higher value.
fn prefer_to_live() {
    let file = "/proc/self/oom_score_adj";
    // A service may have set its own.
    if fs::read_to_string(file).is_ok_and(|current| current.trim() == "0") {
        let _ = fs::write(file, OOM_SCORE_ADJ);
    }
}

/// -1000 would exempt the daemon, and a daemon that leaks memory would then take the machine with it.
const OOM_SCORE_ADJ: &str = "-500";

/// Raises the limit of open files. The daemon needs about 13 descriptors per worker, and the soft limit is often 1,024.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
