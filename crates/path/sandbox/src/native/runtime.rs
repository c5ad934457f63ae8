//! One runtime: a sandbox that is pre-warmed, in use, released, or ended.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::cpu_limit::WEIGHT;
use pilot_model::ports::{BoxFuture, PrewarmedRuntime, StartError, Worker};
use pilot_model::runtime::http::HttpRuntime;
use pilot_model::runtime::provided::ProvidedRuntime;
use pilot_model::runtime::wasm::{WORKER_VERB, WasmRuntime, WorkerSettings};
use pilot_model::runtime_key::{Base, Limits as KeyLimits, Mount, RuntimeKey};
use pilot_model::timeline::Instant;
use pilot_model::{FunctionConfig, Network, Runtime, Version, WorkerId};
use pilot_protocols::{HttpWorker, OwnProcesses, ProvidedWorker, Start};
use pilot_sys::clock::monotonic_ns;
use tokio::time::Duration;

use super::base_sandbox::{BaseSandbox, BaseSandboxKey};
use super::instance::{NativeInstance, NativeReach};
use super::node::WaitingNode;
use super::parts::NativeParts;
use crate::cgroup::{CPU_PERIOD_US, Limits};
use crate::hold::holders;
use crate::machine::dev_null;
use crate::message::{ExecSpec, Folders};
use crate::network::outbound::Link;
use crate::places::CODE_INSIDE;
use crate::refused::refused;
use crate::runtime_files::PILOT_INSIDE;
use crate::sandbox::{NestNetwork, Sandbox};
use crate::variables;
use crate::worker::{Body, Output, Released, SandboxOwner};

/// See the module.
#[derive(Debug)]
pub(super) struct NativeRuntime {
    parts: Arc<NativeParts>,
    /// Keeps the base sandbox alive.
    _base: Arc<BaseSandbox>,
    user: Option<u32>,
    /// Guards the current state; never held across an await.
    state: Mutex<RuntimeState>,
}

#[derive(Debug)]
struct RuntimeState {
    key: Arc<RuntimeKey>,
    phase: RuntimePhase,
    /// Its link to other hosts.
    link: Option<Link>,
}

#[derive(Debug)]
enum RuntimePhase {
    /// Clean: no user code has run in it since it was started or cleaned.
    Prewarmed(Prewarmed),
    /// A worker uses it, or it is being changed.
    InUse,
    /// A worker has released it.
    Released(Released),
    /// It has ended.
    Ended,
}

#[derive(Debug)]
struct Prewarmed {
    sandbox: Sandbox,
    /// Its interpreter, if the key has one.
    waiting: Option<WaitingNode>,
}

/// How an HTTP server is started.
#[derive(Debug)]
struct Server {
    /// Program and arguments.
    command: Vec<String>,
    /// The path that answers 2xx once it is ready.
    ready: Option<String>,
    variables: BTreeMap<String, String>,
}

/// Longest time until a program is ready.
const READY_TIME_MAX: Duration = Duration::from_secs(60);

/// Ports of the Lambda Runtime API and of a function's own server, if the runtime has its own network.
const RUNTIME_API_PORT: u16 = 9001;
const SERVER_PORT: u16 = 8080;

impl NativeRuntime {
    pub(super) async fn start(
        parts: Arc<NativeParts>,
        key: Arc<RuntimeKey>,
    ) -> Result<Self, StartError> {
        let base = parts.base_sandbox(&BaseSandboxKey::of(&key)?).await?;
        let machine = &parts.machine;
        let cgroup = machine.cgroup(&limits(&parts, key.limits()))?;
        let network = match key.network() {
            Network::Host => NestNetwork::Shared,
            Network::None | Network::Outbound => NestNetwork::Own,
        };
        let user = machine.user();
        let folders = Folders {
            tmp_bytes_max: machine.config.tmp_bytes_max,
            over_template: false,
            user,
        };
        let sandbox = base.sandbox.nest(network, cgroup, folders).await?;
        let link = match key.network() {
            Network::Outbound => Some(machine.outbound.connect(&machine.spawner, &sandbox).await?),
            Network::None | Network::Host => None,
        };
        for mount in key.mounts() {
            show(&parts, &sandbox, &mount).await?;
        }
        let prewarmed = prepare(&parts, &key, sandbox, user).await?;
        Ok(Self {
            _base: base,
            user,
            state: Mutex::new(RuntimeState {
                key,
                phase: RuntimePhase::Prewarmed(prewarmed),
                link,
            }),
            parts,
        })
    }

