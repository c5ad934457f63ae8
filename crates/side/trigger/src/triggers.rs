//! `Triggers`: one task per trigger of a live version. A deployment, a rollback or a removal changes which there are.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use pilot_model::asynchronous::Destination;
use pilot_model::ports::{AsyncRunner, TriggerControl, TriggerStore};
use pilot_model::trigger::{TriggerConfig, TriggerInfo};
use pilot_model::{FunctionConfig, FunctionName};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::connections::Connections;
use crate::context::{Context, Stop, TriggerPorts};
use crate::file_calls::FileCalls;
use crate::status::Status;
use crate::{folder, mqtt, redis, schedule, sqs};

/// The triggers of all functions.
#[derive(Debug)]
pub struct Triggers {
    store: Arc<dyn TriggerStore>,
    connections: Arc<Connections>,
    /// Guards which triggers there are, for one look or one change.
    state: Mutex<TriggersState>,
}

#[derive(Debug, Default)]
struct TriggersState {
    /// `None` before the beginning and after the end: no task runs.
    shared: Option<Arc<TriggerPorts>>,
    functions: BTreeMap<FunctionName, Deployed>,
    /// Tasks that were told to end.
    ending: Vec<JoinHandle<()>>,
}

/// A function with triggers.
#[derive(Debug)]
struct Deployed {
    owner: String,
    timeout: Duration,
    triggers: Vec<Trigger>,
}

#[derive(Debug)]
struct Trigger {
    config: TriggerConfig,
    status: Arc<Status>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: watch::Sender<Stop>,
    task: JoinHandle<()>,
}

impl Triggers {
    /// No triggers yet.
    #[must_use]
    pub fn new(store: Arc<dyn TriggerStore>, connections: Arc<Connections>) -> Self {
        Self {
            store,
            connections,
            state: Mutex::default(),
        }
    }

    /// Begins to listen. Must be called within a tokio runtime, when the functions are known.
    pub fn start(&self, runner: Arc<dyn AsyncRunner>) {
        let mut state = self.state.lock();
        let shared = Arc::new(TriggerPorts {
            store: Arc::clone(&self.store),
            runner,
            connections: Arc::clone(&self.connections),
            file_calls: FileCalls::default(),
        });
        state.shared = Some(Arc::clone(&shared));
        for (function, deployed) in &mut state.functions {
            for trigger in &mut deployed.triggers {
                let of = (function, deployed.owner.as_str(), deployed.timeout);
                trigger.start(&shared, of, None);
            }
        }
    }

    /// Tells all tasks to end. What they run continues; nothing more is received.
    pub fn hold(&self) {
        let mut state = self.state.lock();
        state.shared = None;
        let functions = std::mem::take(&mut state.functions);
        for trigger in functions.into_values().flat_map(|one| one.triggers) {
            state.ending.extend(trigger.stop(Stop::ForNow));
        }
    }

    /// [`Triggers::hold`]s, and waits at most `grace` for what runs. What is cut stays at its source and comes again.
    pub async fn stop(&self, grace: Duration) {
        self.hold();
        let ending = std::mem::take(&mut self.state.lock().ending);
        let until = Instant::now() + grace;
        for mut task in ending {
            if tokio::time::timeout_at(until, &mut task).await.is_err() {
                task.abort();
                let _ = task.await;
            }
        }
    }

    /// This configuration of a function is live now.
    pub fn set(&self, config: &FunctionConfig) {
        let (name, owner) = (&config.name, config.owner());
        let mut state = self.state.lock();
        let before = state.functions.remove(name);
        if config.triggers.is_empty() && before.is_none() {
            return;
        }
        let shared = state.shared.clone();
        let is_alike = |one: &Deployed| one.owner == owner && one.timeout == config.timeout;
        let keeps = before.as_ref().is_some_and(is_alike);
        // Another owner's trigger begins anew.
        let replaced = match &before {
            Some(before) if before.owner == owner => Stop::ForNow,
            _ => Stop::ForGood,
        };
        let mut old = before.map_or_else(Vec::new, |one| one.triggers);
        let mut triggers = Vec::new();
        for wanted in &config.triggers {
            let is_it = |one: &Trigger| {
                one.config.kind() == wanted.kind() && one.config.source() == wanted.source()
            };
            let found = old.iter().position(is_it).map(|at| old.swap_remove(at));
            triggers.push(match found {
                Some(found) if keeps && found.config == *wanted => found,
                found => {
                    let after = found.and_then(|found| found.stop(replaced));
                    let mut trigger = Trigger {
                        config: wanted.clone(),
                        status: Arc::default(),
                        running: None,
                    };
                    if let Some(shared) = &shared {
                        trigger.start(shared, (name, owner, config.timeout), after);
                    }
                    trigger
                }
            });
        }
        let ended = old.into_iter().filter_map(|one| one.stop(Stop::ForGood));
        let ended: Vec<_> = ended.collect();
        state.ending.retain(|task| !task.is_finished());
        state.ending.extend(ended);
        let kept = triggers.iter();
        let kept = kept.map(|trigger| scope(name, owner, &trigger.config));
        self.store.forget(&format!("{name}/"), kept.collect());
        if !triggers.is_empty() {
            let owner = owner.to_owned();
            let timeout = config.timeout;
            let deployed = Deployed {
                owner,
                timeout,
                triggers,
            };
            state.functions.insert(name.clone(), deployed);
        }
    }

