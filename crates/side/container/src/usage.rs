//! One use of a container by a server of its own.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::SetOnce;

use crate::cgroup::Shortages;
use crate::output::Output;
use crate::shim::Process;

/// A use lasts from the start of the main process until the container may be cleaned.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) process: Process,
    pub(crate) output: Output,
    /// How often memory was short before this use.
    pub(crate) shortages_before: Shortages,
    pub(crate) let_go: AtomicBool,
    /// Set when the use is released and its grace period is over.
    pub(crate) settled: SetOnce<()>,
}

impl Use {
    pub(crate) fn new(process: Process, output: Output, shortages_before: Shortages) -> Self {
        Self {
            process,
            output,
            shortages_before,
            let_go: AtomicBool::new(false),
            settled: SetOnce::new(),
        }
    }

    /// Waits until the grace period of a released use is over. Returns at once for a use that was not released.
    pub(crate) async fn settled(&self) {
        if self.let_go.load(Ordering::Relaxed) {
            self.settled.wait().await;
        }
    }

    pub(crate) fn settle(&self) {
        // An error means that it is already set.
        drop(self.settled.set(()));
    }
}
