//! The queue's time: milliseconds since 1970-01-01, because ages outlive a process. Within a process it follows the monotonic clock, so
//! that setting the machine's clock neither delays invocations nor makes them too old.

use std::sync::Arc;

use pilot_model::Instant;
use pilot_model::ports::Clock;

/// The time of one process.
#[derive(Debug)]
pub(crate) struct Times {
    base_ms: i64,
    since: Instant,
    clock: Arc<dyn Clock>,
}

impl Times {
    /// Starts at what the machine's clock shows, or at `earliest_ms` if it shows less: the clock may have been set back.
    pub(crate) fn start(shown_ms: i64, earliest_ms: i64, clock: Arc<dyn Clock>) -> Self {
        Self {
            base_ms: shown_ms.max(earliest_ms),
            since: clock.now(),
            clock,
        }
    }

    /// Now.
    pub(crate) fn now_ms(&self) -> i64 {
        let passed = self.clock.now().since(self.since);
        let passed_ms = i64::try_from(passed.as_millis()).unwrap_or(i64::MAX);
        self.base_ms.saturating_add(passed_ms)
    }
}
