//! The times of an invocation's phases. The `Server-Timing` header, the REPORT line, the histograms and `pilot describe` use the
//! same stamps.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on `CLOCK_MONOTONIC`, nanoseconds. Workers stamp on the same clock, so stamps of both sides can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Instant(pub u64);

impl Instant {
    /// Time since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The point `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// Whether an invocation had to wait for a worker to start. Never guessed from latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum StartKind {
    /// A worker was free, or became free.
    Warm,
    /// It waited for a worker that was started for it.
    Cold,
    /// It waited for a worker that was started for another invocation (or by a forecast) and was still starting.
    ColdShared,
}

impl StartKind {
    /// `cold` or `warm`: the value of the `X-Pilot-Start` header.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold | Self::ColdShared => "cold",
        }
    }
}

/// Where the worker of an invocation came from. It names the phase that ends with the worker's first instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkerOrigin {
    /// It was forked from a template.
    #[default]
    Fork,
    /// Its interpreter was started for it (`template = "off"`).
    Exec,
    /// It got a runtime that was kept, adapted or started.
    Runtime,
}

impl WorkerOrigin {
    /// The name of its phase.
    #[must_use]
    pub fn phase(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Exec => "exec",
            Self::Runtime => "runtime",
        }
    }
}

/// The stamps of one invocation, in their order. `None`: that phase did not take place (a warm
/// invocation forks nothing).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Timeline {
    /// Where the worker came from.
    #[serde(default)]
    pub origin: WorkerOrigin,
    /// The request's head was read.
    pub received: Instant,
    /// Look-up, authorisation and limits are done. If the body came together with the head: it has been read, too.
    pub admitted: Option<Instant>,
    /// It got a worker (perhaps one that is still starting), or gave up waiting for one.
    pub leased: Option<Instant>,
    /// The worker's first instruction.
    pub forked: Option<Instant>,
    /// The worker is in its namespaces and cgroup, with its privileges dropped. `None` for [`WorkerOrigin::Runtime`], whose
    /// sandbox exists before.
    pub sandboxed: Option<Instant>,
    /// The handler is imported and the hooks have run, or the start has failed.
    pub initialised: Option<Instant>,
    /// Its worker was frozen or throttled, and may run again. `None`: it did not rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thawed: Option<Instant>,
    /// The payload and the inputs were complete. `None`: they were complete when the invocation was admitted.
    #[serde(default)]
    pub inputs_ready: Option<Instant>,
    /// The handler was called.
    pub started: Option<Instant>,
    /// The first byte of the answer came from the worker.
    pub first_byte: Option<Instant>,
    /// The handler returned, or was ended: by its timeout, by a crash, by the kernel, because the client hung up.
    pub returned: Option<Instant>,
    /// The answer is complete.
    pub finished: Option<Instant>,
}

impl Timeline {
    /// A timeline that has just begun.
    #[must_use]
    pub fn new(received: Instant) -> Self {
        Self {
            origin: WorkerOrigin::default(),
            received,
            admitted: None,
            leased: None,
            forked: None,
            sandboxed: None,
            initialised: None,
            thawed: None,
            inputs_ready: None,
            started: None,
            first_byte: None,
            returned: None,
            finished: None,
        }
    }

    /// Each phase that took place: the name of the stamp that ends it, and the time since the previous stamp. Concurrent phases
    /// count from the end of the one that ended first. The durations add up to the total.
    pub fn phases(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        // A warm invocation leases its worker after its inputs have arrived; a cold one waits for both at the same time.
        let inputs_first = self.inputs_ready.filter(|_| self.initialised.is_none());
        let inputs_last = self.inputs_ready.filter(|_| self.initialised.is_some());
        let stamps = [
            ("admit", self.admitted),
            ("inputs", inputs_first),
            ("lease", self.leased),
            ("thaw", self.thawed),
            (self.origin.phase(), self.forked),
            ("sandbox", self.sandboxed),
            ("init", self.initialised),
            ("inputs", inputs_last),
            ("start", self.started),
            ("handler", self.returned),
            ("answer", self.finished),
        ];
        let mut before = self.received;
        stamps.into_iter().filter_map(move |(name, stamp)| {
            let stamp = stamp?;
            let took = stamp.since(before);
            before = before.max(stamp);
            Some((name, took))
        })
    }

    /// How long it waited for a worker: for a start, behind those that wait for one, or for a busy worker. From its admission, or from
    /// when its inputs were complete if the worker was leased after that, until it had a worker or gave up. `None`: it never asked for
    /// one.
    #[must_use]
    pub fn worker_wait(&self) -> Option<Duration> {
        let inputs_first = self.inputs_ready.filter(|_| self.initialised.is_none());
        let asked = inputs_first.or(self.admitted).unwrap_or(self.received);
        let had = self.initialised.max(self.leased)?;
        Some(had.since(asked))
    }

    /// From received to finished.
    #[must_use]
    pub fn total(&self) -> Option<Duration> {
        Some(self.finished?.since(self.received))
    }

    /// The time of the handler alone, also if it did not return: what Lambda calls Duration.
    #[must_use]
    pub fn handler(&self) -> Option<Duration> {
        Some(self.returned?.since(self.started?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(of: u64) -> Option<Instant> {
        Some(Instant(of))
    }

    #[test]
    fn the_wait_for_a_worker_ends_when_there_is_one_whoever_started_it() {
        let mut line = Timeline::new(Instant(10));
        assert_eq!(line.worker_wait(), None);
        (line.admitted, line.leased) = (at(12), at(15));
        // It waited for a busy worker, or behind others for a start.
        assert_eq!(line.worker_wait(), Some(Duration::from_nanos(3)));
        // Its inputs were there first.
        line.inputs_ready = at(14);
        assert_eq!(line.worker_wait(), Some(Duration::from_nanos(1)));
        // Its own start took until 40, beside its inputs.
        line.initialised = at(40);
        assert_eq!(line.worker_wait(), Some(Duration::from_nanos(28)));
    }
}
