//! The templates of functions, the lowest of the tree: interpreter → environment → function, each in a sandbox whose PID namespace is
//! inside that of its parent. If a template cannot fork, its children are forked from its parent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant as WallInstant;

use parking_lot::Mutex;
use pilot_model::cpu_limit::WEIGHT;
use pilot_model::deployment::TemplateReport;
use pilot_model::layer::LAYERS_INSIDE;
use pilot_model::ports::{StartError, TemplateMemory};
use pilot_model::{Environment, Network, Rest, TemplateMode, Version};
use pilot_wire::control::TemplateSpec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bases::{Base, BaseKind};
use super::launch::{fork_template, memory_of, python, python_program};
use super::report::{Imports, printable, report};
use super::spares::Spares;
use super::{TemplateTree, specs};
use crate::cgroup::{CPU_PERIOD_US, Cgroup, Limits};
use crate::message::{Folders, OwnUsers};
use crate::network::outbound::Link;
use crate::places::{CODE_INSIDE, NODE_MODULES_INSIDE};
use crate::refused::refused;
use crate::rootfs::RootSpec;
use crate::sandbox::{NestNetwork, Sandbox, SandboxSpec, SharedSandbox};
use crate::template::Template;
use crate::variables;

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
    spares: Mutex<Spares<Sandbox>>,
    /// A task is making spares.
    refilling: AtomicBool,
    /// A task checks whether there are too many.
    trimming: AtomicBool,
    /// Places for workers in their grace period.
    lingering: Arc<Semaphore>,
}

impl Function {
    pub(super) fn version(&self) -> &Arc<Version> {
        &self.version
    }

    /// The template of its environment. `None`: it is not forked from one.
    pub(super) fn environment(&self) -> Option<Arc<Base>> {
        self.base.environment()
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
        self.spares.lock().take(|sandbox| !sandbox.has_ended())
    }

    pub(super) fn spare_count(&self) -> usize {
        self.spares.lock().count()
    }

    /// A place for a worker in its grace period. `None`: all are taken.
    pub(super) fn linger(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.lingering).try_acquire_owned().ok()
    }

    /// Keeps a sandbox for the next worker if there are fewer than `most`; otherwise drops it.
    pub(super) fn keep_spare(&self, sandbox: Sandbox, most: usize) {
        let mut spares = self.spares.lock();
        if spares.count() < most {
            spares.add(sandbox);
        }
    }

    /// Drops all spare sandboxes. Returns whether there were any.
    pub(super) fn give_up_spares(&self) -> bool {
        let gone = self.spares.lock().give_up();
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
        let gone = self.spares.lock().trim(kept);
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
        let cgroup = self.function_cgroup(version)?;
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
                // It was deployed without sharing them, so it works without.
                if let Some(function) = self.with_shared_modules(version).await? {
                    return Ok(function);
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

    /// The node of a function whose template is forked from one that has imported its modules. `None`: that does not work, and is not tried
    /// again.
    pub(super) async fn with_shared_modules(
        &self,
        version: &Arc<Version>,
    ) -> Result<Option<Function>, StartError> {
        let shared = self.try_function(version, Imports::SharedModules, WallInstant::now());
        let why = match shared.await {
            Ok(Built::Function(function)) => return Ok(Some(*function)),
            Err(full @ StartError::Full { .. }) => return Err(full),
            Ok(Built::NeedsOtherImports { why }) => why,
            Err(error) => error.to_string(),
        };
        self.share_no_modules(version, &why);
        Ok(None)
    }

    pub(super) fn share_no_modules(&self, version: &Version, why: &str) {
        let function = &version.config.name;
        tracing::info!(%function, why = %printable(why), "its modules are not shared with other functions");
        self.modules.refuse(version);
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
        let user = self.user();
        let mut root = self.function_root(version, user);
        root.resolver = resolver;
        let request = SandboxSpec {
            root,
            own_network,
            own_users: self.own_users(OwnUsers::Function),
            tmp_bytes_max: self.machine.config.tmp_bytes_max,
        };
        let cgroup = self.function_cgroup(version)?;
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
        spares: &mut Spares<Sandbox>,
        version: &Version,
        sandbox: &Sandbox,
        imports: impl Future<Output = Result<Template, StartError>>,
    ) -> Result<Template, StartError> {
        let (template, first) = tokio::join!(imports, self.nested_in(sandbox, version, true));
        let template = template?;
        if template.forkable() && !template.ready().wrote_files {
            // Without it, the start makes one, and says why it cannot.
            if let Ok(first) = first {
                spares.add(first);
            }
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

    fn function_cgroup(&self, version: &Version) -> Result<Option<Cgroup>, StartError> {
        let cgroup = self.machine.cgroup(&self.function_limits(version))?;
        if let Some(cgroup) = &cgroup {
            cgroup.belongs_to(self.machine.owner_of(version));
        }
        Ok(cgroup)
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
