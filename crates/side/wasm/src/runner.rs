//! [`Initscripts`]: the modules of the versions that serve, and the runs of their scripts.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::initscript::{InitscriptConfig, ScriptEnd, ScriptKind, ScriptRun};
use pilot_model::ports::{Clock, Fetched, InitRunner, Initialised, Remotes, ScriptLink};
use pilot_model::{BoxFuture, Instant, Transfer, TransferWay, Version, VersionId};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use wasmtime::{InstancePre, Linker};

use crate::engine;
use crate::errors::in_words;
use crate::host;
use crate::module;
use crate::script::{Script, World};
use crate::script_memory::ScriptMemory;
use crate::shared::{Kept, SharedScripts, Slot};
use crate::threads::{Beginning, Begun, Threads};
use crate::trial::Trials;

/// The configuration of [`Initscripts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitscriptsConfig {
    /// Memory for the scripts that run at the same time, MiB. One function has at most half of it.
    pub memory_mb: u32,
}

impl Default for InitscriptsConfig {
    fn default() -> Self {
        Self { memory_mb: 512 }
    }
}

/// Compiles and runs initscripts. Implements the port.
#[derive(Debug)]
pub struct Initscripts {
    runs: Runs,
    shared: SharedScripts,
    /// Runs of shared scripts, until their messages are too old.
    shared_runs: Mutex<JoinSet<()>>,
}

/// What a run needs.
#[derive(Debug, Clone)]
struct Runs {
    modules: Arc<Modules>,
    threads: Arc<Threads>,
    memory: Arc<ScriptMemory>,
    world: World,
    /// Compilations of versions that serve already: after a start of the daemon.
    late: Arc<Mutex<JoinSet<()>>>,
}

/// What a script runs for.
struct Call {
    version: Arc<Version>,
    kind: ScriptKind,
    event: Bytes,
    link: Option<Arc<dyn ScriptLink>>,
    began: Instant,
}

/// The compiled modules.
struct Modules {
    linker: Linker<Script>,
    trials: Trials,
    /// Guards the map; held for one look-up or change. A module goes with its version.
    compiled: Mutex<HashMap<(VersionId, ScriptKind), Compiled>>,
    /// One permit: modules are compiled one after the other.
    compiling: Semaphore,
    /// One permit for those that an invocation waits for. They do not wait for the others.
    hurrying: Semaphore,
}

/// Why a module is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its version is deployed, or the daemon has started.
    Ahead,
    /// An invocation waits for this one.
    Asked(ScriptKind),
}

struct Compiled {
    version: Weak<Version>,
    /// Or why it cannot be used.
    module: Result<Module, String>,
}

#[derive(Clone)]
struct Module {
    code: InstancePre<Script>,
    beginning: Arc<Beginning>,
}

impl std::fmt::Debug for Modules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Modules").finish_non_exhaustive()
    }
}

impl Initscripts {
    /// Starts the threads of scripts. Must be called within a tokio runtime, in which their requests run.
    ///
    /// # Errors
    /// The machine cannot run compiled code, or gives no threads.
    pub fn start(
        config: InitscriptsConfig,
        remotes: Arc<dyn Remotes>,
        clock: Arc<dyn Clock>,
        trials: Trials,
    ) -> Result<Self, String> {
        let failed = |error: wasmtime::Error| format!("initscripts: {}", in_words(&error));
        let engine = engine::engine().map_err(failed)?;
        let linker = host::linker(&engine).map_err(failed)?;
        let threads = Threads::start(&engine)
            .map_err(|error| format!("initscripts: cannot start a thread: {error}"))?;
        let runs = Runs {
            modules: Arc::new(Modules {
                linker,
                trials,
                compiled: Mutex::default(),
                compiling: Semaphore::new(1),
                hurrying: Semaphore::new(1),
            }),
            threads: Arc::new(threads),
            memory: Arc::new(ScriptMemory::new(config.memory_mb)),
            world: World {
                remotes,
                clock,
                requests: Handle::current(),
            },
            late: Arc::default(),
        };
        Ok(Self {
            runs,
            shared: SharedScripts::default(),
            shared_runs: Mutex::default(),
        })
    }

