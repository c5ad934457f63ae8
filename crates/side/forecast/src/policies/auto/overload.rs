//! What it costs if the k-th worker is missing when it is needed: the time of a start, or less.
//!
//! If the need is a short excess, one of the k − 1 busy workers is free after about S/(k − 1), so nobody waits for the start. If the
//! need lasts until the start has ended, the busy workers do not catch up, and requests do wait for it. Which of the two is usual
//! for this worker is learned: the share of the time T after the beginning of a need in which it went on.

use std::time::Duration;

use pilot_model::Instant;

/// What is known about one worker's needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overload {
    /// The mean share of T, weighted towards newer needs.
    share: f64,
    /// The need that is being observed.
    open: Option<Open>,
}

/// A need that began less than T ago.
#[derive(Debug, Clone, Copy)]
struct Open {
    began: Instant,
    needed_s: f64,
    observed_s: f64,
}

impl Overload {
    /// The share before any observation.
    const SHARE: f64 = 0.3;
    /// The weight of the newest need.
    const NEWEST: f64 = 0.4;
    /// How much sooner than a start a busy worker is free is multiplied by this. It is above one because a short excess usually ends
    /// before a start that is ordered for it, and then the start was for nothing.
    const SOONER: f64 = 2.0;

    pub(super) fn new() -> Self {
        Self {
            share: Self::SHARE,
            open: None,
        }
    }

    /// A need began after the worker had not been needed for `gap`.
    pub(super) fn begin(&mut self, now: Instant, gap: Duration, start: Duration) {
        if self.open.is_none() && gap > start {
            self.open = Some(Open {
                began: now,
                needed_s: 0.0,
                observed_s: 0.0,
            });
        }
    }

    /// A tick ends now; `needed`: the worker is needed now.
    pub(super) fn see(&mut self, now: Instant, span: Duration, needed: bool, start: Duration) {
        let Some(open) = &mut self.open else {
            return;
        };
        if now.since(open.began) > start.max(span) {
            if open.observed_s > 0.0 {
                self.share += Self::NEWEST * (open.needed_s / open.observed_s - self.share);
            }
            self.open = None;
            return;
        }
        let span_s = span.as_secs_f64();
        open.observed_s += span_s;
        if needed {
            open.needed_s += span_s;
        }
    }

    /// The cost of a miss, as a share of T. `others`: the workers below this one.
    pub(super) fn miss(&self, others: u32, start_s: f64, service_s: f64) -> f64 {
        let sooner = Self::SOONER * f64::from(others) * start_s / (service_s + 1e-3);
        self.share + (1.0 - self.share) / (1.0 + sooner)
    }

    /// The clock was set back.
    pub(super) fn forget_times(&mut self) {
        self.open = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(200);
    const START: Duration = Duration::from_secs(1);

    /// Ten needs, of which each lasts for `ticks` ticks.
    fn after_needs_of(ticks: u64) -> Overload {
        let mut overload = Overload::new();
        for need in 0..10 {
            let began = Instant(need * 10_000_000_000);
            overload.begin(began, Duration::from_secs(5), START);
            for tick in 1..=10 {
                let now = Instant(began.0 + tick * 200_000_000);
                overload.see(now, TICK, tick <= ticks, START);
            }
        }
        overload
    }

    #[test]
    fn without_other_workers_a_miss_costs_a_start() {
        let miss = after_needs_of(0).miss(0, 1.0, 0.5);
        assert!((miss - 1.0).abs() < 1e-9, "{miss}");
    }

    #[test]
    fn a_short_excess_costs_less_the_more_workers_are_busy_and_a_lasting_one_costs_a_start() {
        let (short, lasting) = (after_needs_of(0), after_needs_of(10));
        assert!(short.miss(8, 1.0, 0.5) < 0.1, "{short:?}");
        assert!(
            short.miss(8, 1.0, 0.5) < short.miss(1, 1.0, 0.5),
            "{short:?}"
        );
        assert!(lasting.miss(8, 1.0, 0.5) > 0.9, "{lasting:?}");
    }

    #[test]
    fn a_gap_shorter_than_a_start_belongs_to_the_same_need() {
        let mut overload = Overload::new();
        overload.begin(Instant(0), TICK, START);
        assert!(overload.open.is_none());
    }
}
