//! The templates of functions, and what the tree of templates has in common: interpreter → environment → function, each in a sandbox whose
//! PID namespace is inside that of its parent. If a template cannot fork, its children are forked from its parent.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as WallInstant;

use parking_lot::Mutex;
use pilot_model::cpu_limit::WEIGHT;
use pilot_model::deployment::TemplateReport;
use pilot_model::layer::LAYERS_INSIDE;
use pilot_model::ports::{StartError, TemplateMemory};
use pilot_model::{Environment, Network, Python, Rest, TemplateMode, Version};
use pilot_wire::control::{Role, TemplateSpec};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bases::{Base, BaseKind};
use super::report::{Imports, printable, report};
use super::{TemplateTree, specs};
use crate::cgroup::{CPU_PERIOD_US, Cgroup, Limits};
use crate::channel::Channel;
use crate::isolation::UserNamespace;
use crate::machine::dev_null;
use crate::memory::pss_bytes;
use crate::message::{ExecSpec, Folders};
use crate::network::outbound::Link;
use crate::places::{CODE_INSIDE, NODE_MODULES_INSIDE, PACKAGES_INSIDE};
use crate::refused::refused;
use crate::rootfs::RootSpec;
use crate::runtime_files::PYTHON_WORKER_INSIDE;
use crate::sandbox::{NestNetwork, Sandbox, SandboxSpec, SharedSandbox};
use crate::template::Template;
use crate::variables;
use crate::worker::Output;

/// The node of a function: its sandbox, its template if it has one, and spare sandboxes for its workers.
#[derive(Debug)]
pub(super) struct Function {
    version: Arc<Version>,
    base: Arc<Base>,
    sandbox: SharedSandbox,
    /// `None`: it cannot fork, or is turned off.
    template: Option<Template>,
    /// Whether each of its interpreters is started with variables of its own, so that no other template can fork its workers.
    own_interpreter: bool,
    spec: TemplateSpec,
    /// Without its memory: to add it up takes as long as a fork.
    report: TemplateReport,
    /// Its link to other hosts, open as long as the node.
    _link: Option<Link>,
    spares: Mutex<Spares>,
    /// A task is making spares.
    refilling: AtomicBool,
    /// A task checks whether there are too many.
    trimming: AtomicBool,
    /// Places for workers in their grace period.
    lingering: Arc<Semaphore>,
}

/// Spare sandboxes.
#[derive(Debug, Default)]
struct Spares {
    ready: Vec<Sandbox>,
    /// The lowest count since they were last trimmed.
    fewest: usize,
}

impl Function {
    pub(super) fn version(&self) -> &Arc<Version> {
        &self.version
    }

    /// The sandbox that those of its workers are nested in.
    pub(super) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// What its deployment is told, with the memory that its template uses now.
    pub(super) fn report(&self) -> TemplateReport {
        TemplateReport {
            memory_bytes: memory_of(&self.sandbox),
            ..self.report.clone()
        }
    }

    pub(super) fn spec(&self) -> &TemplateSpec {
        &self.spec
    }

    pub(super) fn user(&self) -> Option<u32> {
        self.spec.uid
    }

    pub(super) fn take_spare(&self) -> Option<Sandbox> {
        let mut spares = self.spares.lock();
        let mut spare = spares.ready.pop();
        while spare.as_ref().is_some_and(Sandbox::has_ended) {
            spare = spares.ready.pop();
        }
        spares.fewest = spares.fewest.min(spares.ready.len());
        spare
    }

    pub(super) fn spare_count(&self) -> usize {
        self.spares.lock().ready.len()
    }

