//! Assembles the daemon. This is the only file that knows every crate. It connects the parts and does not serve requests.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use pilot_admin::{
    Admin, AdminConfig, AdminParts, LogStore, Observations, Readiness, SecretStore, TokenStore,
};
use pilot_cluster::{Cluster, ClusterConfig};
use pilot_container::{ContainerConfig, ContainerGroup, ContainerHost};
use pilot_data::Data;
use pilot_deploy::{
    ArchiveLimits, DeployConfig, Deployer, EnvironmentConfig, HeldDataDir, Reserve, StoreLimits,
    VERSIONS_KEPT,
};
use pilot_gateway::{BodyFiles, Control, GatewayConfig, RefusedConnections, RequestBody};
use pilot_invoke::Invoker;
use pilot_meter::{Meter, MeterConfig};
use pilot_model::forecast::MakeForecaster;
use pilot_model::ports::{
    Clock, ControlPlane, Engine, EventSink, InitRunner, Local, Observed, Placement, Platform,
    Secrets,
};
use pilot_model::{EngineKind, FunctionName, Instant, Traces};
use pilot_pool::{EngineTable, KeyedParts, KeyedPool, KeyedSettings, machine_memory};
use pilot_protocols::MemoryBudget;
use pilot_queue::{Queue, QueueConfig};
use pilot_sandbox::{
    BuildLimits, EngineConfig, ForkEngine, Isolation, Machine, NativeHost, SandboxedBuilds,
    SandboxedDecoders, Spawner,
};
use pilot_seal::SealingKey;
use pilot_telemetry::{Bus, BusConfig, Metrics};
use pilot_trigger::{ConnectedQueues, Connections, Delivery, Triggers};
use pilot_wasm::{Initscripts, InitscriptsConfig, Trials};
use tower::ServiceExt;

use crate::async_runner::InvokerRunner;
use crate::busy_poll::BusyPoll;
use crate::daemon_config::DaemonConfig;
use crate::daemon_config::connections::connections;
use crate::daemon_config::data::data_config;
use crate::invalid::OrInvalid;
use crate::room::Configured;
use crate::tls::Certificate;
use crate::tls::nodes::NodeTls;
use crate::triggered::Triggered;
use crate::{room, sealing, tokens};

/// The daemon, ready to serve.
pub(crate) struct Daemon {
    pub(crate) engines: Engines,
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) deployer: Deployer,
    pub(crate) queue: Arc<Queue>,
    pub(crate) triggers: Arc<Triggers>,
    pub(crate) admin: Admin,
    pub(crate) observations: Arc<Observations>,
    pub(crate) bus: Arc<Bus>,
    pub(crate) gateway: GatewayConfig,
    /// The other nodes, if there are some.
    pub(crate) nodes: Option<Nodes>,
    /// The certificates of the listeners; set when the daemon listens.
    pub(crate) certificates: Arc<OnceLock<Vec<Arc<Certificate>>>>,
    /// Where functions are called; set when the daemon listens there.
    pub(crate) functions_url: Arc<OnceLock<String>>,
}

/// The other nodes, and this one's certificate for them.
#[derive(Debug, Clone)]
pub(crate) struct Nodes {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) certificate: Arc<Certificate>,
    /// Makes memory for the data of their calls.
    pub(crate) data: Arc<Data>,
}

/// Everything that starts workers.
pub(crate) struct Engines {
    machine: Arc<Machine>,
    forking: Arc<ForkEngine>,
    native: Arc<NativeHost>,
    containers: Arc<ContainerHost>,
    decoders: Arc<SandboxedDecoders>,
    keyed: Arc<KeyedPool>,
}

impl Engines {
    fn table(&self) -> Arc<dyn Engine> {
        Arc::new(EngineTable(vec![
            (EngineKind::Fork, Arc::clone(&self.forking) as _),
            (EngineKind::Keyed, Arc::clone(&self.keyed) as _),
        ]))
    }

    /// Resolves when nothing can be started any more.
    pub(crate) fn spawner_ended(&self) -> std::io::Result<impl Future<Output = ()> + use<>> {
        self.machine.spawner_ended()
    }

