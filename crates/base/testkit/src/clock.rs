//! Clocks for tests: one that the test sets, and one that follows tokio's (pausable) time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::ports::Clock;

/// A clock that only moves when it is told to.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Starts at `nanos`.
    #[must_use]
    pub fn at(nanos: u64) -> Self {
        Self(AtomicU64::new(nanos))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::SeqCst))
    }
}

/// Tokio's time: in tests with `start_paused` it stands still and jumps. Starts at one second.
#[derive(Debug)]
pub struct TokioClock(tokio::time::Instant);

impl TokioClock {
    /// Starts now.
    #[must_use]
    pub fn new() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        Instant(1_000_000_000).after(self.0.elapsed())
    }
}
