//! The tree of templates: interpreter → environment → function, each in a sandbox whose PID namespace is inside that of its
//! parent. If a template cannot fork, its children are forked from its parent.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as WallInstant;

use parking_lot::Mutex;
use pilot_model::cpu_limit::WEIGHT;
use pilot_model::deployment::{FailedImport, Finding, ImportTime, TemplateReport};
use pilot_model::layer::LAYERS_INSIDE;
use pilot_model::ports::{StartError, TemplateMemory};
use pilot_model::{Environment, Network, Python, Rest, TemplateMode, Version};
use pilot_wire::control::{Role, TemplateReady, TemplateSpec};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{TemplateTree, specs};
use crate::cgroup::{CPU_PERIOD_US, Cgroup, Limits};
use crate::channel::Channel;
use crate::isolation::UserNamespace;
use crate::machine::{dev_null, no_sandbox};
use crate::memory::pss_bytes;
use crate::message::{ExecSpec, Folders};
use crate::network::outbound::Link;
use crate::places::{CODE_INSIDE, LAYERS_LIB_INSIDE, NODE_MODULES_INSIDE, PACKAGES_INSIDE};
use crate::rootfs::RootSpec;
use crate::runtime_files::PYTHON_WORKER_INSIDE;
use crate::sandbox::{NestNetwork, Sandbox, SandboxSpec, SharedSandbox};
use crate::template::Template;
use crate::variables;
use crate::worker::Output;

/// The node of an interpreter or environment.
#[derive(Debug)]
pub(super) struct Base {
    name: String,
    template: Template,
    parent: Option<Arc<Self>>,
}

/// Key of such a node. Functions in the host's network have a separate tree, because a fork of a template cannot enter another
/// network namespace there. So do functions whose layers have libraries, because the dynamic linker reads LD_LIBRARY_PATH only when
/// a process starts, and remembers folders that it has not found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BaseKey<T> {
    of: T,
    own_network: bool,
    layers_lib: bool,
}

/// What distinguishes the trees of templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BaseKind {
    own_network: bool,
    layers_lib: bool,
}

impl BaseKind {
    fn of<T>(self, of: T) -> BaseKey<T> {
        BaseKey {
            of,
            own_network: self.own_network,
            layers_lib: self.layers_lib,
        }
    }
}

impl<T> BaseKey<T> {
    fn name(&self, of: impl std::fmt::Display) -> String {
        let place = if self.own_network {
            ""
        } else {
            " in the host's network"
        };
        let layers = if self.layers_lib {
            " for layers with libraries"
        } else {
            ""
        };
        format!("{of}{place}{layers}")
    }
}

impl Base {
    /// The nearest template that can fork, starting here and going up.
    fn forks_from(&self) -> Option<&Template> {
        if self.template.forkable() {
            return Some(&self.template);
        }
        self.parent.as_ref()?.forks_from()
    }

    fn usable(&self) -> bool {
        self.template.alive() && self.parent.as_ref().is_none_or(|parent| parent.usable())
    }

    pub(super) fn memory(&self, level: &str) -> TemplateMemory {
        TemplateMemory {
            level: level.to_owned(),
            name: self.name.clone(),
            memory_bytes: memory_of(self.template.sandbox()),
        }
    }
}

/// The node of a function: its sandbox, its template if it has one, and spare sandboxes for its workers.
#[derive(Debug)]
pub(super) struct Function {
    version: Arc<Version>,
    base: Arc<Base>,
    sandbox: SharedSandbox,
    /// `None`: it cannot fork, or is turned off.
    template: Option<Template>,
    spec: TemplateSpec,
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

