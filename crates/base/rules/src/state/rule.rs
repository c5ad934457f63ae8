//! The rules of starts ([`StartRule`]): which questions decide whether one more start is ordered for waiting requests. Pure functions
//! of what the pool knows; `sizing.rs` answers the questions.
//!
//! All rules are the same where a start takes at most [`SHORT`], and where a worker serves one invocation in its life. Otherwise, with
//! `each` and `expected`, there are never more starts in progress than requests that wait.

use pilot_model::StartRule;

use super::sizing::Demand;

/// A start that takes no longer than this is short, nanoseconds. For short starts, `sooner` is right: a queue that it leaves is served
/// within a few of them. And few are in progress at once ([`Settings::short_starts_max`](super::Settings::short_starts_max)): while the
/// machine is busy with starts, starts and invocations take longer than the pool has measured, and each would seem to need more workers.
pub(crate) const SHORT: u64 = 20_000_000;

/// What the pool knows when it decides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    pub(crate) rule: StartRule,
    /// Requests that a start would serve.
    pub(crate) waiting: u64,
    /// Slots of the workers that are starting.
    pub(crate) coming: u64,
    /// Invocations that run.
    pub(crate) running: u64,
    /// S, nanoseconds; `None`: not known yet.
    pub(crate) service: Option<u64>,
    /// A worker that is ordered now is ready after this many nanoseconds, behind the starts in progress.
    pub(crate) start: u64,
    /// T, nanoseconds: a start that shares the machine with no other. `None`: none has been measured.
    pub(crate) latency: Option<u64>,
    /// Requests that are expected to arrive within [`horizon`] of T.
    pub(crate) expected: u64,
    /// Each worker serves one invocation in its life.
    pub(crate) once: bool,
}

/// A question to `sizing.rs`: whether a start pays that takes this time, for these requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) demand: Demand,
    pub(crate) starting: Starting,
}

/// How the workers count that are starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starting {
    /// From when they are expected to be ready, at the latest after this many nanoseconds.
    By(u64),
    /// As if they were ready.
    Ready,
    /// Not at all.
    LeftOut,
}

/// The questions that must all be answered with yes for one more start. `None`: no start, whatever the answers.
pub(crate) fn questions(now: Situation) -> Option<[Option<Question>; 2]> {
    let demand = Demand {
        waiting: now.waiting,
        service: now.service,
        start: now.start,
        once: now.once,
    };
    let sooner = Question {
        demand,
        starting: Starting::By(now.start),
    };
    let latency = now.latency.filter(|latency| *latency > SHORT);
    let Some(latency) = latency.filter(|_| now.rule != StartRule::Sooner && !now.once) else {
        return Some([Some(sooner), None]);
    };
    let left = now
        .waiting
        .checked_sub(now.coming)
        .filter(|left| *left > 0)?;
    let at_once = Demand {
        start: patience(latency),
        ..demand
    };
    if now.service.is_none() {
        // A start in progress serves one request. How long the others would wait, only the age of what runs can say.
        let rest = Question {
            demand: Demand {
                waiting: left,
                ..at_once
            },
            starting: Starting::LeftOut,
        };
        return Some([(now.running > 0).then_some(rest), None]);
    }
    let at_once = Question {
        demand: at_once,
        starting: Starting::Ready,
    };
    let expected = Question {
        demand: Demand {
            waiting: now.waiting.saturating_add(now.expected),
            start: horizon(latency),
            ..demand
        },
        starting: Starting::By(latency),
    };
    let counts_arrivals = now.rule == StartRule::Expected;
    Some([Some(at_once), counts_arrivals.then_some(expected)])
}

/// Requests that will be served within this time need no start: the wait is short beside that for the start, T.
pub(crate) fn patience(latency: u64) -> u64 {
    SHORT.max(latency / 60)
}

/// `expected` orders no start if the workers will have served every request by this time, of which T is the time of the start.
pub(crate) fn horizon(latency: u64) -> u64 {
    latency.saturating_mul(2)
}
