//! What the writer is told to do.

use std::collections::HashSet;

use pilot_model::FunctionName;
use pilot_model::asynchronous::{DeadLetters, DeadLettersChanged};
use pilot_model::ports::{Accepted, AsyncFault, Mark, MayTouch, NotAccepted};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::schedule::Entry;
use crate::store::{Dead, Record};

/// A change of the store.
pub(crate) enum Command {
    Accept {
        record: Box<Record>,
        place: OwnedSemaphorePermit,
        reply: oneshot::Sender<Result<Accepted, NotAccepted>>,
    },
    /// An attempt of an invocation with a key begins. The answer says whether it is written.
    Start {
        seq: i64,
        reply: oneshot::Sender<bool>,
    },
    /// An attempt has ended.
    Settle {
        seq: i64,
        entry: Entry,
        change: Change,
        reply: oneshot::Sender<()>,
    },
    Cancel {
        id: String,
        may: MayTouch,
        reply: oneshot::Sender<Result<(), AsyncFault>>,
    },
    DeadLetters {
        which: DeadLetters,
        how: How,
        may: MayTouch,
        reply: oneshot::Sender<Result<DeadLettersChanged, AsyncFault>>,
    },
    /// Triggers remember or forget something.
    Marks {
        marks: Vec<Mark>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Triggers are gone.
    Forget {
        beginning: String,
        kept: Vec<String>,
    },
    /// A function is gone, and its idempotency keys with it.
    ForgetKeys {
        function: FunctionName,
    },
    /// All functions but these are gone, and their triggers.
    ForgetAllBut {
        functions: HashSet<FunctionName>,
    },
    Stop,
}

/// What follows an attempt.
pub(crate) enum Change {
    Again {
        due_ms: i64,
        attempts: u32,
        waits: u32,
        error: String,
    },
    End {
        /// Why it becomes a dead letter; `None`: it is removed.
        dead: Option<Dead>,
        /// The record for a destination.
        then: Option<Box<Record>>,
    },
}

/// What happens to dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Redrive,
    Purge,
}
