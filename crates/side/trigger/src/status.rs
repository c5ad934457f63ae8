//! What a trigger says about itself. The task writes it, the control API reads it.

use std::time::SystemTime;

use parking_lot::Mutex;
use pilot_model::FunctionName;
use pilot_model::calendar::unix_ms;
use pilot_model::log_line::one_line;
use pilot_model::trigger::{TriggerConfig, TriggerInfo, TriggerState};

/// The state of one trigger.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// Guards the figures, for one look or one change.
    now: Mutex<Figures>,
}

#[derive(Debug, Default)]
struct Figures {
    state: TriggerState,
    /// Since when something has been due or has waited; `None`: nothing does.
    behind_since_ms: Option<i64>,
    /// Whether the source says so.
    knows_lag: bool,
    waiting: Option<u64>,
    received: u64,
    errors: u64,
    last_run_ms: Option<i64>,
    next_run_ms: Option<i64>,
    last_error: Option<(String, i64)>,
}

impl Status {
    /// It listens.
    pub(crate) fn active(&self) {
        self.now.lock().state = TriggerState::Active;
    }

    /// Something failed, and is tried again.
    pub(crate) fn failing(&self, problem: &str) {
        let mut now = self.now.lock();
        now.state = TriggerState::Failing;
        now.fail(problem);
    }

    /// The operator does not allow it.
    pub(crate) fn refused(&self, problem: &str) {
        let mut now = self.now.lock();
        now.state = TriggerState::Refused;
        now.fail(problem);
    }

    /// Something failed that does not stop the others.
    pub(crate) fn failed(&self, problem: &str) {
        self.now.lock().fail(problem);
    }

    /// So many runs, files or messages came.
    pub(crate) fn received(&self, count: u64) {
        self.now.lock().received += count;
    }

    /// The function ran, or will: it is on the disk.
    pub(crate) fn ran(&self) {
        self.now.lock().last_run_ms = Some(now_ms());
    }

    /// When it runs next. If that has passed, it is behind since then.
    pub(crate) fn next_run(&self, next_ms: Option<i64>) {
        let mut now = self.now.lock();
        now.next_run_ms = next_ms;
        now.behind_since_ms = next_ms;
        now.knows_lag = true;
    }

    /// What waits at the source.
    pub(crate) fn waits(&self, count: u64, since_ms: Option<i64>) {
        let mut now = self.now.lock();
        now.waiting = Some(count);
        now.behind_since_ms = since_ms.filter(|_| count > 0);
        now.knows_lag = count == 0 || since_ms.is_some();
    }

    /// For the control API.
    pub(crate) fn info(&self, function: &FunctionName, config: &TriggerConfig) -> TriggerInfo {
        let now = self.now.lock();
        let lag_ms = now.behind_since_ms.map_or(0, |since| now_ms() - since);
        let unsigned = |ms: i64| ms.max(0).unsigned_abs();
        #[expect(
            clippy::cast_precision_loss,
            reason = "milliseconds of a lag are far below 2^52"
        )]
        let lag_s = unsigned(lag_ms) as f64 / 1000.0;
        TriggerInfo {
            function: function.clone(),
            kind: config.kind().to_owned(),
            source: config.source(),
            state: now.state,
            lag_s: now.knows_lag.then_some(lag_s),
            waiting: now.waiting,
            received: now.received,
            errors: now.errors,
            last_run_unix_ms: now.last_run_ms.map(unsigned),
            next_run_unix_ms: now.next_run_ms.map(unsigned),
            last_error: now.last_error.as_ref().map(|(text, _)| text.clone()),
            last_error_unix_ms: now.last_error.as_ref().map(|(_, at)| unsigned(*at)),
        }
    }
}

impl Figures {
    fn fail(&mut self, problem: &str) {
        self.errors += 1;
        self.last_error = Some((shown(problem), now_ms()));
    }
}

/// An error as people see it: it may be from outside, and of any length.
pub(crate) fn shown(problem: &str) -> String {
    one_line(problem, PROBLEM_MAX)
}

/// The wall clock, Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    i64::try_from(unix_ms(SystemTime::now())).unwrap_or(i64::MAX)
}

/// Characters of an error that are kept.
const PROBLEM_MAX: usize = 400;
