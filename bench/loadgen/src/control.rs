//! How far a run is, and the wish to stop it. The caller reads and sets it from another thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The state of a run that other threads may read, and their wish to stop it.
#[derive(Debug, Default)]
pub struct Control {
    done: AtomicU64,
    stopped: AtomicBool,
}

impl Control {
    /// Number of requests that have ended in the measured part.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Ends the run soon: requests under way are given up, and the report has what is complete.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the run was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// One more request has ended.
    pub(crate) fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// The measured part begins.
    pub(crate) fn begin(&self) {
        self.done.store(0, Ordering::Relaxed);
    }
}

/// A run that waits looks this often whether it was stopped.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