    /// Removes containers that an earlier daemon left. If the engine does not answer, the start of the first container tries again.
    pub(crate) async fn sweep(&self) {
        match self.containers.sweep().await {
            Ok(0) => {}
            Ok(containers) => tracing::info!(containers, "removed containers of an earlier daemon"),
            Err(error) => tracing::warn!(%error, "containers of an earlier daemon may be left"),
        }
    }

    /// Ends all kept runtimes and templates, and waits for a limited time until they are gone. Returns true if they are. All
    /// workers must have ended before.
    pub(crate) async fn close(&self) -> bool {
        self.keyed.close().await;
        self.containers.close().await;
        self.forking.settled().await;
        self.native.close();
        self.decoders.close();
        self.forking.close();
        self.machine.vacated().await
    }
}

/// Why the daemon is not ready, and ends.
pub(crate) const SPAWNER_ENDED: &str =
    "the spawner has ended, so nothing can be started: start the daemon again";

/// `CLOCK_MONOTONIC`, the clock of the workers' timestamps.
#[derive(Debug)]
struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        Instant(pilot_sys::clock::monotonic_ns())
    }
}

/// Takes the data directory. Before anything in it is opened: another daemon may write there.
fn hold(data_dir: &Path) -> anyhow::Result<HeldDataDir> {
    let held = HeldDataDir::hold(data_dir)?;
    if let Err(error) = pilot_admin::remove_unfinished(data_dir) {
        tracing::warn!(%error, "files that a killed daemon left in the data directory were not removed");
    }
    Ok(held)
}

/// Assembles the daemon. Must be called within a tokio runtime.
pub(crate) fn assemble(
    config: &DaemonConfig,
    isolation: Isolation,
    spawner: Spawner,
    reserve: Arc<Reserve>,
    busy_poll: Arc<BusyPoll>,
) -> anyhow::Result<Daemon> {
    let held = hold(&config.data_dir)?;
    let clock: Arc<dyn Clock> = Arc::new(MonotonicClock);
    let metrics = Arc::new(Metrics::default());
    let missing: Vec<String> = isolation.missing().collect();

    let bus = Arc::new(Bus::start(BusConfig::default(), Arc::clone(&metrics))?);
    let logs = logs(config, &reserve)?;
    let (meter, traces) = records(config, &bus, &reserve, &metrics, &clock)?;
    let observations = Observations::subscribe(&bus, logs, &metrics, Arc::clone(&clock))?;
    let observations = Arc::new(observations);
    let sink = Arc::clone(&bus) as Arc<dyn EventSink>;
    let answers = MemoryBudget::default();
    let (key, secrets) = sealed(&config.data_dir, &reserve).or_invalid()?;
    let given = (answers.clone(), Arc::clone(&secrets) as Arc<dyn Secrets>);
    let engines = engines(config, isolation, spawner, &sink, &clock, &given)?;
    let engine = engines.table();
    let connections = Arc::new(Connections::new(
        connections(&config.connections).or_invalid()?,
    ));
    let (data, initscripts) = data(config, &connections, &clock, &engines)?;
    let (nodes, placement) = nodes(config, &answers, &data).or_invalid()?;
    let invoker = Invoker::new(
        Arc::clone(&engine),
        sink,
        clock,
        (Arc::clone(&data) as _, initscripts),
        placement,
        forecaster(),
        invoker_limits(config, engines.machine.total_memory_bytes()),
    );
    busy_poll.begin(invoker.running());
    let slow_bodies = slow_bodies(config, &reserve);
    let (queue, triggers) = queue_and_triggers(config, connections, &reserve)?;
    let platform = Arc::new(Triggered {
        invoker: Arc::clone(&invoker),
        triggers: Arc::clone(&triggers),
        queue: Arc::clone(&queue),
    });
    let tokens = tokens(config, key, &reserve).or_invalid()?;
    let deployer = Deployer::open(
        deploy_config(config, &engines, reserve, held)?,
        platform as Arc<dyn Platform>,
        Arc::clone(&observations) as Arc<dyn Observed>,
    )
    .or_invalid()?;
    let templates = engine;
    let machine = Arc::clone(&engines.machine);
    let refused = Arc::new(RefusedConnections::default());
    let refused_counts = Arc::clone(&refused);
    let functions_url = Arc::new(OnceLock::new());
    let certificates = Arc::new(OnceLock::new());
    let admin = Admin::new(
        AdminParts {
            control: Arc::new(deployer.clone()),
            tokens: Arc::clone(&tokens),
            secrets,
            certificates: ends_of(&certificates),
            refused_connections: Arc::new(move || refused_counts.counts().to_vec()),
            handed: Arc::new(move || data.handed()),
            busy_polled: Arc::new(move || busy_poll.spent()),
            observations: Arc::clone(&observations),
            costs: Arc::new(meter),
            queue: Arc::clone(&queue) as _,
            triggers: Arc::clone(&triggers) as _,
            metrics,
            templates: Arc::new(move || templates.templates()),
            readiness: Arc::new(move || readiness(machine.has_spawner(), &missing)),
        },
        admin_config(&functions_url),
    );
    Ok(Daemon {
        engines,
        invoker,
        deployer,
        admin,
        observations,
        bus,
        gateway: GatewayConfig {
            queue: Arc::clone(&queue) as _,
            tokens,
            refused,
            answers,
            slow_bodies,
            ..gateway_config(config, traces)
        },
        nodes,
        queue,
        triggers,
        certificates,
        functions_url,
    })
}