    /// A place for a worker in its grace period. `None`: all are taken.
    pub(super) fn linger(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.lingering).try_acquire_owned().ok()
    }

    /// Keeps a sandbox for the next worker if there are fewer than `most`; otherwise drops it.
    pub(super) fn keep_spare(&self, sandbox: Sandbox, most: usize) {
        let mut spares = self.spares.lock();
        if spares.ready.len() < most {
            spares.ready.push(sandbox);
        }
    }

    /// Drops all spare sandboxes. Returns whether there were any.
    pub(super) fn give_up_spares(&self) -> bool {
        let gone = std::mem::take(&mut self.spares.lock().ready);
        !gone.is_empty()
    }

    /// Returns whether the caller has to trim spares, until [`Function::end_trim`].
    pub(super) fn begin_trim(&self) -> bool {
        !self.trimming.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_trim(&self) {
        self.trimming.store(false, Ordering::Relaxed);
    }

    /// Drops those beyond `kept` that were not needed since the last call.
    pub(super) fn trim_spares(&self, kept: usize) {
        let mut spares = self.spares.lock();
        let needless = spares.fewest.saturating_sub(kept);
        let gone: Vec<Sandbox> = spares.ready.drain(..needless).collect();
        spares.fewest = spares.ready.len();
        drop(spares);
        drop(gone);
    }

    /// Returns whether the caller has to make spares, until [`Function::end_refill`].
    pub(super) fn begin_refill(&self) -> bool {
        !self.refilling.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_refill(&self) {
        self.refilling.store(false, Ordering::Relaxed);
    }

    /// The template that forks its workers, with the spec that they need if it is not the function's own template. `None`:
    /// workers start a fresh interpreter.
    pub(super) fn forks_from(&self) -> Option<(&Template, Option<&TemplateSpec>)> {
        if self.version.config.template == TemplateMode::Off {
            return None;
        }
        match &self.template {
            Some(own) => Some((own, None)),
            None if self.own_interpreter => None,
            None => Some((self.base.forks_from()?, Some(&self.spec))),
        }
    }

    /// Whether the template has imported the handler, so that workers need not.
    pub(super) fn is_imported(&self) -> bool {
        self.template.is_some()
    }

    /// Whether it has a template that is a running process.
    pub(super) fn is_running(&self) -> bool {
        self.template.as_ref().is_some_and(Template::alive)
    }

    fn usable(&self) -> bool {
        self.template.as_ref().is_none_or(Template::alive)
            && !self.sandbox.has_ended()
            && self.base.usable()
    }

    pub(super) fn memory(&self) -> TemplateMemory {
        TemplateMemory {
            level: "function".to_owned(),
            name: self.version.config.name.to_string(),
            memory_bytes: memory_of(&self.sandbox),
        }
    }
}

pub(super) fn memory_of(sandbox: &Sandbox) -> u64 {
    let processes = sandbox.cgroup().map(Cgroup::processes).unwrap_or_default();
    processes.into_iter().map(pss_bytes).sum()
}

/// Most workers of a function that are in their grace period. Without a bound, a function that ignores SIGTERM would have more and more
/// processes.
const LINGERING_MAX: usize = 32;

/// The result of an attempt to build a function's node.
enum Built {
    Function(Box<Function>),
    /// The function would notice what the template above has imported, or that one has not imported everything.
    NeedsOtherImports {
        why: String,
    },
}

/// See [`variables::needs_libraries`].
async fn has_libraries(version: &Arc<Version>) -> Result<bool, StartError> {
    let version = Arc::clone(version);
    tokio::task::spawn_blocking(move || variables::needs_libraries(&version))
        .await
        .map_err(std::io::Error::other)
        .map_err(refused("look for libraries"))
}

impl TemplateTree {
    /// The function's node, built if necessary.
    pub(super) async fn function(
        self: &Arc<Self>,
        version: &Arc<Version>,
    ) -> Result<Arc<Function>, StartError> {
        self.functions
            .find_or_build(&version.id, Function::usable, || {
                Box::pin(self.build_function(version))
            })
            .await
    }

    /// A sandbox for one of the function's workers.
    pub(super) async fn worker_sandbox(&self, function: &Function) -> Result<Sandbox, StartError> {
        let imported = function.is_imported();
        self.nested_in(&function.sandbox, function.version(), imported)
            .await
    }

    /// A sandbox for a worker inside the function's. `over_template`: it shows the files that the function's template has written.
    async fn nested_in(
        &self,
        sandbox: &Sandbox,
        version: &Version,
        over_template: bool,
    ) -> Result<Sandbox, StartError> {
        let cgroup = self.machine.cgroup(&self.function_limits(version))?;
        let folders = Folders {
            tmp_bytes_max: self.machine.config.tmp_bytes_max,
            over_template,
            user: None,
        };
        sandbox.nest(NestNetwork::Shared, cgroup, folders).await
    }

    async fn build_function(&self, version: &Arc<Version>) -> Result<Function, StartError> {
        let begun = WallInstant::now();
        let at_start = variables::read_at_start(&version.config.environment);
        let imports = match (at_start.keys().next(), &version.own_imports) {
            (Some(_), _) => Imports::OwnInterpreter(at_start.keys().cloned().collect()),
            (None, Some(why)) => Imports::Own { why: why.clone() },
            (None, None) if self.modules.are_shared(version) => {
                match self
                    .try_function(version, Imports::SharedModules, begun)
                    .await
                {
                    Ok(Built::Function(function)) => return Ok(*function),
                    Err(full @ StartError::Full { .. }) => return Err(full),
                    // It was deployed without sharing them, so it works without.
                    Ok(Built::NeedsOtherImports { .. }) | Err(_) => self.modules.refuse(version),
                }
                Imports::Shared
            }
            (None, None) => Imports::Shared,
        };
        match self.try_function(version, imports, begun).await? {
            Built::Function(function) => Ok(*function),
            Built::NeedsOtherImports { why } => {
                match self
                    .try_function(version, Imports::Own { why }, begun)
                    .await?
                {
                    Built::Function(function) => Ok(*function),
                    // Only user code that has broken the worker's code says so: a template without packages never does.
                    Built::NeedsOtherImports { why } => Err(StartError::Runtime {
                        problem: format!("the template imports nothing: {}", printable(&why)),
                        output: String::new(),
                    }),
                }
            }
        }
    }

    async fn try_function(
        &self,
        version: &Arc<Version>,
        imports: Imports,
        begun: WallInstant,
    ) -> Result<Built, StartError> {
        let network = version.config.network;
        let resolver = self.machine.resolver(version)?;
        let own_network = network != Network::Host;
        let own_interpreter = matches!(imports, Imports::OwnInterpreter(_));
        let libraries = has_libraries(version).await?;
        let kind = BaseKind {
            own_network,
            libraries: libraries && !own_interpreter,
        };
        let Some(base) = self.base_of(version, &imports, kind).await? else {
            let why = "a module cannot be imported without the function".to_owned();
            return Ok(Built::NeedsOtherImports { why });
        };
        let user = self.machine.user();
        let mut root = self.function_root(version, user);
        root.resolver = resolver;
        let request = SandboxSpec {
            root,
            own_network,
            own_users: self.own_users(),
            tmp_bytes_max: self.machine.config.tmp_bytes_max,
        };
        let cgroup = self.machine.cgroup(&self.function_limits(version))?;
        let above = Some(base.template.sandbox().as_ref());
        let sandbox =
            Arc::new(Sandbox::with_root(&self.machine.spawner, request, above, cgroup).await?);
        let link = match network {
            Network::Outbound => Some(
                self.machine
                    .outbound
                    .connect(&self.machine.spawner, &sandbox)
                    .await?,
            ),
            Network::None | Network::Host => None,
        };
        let python = &base.template.ready().python;
        let spec = specs::of_function(
            version,
            python,
            user,
            &self.machine.worker_filter,
            libraries,
        );
        let mut spares = Spares::default();
        let template = match (version.config.template, base.forks_from()) {
            (TemplateMode::Off, _) => None,
            (TemplateMode::On, _) if own_interpreter => {
                Some(self.exec_function(version, &sandbox, &spec).await?)
            }
            (TemplateMode::On, Some(parent)) => {
                let imports = fork_template(parent, &sandbox, &spec);
                Some(
                    self.with_first(&mut spares, version, &sandbox, imports)
                        .await?,
                )
            }
            (TemplateMode::On, None) => None,
        };
        let ready = template.as_ref().unwrap_or(&base.template).ready().clone();
        if let Some(why) = ready.own_imports {
            return Ok(Built::NeedsOtherImports { why });
        }
        let template = template.filter(Template::forkable);
        let report = report(
            version,
            &base.reports(),
            &ready,
            template.is_some(),
            &imports,
            begun.elapsed(),
        );
        Ok(Built::Function(Box::new(Function {
            version: Arc::clone(version),
            base,
            sandbox,
            template,
            own_interpreter,
            spec,
            report,
            spares: Mutex::new(spares),
            refilling: AtomicBool::new(false),
            trimming: AtomicBool::new(false),
            lingering: Arc::new(Semaphore::new(LINGERING_MAX)),
            _link: link,
        })))
    }

    /// The template that `imports` resolves to. Meanwhile, the sandbox of its first worker is made, and put among the spare ones if it
    /// fits: it does not show files that the template wrote later, and shows files to a worker that must not see them.
    async fn with_first(
        &self,
        spares: &mut Spares,
        version: &Version,
        sandbox: &Sandbox,
        imports: impl Future<Output = Result<Template, StartError>>,
    ) -> Result<Template, StartError> {
        let (template, first) = tokio::join!(imports, self.nested_in(sandbox, version, true));
        let template = template?;
        if template.forkable() && !template.ready().wrote_files {
            // Without it, the start makes one, and says why it cannot.
            spares.ready.extend(first);
        }
        Ok(template)
    }

    /// The template of a function whose variables an interpreter reads only when it starts. It is in the function's sandbox, so they
    /// have an effect on nothing else.
    async fn exec_function(
        &self,
        version: &Version,
        sandbox: &SharedSandbox,
        spec: &TemplateSpec,
    ) -> Result<Template, StartError> {
        let at_start = variables::read_at_start(&spec.environment);
        let python = python(&version.environment)?;
        let program = python_program(python, "function", at_start, spec.uid);
        let spec = specs::piped(spec)?;
        self.exec(Arc::clone(sandbox), program, Some(spec)).await
    }

    /// Only templates without a parent are started with exec.
    pub(super) async fn exec(
        &self,
        sandbox: SharedSandbox,
        mut program: ExecSpec,
        spec: Option<OwnedFd>,
    ) -> Result<Template, StartError> {
        let (control, theirs) = Channel::pair_with_untrusted().map_err(refused("a socket pair"))?;
        let (mut output, log) = Output::pipe().map_err(refused("a pipe"))?;
        let null = dev_null()?;
        if !self.machine.config.huge_pages {
            let off = ("PILOT_HUGE_PAGES".to_owned(), "off".to_owned());
            program.environment.push(off);
        }
        let fds: Vec<BorrowedFd<'_>> = [null.as_fd(), log.as_fd(), log.as_fd(), theirs.as_fd()]
            .into_iter()
            .chain(spec.as_ref().map(AsFd::as_fd))
            .collect();
        let program = sandbox.exec(program, &fds).await?;
        drop((theirs, log, spec));
        let ended = program.end();
        Template::when_ready(control, Arc::clone(&sandbox), &mut output, ended).await
    }

    pub(super) fn root(
        &self,
        environment: &Environment,
        packages: Option<&Path>,
        user: Option<u32>,
    ) -> RootSpec {
        let mut shown = vec![(
            self.machine.files.python().to_owned(),
            PathBuf::from(PYTHON_WORKER_INSIDE),
        )];
        for folder in environment.python.iter().flat_map(Python::folders) {
            let there = folder.starts_with("/usr")
                || shown.iter().any(|(_, inside)| folder.starts_with(inside));
            if !there {
                shown.push((folder.to_owned(), folder.to_owned()));
            }
        }
        if let Some(packages) = packages {
            shown.push((packages.to_owned(), PathBuf::from(PACKAGES_INSIDE)));
        }
        RootSpec {
            writable: None,
            mount_point: self.machine.config.dir.join("root"),
            shown,
            user: user.unwrap_or(0),
            resolver: None,
            libraries: false,
        }
    }

    fn function_root(&self, version: &Version, user: Option<u32>) -> RootSpec {
        let environment = &version.environment;
        let mut root = self.root(environment, environment.packages_dir(), user);
        if let Some(layers) = &version.layers {
            // First, because the others are mounted on its folders.
            let layers = (layers.dir.clone(), PathBuf::from(LAYERS_INSIDE));
            root.shown.insert(0, layers);
        }
        root.shown
            .push((version.code_dir.clone(), PathBuf::from(CODE_INSIDE)));
        root.shown.extend(node_folders(environment));
        root
    }

    /// Templates that import user code get a user namespace of their own, if the machine has them.
    pub(super) fn own_users(&self) -> bool {
        self.machine.isolation.user_namespace() != UserNamespace::None
    }

    fn function_limits(&self, version: &Version) -> Limits {
        let config = &version.config;
        let all = Limits {
            memory_bytes: config.memory_bytes,
            cpu_milli: config.cpu_milli,
            cpu_period_us: CPU_PERIOD_US,
            cpu_weight: WEIGHT,
            pids: self.machine.config.pids_max,
            freezable: config.keep_alive.rest() == Some(Rest::Freeze),
        };
        self.machine.with_cpu_limit(all, config)
    }
}

/// The interpreter of a Python function; its absence is an error.
pub(super) fn python(environment: &Environment) -> Result<&Python, StartError> {
    environment
        .python
        .as_ref()
        .ok_or_else(|| StartError::Runtime {
            problem: format!(
                "environment {} has no Python; deploy the function again",
                environment.id
            ),
            output: String::new(),
        })
}

/// How to start a fresh interpreter. `at_start` are the variables that it reads then.
pub(super) fn python_program(
    python: &Python,
    role: &str,
    at_start: BTreeMap<String, String>,
    user: Option<u32>,
) -> ExecSpec {
    let worker = format!("{PYTHON_WORKER_INSIDE}/pilot_worker");
    // -I includes -E, with which no variable of Python's counts. There are only those of `at_start`.
    let own = at_start.keys().any(|name| name.starts_with("PYTHON"));
    let isolated = if own { "-s" } else { "-I" };
    let mut environment = variables::base();
    environment.extend(at_start);
    ExecSpec {
        path: python.executable.display().to_string(),
        arguments: [isolated, "-S", &worker, role].map(str::to_owned).into(),
        environment: environment.into_iter().collect(),
        cwd: PathBuf::from("/"),
        user,
        cgroup_files: 0,
        template: role != "worker",
        own_filter: false,
    }
}

/// The Node.js folders of a Python function with a `package.json`, for programs that it starts.
fn node_folders(environment: &Environment) -> Vec<(PathBuf, PathBuf)> {
    let Some(node) = &environment.node else {
        return Vec::new();
    };
    let own =
        (!node.prefix.starts_with("/usr")).then(|| (node.prefix.clone(), node.prefix.clone()));
    let modules = node.modules_dir.clone();
    own.into_iter()
        .chain(modules.map(|modules| (modules, PathBuf::from(NODE_MODULES_INSIDE))))
        .collect()
}

pub(super) async fn fork_template(
    parent: &Template,
    sandbox: &SharedSandbox,
    spec: &TemplateSpec,
) -> Result<Template, StartError> {
    let (control, theirs) = Channel::pair_with_untrusted().map_err(refused("a socket pair"))?;
    let (mut output, log) = Output::pipe().map_err(refused("a pipe"))?;
    let child = parent
        .fork(Role::Template, sandbox, &theirs, &log, Some(spec), None)
        .await?;
    drop((theirs, log));
    let ended = child.end();
    Template::when_ready(control, Arc::clone(sandbox), &mut output, ended).await
}
