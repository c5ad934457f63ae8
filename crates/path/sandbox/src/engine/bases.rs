//! The templates above those of functions: of an interpreter, of an environment, and of modules that some functions of an
//! environment share.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::cpu_limit::WEIGHT;
use pilot_model::ports::{StartError, TemplateMemory};
use pilot_model::{Environment, EnvironmentId, Version};
use pilot_wire::control::{TemplateReady, TemplateSpec};
use tokio::time::timeout;

use super::launch::{fork_template, memory_of, python, python_program};
use super::report::Imports;
use super::{TemplateTree, specs};
use crate::cgroup::{CPU_PERIOD_US, Limits};
use crate::message::OwnUsers;
use crate::refused::refused;
use crate::rootfs::RootSpec;
use crate::sandbox::{Sandbox, SandboxSpec, SharedSandbox};
use crate::template::Template;
use crate::variables;

/// The node of an interpreter or environment.
#[derive(Debug)]
pub(super) struct Base {
    name: String,
    pub(super) template: Template,
    parent: Option<Arc<Self>>,
}

/// Key of such a node. Functions in the host's network have a separate tree, because a fork of a template cannot enter another
/// network namespace there. So do functions whose code or layers have libraries, because the dynamic linker reads LD_LIBRARY_PATH only
/// when a process starts, and remembers folders that it has not found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BaseKey<T> {
    of: T,
    own_network: bool,
    libraries: bool,
}

/// Modules of an environment's packages ([`Version::modules`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Imported {
    environment: EnvironmentId,
    modules: Vec<String>,
}

/// What distinguishes the trees of templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BaseKind {
    pub(super) own_network: bool,
    pub(super) libraries: bool,
}

impl BaseKind {
    fn of<T>(self, of: T) -> BaseKey<T> {
        BaseKey {
            of,
            own_network: self.own_network,
            libraries: self.libraries,
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
        let libraries = if self.libraries {
            " for code with libraries"
        } else {
            ""
        };
        format!("{of}{place}{libraries}")
    }
}

impl Base {
    /// The nearest template that can fork, starting here and going up.
    pub(super) fn forks_from(&self) -> Option<&Template> {
        if self.template.forkable() {
            return Some(&self.template);
        }
        self.parent.as_ref()?.forks_from()
    }

    /// The template of the environment, from here up. `None`: there is only an interpreter's.
    pub(super) fn environment(self: &Arc<Self>) -> Option<Arc<Self>> {
        let above = self.parent.as_ref()?;
        above.environment().or_else(|| Some(Arc::clone(self)))
    }

    /// What its template and those above have reported.
    pub(super) fn reports(&self) -> Vec<&TemplateReady> {
        let above = self.parent.as_ref().map(|parent| parent.reports());
        let own = std::iter::once(self.template.ready());
        own.chain(above.unwrap_or_default()).collect()
    }

    /// Whether it has imported these modules, and can be forked.
    fn has_imported(&self, modules: &[String]) -> bool {
        let failed = &self.template.ready().failed;
        let is_there = |module: &String| failed.iter().all(|failed| failed.module != *module);
        self.template.forkable() && modules.iter().all(is_there)
    }

    pub(super) fn usable(&self) -> bool {
        self.template.alive() && self.parent.as_ref().is_none_or(|parent| parent.usable())
    }

    /// Whether its template is a running process.
    pub(super) fn is_running(&self) -> bool {
        self.template.alive()
    }

    pub(super) fn memory(&self, level: &str) -> TemplateMemory {
        TemplateMemory {
            level: level.to_owned(),
            name: self.name.clone(),
            memory_bytes: self.memory_bytes(),
        }
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        memory_of(self.template.sandbox())
    }
}

/// Longest time for importing the modules that some functions share. A deployment waits for it, and a request after a restart.
const SHARED_IMPORT_TIME_MAX: Duration = Duration::from_secs(20);

/// CPU of an environment's template that has done its imports, in thousandths.
const READY_CPU_MILLI: u32 = 1_000;

fn not_without_function(why: &str) -> StartError {
    StartError::Runtime {
        problem: format!("the modules cannot be imported without the function: {why}"),
        output: String::new(),
    }
}

impl TemplateTree {
    /// The template above the function's own. `None`: it has not imported all modules that it should have.
    pub(super) async fn base_of(
        &self,
        version: &Version,
        imports: &Imports,
        kind: BaseKind,
    ) -> Result<Option<Arc<Base>>, StartError> {
        let environment = &version.environment;
        match imports {
            Imports::Shared => self.environment(environment, kind).await.map(Some),
            Imports::SharedModules => {
                let modules = &version.modules;
                let base = self.environment_with(environment, modules, kind).await;
                let is_refused = match &base {
                    Ok(base) => !base.has_imported(modules),
                    Err(error) => !matches!(error, StartError::Full { .. }),
                };
                if is_refused {
                    self.modules.refuse_list(&environment.id, modules);
                }
                Ok(Some(base?).filter(|_| !is_refused))
            }
            Imports::Own { .. } | Imports::OwnInterpreter(_) => {
                self.interpreter(environment, kind).await.map(Some)
            }
        }
    }

