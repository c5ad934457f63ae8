//! Runtimes that cannot fork and are therefore kept: pre-warmed while nobody uses them, made a function's worker late, cleaned and
//! kept again (HotC, sections IV-B and IV-C).
//!
//! A [`RuntimeHost`] makes them; the keyed pool (`path/pool`) decides which to reuse, adapt, start, clean and give up, and never
//! looks into one.

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
    /// What of the version's configuration this machine cannot give, in words.
    fn key(&self, version: &Version) -> Result<RuntimeKey, StartError>;

    /// Starts a pre-warmed runtime: everything the key says is up, nothing of the user's has run in it.
    fn start(
        &self,
        key: &Arc<RuntimeKey>,
    ) -> BoxFuture<'static, Result<Arc<dyn PrewarmedRuntime>, StartError>>;

    /// What a deployment is to be told of a version that has been tried: versions of interpreters, size, remarks.
    fn report(&self, version: &Version) -> TemplateReport;
}

/// A runtime that is up. Dropping the last reference ends everything in it.
pub trait PrewarmedRuntime: Send + Sync + Debug {
    /// What it is.
    fn key(&self) -> Arc<RuntimeKey>;

    /// Gives it the version's code and settings and starts what serves it. The worker holds the runtime; when it is retired
    /// the runtime may be cleaned. After an error it may be cleaned too.
    fn specialise(
        self: Arc<Self>,
        version: &Arc<Version>,
        id: WorkerId,
        asked: Instant,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>>;

    /// Makes it as new after a use: every process of the use is gone, what it could write to is fresh, IPC objects and sockets
    /// are gone, environment and working directory are reset, resource counters are zero. Waits for the use to end first.
    ///
    /// # Errors
    /// What was left. The runtime is then to be dropped.
    fn clean(&self) -> BoxFuture<'_, Result<(), StartError>>;

    /// Gives what a worker has left the time to end that it was promised, when the runtime is to be dropped and not cleaned.
    fn vacate(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Turns a clean runtime into another one whose key differs in what [`RuntimeKey::adaptation`] allows.
    ///
    /// # Errors
    /// Which setting could not be applied. The runtime is then to be dropped.
    fn adapt(&self, to: &Arc<RuntimeKey>) -> BoxFuture<'_, Result<(), StartError>>;

    /// False once it is known to have ended. Cheap.
    fn is_alive(&self) -> bool;

    /// Memory of everything in it, PSS where it can be had, bytes. Reads `/proc`: not for the path.
    fn memory_bytes(&self) -> u64;
}
