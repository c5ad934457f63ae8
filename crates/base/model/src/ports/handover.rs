//! Memory that a worker fills and that then goes to a worker of another function.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{BoxFuture, InputMemory};
use crate::calls::{Reason, Refusal};

/// Memory of a fixed length that a worker fills. Dropping the last reference gives it back, as soon as no worker has it any more.
pub trait BlankMemory: Send + Sync + Debug {
    /// The descriptor for the worker, which can write but not change the length. `None`: it is sealed. Must not be called
    /// while it is being sealed.
    fn descriptor(&self) -> Option<Arc<OwnedFd>>;

    /// As [`BlankMemory::descriptor`], for a worker that takes paths: until it is sealed, whoever may look into a process that has the
    /// descriptor can open it for writing (proc_pid_fd(5)).
    ///
    /// # Errors
    /// The kernel's; it is sealed.
    fn open_for_paths(&self) -> io::Result<Arc<OwnedFd>> {
        self.descriptor()
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Ends writing, for everybody who has a descriptor. It can be tried again after [`MemoryFault::StillMapped`] and
    /// [`MemoryFault::NotWhole`].
    fn seal(self: Arc<Self>) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>>;
}

/// Why there is no memory to hand over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// It is more than one input may have.
    #[error("{problem}")]
    TooLarge {
        /// The length and the limit.
        problem: String,
    },
    /// The function has no room left.
    #[error("{problem}")]
    NoRoom {
        /// What is full, and what to do.
        problem: String,
    },
    /// A process has it mapped for writing.
    #[error(
        "the buffer is still mapped for writing, by the function or by a process that it started: close every mapping before it is \
         handed over"
    )]
    StillMapped,
    /// Not all of it was written.
    #[error(
        "parts of the buffer have no memory: write all of it, or have the kernel allocate it (posix_fallocate), before it is handed over"
    )]
    NotWhole,
    /// The kernel's error.
    #[error("{problem}")]
    Failed {
        /// What failed.
        problem: String,
    },
}

impl From<MemoryFault> for Refusal {
    fn from(fault: MemoryFault) -> Self {
        let reason = match fault {
            MemoryFault::TooLarge { .. } => Reason::TooLarge,
            MemoryFault::NoRoom { .. } => Reason::NoRoom,
            MemoryFault::StillMapped => Reason::StillMapped,
            MemoryFault::NotWhole => Reason::Invalid,
            MemoryFault::Failed { .. } => Reason::Unavailable,
        };
        Self::new(reason, fault.to_string())
    }
}
