//! The queue's time: milliseconds since 1970-01-01, because ages outlive a process. Within a process it follows the monotonic clock, so
//! that setting the machine's clock neither delays invocations nor makes them too old.

use std::time::{Instant, SystemTime};

use pilot_model::calendar::unix_ms;

/// The time of one process.
#[derive(Debug)]
pub(crate) struct Times {
    base_ms: i64,
    since: Instant,
}

impl Times {
    /// Starts at the machine's clock, or at `earliest_ms` if the clock shows less: a machine without a battery for its clock starts in
    /// the past.
    pub(crate) fn start(earliest_ms: i64) -> Self {
        let now = i64::try_from(unix_ms(SystemTime::now())).unwrap_or(i64::MAX);
        Self {
            base_ms: now.max(earliest_ms),
            since: Instant::now(),
        }
    }

    /// Now.
    pub(crate) fn now_ms(&self) -> i64 {
        let passed = i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.base_ms.saturating_add(passed)
    }
}
