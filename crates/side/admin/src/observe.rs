//! The subscribers of the path's events that the control side needs, and the reading of what they made of the events. Each
//! reader waits until its subscriber has processed everything that was published before.

mod counting;
mod logging;
mod summaries;
mod telling;
mod wall_clock;

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use pilot_model::FunctionName;
use pilot_model::ports::{Clock, Observation, Observed};
use pilot_telemetry::{Bus, Metrics, Subscription};

use self::counting::Counting;
use self::logging::Logging;
use self::summaries::Summaries;
use self::telling::Telling;
use crate::logs::LogStore;

/// What was made of the events.
#[derive(Debug)]
pub struct Observations {
    counting: Counting,
    counted: Subscription,
    logs: Arc<LogStore>,
    logged: Subscription,
    summaries: Summaries,
    summarised: Subscription,
}

impl Observations {
    /// Subscribes metrics, logs and summaries.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn subscribe(
        bus: &Bus,
        logs: LogStore,
        metrics: &Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let counting = Counting::new(Arc::clone(metrics));
        let logs = Arc::new(logs);
        let logging = Logging {
            logs: Arc::clone(&logs),
            metrics: Arc::clone(metrics),
            clock: Arc::clone(&clock),
            telling: Telling::default(),
            failed: None,
        };
        let summaries = Summaries::new(clock);
        Ok(Self {
            counted: bus.subscribe("metrics", counting.clone())?,
            logged: bus.subscribe("logs", logging)?,
            summarised: bus.subscribe("summaries", summaries.clone())?,
            counting,
            logs,
            summaries,
        })
    }

    /// The functions' logs. Everything published so far is written.
    #[must_use]
    pub fn logs(&self) -> &Arc<LogStore> {
        self.logged.flush();
        &self.logs
    }

    /// Waits until everything published so far is counted in the metrics.
    pub fn catch_up(&self) {
        self.counted.flush();
    }

    /// Forgets every function but these: an invocation that outlived its function's removal brings its series back.
    pub fn retain(&self, names: &HashSet<FunctionName>) {
        let known = self.counting.names().into_iter();
        let known: HashSet<_> = known.chain(self.summaries.names()).collect();
        for gone in known.difference(names) {
            self.forget(gone);
        }
    }

    /// Removes logs of functions that are none of these: they were removed while nobody looked.
    pub fn retain_logs(&self, names: &HashSet<FunctionName>) {
        match self.logs.names() {
            Ok(logged) => {
                for name in logged.iter().filter(|name| !names.contains(name)) {
                    self.forget_log(name);
                }
            }
            Err(error) => tracing::warn!(%error, "the logs cannot be listed"),
        }
    }

    fn forget_log(&self, name: &FunctionName) {
        if let Err(error) = self.logs.forget(name) {
            tracing::warn!(%error, function = %name, "a removed function's log is left");
        }
    }
}

impl Observed for Observations {
    fn observation(&self, name: &FunctionName) -> Observation {
        self.summarised.flush();
        self.summaries.observation(name)
    }

    fn forget(&self, name: &FunctionName) {
        self.counted.flush();
        self.counting.forget(name);
        self.summarised.flush();
        self.summaries.forget(name);
        self.logged.flush();
        self.forget_log(name);
    }
}

#[cfg(test)]
mod tests;