    fn take(&self) -> RuntimePhase {
        let mut state = self.state.lock();
        match state.phase {
            RuntimePhase::Ended => RuntimePhase::Ended,
            _ => std::mem::replace(&mut state.phase, RuntimePhase::InUse),
        }
    }

    fn take_prewarmed(&self) -> Result<Prewarmed, StartError> {
        match self.take() {
            RuntimePhase::Prewarmed(prewarmed) => Ok(prewarmed),
            other => {
                self.state.lock().phase = other;
                Err(unusable("it is not clean"))
            }
        }
    }

    /// Starts the version's program with these variables.
    async fn run(
        self: &Arc<Self>,
        sandbox: Sandbox,
        command: &[String],
        variables: BTreeMap<String, String>,
        version: &Version,
    ) -> Result<NativeInstance, StartError> {
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| unusable("the version has no command"))?;
        let null = dev_null()?;
        let (output, log) = Output::pipe().map_err(refused("a pipe"))?;
        let spec = ExecSpec {
            path: program.clone(),
            arguments: arguments.to_vec(),
            environment: variables.into_iter().collect(),
            cwd: PathBuf::from(CODE_INSIDE),
            user: self.user,
            cgroup_files: 0,
            template: false,
            own_filter: false,
        };
        let fds = [null.as_fd(), log.as_fd(), log.as_fd()];
        let process = sandbox.exec(spec, &fds).await?;
        let own_processes = self.own_processes(&sandbox)?;
        let holders = holders(&sandbox, self.user, &version.config)?;
        let body = Body { sandbox, process };
        let memory_bytes_max = version.config.memory_bytes;
        Ok(NativeInstance::new(
            Arc::clone(self) as Arc<dyn SandboxOwner>,
            memory_bytes_max,
            own_processes,
            body,
            output,
            holders,
            self.parts.machine.paceable(&version.config),
        ))
    }

    async fn provided(
        self: Arc<Self>,
        prewarmed: Prewarmed,
        command: &[String],
        version: &Arc<Version>,
        start: Start,
        secrets: BTreeMap<String, String>,
    ) -> Result<Arc<dyn Worker>, StartError> {
        let sandbox = prewarmed.sandbox;
        let socket = sandbox
            .control()
            .listen(self.port(RUNTIME_API_PORT))
            .await?;
        let listener = std::net::TcpListener::from(socket);
        let address = listener
            .local_addr()
            .map_err(refused("the runtime API's address"))?;
        let listener = tokio::net::TcpListener::from_std(listener)
            .map_err(refused("register the runtime API"))?;
        let mut variables = variables::of_lambda(version, "/var/runtime");
        variables.extend(secrets);
        variables::add_paths(version, variables::python_of(version), &mut variables);
        variables::add_library_path(version, &mut variables);
        variables.insert("AWS_LAMBDA_RUNTIME_API".to_owned(), address.to_string());
        let instance = self.run(sandbox, command, variables, version).await?;
        let start = begun(start);
        let worker = ProvidedWorker::when_ready(start, listener, Arc::new(instance)).await?;
        Ok(Arc::new(worker))
    }

    /// Starts a version's HTTP server. `server` says, with the port, how.
    async fn http(
        self: Arc<Self>,
        prewarmed: Prewarmed,
        server: impl FnOnce(u16) -> Result<Server, StartError>,
        version: &Arc<Version>,
        start: Start,
    ) -> Result<Arc<dyn Worker>, StartError> {
        let sandbox = prewarmed.sandbox;
        let port = match self.port(SERVER_PORT) {
            0 => free_port(&sandbox).await?,
            port => port,
        };
        let reach = NativeReach {
            control: Arc::downgrade(sandbox.control()),
            own_processes: self.own_processes(&sandbox)?,
        };
        let Server {
            command,
            ready,
            variables,
        } = server(port)?;
        let instance = self.run(sandbox, &command, variables, version).await?;
        let start = begun(start);
        let worker =
            HttpWorker::when_ready(start, port, ready, Arc::new(reach), Arc::new(instance)).await?;
        Ok(Arc::new(worker))
    }

    /// The server of a component: this binary, told what to do.
    fn component_server(
        &self,
        component: &str,
        version: &Version,
        secrets: BTreeMap<String, String>,
        port: u16,
    ) -> Result<Server, StartError> {
        if self.parts.machine.files.pilot().is_none() {
            return Err(unusable(
                "the file of pilot, which runs WebAssembly components, is gone; restart the daemon",
            ));
        }
        let settings = worker_settings(&version.config, component, port);
        let settings = serde_json::to_string(&settings).map_err(|error| StartError::Sandbox {
            problem: format!("write the settings of a worker: {error}"),
        })?;
        Ok(Server {
            command: vec![PILOT_INSIDE.to_owned(), WORKER_VERB.to_owned(), settings],
            ready: None,
            variables: variables::of_component(version, secrets),
        })
    }

    /// Whose connections are the worker's, if it is in the host's network.
    fn own_processes(&self, sandbox: &Sandbox) -> Result<Option<OwnProcesses>, StartError> {
        match self.state.lock().key.network() {
            Network::Host => match sandbox.pid_namespace() {
                Some(namespace) => Ok(Some(OwnProcesses::new(namespace))),
                None => Err(unusable("its PID namespace is unknown")),
            },
            Network::None | Network::Outbound => Ok(None),
        }
    }

    /// Any free port in the host's network, because others use it, too.
    fn port(&self, usual: u16) -> u16 {
        match self.state.lock().key.network() {
            Network::Host => 0,
            Network::None | Network::Outbound => usual,
        }
    }
}

