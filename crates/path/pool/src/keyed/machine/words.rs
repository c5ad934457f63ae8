//! What is said to the machine and what it says.

use std::time::Duration;

use super::nearest::Near;

/// A runtime's number: the lower the older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::keyed) struct RuntimeId(pub(in crate::keyed) u64);

/// The machine's bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::keyed) struct Limits {
    /// Runtimes of all keys in any state, beyond which none is kept.
    pub(in crate::keyed) runtimes_max: usize,
    /// One that has been available for longer, and is not forecast to be needed, is let go.
    pub(in crate::keyed) keep: Duration,
}

/// What a worker is given.
#[derive(Debug)]
pub(in crate::keyed) enum Acquired<R> {
    /// It has the wanted key.
    Reused(RuntimeId, R),
    /// It is to be adapted.
    Near(Near, R),
    /// It is to be started.
    Start(RuntimeId),
    /// One of its key is being cleaned, which takes less than a start: to be waited for, for so long at most. The wait ends with
    /// [`Machine::waited`](super::Machine::waited).
    Wait(Duration),
}

/// How hard to look for a runtime that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum Look {
    /// For a new request.
    First,
    /// For one that was here before: what it was given could not be adapted, or it has waited.
    Again,
    /// Not at all: start one.
    Nowhere,
}

/// Why a runtime is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum Cause {
    /// A worker waits for it.
    Request,
    /// It is forecast to be wanted.
    Ahead,
}

/// Why a runtime is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum End {
    /// It could not be cleaned or adapted, or had died.
    Destroyed,
    /// There were too many, or memory was short.
    Evicted,
    /// Nobody is expected to want it.
    LetGo,
}