fn admin_config(functions_url: &Arc<OnceLock<String>>) -> AdminConfig {
    AdminConfig {
        functions_url: Arc::clone(functions_url),
        version: env!("CARGO_PKG_VERSION"),
        archive_bytes_max: ArchiveLimits::DEFAULT.compressed_bytes_max,
        ..AdminConfig::default()
    }
}

/// The key of the data directory, and the secrets.
fn sealed(
    data_dir: &Path,
    reserve: &Arc<Reserve>,
) -> anyhow::Result<(Arc<SealingKey>, Arc<SecretStore>)> {
    let key = sealing::key(data_dir)?;
    let secrets = sealing::secrets(data_dir, &key)?;
    let reserve = Arc::clone(reserve);
    Ok((
        key,
        Arc::new(secrets.with_reserve(move || reserve.release())),
    ))
}

/// The tokens, which can be revoked on a full disk.
fn tokens(
    config: &DaemonConfig,
    key: Arc<SealingKey>,
    reserve: &Arc<Reserve>,
) -> anyhow::Result<Arc<TokenStore>> {
    let reserve = Arc::clone(reserve);
    let tokens = tokens::all(config, key)?;
    Ok(Arc::new(tokens.with_reserve(move || reserve.release())))
}

/// Whether functions can start, and what this machine cannot enforce.
fn readiness(has_spawner: bool, missing: &[String]) -> Readiness {
    let ended = (!has_spawner).then(|| SPAWNER_ENDED.to_owned());
    Readiness {
        ready: has_spawner,
        reasons: ended.into_iter().chain(missing.iter().cloned()).collect(),
    }
}

/// When certificates end, for the metrics.
fn ends_of(
    certificates: &Arc<OnceLock<Vec<Arc<Certificate>>>>,
) -> Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync> {
    let certificates = Arc::clone(certificates);
    Arc::new(move || {
        let all = certificates.get().into_iter().flatten();
        all.filter_map(|one| Some((one.key(), one.ends()?)))
            .collect()
    })
}

fn logs(config: &DaemonConfig, reserve: &Arc<Reserve>) -> anyhow::Result<LogStore> {
    let logs = LogStore::open(config.data_dir.join("logs"), LogStore::FILE_BYTES_MAX)
        .with_context(|| format!("cannot write logs below {}", config.data_dir.display()))?;
    let room = Arc::clone(reserve);
    Ok(logs.while_there_is_room(move || room.admit_records()))
}