impl SandboxOwner for NativeRuntime {
    fn take_back(&self, released: Released) {
        self.state.lock().phase = RuntimePhase::Released(released);
    }

    fn lost(&self) {
        self.state.lock().phase = RuntimePhase::Ended;
    }
}

impl PrewarmedRuntime for NativeRuntime {
    fn key(&self) -> Arc<RuntimeKey> {
        Arc::clone(&self.state.lock().key)
    }

    fn specialise(
        self: Arc<Self>,
        version: &Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>> {
        let version = Arc::clone(version);
        Box::pin(async move {
            // First, so that a missing secret leaves the runtime as it is.
            let secrets = self.parts.machine.secrets(&version)?.unwrap_or_default();
            let prewarmed = self.take_prewarmed()?;
            let config = &version.config;
            if let Some(cgroup) = prewarmed.sandbox.cgroup() {
                cgroup.belongs_to(self.parts.machine.owner_of(&version));
            }
            // The group is new since the last use.
            if !config.cpu_limit.is_default()
                && let Some(cgroup) = prewarmed.sandbox.cgroup()
            {
                let machine = &self.parts.machine;
                let limits = limits(&self.parts, self.key().limits());
                let limits = machine.with_cpu_limit(limits, config);
                let limited = cgroup.set_limits(&limits);
                limited.map_err(refused("limit the CPU"))?;
            }
            let paceable = self.parts.machine.paceable(config);
            let control = prewarmed.sandbox.control();
            control.show_secrets(&secrets.files, self.user).await?;
            let secrets = secrets.environment;
            let start = Start {
                id,
                version: Arc::clone(&version),
                asked,
                forked: asked,
                sandboxed: asked,
                ready_max: READY_TIME_MAX,
                answers: self.parts.machine.config.answers.of(&version.config.name),
            };
            match &version.config.runtime {
                Runtime::Provided(ProvidedRuntime { command }) => {
                    self.provided(prewarmed, command, &version, start, secrets)
                        .await
                }
                Runtime::Http(HttpRuntime { command, ready }) => {
                    let server = |port| {
                        let mut variables = variables::of_server(&version, port);
                        variables.extend(secrets);
                        Ok(Server {
                            command: command.clone(),
                            ready: ready.clone(),
                            variables,
                        })
                    };
                    self.http(prewarmed, server, &version, start).await
                }
                Runtime::Wasm(WasmRuntime { component }) => {
                    let runtime = Arc::clone(&self);
                    let server =
                        |port| runtime.component_server(component, &version, secrets, port);
                    self.http(prewarmed, server, &version, start).await
                }
                Runtime::Node(_) => {
                    let Some(waiting) = prewarmed.waiting else {
                        return Err(unusable("it has no Node.js"));
                    };
                    let owner: Arc<dyn SandboxOwner> = self;
                    let place = (prewarmed.sandbox, owner);
                    let worker = waiting
                        .specialise(place, &version, secrets, id, asked, start.answers)
                        .await?;
                    let worker = worker.paced(paceable);
                    Ok(Arc::new(worker) as Arc<dyn Worker>)
                }
                runtime => Err(unusable(&format!(
                    "runtime = \"{runtime}\" cannot run in it"
                ))),
            }
        })
    }

    fn clean(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(async move {
            let mut sandbox = match self.take() {
                prewarmed @ RuntimePhase::Prewarmed(_) => {
                    self.state.lock().phase = prewarmed;
                    return Ok(());
                }
                RuntimePhase::Released(released) => released.after_grace().await.sandbox,
                RuntimePhase::InUse => return Err(unusable("a worker has it")),
                RuntimePhase::Ended => return Err(unusable("it has ended")),
            };
            let key = self.key();
            sandbox.clean().await?;
            // A new cgroup resets all counters.
            let limits = limits(&self.parts, key.limits());
            sandbox.set_cgroup(self.parts.machine.cgroup(&limits)?);
            let prewarmed = prepare(&self.parts, &key, sandbox, self.user).await?;
            self.state.lock().phase = RuntimePhase::Prewarmed(prewarmed);
            Ok(())
        })
    }

    fn vacate(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let RuntimePhase::Released(released) = self.take() {
                drop(released.after_grace().await);
            }
        })
    }

    fn adapt(&self, to: &Arc<RuntimeKey>) -> BoxFuture<'_, Result<(), StartError>> {
        let to = Arc::clone(to);
        Box::pin(async move {
            let from = self.key();
            if from.adaptation(&to).is_none() {
                return Err(unusable("it cannot be adapted to this key"));
            }
            let prewarmed = self.take_prewarmed()?;
            let link = self.adapt_sandbox(&from, &to, &prewarmed).await?;
            let mut state = self.state.lock();
            state.link = link.or(state.link.take());
            state.key = to;
            state.phase = RuntimePhase::Prewarmed(prewarmed);
            Ok(())
        })
    }

    fn is_alive(&self) -> bool {
        match &self.state.lock().phase {
            RuntimePhase::Prewarmed(prewarmed) => {
                prewarmed.waiting.as_ref().is_none_or(WaitingNode::is_alive)
                    && !prewarmed.sandbox.has_ended()
            }
            RuntimePhase::InUse | RuntimePhase::Released(_) => true,
            RuntimePhase::Ended => false,
        }
    }

    fn memory_bytes(&self) -> u64 {
        let members = {
            let state = self.state.lock();
            let sandbox = match &state.phase {
                RuntimePhase::Prewarmed(prewarmed) => &prewarmed.sandbox,
                RuntimePhase::Released(released) => &released.body.sandbox,
                RuntimePhase::InUse | RuntimePhase::Ended => return 0,
            };
            sandbox.members()
        };
        members.pss_bytes()
    }
}

