//! The lifetime of a worker's instance: whether it still runs, how it ended, and that it is released exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pilot_model::BoxFuture;
use pilot_model::ports::{Input, Resources, ShownInputs, WorkerFault};
use tokio::sync::SetOnce;
use tokio::time::timeout;

use crate::{End, HeldFiles, Instance, OwnProcesses, Retire};

/// The instance of one worker.
#[derive(Debug)]
pub(crate) struct Life {
    instance: Arc<dyn Instance>,
    /// Set by the worker's task once the main process has ended.
    end: SetOnce<End>,
    /// It was killed or retired.
    let_go: AtomicBool,
    /// It was retired, and may still run for as long as its grace.
    retired: AtomicBool,
    output: OutputUse,
}

/// Where the output of an instance goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputUse {
    /// Into answers and faults.
    Answers,
    /// To whoever follows it.
    Followed,
}

impl Life {
    pub(crate) fn new(instance: Arc<dyn Instance>, output: OutputUse) -> Self {
        Self {
            instance,
            output,
            end: SetOnce::new(),
            let_go: AtomicBool::new(false),
            retired: AtomicBool::new(false),
        }
    }

    /// Reads flags only.
    pub(crate) fn is_alive(&self) -> bool {
        !self.end.initialized() && !self.let_go.load(Ordering::Relaxed) && self.instance.is_alive()
    }

    /// Waits for the main process's end and records it. Only for the worker's task.
    pub(crate) async fn watch(&self) -> End {
        let end = self.instance.ended().await;
        // Only this task sets it, and only once.
        drop(self.end.set(end));
        end
    }

    /// Resolves when the task has recorded the end.
    pub(crate) async fn ended(&self) -> End {
        *self.end.wait().await
    }

    /// As [`Life::ended`], but waits only as long as it takes to tell a dead worker from a broken connection.
    pub(crate) async fn ended_soon(&self) -> Option<End> {
        timeout(END_TIME_MAX, self.ended()).await.ok()
    }

    /// See [`Instance::among_neighbours`].
    pub(crate) fn among_neighbours(&self) -> Option<OwnProcesses> {
        self.instance.among_neighbours()
    }

    pub(crate) fn kill(&self) {
        self.let_go.store(true, Ordering::Relaxed);
        self.retired.store(false, Ordering::Relaxed);
        self.instance.kill();
    }

    /// Only the first call counts; `how` is evaluated only then.
    pub(crate) fn retire(&self, how: impl FnOnce() -> Retire) {
        if !self.let_go.swap(true, Ordering::Relaxed) {
            self.retired.store(true, Ordering::Relaxed);
            self.instance.retire(how());
        }
    }

    /// Shows inputs as files. `None`: there are none.
    pub(crate) async fn hold(&self, inputs: Vec<Input>) -> Result<Option<HeldFiles>, WorkerFault> {
        if inputs.is_empty() {
            return Ok(None);
        }
        let held = self.instance.hold(inputs).await;
        held.map(Some).map_err(|problem| self.fault(problem))
    }

    /// Shows inputs while a call runs.
    pub(crate) async fn show(&self, inputs: Vec<Input>) -> Result<ShownInputs, String> {
        let mut held = self.instance.hold(inputs).await?;
        Ok(ShownInputs {
            paths: std::mem::take(&mut held.paths),
            kept: Box::new(held),
        })
    }

    pub(crate) fn was_let_go(&self) -> bool {
        self.let_go.load(Ordering::Relaxed)
    }

    pub(crate) fn take_output(&self) -> Bytes {
        self.instance.take_output()
    }

    pub(crate) fn printed(&self) -> BoxFuture<'static, bool> {
        self.instance.printed()
    }

    /// What it printed since its last answer. Empty if somebody follows its output.
    pub(crate) fn last_output(&self) -> Bytes {
        match self.output {
            OutputUse::Answers => self.take_output(),
            OutputUse::Followed => Bytes::new(),
        }
    }

    /// If it was retired: its end. What it prints until then is its last output.
    pub(crate) fn retired_end(&self) -> Option<BoxFuture<'static, End>> {
        let retired = self.retired.load(Ordering::Relaxed);
        retired.then(|| self.instance.ended())
    }

    pub(crate) fn resources(&self) -> &dyn Resources {
        self.instance.resources()
    }

    /// The fault of a worker that has ended.
    pub(crate) fn fault_of(&self, end: End) -> WorkerFault {
        let output = self.last_output();
        match end {
            End::Exited(code) => WorkerFault::Exited { code, output },
            End::Signalled(signal) => WorkerFault::Signalled { signal, output },
            End::OutOfMemory(shortage) => WorkerFault::OutOfMemory {
                shortage,
                limit_bytes: self.instance.memory_bytes_max(),
                output,
            },
            End::Unknown => WorkerFault::Protocol {
                problem: "it ended for an unknown reason".to_owned(),
                output,
            },
        }
    }

    /// The fault of a worker that did `problem`.
    pub(crate) fn fault(&self, problem: impl Into<String>) -> WorkerFault {
        WorkerFault::Protocol {
            problem: problem.into(),
            output: self.last_output(),
        }
    }
}

/// A connection closes before the end of its process is known. Code that kills an instance waits up to 100 ms for its last
/// output, so this must be less.
const END_TIME_MAX: Duration = Duration::from_millis(80);
