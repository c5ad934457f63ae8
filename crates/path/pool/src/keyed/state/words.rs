//! The inputs and outputs of the state machine.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::runtime_key::{Difference, RuntimeKey};

/// A runtime's number: the lower the older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::keyed) struct RuntimeId(pub(in crate::keyed) u64);

/// A runtime that can be adapted to the wanted key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::keyed) struct Near {
    pub(in crate::keyed) id: RuntimeId,
    /// Its present key.
    pub(in crate::keyed) from: Arc<RuntimeKey>,
    /// The differences to apply.
    pub(in crate::keyed) differences: Vec<Difference>,
}

/// The limits of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::keyed) struct Limits {
    /// Runtimes of all keys in any state, beyond which none is kept.
    pub(in crate::keyed) runtimes_max: usize,
    /// A runtime that has been available for longer is ended, unless the forecast needs it.
    pub(in crate::keyed) keep: Duration,
}

/// What a worker gets.
#[derive(Debug)]
pub(in crate::keyed) enum Acquired<R> {
    /// It has the wanted key.
    Reused(RuntimeId, R),
    /// It must be adapted.
    Near(Near, R),
    /// It must be started.
    Start(RuntimeId),
    /// A runtime is being cleaned or started, and will probably be available before a new one would be ready.
    Wait(Wait),
}

/// Look again, with [`Look::Waiting`], whenever a runtime has become available or has ended. A request that stops waiting must
/// call [`KeyedState::waited`](super::KeyedState::waited).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) struct Wait {
    /// What the request waits for.
    pub(in crate::keyed) on: Awaited,
    /// The longest useful wait, from the first answer on.
    pub(in crate::keyed) patience: Duration,
}

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum Awaited {
    /// A runtime of its key that is being cleaned.
    Cleaning,
    /// A runtime of its base key that is being started ahead of demand.
    Ahead,
}

/// Which runtimes a request may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum Look {
    /// For a new request.
    First,
    /// For a request that could not adapt the runtime it got, or that waited without success.
    Again,
    /// For a waiting request: it continues to wait if there is none.
    Waiting(Awaited),
    /// None that exists: start one.
    Nowhere,
}

/// Why a runtime is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum Cause {
    /// A worker waits for it.
    Request,
    /// The forecast needs it.
    Ahead,
}

/// Why a runtime ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::keyed) enum End {
    /// It could not be cleaned or adapted, or had died.
    Destroyed,
    /// There were too many, or memory was short.
    Evicted,
    /// The forecast does not need it.
    LetGo,
}