    pub(super) fn report(&self) -> &TemplateReport {
        &self.report
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
            None => Some((self.base.forks_from()?, Some(&self.spec))),
        }
    }

    /// Whether the template has imported the handler, so that workers need not.
    pub(super) fn is_imported(&self) -> bool {
        self.template.is_some()
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

fn memory_of(sandbox: &Sandbox) -> u64 {
    let processes = sandbox.cgroup().map(Cgroup::processes).unwrap_or_default();
    processes.into_iter().map(pss_bytes).sum()
}

/// Most workers of a function that are in their grace period. Without a bound, a function that ignores SIGTERM would have more and more
/// processes.
const LINGERING_MAX: usize = 32;

/// The user of templates that belong to no function, in the sandboxes' user namespace.
const BASE_USER: u32 = 1000;

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
        let cgroup = self
            .machine
            .cgroup(&self.function_limits(function.version()))?;
        function
            .sandbox
            .nest(
                NestNetwork::Shared,
                cgroup,
                Folders {
                    tmp_bytes_max: self.machine.config.tmp_bytes_max,
                    over_template: function.is_imported(),
                    user: None,
                },
            )
            .await
    }

    async fn build_function(&self, version: &Arc<Version>) -> Result<Function, StartError> {
        let begun = WallInstant::now();
        let network = version.config.network;
        let resolver = self.machine.resolver(version)?;
        let own_network = network != Network::Host;
        let kind = BaseKind {
            own_network,
            layers_lib: variables::needs_layers_lib(version),
        };
        let base = self.environment(&version.environment, kind).await?;
        let user = self.machine.user();
        let environment = &version.environment;
        let mut root = self.root(environment, environment.packages_dir(), user);
        if let Some(layers) = &version.layers {
            // First, because the others are mounted on its folders.
            let layers = (layers.dir.clone(), PathBuf::from(LAYERS_INSIDE));
            root.shown.insert(0, layers);
        }
        root.shown
            .push((version.code_dir.clone(), PathBuf::from(CODE_INSIDE)));
        root.shown.extend(node_folders(&version.environment));
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
        let spec = specs::of_function(version, python, user, &self.machine.worker_filter);
        let (template, ready) = match (version.config.template, base.forks_from()) {
            (TemplateMode::On, Some(parent)) => {
                let template = fork_template(parent, &sandbox, &spec).await?;
                let ready = template.ready().clone();
                (template.forkable().then_some(template), ready)
            }
            _ => (None, base.template.ready().clone()),
        };
        let report = report(version, &base, &ready, template.is_some(), &sandbox, begun);
        Ok(Function {
            version: Arc::clone(version),
            base,
            sandbox,
            template,
            spec,
            report,
            spares: Mutex::default(),
            refilling: AtomicBool::new(false),
            trimming: AtomicBool::new(false),
            lingering: Arc::new(Semaphore::new(LINGERING_MAX)),
            _link: link,
        })
    }

    async fn environment(
        &self,
        environment: &Environment,
        kind: BaseKind,
    ) -> Result<Arc<Base>, StartError> {
        if environment.packages_dir().is_none() {
            return self.interpreter(environment, kind).await;
        }
        let key = kind.of(environment.id.clone());
        self.environments
            .find_or_build(&key, Base::usable, || async {
                let parent = self.interpreter(environment, kind).await?;
                let user = self.machine.isolation.has_users().then_some(BASE_USER);
                let root = self.root(environment, environment.packages_dir(), user);
                let mut request = self.base_sandbox(root, kind);
                request.own_users = self.own_users();
                let cgroup = self.machine.cgroup(&self.base_limits())?;
                let above = Some(parent.template.sandbox().as_ref());
                let sandbox = Arc::new(
                    Sandbox::with_root(&self.machine.spawner, request, above, cgroup).await?,
                );
                let spec = specs::of_environment(environment, user);
                let from = parent.forks_from().ok_or_else(|| StartError::Runtime {
                    problem: "the interpreter's template has more than one thread".to_owned(),
                    output: String::new(),
                })?;
                Ok(Base {
                    name: key.name(&environment.id),
                    template: fork_template(from, &sandbox, &spec).await?,
                    parent: Some(parent),
                })
            })
            .await
    }

    async fn interpreter(
        &self,
        environment: &Environment,
        kind: BaseKind,
    ) -> Result<Arc<Base>, StartError> {
        let key = kind.of(python(environment)?.executable.clone());
        self.interpreters
            .find_or_build(&key, Base::usable, || async {
                let (files, executable) = (self.machine.files.clone(), key.of.clone());
                tokio::task::spawn_blocking(move || files.compile(&executable))
                    .await
                    .map_err(std::io::Error::other)
                    .flatten()
                    .map_err(no_sandbox("compile the worker's sources"))?;
                let user = self.machine.isolation.has_users().then_some(BASE_USER);
                let request = self.base_sandbox(self.root(environment, None, user), kind);
                let cgroup = self.machine.cgroup(&self.base_limits())?;
                let sandbox = Arc::new(
                    Sandbox::with_root(&self.machine.spawner, request, None, cgroup).await?,
                );
                Ok(Base {
                    name: key.name(key.of.display()),
                    template: self.exec_template(environment, sandbox, kind, user).await?,
                    parent: None,
                })
            })
            .await
    }

    /// Only the first template of an interpreter is started with exec.
    async fn exec_template(
        &self,
        environment: &Environment,
        sandbox: SharedSandbox,
        kind: BaseKind,
        user: Option<u32>,
    ) -> Result<Template, StartError> {
        let (control, theirs) =
            Channel::pair_with_untrusted().map_err(no_sandbox("a socket pair"))?;
        let (mut output, log) = Output::pipe().map_err(no_sandbox("a pipe"))?;
        let null = dev_null()?;
        let mut program = python_program(python(environment)?, "template", kind.layers_lib, user);
        if !self.machine.config.huge_pages {
            let off = ("PILOT_HUGE_PAGES".to_owned(), "off".to_owned());
            program.environment.push(off);
        }
        let fds = [null.as_fd(), log.as_fd(), log.as_fd(), theirs.as_fd()];
        let program = sandbox.exec(program, &fds).await?;
        drop((theirs, log));
        let ended = program.end();
        Template::when_ready(control, Arc::clone(&sandbox), &mut output, ended).await
    }

    fn root(
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
            layers_lib: false,
        }
    }

    /// Templates that import user code get a user namespace of their own, if the machine has them.
    fn own_users(&self) -> bool {
        self.machine.isolation.user_namespace() != UserNamespace::None
    }

    fn base_sandbox(&self, mut root: RootSpec, kind: BaseKind) -> SandboxSpec {
        root.layers_lib = kind.layers_lib;
        SandboxSpec {
            root,
            own_network: kind.own_network,
            own_users: false,
            tmp_bytes_max: self.machine.config.tmp_bytes_max,
        }
    }

    fn base_limits(&self) -> Limits {
        Limits {
            memory_bytes: self.machine.config.template_memory_bytes,
            cpu_milli: u32::MAX / 1_000,
            cpu_period_us: CPU_PERIOD_US,
            cpu_weight: WEIGHT,
            pids: self.machine.config.pids_max,
            freezable: false,
        }
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

/// How to start a fresh interpreter.
pub(super) fn python_program(
    python: &Python,
    role: &str,
    layers_lib: bool,
    user: Option<u32>,
) -> ExecSpec {
    let worker = format!("{PYTHON_WORKER_INSIDE}/pilot_worker");
    let mut environment = variables::base();
    if layers_lib {
        environment.insert("LD_LIBRARY_PATH".to_owned(), LAYERS_LIB_INSIDE.to_owned());
    }
    ExecSpec {
        path: python.executable.display().to_string(),
        arguments: ["-I", "-S", &worker, role].map(str::to_owned).into(),
        environment: environment.into_iter().collect(),
        cwd: PathBuf::from("/"),
        user,
        cgroup_files: 0,
        template: role == "template",
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

async fn fork_template(
    parent: &Template,
    sandbox: &SharedSandbox,
    spec: &TemplateSpec,
) -> Result<Template, StartError> {
    let (control, theirs) = Channel::pair_with_untrusted().map_err(no_sandbox("a socket pair"))?;
    let (mut output, log) = Output::pipe().map_err(no_sandbox("a pipe"))?;
    let child = parent
        .fork(Role::Template, sandbox, &theirs, &log, Some(spec), None)
        .await?;
    drop((theirs, log));
    let ended = child.end();
    Template::when_ready(control, Arc::clone(sandbox), &mut output, ended).await
}

fn report(
    version: &Version,
    base: &Base,
    ready: &TemplateReady,
    has_template: bool,
    sandbox: &Sandbox,
    begun: WallInstant,
) -> TemplateReport {
    let reason = match version.config.template {
        TemplateMode::Off => {
            Some("template = \"off\": every worker is a fresh interpreter".to_owned())
        }
        TemplateMode::On if has_template => None,
        TemplateMode::On => Some(why_not_forkable(&version.config.handler, ready)),
    };
    let mut imports: Vec<ImportTime> = [base.template.ready(), ready]
        .into_iter()
        .flat_map(|ready| &ready.imports)
        .map(|import| ImportTime {
            module: import.module.clone(),
            ms: import.ms,
        })
        .collect();
    imports.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    imports.dedup_by(|a, b| a.module == b.module);
    let failed = &base.template.ready().failed;
    TemplateReport {
        python: base.template.ready().python.clone(),
        imports,
        failed_imports: failed
            .iter()
            .map(|import| FailedImport {
                module: import.module.clone(),
                error: import.error.clone(),
            })
            .collect(),
        findings: ready
            .findings
            .iter()
            .take(FINDINGS_MAX)
            .map(|found| Finding {
                r#where: printable(&found.r#where),
                what: printable(&found.what),
                instead: printable(&found.instead),
            })
            .collect(),
        memory_bytes: memory_of(sandbox),
        forkable: has_template,
        reason,
        took: begun.elapsed(),
        warnings: Vec::new(),
    }
}

fn why_not_forkable(handler: &str, ready: &TemplateReady) -> String {
    let instead = "workers are forked from the level above and import the handler each time";
    match &ready.must_not_fork {
        Some(why) => format!("importing {handler} {}; {instead}", printable(why)),
        None => format!(
            "importing {handler} started {} more thread(s), and a process with threads must not be forked; {instead}. \
             Start threads in the handler or in an after_restore hook",
            ready.threads.saturating_sub(1),
        ),
    }
}

/// A text of a template, which user code may have written: one line, and not too long.
fn printable(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    line.take(FINDING_CHARS_MAX).collect()
}

/// Most findings of a report, and their length (PROTOCOL.md, section 2).
const FINDINGS_MAX: usize = 50;
const FINDING_CHARS_MAX: usize = 200;