    /// Where the scripts of a version begin.
    #[cfg(test)]
    pub(crate) fn computing(&self, version: &Version) -> Arc<Beginning> {
        let module = self.runs.modules.of(&version.id, ScriptKind::Own);
        module.unwrap().expect("it was compiled").beginning
    }

    /// Whether the script of a version is compiled.
    #[cfg(test)]
    pub(crate) fn has(&self, version: &Version) -> bool {
        let module = self.runs.modules.of(&version.id, ScriptKind::Own);
        module.is_some_and(|module| module.is_ok())
    }

    /// Runs the shared script of a version in the background, unless it runs. The error says why it is left out.
    fn refresh(
        &self,
        version: &Arc<Version>,
        config: &InitscriptConfig,
        slot: &Arc<Slot>,
    ) -> Result<(), String> {
        let Some(turn) = slot.turn() else {
            return Ok(());
        };
        let event = Bytes::from_static(NO_EVENT);
        let running = self.runs.begin(version, ScriptKind::Shared, event, None)?;
        let max_age = Duration::from_secs(config.max_age_s.unwrap_or_default().into());
        let clock = Arc::clone(&self.runs.world.clock);
        let mut runs = self.shared_runs.lock();
        while runs.try_join_next().is_some() {}
        runs.spawn_on(
            async move {
                let run = running.await;
                turn.ended(run, clock.now(), max_age).await;
            },
            &self.runs.world.requests,
        );
        Ok(())
    }
}

impl Runs {
    /// Begins a script. The error says why it is left out, which may also turn out later.
    fn begin(
        &self,
        version: &Arc<Version>,
        kind: ScriptKind,
        event: Bytes,
        link: Option<Arc<dyn ScriptLink>>,
    ) -> Result<BoxFuture<'static, Initialised>, String> {
        let call = Call {
            version: Arc::clone(version),
            kind,
            event,
            link,
            began: self.world.clock.now(),
        };
        let (runs, version) = (self.clone(), Arc::clone(version));
        let or_left_out = move |end: Result<Initialised, String>| {
            end.unwrap_or_else(|problem| runs.left_out(kind, &version, problem))
        };
        let Some(module) = self.modules.of(&call.version.id, kind) else {
            let runs = self.clone();
            return Ok(Box::pin(
                async move { or_left_out(runs.begin_late(call).await) },
            ));
        };
        let begun = self.start(module?, call)?;
        Ok(Box::pin(async move {
            or_left_out(begun.end().await.ok_or_else(|| THREAD_ENDED.to_owned()))
        }))
    }

    /// Runs a script whose module is not compiled yet.
    async fn begin_late(self, call: Call) -> Result<Initialised, String> {
        let (told, compiled) = oneshot::channel();
        let why = Why::Asked(call.kind);
        self.compile_later(&call.version, why, move || {
            let _ = told.send(());
        });
        let config = call.version.config.script(call.kind).ok_or(NO_SCRIPT)?;
        let time = Duration::from_millis(config.timeout_ms.into()).min(call.version.config.timeout);
        // If it is not compiled in time, it goes on for the next invocation.
        let _ = timeout(time, compiled).await;
        let module = self.modules.of(&call.version.id, call.kind);
        let begun = self.start(module.ok_or(NOT_COMPILED)??, call)?;
        begun.end().await.ok_or_else(|| THREAD_ENDED.to_owned())
    }

    fn start(&self, module: Module, call: Call) -> Result<Begun<Initialised>, String> {
        let Call {
            version,
            kind,
            event,
            link,
            began,
        } = call;
        let config = version.config.script(kind).ok_or(NO_SCRIPT)?.clone();
        let Module { code, beginning } = module;
        let memory = self.memory.take(&version.config.name, config.memory_mb)?;
        let script = Script::new(version, config, event, (self.world.clone(), link), memory);
        let script = script.since(began);
        // Nobody waits for the beginning of a shared one.
        let here = (kind == ScriptKind::Own).then_some(beginning.as_ref());
        let begun = self.threads.begin(script.run(code), here);
        begun.ok_or_else(|| STOPPING.to_owned())
    }

    /// Compiles modules of a version that serves.
    fn compile_later(
        &self,
        version: &Arc<Version>,
        why: Why,
        then: impl FnOnce() + Send + 'static,
    ) {
        let (modules, version) = (Arc::clone(&self.modules), Arc::clone(version));
        let mut late = self.late.lock();
        while late.try_join_next().is_some() {}
        late.spawn_on(
            async move {
                if let Err(problem) = modules.compile(Arc::clone(&version), why).await {
                    let function = &version.config.name;
                    tracing::warn!(%function, problem, "its initscript is left out");
                }
                then();
            },
            &self.world.requests,
        );
    }

    /// What is given to the function if the script did not run.
    fn left_out(&self, kind: ScriptKind, version: &Version, problem: String) -> Initialised {
        let now = self.world.clock.now();
        let module = version.config.script(kind).map(|config| &config.module);
        Initialised {
            said: Some(format!("left out: {problem}\n")),
            fetched: Fetched {
                transfers: vec![Transfer {
                    input: kind.transfer_name().to_owned(),
                    from: module.cloned().unwrap_or_default(),
                    bytes: 0,
                    way: TransferWay::Script,
                    began: now,
                    ended: now,
                    decoding: None,
                    streamed: None,
                    error: Some(problem),
                }],
                ..Fetched::default()
            },
            connections: Vec::new(),
            run: Some(ScriptRun {
                end: ScriptEnd::LeftOut,
                took: Duration::ZERO,
            }),
        }
    }
}

