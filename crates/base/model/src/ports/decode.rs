//! Decoders: processes that make an array of what somebody has stored. What they read is hostile, so they run apart from the daemon.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use super::BoxFuture;

/// Starts decoders.
pub trait DecoderHost: Send + Sync + Debug {
    /// Starts a process that decodes one input, or gives one that has already started and has read nothing yet.
    ///
    /// # Errors
    /// Why none can be started.
    fn start(&self) -> BoxFuture<'static, Result<Box<dyn DecoderProcess>, String>>;

    /// The memory that a process may have, bytes.
    fn memory_bytes(&self) -> u64;
}

/// A process that decodes one input. Dropping it ends it.
pub trait DecoderProcess: Send + Sync + Debug {
    /// A stream socket to it, which does not block. `None`: it was taken.
    fn socket(&mut self) -> Option<OwnedFd>;

    /// Waits for a limited time for its end, and says how it ended: `it …`.
    fn ended(self: Box<Self>) -> BoxFuture<'static, String>;

    /// It was not needed, and has read nothing: another input may have it.
    fn unused(self: Box<Self>);
}

/// No decoders: for daemons and tests without them.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDecoders;

impl DecoderHost for NoDecoders {
    fn start(&self) -> BoxFuture<'static, Result<Box<dyn DecoderProcess>, String>> {
        let problem = "this daemon has no decoders".to_owned();
        Box::pin(std::future::ready(Err(problem)))
    }

    fn memory_bytes(&self) -> u64 {
        0
    }
}