impl NativeRuntime {
    async fn adapt_sandbox(
        &self,
        from: &RuntimeKey,
        to: &RuntimeKey,
        prewarmed: &Prewarmed,
    ) -> Result<Option<Link>, StartError> {
        let sandbox = &prewarmed.sandbox;
        if from.limits() != to.limits()
            && let Some(cgroup) = sandbox.cgroup()
        {
            let limits = limits(&self.parts, to.limits());
            cgroup
                .set_limits(&limits)
                .map_err(refused("change the limits"))?;
        }
        let (before, after): (Vec<Mount>, Vec<Mount>) =
            (from.mounts().collect(), to.mounts().collect());
        // What is mounted below a changed mount is mounted again. Both lists are sorted by place, so outer mounts come first.
        let changes = |mount: &Mount, other: &[Mount]| !other.contains(mount);
        let changed: Vec<&Path> = before
            .iter()
            .filter(|mount| changes(mount, &after))
            .chain(after.iter().filter(|mount| changes(mount, &before)))
            .map(|mount| mount.inside.as_path())
            .collect();
        let is_touched =
            |mount: &&Mount| changed.iter().any(|place| mount.inside.starts_with(place));
        for mount in before.iter().filter(is_touched).rev() {
            sandbox.control().hide(&mount.inside).await?;
        }
        for mount in after.iter().filter(is_touched) {
            show(&self.parts, sandbox, mount).await?;
        }
        if from.network() == to.network() {
            return Ok(None);
        }
        let machine = &self.parts.machine;
        let link = machine.outbound.connect(&machine.spawner, sandbox).await?;
        Ok(Some(link))
    }
}

