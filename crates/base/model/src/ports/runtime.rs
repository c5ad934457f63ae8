//! Runtimes that cannot fork and are therefore kept. They are pre-warmed while unused, become a function's worker late, and are
//! then cleaned and kept again (HotC, sections IV-B and IV-C).
//!
//! A [`RuntimeHost`] makes them. The keyed pool (`path/pool`) decides which to reuse, adapt, start, clean and end. It does not
//! know what is inside.

use std::fmt::Debug;
use std::sync::Arc;

use super::{BoxFuture, StartError, Worker};
use crate::deployment::TemplateReport;
use crate::ids::WorkerId;
use crate::runtime::Runtime;
use crate::runtime_key::RuntimeKey;
use crate::timeline::Instant;
use crate::version::Version;

/// Makes runtimes of one kind: sandboxes of this machine, or containers.
pub trait RuntimeHost: Send + Sync + Debug {
    /// Whether it makes the runtimes of versions with this `runtime`.
    fn hosts(&self, runtime: &Runtime) -> bool;

    /// The runtime that a version needs.
    ///
    /// # Errors
    /// What this machine cannot provide of the version's configuration.
    fn key(&self, version: &Version) -> Result<RuntimeKey, StartError>;

    /// Starts a pre-warmed runtime: everything in the key is set up, and no user code has run in it.
    fn start(
        &self,
        key: &Arc<RuntimeKey>,
    ) -> BoxFuture<'static, Result<Arc<dyn PrewarmedRuntime>, StartError>>;

    /// The report of a version that has been tried: versions of interpreters, size, remarks.
    fn report(&self, version: &Version) -> TemplateReport;
}

/// A runtime that is ready. Dropping the last reference ends everything in it.
pub trait PrewarmedRuntime: Send + Sync + Debug {
    /// What it is.
    fn key(&self) -> Arc<RuntimeKey>;

    /// Gives it the version's code and settings, and starts the server process. The worker holds the runtime; when the worker is
    /// retired, the runtime may be cleaned. It may also be cleaned after an error.
    fn specialise(
        self: Arc<Self>,
        version: &Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>>;

    /// Makes it as new after a use. Every process of the use is ended, writable files are fresh, IPC objects and sockets are
    /// removed, environment and working directory are reset, resource counters are zero. Waits for the use to end first.
    ///
    /// # Errors
    /// What could not be removed. The caller must then drop the runtime.
    fn clean(&self) -> BoxFuture<'_, Result<(), StartError>>;

    /// Waits until the processes of a retired worker have had their promised time to end. For a runtime that is dropped and not
    /// cleaned.
    fn vacate(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Turns a clean runtime into another one whose key differs only in what [`RuntimeKey::adaptation`] allows.
    ///
    /// # Errors
    /// Which setting could not be applied. The caller must then drop the runtime.
    fn adapt(&self, to: &Arc<RuntimeKey>) -> BoxFuture<'_, Result<(), StartError>>;

    /// False once it is known that it has ended. Cheap.
    fn is_alive(&self) -> bool;

    /// Memory of everything in it, PSS where it can be had, bytes. Reads `/proc`: not for the path.
    fn memory_bytes(&self) -> u64;
}
