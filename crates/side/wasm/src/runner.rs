//! [`Initscripts`]: the modules of the versions that serve, and the runs of their scripts.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::initscript::{InitscriptConfig, ScriptEnd, ScriptKind, ScriptRun};
use pilot_model::ports::{Clock, Fetched, InitRunner, Initialised, Remotes, ScriptLink};
use pilot_model::{BoxFuture, Transfer, TransferWay, Version, VersionId};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use wasmtime::{InstancePre, Linker};

use crate::engine;
use crate::errors::in_words;
use crate::host;
use crate::module;
use crate::room::Room;
use crate::script::{Script, World};
use crate::shared::{Kept, Shared, Slot};
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
    modules: Arc<Modules>,
    threads: Threads,
    room: Arc<Room>,
    world: World,
    shared: Shared,
    /// Compilations of versions that serve already: after a start of the daemon.
    late: Mutex<JoinSet<()>>,
    /// Runs of shared scripts, until their messages are too old.
    shared_runs: Mutex<JoinSet<()>>,
}

/// The compiled modules.
struct Modules {
    linker: Linker<Script>,
    trials: Trials,
    /// Guards the map; held for one look-up or change. A module goes with its version.
    compiled: Mutex<HashMap<(VersionId, ScriptKind), Compiled>>,
    /// One permit: modules are compiled one after the other.
    compiling: Semaphore,
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
        Ok(Self {
            modules: Arc::new(Modules {
                linker,
                trials,
                compiled: Mutex::default(),
                compiling: Semaphore::new(1),
            }),
            threads,
            room: Arc::new(Room::new(config.memory_mb)),
            world: World {
                remotes,
                clock,
                requests: Handle::current(),
            },
            shared: Shared::default(),
            late: Mutex::default(),
            shared_runs: Mutex::default(),
        })
    }

    /// Where the scripts of a version begin.
    #[cfg(test)]
    pub(crate) fn computing(&self, version: &Version) -> Arc<Beginning> {
        let module = self.modules.of(version, ScriptKind::Own);
        module.expect("it was compiled").beginning
    }

    /// Begins a script. The error says why it is left out.
    fn begin(
        &self,
        version: &Arc<Version>,
        kind: ScriptKind,
        event: Bytes,
        link: Option<Arc<dyn ScriptLink>>,
    ) -> Result<Begun<Initialised>, String> {
        let Some(config) = version.config.script(kind) else {
            return Err("it has none".to_owned());
        };
        let Module { code, beginning } = self.modules.of(version, kind)?;
        let room = self.room.take(&version.config.name, config.memory_mb)?;
        let (version, config) = (Arc::clone(version), config.clone());
        let script = Script::new(version, config, event, (self.world.clone(), link), room);
        // Nobody waits for the beginning of a shared one.
        let here = (kind == ScriptKind::Own).then_some(beginning.as_ref());
        let begun = self.threads.begin(script.run(code), here);
        begun.ok_or_else(|| STOPPING.to_owned())
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
        let running = self.begin(version, ScriptKind::Shared, event, None)?;
        let ended = self.left_out(ScriptKind::Shared, config, THREAD_ENDED.to_owned());
        let max_age = Duration::from_secs(config.max_age_s.unwrap_or_default().into());
        let clock = Arc::clone(&self.world.clock);
        let mut runs = self.shared_runs.lock();
        while runs.try_join_next().is_some() {}
        runs.spawn_on(
            async move {
                let run = running.end().await.unwrap_or(ended);
                turn.ended(run, clock.now(), max_age).await;
            },
            &self.world.requests,
        );
        Ok(())
    }

    /// What is given to the function if the script did not run.
    fn left_out(
        &self,
        kind: ScriptKind,
        config: &InitscriptConfig,
        problem: String,
    ) -> Initialised {
        let now = self.world.clock.now();
        Initialised {
            said: Some(format!("left out: {problem}\n")),
            fetched: Fetched {
                transfers: vec![Transfer {
                    input: kind.transfer_name().to_owned(),
                    from: config.module.clone(),
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
    fn of(&self, version: &Version, kind: ScriptKind) -> Result<Module, String> {
        let compiled = self.compiled.lock();
        match compiled.get(&(version.id.clone(), kind)) {
            Some(compiled) => compiled.module.clone(),
            None => Err("its module is not compiled yet: the daemon has just started".to_owned()),
        }
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
    async fn compile(self: Arc<Self>, version: Arc<Version>) -> Result<(), String> {
        let Ok(_permit) = self.compiling.acquire().await else {
            return Err(STOPPING.to_owned());
        };
        for (kind, config) in version.config.initscripts() {
            if self.is_there(&version, kind) {
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
        if let Err(problem) = self.world.remotes.check(&version.config) {
            return Box::pin(ready(Err(problem)));
        }
        let name = version.config.name.clone();
        let compiled = Arc::clone(&self.modules).compile(Arc::clone(version));
        Box::pin(async move {
            let compiled = compiled.await;
            compiled.map_err(|problem| format!("functions.{name}.{problem}"))
        })
    }

    fn activate(&self, version: &Arc<Version>) {
        let mut scripts = version.config.initscripts();
        if scripts.all(|(kind, _)| self.modules.is_there(version, kind)) {
            return;
        }
        let (modules, version) = (Arc::clone(&self.modules), Arc::clone(version));
        let mut late = self.late.lock();
        while late.try_join_next().is_some() {}
        late.spawn_on(
            async move {
                if let Err(problem) = modules.compile(Arc::clone(&version)).await {
                    let function = &version.config.name;
                    tracing::warn!(%function, problem, "its initscript is left out");
                }
            },
            &self.world.requests,
        );
    }

    fn run(
        &self,
        version: &Arc<Version>,
        event: Bytes,
        link: Option<Arc<dyn ScriptLink>>,
    ) -> BoxFuture<'static, Initialised> {
        let Some(config) = &version.config.initscript else {
            return Box::pin(ready(Initialised::default()));
        };
        match self.begin(version, ScriptKind::Own, event, link) {
            Err(problem) => Box::pin(ready(self.left_out(ScriptKind::Own, config, problem))),
            Ok(begun) => {
                let ended = self.left_out(ScriptKind::Own, config, THREAD_ENDED.to_owned());
                Box::pin(async move { begun.end().await.unwrap_or(ended) })
            }
        }
    }

    fn worker_starts(&self, version: &Arc<Version>) {
        let Some(config) = &version.config.shared_initscript else {
            return;
        };
        let slot = self.shared.slot(version);
        let now = self.world.clock.now();
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
        let now = self.world.clock.now();
        if let Some(kept) = slot.kept(now) {
            if kept.is_due(now) {
                // Without room now, the next invocation tries again.
                let _ = self.refresh(version, config, &slot);
            }
            return Box::pin(ready(kept.found(now)));
        }
        // Before the run begins, so that its end is seen.
        let mut ends = slot.follow();
        if let Err(problem) = self.refresh(version, config, &slot) {
            return Box::pin(ready(self.left_out(ScriptKind::Shared, config, problem)));
        }
        let ended = self.left_out(ScriptKind::Shared, config, STOPPING.to_owned());
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

const STOPPING: &str = "the daemon is stopping";
const THREAD_ENDED: &str = "it ended the thread that ran it";
/// What a shared script reads as the event.
const NO_EVENT: &[u8] = b"{}";