/// Starts the interpreter of the key, if it has one.
async fn prepare(
    parts: &NativeParts,
    key: &RuntimeKey,
    sandbox: Sandbox,
    user: Option<u32>,
) -> Result<Prewarmed, StartError> {
    let waiting = match key.base() {
        Base::Native {
            interpreter: Some(node),
            ..
        } => {
            let up = WaitingNode::start(&sandbox, node, key.execution(), user);
            Some(parts.start_limiter.run(up).await?)
        }
        Base::Native { .. } | Base::Container { .. } => None,
    };
    Ok(Prewarmed { sandbox, waiting })
}

async fn show(parts: &NativeParts, sandbox: &Sandbox, mount: &Mount) -> Result<(), StartError> {
    let tree = parts.machine.spawner.tree(&mount.host).await?;
    sandbox.control().show(tree.as_fd(), &mount.inside).await
}

/// The settings of a worker that runs a component.
fn worker_settings(config: &FunctionConfig, component: &str, port: u16) -> WorkerSettings {
    WorkerSettings {
        component: component.to_owned(),
        port,
        memory_bytes: config.memory_bytes,
        concurrency: config.concurrency,
        cpu_milli: config.cpu_milli,
        timeout: config.timeout,
        network: config.network,
        folder: CODE_INSIDE.to_owned(),
    }
}

/// A port of the host that is free now. The program that gets it has to bind it next.
async fn free_port(sandbox: &Sandbox) -> Result<u16, StartError> {
    let socket = sandbox.control().listen(0).await?;
    let address = std::net::TcpListener::from(socket).local_addr();
    Ok(address.map_err(refused("find a free port"))?.port())
}

/// The sandbox was made before, so the start's timestamps begin now.
fn begun(start: Start) -> Start {
    let now = Instant(monotonic_ns());
    Start {
        forked: now,
        sandboxed: now,
        ..start
    }
}

fn limits(parts: &NativeParts, wanted: KeyLimits) -> Limits {
    let config = &parts.machine.config;
    Limits {
        memory_bytes: wanted.memory_bytes.unwrap_or(config.template_memory_bytes),
        cpu_milli: wanted.cpu_milli.unwrap_or(u32::MAX / 1_000),
        cpu_period_us: CPU_PERIOD_US,
        cpu_weight: WEIGHT,
        pids: wanted.pids.unwrap_or(config.pids_max),
        // A kept runtime may get a function whose workers are frozen.
        freezable: true,
    }
}

fn unusable(problem: &str) -> StartError {
    StartError::Sandbox {
        problem: format!("a kept sandbox cannot be used: {problem}"),
    }
}