impl Modules {
    /// The module of a version.
    /// `None`: it is not compiled yet.
    fn of(&self, version: &VersionId, kind: ScriptKind) -> Option<Result<Module, String>> {
        let compiled = self.compiled.lock();
        let compiled = compiled.get(&(version.clone(), kind));
        compiled.map(|compiled| compiled.module.clone())
    }

    /// Whether there is one already, which then stays for this version.
    fn is_there(&self, version: &Arc<Version>, kind: ScriptKind) -> bool {
        let mut compiled = self.compiled.lock();
        match compiled.get_mut(&(version.id.clone(), kind)) {
            Some(there) if there.module.is_ok() => {
                there.version = Arc::downgrade(version);
                true
            }
            _ => false,
        }
    }

    /// Compiles the modules of a version, on a thread that may be busy for long.
    async fn compile(self: Arc<Self>, version: Arc<Version>, why: Why) -> Result<(), String> {
        let permits = match why {
            Why::Ahead => &self.compiling,
            Why::Asked(_) => &self.hurrying,
        };
        let Ok(_permit) = permits.acquire().await else {
            return Err(STOPPING.to_owned());
        };
        for (kind, config) in version.config.initscripts() {
            let is_told = || self.of(&version.id, kind).is_some();
            let is_meant = match why {
                Why::Ahead => !self.is_there(&version, kind),
                // Others may have waited for the same one.
                Why::Asked(asked) => asked == kind && !is_told(),
            };
            if !is_meant {
                continue;
            }
            let (modules, folder) = (Arc::clone(&self), version.code_dir.clone());
            let config = config.clone();
            let compiling =
                move || module::compile(&modules.linker, &modules.trials, &folder, &config, kind);
            let module = spawn_blocking(compiling).await;
            let module = module.unwrap_or_else(|_| Err("the compiler gave up".to_owned()));
            let problem = module.as_ref().err().cloned();
            let mut compiled = self.compiled.lock();
            compiled.retain(|_, one| one.version.strong_count() > 0);
            let one = Compiled {
                version: Arc::downgrade(&version),
                module: module.map(|code| Module {
                    code,
                    beginning: Arc::default(),
                }),
            };
            compiled.insert((version.id.clone(), kind), one);
            if let Some(problem) = problem {
                return Err(problem);
            }
        }
        Ok(())
    }
}