    /// The template of an environment.
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
                let spec = specs::of_environment(environment, self.user(), kind.libraries);
                let name = key.name(&environment.id);
                self.fork_base(environment, kind, parent, name, spec).await
            })
            .await
    }

    /// The template below it that has also imported these modules.
    async fn environment_with(
        &self,
        environment: &Environment,
        modules: &[String],
        kind: BaseKind,
    ) -> Result<Arc<Base>, StartError> {
        let parent = self.environment(environment, kind).await?;
        let key = kind.of(Imported {
            environment: environment.id.clone(),
            modules: modules.to_vec(),
        });
        self.with_modules
            .find_or_build(&key, Base::usable, || async {
                // Others have waited for it meanwhile.
                if self.modules.is_list_refused(&environment.id, modules) {
                    return Err(not_without_function("others have tried"));
                }
                let spec = TemplateSpec {
                    imports: modules.to_vec(),
                    ..specs::of_environment(environment, self.user(), kind.libraries)
                };
                let more = match modules {
                    [module] => module.clone(),
                    modules => format!("{} modules", modules.len()),
                };
                let name = key.name(format_args!("{} with {more}", environment.id));
                let base = self.fork_base(environment, kind, parent, name, spec);
                timeout(SHARED_IMPORT_TIME_MAX, base)
                    .await
                    .unwrap_or_else(|_| {
                        let limit = SHARED_IMPORT_TIME_MAX.as_secs();
                        Err(not_without_function(&format!(
                            "it takes more than {limit} s"
                        )))
                    })
            })
            .await
    }

    async fn fork_base(
        &self,
        environment: &Environment,
        kind: BaseKind,
        parent: Arc<Base>,
        name: String,
        spec: TemplateSpec,
    ) -> Result<Base, StartError> {
        let root = self.root(environment, environment.packages_dir(), self.user());
        let mut request = self.base_sandbox(root, kind);
        request.own_users = self.own_users(OwnUsers::Environment);
        let cgroup = self.machine.cgroup(&self.base_limits())?;
        let above = Some(parent.template.sandbox().as_ref());
        let sandbox =
            Arc::new(Sandbox::with_root(&self.machine.spawner, request, above, cgroup).await?);
        let from = parent.forks_from().ok_or_else(|| StartError::Runtime {
            problem: "the interpreter's template has more than one thread".to_owned(),
            output: String::new(),
        })?;
        let template = fork_template(from, &sandbox, &spec).await?;
        if let Some(cgroup) = sandbox.cgroup() {
            // It only forks from now on, on one CPU. What its imports have started must not take the others.
            let limits = Limits {
                cpu_milli: READY_CPU_MILLI,
                ..self.base_limits()
            };
            cgroup
                .set_limits(&limits)
                .map_err(refused("limit the CPU of a template"))?;
        }
        Ok(Base {
            name,
            template,
            parent: Some(parent),
        })
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
                    .map_err(refused("compile the worker's sources"))?;
                let user = self.user();
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

    /// The first template of an interpreter.
    async fn exec_template(
        &self,
        environment: &Environment,
        sandbox: SharedSandbox,
        kind: BaseKind,
        user: Option<u32>,
    ) -> Result<Template, StartError> {
        let path = (
            variables::LIBRARY_PATH.to_owned(),
            variables::library_path(),
        );
        let at_start = kind.libraries.then_some(path).into_iter().collect();
        let program = python_program(python(environment)?, "template", at_start, user);
        self.exec(sandbox, program, None).await
    }

    fn base_sandbox(&self, mut root: RootSpec, kind: BaseKind) -> SandboxSpec {
        root.libraries = kind.libraries;
        SandboxSpec {
            root,
            own_network: kind.own_network,
            own_users: None,
            tmp_bytes_max: self.machine.config.tmp_bytes_max,
        }
    }

    pub(super) fn base_limits(&self) -> Limits {
        Limits {
            memory_bytes: self.machine.config.template_memory_bytes,
            cpu_milli: u32::MAX / 1_000,
            cpu_period_us: CPU_PERIOD_US,
            cpu_weight: WEIGHT,
            pids: self.machine.config.pids_max,
            freezable: false,
        }
    }
}