/// What is recorded of invocations: what they used, and traces.
fn records(
    config: &DaemonConfig,
    bus: &Arc<Bus>,
    reserve: &Arc<Reserve>,
    metrics: &Arc<Metrics>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(Meter, Option<Arc<Traces>>)> {
    let meter = meter(config, bus, reserve, metrics, clock)?;
    Ok((meter, traces(config, bus, metrics, clock)?))
}

/// Usage records lie beside the logs.
fn meter(
    config: &DaemonConfig,
    bus: &Bus,
    reserve: &Arc<Reserve>,
    metrics: &Arc<Metrics>,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Meter> {
    let room = Arc::clone(reserve);
    let settings = MeterConfig {
        folder: config.data_dir.join("usage"),
        bytes_max: config.limits.usage_mb << 20,
        room: Box::new(move || room.admit_records()),
    };
    Meter::subscribe(bus, settings, Arc::clone(metrics), Arc::clone(clock)).with_context(|| {
        let shown = config.data_dir.display();
        format!("cannot write usage records below {shown}")
    })
}

/// Which requests are recorded. Their spans are sent as long as the bus runs.
fn traces(
    config: &DaemonConfig,
    bus: &Arc<Bus>,
    metrics: &Metrics,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Option<Arc<Traces>>> {
    let Some(settings) = &config.traces else {
        return Ok(None);
    };
    pilot_traces::subscribe(
        bus,
        settings.exporter().or_invalid()?,
        metrics,
        Arc::clone(clock),
    )
    .context("traces")
    .or_invalid()?;
    let sink = Arc::clone(bus) as Arc<dyn EventSink>;
    Ok(Some(Arc::new(settings.recording(sink)?)))
}

/// Where inputs come from, and who runs initscripts, which use the same stores, and the queues of triggers.
fn data(
    config: &DaemonConfig,
    connections: &Arc<Connections>,
    clock: &Arc<dyn Clock>,
    engines: &Engines,
) -> anyhow::Result<(Arc<Data>, Arc<dyn InitRunner>)> {
    let has_users = engines.machine.has_users();
    let data = data_config(&config.data, &config.stores, &config.data_dir, has_users);
    let data = data.or_invalid()?;
    let queues = Arc::new(ConnectedQueues::new(Arc::clone(connections)));
    let decoders = Arc::clone(&engines.decoders) as _;
    let data = Data::open(data, queues, Arc::clone(clock), decoders);
    let data = data.map_err(anyhow::Error::msg).or_invalid()?;
    let data = Arc::new(data);
    let settings = InitscriptsConfig {
        memory_mb: config.initscripts.memory_mb,
    };
    let trials = Trials::By(PathBuf::from("/proc/self/exe"));
    let clock = Arc::clone(clock);
    let initscripts = Initscripts::start(settings, Arc::clone(&data) as _, clock, trials);
    let initscripts = initscripts.map_err(anyhow::Error::msg)?;
    Ok((data, Arc::new(initscripts)))
}

/// The other nodes, and where functions are. Reads this node's key, so it must be called after the spawner was forked.
fn nodes(
    config: &DaemonConfig,
    answers: &MemoryBudget,
    data: &Arc<Data>,
) -> anyhow::Result<(Option<Nodes>, Arc<dyn Placement>)> {
    let Some(settings) = &config.nodes else {
        return Ok((None, Arc::new(Local)));
    };
    let (files, ca) = settings.files()?;
    let certificate = Certificate::load(&files)?;
    let tls = NodeTls::new(&certificate, ca)?;
    let cluster = Cluster::new(&ClusterConfig {
        nodes: settings.others().map_err(anyhow::Error::msg)?,
        server: tls.server,
        client: tls.client,
        answers: answers.clone(),
        silence_max: settings.silence_max(),
        records: config.traces.is_some(),
    });
    let cluster = Arc::new(cluster);
    let nodes = Nodes {
        cluster: Arc::clone(&cluster),
        certificate,
        data: Arc::clone(data),
    };
    Ok((Some(nodes), cluster))
}

fn engines(
    config: &DaemonConfig,
    isolation: Isolation,
    spawner: Spawner,
    sink: &Arc<dyn EventSink>,
    clock: &Arc<dyn Clock>,
    (answers, secrets): &(MemoryBudget, Arc<dyn Secrets>),
) -> anyhow::Result<Engines> {
    let limits = &config.limits;
    let configured = Configured {
        memory_mb: limits.total_memory_mb,
        pids: limits.total_pids,
        builds_memory_mb: config.build.total_memory_mb,
    };
    let total = room::total(configured, isolation.around());
    let group = match (
        &config.container_cgroup_parent,
        isolation.group_for_containers(),
    ) {
        (Some(named), _) => ContainerGroup::Named(named.clone()),
        (None, Some(folder)) => ContainerGroup::Folder(folder.display().to_string()),
        (None, None) => ContainerGroup::Engine,
    };
    let machine = Machine::new(
        EngineConfig {
            dir: config.data_dir.join("run"),
            tmp_bytes_max: limits.tmp_mb << 20,
            pids_max: limits.pids,
            template_memory_bytes: limits.template_memory_mb << 20,
            total: Some(total),
            outbound_cidr: config.outbound_cidr,
            huge_pages: config.huge_pages,
            buffers_bytes_max: config.data.share_bytes(),
            answers: answers.clone(),
            secrets: Arc::clone(secrets),
        },
        spawner,
        isolation,
    )?;
    let native = Arc::new(NativeHost::new(Arc::clone(&machine)));
    let decoder_memory = config.data.decoder_memory_bytes();
    let decoders = Arc::new(SandboxedDecoders::new(Arc::clone(&machine), decoder_memory));
    let containers = Arc::new(ContainerHost::new(ContainerConfig {
        engine: config.container_engine.clone(),
        dir: config.data_dir.join("run"),
        data_dir: config.data_dir.clone(),
        tmp_bytes_max: limits.tmp_mb << 20,
        pids_max: limits.pids,
        group,
        volume: limits.volume(),
        answers: answers.clone(),
        secrets: Arc::clone(secrets),
    }));
    let keyed = KeyedPool::new(
        KeyedParts {
            hosts: vec![Arc::clone(&native) as _, Arc::clone(&containers) as _],
            sink: Arc::clone(sink),
            clock: Arc::clone(clock),
            forecaster: forecaster(),
            memory: Arc::new(machine_memory),
        },
        KeyedSettings {
            runtimes_max: limits.runtimes,
            memory_percent_max: limits.runtimes_memory_percent,
            keep: limits.runtimes_keep(),
            ..config.pool.keyed()
        },
    );
    Ok(Engines {
        forking: Arc::new(ForkEngine::new(Arc::clone(&machine))),
        native,
        containers,
        decoders,
        keyed: Arc::new(keyed),
        machine,
    })
}

fn deploy_config(
    config: &DaemonConfig,
    engines: &Engines,
    reserve: Arc<Reserve>,
    held: HeldDataDir,
) -> anyhow::Result<DeployConfig> {
    let build = &config.build;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let upstream_proxy = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]
        .into_iter()
        .find_map(variable);
    let builds = SandboxedBuilds::new(
        Arc::clone(&engines.machine),
        BuildLimits {
            memory_bytes: build.memory_mb << 20,
            pids: build.pids,
            disk_bytes: build.disk_mb << 20,
            upstream_proxy,
        },
    )
    .map_err(anyhow::Error::msg)?;
    let mut deploy = DeployConfig::new(config.data_dir.clone(), Arc::new(builds));
    deploy.store = StoreLimits {
        functions_max: config.limits.functions,
        disk_bytes_max: room::disk_bytes(config.limits.disk_mb, &config.data_dir),
    };
    deploy.reserve = reserve;
    deploy.held = Some(held);
    deploy.environment = EnvironmentConfig {
        install_time_max: build.time(),
        source_builds: build.sources.into(),
        hosts: build.addresses(),
        ..EnvironmentConfig::default()
    };
    Ok(deploy)
}

/// What the configuration says.
fn gateway_config(config: &DaemonConfig, traces: Option<Arc<Traces>>) -> GatewayConfig {
    GatewayConfig {
        traces,
        grace: config.limits.drain(),
        hosts: config.hosts.clone(),
        ..GatewayConfig::default()
    }
}

fn invoker_limits(config: &DaemonConfig, total_memory_bytes: Option<u64>) -> pilot_invoke::Limits {
    let limits = &config.limits;
    pilot_invoke::Limits {
        queue_max: limits.queue,
        wait_max: limits.max_wait_s.map(Duration::from_secs_f64),
        workers_max: limits.workers_max(),
        older_versions_max: VERSIONS_KEPT - 1,
        memory_bytes_max: limits.memory_mb.map(|limit| limit.get() << 20),
        total_memory_bytes,
        start_rule: config.pool.start_rule,
        ..pilot_invoke::Limits::default()
    }
}

/// The durable queue, and what feeds it. Both reach the same connections.
fn queue_and_triggers(
    config: &DaemonConfig,
    connections: Arc<Connections>,
    reserve: &Arc<Reserve>,
) -> anyhow::Result<(Arc<Queue>, Arc<Triggers>)> {
    let reserve = Arc::clone(reserve);
    let limits = &config.limits;
    let settings = QueueConfig {
        file: config.data_dir.join("async.sqlite"),
        files: config.data_dir.join("destinations"),
        delivery: Arc::new(Delivery::new(Arc::clone(&connections))),
        records_max: u64::from(limits.async_records.get()),
        bytes_max: u64::from(limits.async_mb.get()) << 20,
        // The others are for callers who wait.
        running_max: (limits.workers_max() / 2).clamp(1, ASYNC_RUNNING_MAX),
        has_room: Arc::new(move || reserve.refill()),
        clock: Arc::new(MonotonicClock),
    };
    let queue = Queue::open(settings).or_invalid()?;
    let triggers = Triggers::new(Arc::clone(&queue) as _, connections);
    Ok((queue, Arc::new(triggers)))
}

/// Each running attempt holds its event, up to 1 MiB, in memory.
const ASYNC_RUNNING_MAX: usize = 128;

/// Where request bodies are kept that arrive slowly.
fn slow_bodies(config: &DaemonConfig, reserve: &Arc<Reserve>) -> Option<BodyFiles> {
    let bytes_max = usize::try_from(config.limits.bodies_disk_mb).ok()? << 20;
    let reserve = Arc::clone(reserve);
    (bytes_max > 0).then(|| BodyFiles {
        dir: config.data_dir.clone(),
        bytes_max,
        has_room: Arc::new(move || reserve.has_room_beyond()),
    })
}

fn forecaster() -> MakeForecaster {
    |scale| pilot_forecast::forecaster(&scale.policy, scale)
}

impl Daemon {
    /// The handler of all requests that are not invocations.
    pub(crate) fn control(&self) -> Control {
        let router = self.admin.router();
        Arc::new(move |request: hyper::Request<RequestBody>| {
            let router = router.clone();
            Box::pin(async move {
                let response = match router.oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                };
                response.map(|body| UnsyncBoxBody::new(body.map_err(Into::into)))
            })
        })
    }

    /// Begins to run asynchronous invocations and to listen to triggers. The functions must be known.
    pub(crate) fn run_queue(&self) {
        let runner = Arc::new(InvokerRunner {
            invoker: Arc::clone(&self.invoker),
            traces: self.gateway.traces.clone(),
        });
        // Those of a function that was removed just before a crash.
        self.queue.forget_all_but(self.function_names());
        self.queue.dispatch(Arc::clone(&runner) as _);
        self.triggers.start(runner);
    }

    /// Removes the logs and counts of functions that no longer exist.
    pub(crate) fn forget_the_removed(&self) {
        self.observations.retain_logs(&self.function_names());
    }

    fn function_names(&self) -> HashSet<FunctionName> {
        let functions = self.deployer.list().into_iter();
        functions.map(|function| function.name).collect()
    }
}