impl InitRunner for Initscripts {
    fn prepare(&self, version: &Arc<Version>) -> BoxFuture<'static, Result<(), String>> {
        if version.config.initscripts().next().is_none() {
            return Box::pin(ready(Ok(())));
        }
        if let Err(problem) = self.runs.world.remotes.check(&version.config) {
            return Box::pin(ready(Err(problem)));
        }
        let name = version.config.name.clone();
        let compiled = Arc::clone(&self.runs.modules);
        let compiled = compiled.compile(Arc::clone(version), Why::Ahead);
        Box::pin(async move {
            let compiled = compiled.await;
            compiled.map_err(|problem| format!("functions.{name}.{problem}"))
        })
    }

    fn activate(&self, version: &Arc<Version>) {
        let mut scripts = version.config.initscripts();
        if !scripts.all(|(kind, _)| self.runs.modules.is_there(version, kind)) {
            self.runs.compile_later(version, Why::Ahead, || {});
        }
    }

    fn run(
        &self,
        version: &Arc<Version>,
        event: Bytes,
        link: Option<Arc<dyn ScriptLink>>,
    ) -> BoxFuture<'static, Initialised> {
        if version.config.initscript.is_none() {
            return Box::pin(ready(Initialised::default()));
        }
        let kind = ScriptKind::Own;
        let begun = self.runs.begin(version, kind, event, link);
        begun.unwrap_or_else(|problem| Box::pin(ready(self.runs.left_out(kind, version, problem))))
    }

    fn worker_starts(&self, version: &Arc<Version>) {
        let Some(config) = &version.config.shared_initscript else {
            return;
        };
        let slot = self.shared.slot(version);
        let now = self.runs.world.clock.now();
        if slot.kept(now).is_none_or(|kept| kept.is_due(now)) {
            // If it is left out, the next invocation tries again, and tells why.
            let _ = self.refresh(version, config, &slot);
        }
    }

    fn shared(&self, version: &Arc<Version>) -> BoxFuture<'static, Initialised> {
        let Some(config) = &version.config.shared_initscript else {
            return Box::pin(ready(Initialised::default()));
        };
        let slot = self.shared.slot(version);
        let now = self.runs.world.clock.now();
        if let Some(kept) = slot.kept(now) {
            if kept.is_due(now) {
                // Without memory now, the next invocation tries again.
                let _ = self.refresh(version, config, &slot);
            }
            return Box::pin(ready(kept.found(now)));
        }
        // Before the run begins, so that its end is seen.
        let mut ends = slot.follow();
        if let Err(problem) = self.refresh(version, config, &slot) {
            return Box::pin(ready(self.runs.left_out(
                ScriptKind::Shared,
                version,
                problem,
            )));
        }
        let ended = self
            .runs
            .left_out(ScriptKind::Shared, version, STOPPING.to_owned());
        Box::pin(async move {
            let is_new =
                |kept: &Option<Arc<Kept>>| kept.as_ref().is_some_and(|kept| kept.is_valid(now));
            match ends
                .wait_for(is_new)
                .await
                .ok()
                .and_then(|kept| kept.clone())
            {
                Some(kept) => kept.awaited(),
                None => ended,
            }
        })
    }
}

const NO_SCRIPT: &str = "it has none";
const NOT_COMPILED: &str = "its module was not compiled in time: the daemon has just started";
const STOPPING: &str = "the daemon is stopping";
const THREAD_ENDED: &str = "it ended the thread that ran it";
/// What a shared script reads as the event.
const NO_EVENT: &[u8] = b"{}";
