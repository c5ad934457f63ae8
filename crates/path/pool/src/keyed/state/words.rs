//! The inputs and outputs of the state state.

use std::time::Duration;

use super::nearest::Near;

/// A runtime's number: the lower the older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::keyed) struct RuntimeId(pub(in crate::keyed) u64);

/// The limits of the state state.
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
    /// One is under way, which is likely to be there before a new one would be up.
    Wait(Wait),
}

/// To be asked again, with [`Look::Waiting`], whenever a runtime has become available or has come to nothing. Whoever gives it up
/// before says so ([`KeyedState::waited`](super::KeyedState::waited)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) struct Wait {
    /// What is waited for.
    pub(in crate::keyed) on: Awaited,
    /// Longest that it is worth it, from the first time on that this was said.
    pub(in crate::keyed) patience: Duration,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum Awaited {
    /// One of its key that is being cleaned.
    Cleaning,
    /// One of its base key that is being started ahead of demand.
    Ahead,
}

/// How hard to look for a runtime that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum Look {
    /// For a new request.
    First,
    /// For one that was here before: what it was given could not be adapted, or it has waited in vain.
    Again,
    /// For one that waits: it goes on if there is none yet.
    Waiting(Awaited),
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
