//! The settings, inputs and outputs of a pool's state machine.

use std::time::Duration;

use pilot_model::{
    Behaviour, EndReason, FunctionConfig, Instant, KeepAlive, Reuse, StartKind, StartRule,
};

/// What shapes a pool's decisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Workers that are always kept.
    pub min: u32,
    /// Most workers at once.
    pub max: u32,
    /// Idle workers kept in addition to the busy ones, while the function is in use.
    pub spare: u32,
    /// An idle worker is reaped after this, unless a forecast says otherwise. `idle_s`.
    pub reap_after: Duration,
    /// After a request, the function is hot for this long: spare workers are kept. `idle_s` as well.
    pub hot_for: Duration,
    /// Invocations of one worker at the same time; at least 1.
    pub concurrency: u32,
    /// Whether a worker serves more than one invocation.
    pub reuse: Reuse,
    /// Most requests that wait; at least 1, because a request waits while its worker starts.
    pub queue_max: usize,
    /// When idle workers rest. `None`: they do not.
    pub rest: Option<RestTimes>,
    /// When another worker is started for requests that wait.
    pub start_rule: StartRule,
    /// Most short starts for waiting requests that are in progress at once ([`short_starts_max`]); at least 1.
    pub short_starts_max: u32,
}

impl Settings {
    /// From a function's configuration, for a machine with this many CPUs.
    #[must_use]
    pub fn new(
        config: &FunctionConfig,
        queue_max: usize,
        start_rule: StartRule,
        cpus: usize,
    ) -> Self {
        Self {
            min: config.scale.min,
            max: config.scale.max,
            spare: config.scale.spare,
            reap_after: match config.keep_alive.behaviour {
                Behaviour::Template => Duration::ZERO,
                Behaviour::Run | Behaviour::Freeze | Behaviour::Throttle => config.scale.idle,
            },
            hot_for: config.scale.idle,
            concurrency: config.concurrency,
            reuse: config.reuse,
            queue_max: queue_max.max(1),
            rest: RestTimes::new(&config.keep_alive),
            start_rule,
            short_starts_max: short_starts_max(cpus),
        }
    }
}

/// [`Settings::short_starts_max`] for a machine with this many CPUs: twice as many. A short start computes, so further ones would only
/// wait for those before them.
#[must_use]
pub fn short_starts_max(cpus: usize) -> u32 {
    u32::try_from(cpus).map_or(u32::MAX, |cpus| cpus.max(1).saturating_mul(2))
}

/// When an idle worker rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestTimes {
    /// It is frozen or throttled after this long.
    pub after: Duration,
    /// Its memory is reclaimed after this long. `None`: it is not.
    pub reclaim_after: Option<Duration>,
}

impl RestTimes {
    /// `None`: workers do not rest.
    #[must_use]
    pub fn new(keep_alive: &KeepAlive) -> Option<Self> {
        let how = keep_alive.rest()?;
        Some(Self {
            after: keep_alive.after,
            reclaim_after: (how == pilot_model::Rest::Freeze).then_some(keep_alive.reclaim_after),
        })
    }

    pub(super) fn of(self, stage: RestStage) -> Option<Duration> {
        match stage {
            RestStage::Rest => Some(self.after),
            RestStage::Reclaim => self.reclaim_after,
        }
    }
}

/// What is done to an idle worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestStage {
    /// It is frozen or throttled.
    Rest,
    /// Its memory is reclaimed.
    Reclaim,
}

/// A worker's place in the pool. It is free for another worker only after this worker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub(super) u32);

/// A request in the queue, numbered in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub(super) u64);

/// Whether a caller waits for the answer of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Class {
    /// One does.
    #[default]
    Caller,
    /// Nobody does: it is an attempt of an asynchronous invocation, which can be repeated. It is served after those of callers.
    Background,
}

/// Whom an announced request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Its sender, who may never send the rest of it.
    Sender,
    /// The daemon, which fetches its inputs: all of it has arrived.
    Inputs,
}

/// How urgent a request is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Urgency {
    /// Whether a caller waits for it.
    pub class: Class,
    /// When its answer is of no more use. `None`: its caller does not say.
    pub finish_by: Option<Instant>,
}

impl Urgency {
    /// A caller waits and does not say for how long.
    pub const CALLER: Self = Self {
        class: Class::Caller,
        finish_by: None,
    };
    /// Nobody waits.
    pub const BACKGROUND: Self = Self {
        class: Class::Background,
        finish_by: None,
    };
}

/// What happens to a request that arrives.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<W> {
    /// A worker is free: lease it. [`StartKind`] is warm, or, if the request was announced, says what it waited for.
    Leased(Key, W, StartKind),
    /// It waits.
    Queued(WaiterId),
    /// It would have to wait for longer than it may: about so long.
    Late(Duration),
    /// The queue is full. How long the requests in it wait, if that is known.
    Full(Option<Duration>),
    /// The pool is closed.
    Closed,
}

/// What the driver must do, in this order. `W` is a worker, `Q` the handle of a waiting request.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<W, Q> {
    /// Start a worker, then call [`PoolState::ready`](super::PoolState::ready) or
    /// [`PoolState::start_failed`](super::PoolState::start_failed).
    Start(Key),
    /// This request's wait is over: it has a lease on this worker.
    Give {
        /// The handle of the request.
        to: Q,
        /// The worker's place.
        key: Key,
        /// The worker.
        worker: W,
        /// What the request waited for.
        kind: StartKind,
        /// Whether the worker has just started, so that its start is part of the wait.
        fresh: bool,
    },
    /// This request fails with the error of the start that has just failed, or because the pool is closed.
    Fail(Q),
    /// This request is refused: it can no longer be served in time, or has given its place up to a caller.
    Refuse(Q),
    /// End this worker: it is no longer in the pool.
    Retire(W, EndReason),
    /// This worker is idle: let it rest, unless it has been leased in the meantime.
    Rest(W, RestStage),
}

/// How a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The worker can serve on.
    Reusable,
    /// The lease was never used.
    Unused,
    /// The worker is dead or must not be used again, for this reason.
    Lost(EndReason),
}

/// Why a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFault {
    /// The handler cannot be imported. If no start has succeeded, another attempt would fail too; otherwise it fails the request for which
    /// the start was ordered, as on AWS Lambda.
    Import,
    /// The runtime or the machine failed: the next attempt may succeed.
    Transient,
    /// The machine has no room for another worker. This is no fault of the function: requests wait for the workers that serve.
    Full,
}

/// How many workers there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Being started.
    pub starting: u32,
    /// Without a lease.
    pub idle: u32,
    /// With a lease.
    pub busy: u32,
    /// Requests in the queue.
    pub waiting: u32,
}
