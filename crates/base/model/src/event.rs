//! What the path tells whoever listens. Subscribers never hold it up.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::WorkerId;
use crate::invocation::InvocationRecord;
use crate::status::RuntimeCounts;
use crate::version::Version;

/// What happens on the path.
#[derive(Debug, Clone)]
pub enum Event {
    /// An invocation ended.
    Invoked(Arc<InvocationRecord>),
    /// A worker has come up.
    WorkerStarted {
        /// Of which version.
        version: Arc<Version>,
        /// Which.
        worker: WorkerId,
        /// From the decision to readiness.
        took: Duration,
    },
    /// A worker is gone.
    WorkerEnded {
        /// Of which version.
        version: Arc<Version>,
        /// Which.
        worker: WorkerId,
        /// Why: `idle`, `scaled`, `crash`, `timeout`, `once`, `retired`, `pressure`, `cancelled`.
        reason: &'static str,
    },
    /// A worker that does not fork was given a runtime.
    RuntimeGiven {
        /// Of which version.
        version: Arc<Version>,
        /// `reused`, `adapted` or `started`.
        how: &'static str,
        /// From asking for it to having it.
        took: Duration,
    },
    /// How many runtimes there are now, of all keys; told when it has changed, every few seconds at most.
    RuntimesCounted(RuntimeCounts),
}
