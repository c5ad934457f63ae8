//! What the task of a trigger works with.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::ports::{AsyncRequest, AsyncRunner, Mark, TriggerStore};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{FunctionName, InvocationId};
use tokio::sync::watch;

use crate::connections::Connections;
use crate::file_calls::FileCalls;
use crate::status::{Status, shown};

/// What all triggers share.
#[derive(Debug)]
pub(crate) struct TriggerPorts {
    pub(crate) store: Arc<dyn TriggerStore>,
    pub(crate) runner: Arc<dyn AsyncRunner>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) file_calls: FileCalls,
}

/// One trigger.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) shared: Arc<TriggerPorts>,
    pub(crate) function: FunctionName,
    pub(crate) owner: String,
    /// What its invocations come from.
    pub(crate) trigger: FaasTrigger,
    /// The longest that an invocation takes.
    pub(crate) timeout: Duration,
    /// Under which its marks are stored.
    pub(crate) scope: String,
    pub(crate) status: Arc<Status>,
    pub(crate) stop: watch::Receiver<Stop>,
    pub(crate) failures: u32,
}

/// Whether the task of a trigger must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It goes on.
    No,
    /// It ends, and the next daemon or a changed configuration goes on where it was.
    ForNow,
    /// The trigger is gone.
    ForGood,
}

impl Context {
    /// Resolves when the task must end.
    pub(crate) async fn stopped(&mut self) {
        // If the sender is gone, so are the triggers.
        let _ = self.stop.wait_for(|stop| *stop != Stop::No).await;
    }

    /// Whether the task must end.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow() != Stop::No
    }

    /// Whether the trigger is gone, so that nobody goes on where it was.
    pub(crate) fn is_gone(&self) -> bool {
        *self.stop.borrow() == Stop::ForGood
    }

    /// The name under which the source knows this trigger: the stored one, or this fresh one from now on. `None`: the task must end.
    pub(crate) async fn name(&mut self, key: &str, fresh: String) -> Option<String> {
        loop {
            let problem = match self.shared.store.marks(&self.scope).await {
                Ok(marks) => {
                    if let Some((_, name)) = marks.into_iter().find(|(found, _)| found == key) {
                        return Some(name);
                    }
                    let mark = self.mark(key, Some(fresh.clone()));
                    match self.shared.store.change(vec![mark]).await {
                        Ok(()) => return Some(fresh),
                        Err(problem) => problem,
                    }
                }
                Err(problem) => problem,
            };
            if !self.back_off(&problem).await {
                return None;
            }
        }
    }

    /// Waits. False: the task must end.
    pub(crate) async fn pause(&mut self, time: Duration) -> bool {
        tokio::select! {
            () = self.stopped() => false,
            () = tokio::time::sleep(time) => true,
        }
    }

    /// Says what failed and waits, longer after each failure that follows another one. False: the task must end.
    pub(crate) async fn back_off(&mut self, problem: &str) -> bool {
        self.status.failing(problem);
        if self.failures == 0 {
            let problem = shown(problem);
            tracing::warn!(function = %self.function, problem, "a trigger fails and tries again");
        }
        let wait = wait(self.failures, fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        self.pause(wait).await
    }

    /// It works.
    pub(crate) fn works(&mut self) {
        if self.failures > 0 {
            tracing::info!(function = %self.function, "a trigger works again");
        }
        self.failures = 0;
        self.status.active();
    }

    /// How many batches may run at the same time, so that callers who wait have workers, too.
    pub(crate) fn places(&self) -> usize {
        let target = self.shared.runner.target(&self.function, None);
        target.map_or(1, |target| target.concurrency.clamp(1, PLACES_MAX))
    }

    /// Whether the function still belongs to the owner of the trigger. A deployment replaces it a moment before it replaces the triggers.
    pub(crate) fn is_owned(&self) -> bool {
        let target = self.shared.runner.target(&self.function, None);
        !matches!(target, Ok(target) if target.owner != self.owner)
    }

    /// An invocation of the function, for its owner.
    pub(crate) fn request(&self, id: &str, payload: String) -> AsyncRequest {
        AsyncRequest {
            id: InvocationId::new(id),
            function: self.function.clone(),
            owner: self.owner.clone(),
            qualifier: None,
            payload: Bytes::from(payload),
            client_context: None,
            trace: self.shared.runner.begin_trace(),
            key: None,
            trigger: self.trigger,
        }
    }

    pub(crate) fn mark(&self, key: &str, value: Option<String>) -> Mark {
        Mark {
            scope: self.scope.clone(),
            key: key.to_owned(),
            value,
        }
    }
}

/// From half a second to a minute, doubling, less up to half of it: sources that came back are not asked by all at once.
fn wait(failures: u32, random: f64) -> Duration {
    let whole = WAIT_MIN.saturating_mul(1 << failures.min(10)).min(WAIT_MAX);
    whole.mul_f64(1.0 - random / 2.0)
}

/// Batches of one trigger that run at the same time.
const PLACES_MAX: usize = 10;
const WAIT_MIN: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_are_spread() {
        assert_eq!(wait(0, 0.0), WAIT_MIN);
        assert_eq!(wait(1, 0.0), 2 * WAIT_MIN);
        assert_eq!(wait(0, 1.0), WAIT_MIN / 2);
        assert_eq!(wait(u32::MAX, 0.0), WAIT_MAX);
    }
}