    /// A function is gone.
    pub fn remove(&self, name: &FunctionName) {
        let mut state = self.state.lock();
        if let Some(deployed) = state.functions.remove(name) {
            let ended = deployed.triggers.into_iter();
            let ended = ended.filter_map(|one| one.stop(Stop::ForGood));
            state.ending.extend(ended);
        }
        self.store.forget(&format!("{name}/"), Vec::new());
    }
}

impl TriggerControl for Triggers {
    fn list(&self, function: Option<&FunctionName>) -> Vec<TriggerInfo> {
        let state = self.state.lock();
        let functions = state.functions.iter();
        let functions = functions.filter(|(name, _)| function.is_none_or(|wanted| wanted == *name));
        let infos = functions.flat_map(|(name, deployed)| {
            let triggers = deployed.triggers.iter();
            triggers.map(|trigger| trigger.status.info(name, &trigger.config))
        });
        infos.collect()
    }

    fn check(&self, config: &FunctionConfig) -> Result<(), String> {
        let function = config.name.as_str();
        for trigger in &config.triggers {
            match trigger {
                TriggerConfig::Schedule(_) => {}
                TriggerConfig::Folder(folder) => {
                    self.connections.folder(function, folder.path.as_ref())?;
                }
                TriggerConfig::Sqs(sqs) => {
                    self.connections.sqs(function, &sqs.queue)?;
                }
                TriggerConfig::Redis(redis) => {
                    self.connections.redis(function, &redis.connection)?;
                }
                TriggerConfig::Mqtt(mqtt) => {
                    self.connections.mqtt(function, &mqtt.connection)?;
                }
            }
        }
        let events = &config.asynchronous;
        for destination in events.on_success.iter().chain(&events.on_failure) {
            match destination {
                Destination::Function(_) | Destination::File(_) => {}
                Destination::Http(url) => _ = self.connections.http(function, url)?,
                Destination::Sqs(url) => _ = self.connections.sqs(function, url)?,
                Destination::Redis { connection, .. } => {
                    self.connections.redis(function, connection)?;
                }
            }
        }
        Ok(())
    }
}

impl Trigger {
    /// Starts its task, which begins `after` another one has ended.
    fn start(
        &mut self,
        shared: &Arc<TriggerPorts>,
        (function, owner, timeout): (&FunctionName, &str, Duration),
        after: Option<JoinHandle<()>>,
    ) {
        let (stop, stopped) = watch::channel(Stop::No);
        let context = Context {
            shared: Arc::clone(shared),
            function: function.clone(),
            owner: owner.to_owned(),
            trigger: self.config.faas_trigger(),
            scope: scope(function, owner, &self.config),
            timeout,
            status: Arc::clone(&self.status),
            stop: stopped,
            failures: 0,
        };
        let config = self.config.clone();
        let task = tokio::spawn(async move {
            if let Some(after) = after {
                let _ = after.await;
            }
            keep_listening(context, &config).await;
        });
        self.running = Some(Running { stop, task });
    }

    /// Tells its task to end, and returns it.
    fn stop(self, how: Stop) -> Option<JoinHandle<()>> {
        let running = self.running?;
        let _ = running.stop.send(how);
        Some(running.task)
    }
}

/// Listens until the trigger is stopped. What ends before is a fault of ours or of a library: it is shown, and begins anew after a wait.
async fn keep_listening(mut context: Context, config: &TriggerConfig) {
    while !context.is_stopped() {
        let begun_at = Instant::now();
        // Nothing of it is used after a panic.
        let listening = AssertUnwindSafe(listen(context.clone(), config.clone()));
        let problem = match listening.catch_unwind().await {
            Ok(()) if context.is_stopped() => return,
            Ok(()) => "the trigger's task ended".to_owned(),
            Err(panic) => format!("the trigger's task failed: {}", message(panic.as_ref())),
        };
        if begun_at.elapsed() > LASTED {
            context.failures = 0;
        }
        tracing::error!(function = %context.function, kind = config.kind(), problem, "a trigger begins anew");
        if !context.back_off(&problem).await {
            return;
        }
    }
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it panicked")
}

async fn listen(context: Context, config: TriggerConfig) {
    match config {
        TriggerConfig::Schedule(schedule) => schedule::run(context, schedule).await,
        TriggerConfig::Folder(folder) => folder::run(context, folder).await,
        TriggerConfig::Sqs(sqs) => sqs::run(context, sqs).await,
        TriggerConfig::Redis(redis) => redis::run(context, redis).await,
        TriggerConfig::Mqtt(mqtt) => mqtt::run(context, mqtt).await,
    }
}

/// Under which its marks are stored. A function's name has no `/`.
fn scope(function: &FunctionName, owner: &str, config: &TriggerConfig) -> String {
    format!("{function}/{owner}/{}/{}", config.kind(), config.source())
}

/// A task that lasted so long begins a new row of failures.
const LASTED: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
