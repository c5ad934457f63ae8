//! Forecasters, and the task that ticks them. Ticks run on a thread for blocking work, so that no request ever waits for a forecast,
//! however long it takes.
//!
//! Both kinds of pools use it: the pools of workers have one forecaster each, the keyed pool has one for each base key.

use std::fmt::{Debug, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::status::ForecastStatus;
use pilot_model::{Instant, ScaleConfig};
use tokio::sync::Notify;

/// A forecaster with its newest target.
#[derive(Debug)]
pub(crate) struct Forecast {
    /// The settings from which the forecaster was made.
    pub(crate) scale: ScaleConfig,
    forecaster: Box<dyn Forecaster>,
    target: Target,
    /// When it ticks next.
    pub(crate) due: Instant,
}

impl Forecast {
    pub(crate) fn new(scale: ScaleConfig, forecaster: Box<dyn Forecaster>) -> Self {
        Self {
            scale,
            forecaster,
            target: Target::default(),
            due: Instant(0),
        }
    }

    /// Waits for one interval before the first tick.
    pub(crate) fn after_an_interval(mut self, now: Instant) -> Self {
        self.due = now.after(self.forecaster.interval());
        self
    }

    /// Ticks. `None`: the forecaster panicked, and must not be used again. `whose` is for the log.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        seen: &Tick,
        whose: impl Display,
    ) -> Option<Target> {
        let tick = AssertUnwindSafe(|| (self.forecaster.tick(seen), self.forecaster.interval()));
        if let Ok((target, interval)) = catch_unwind(tick) {
            self.target = target;
            self.due = next_due(self.due, now, interval);
            Some(target)
        } else {
            tracing::error!(%whose, "the forecaster panicked: its forecasts end");
            None
        }
    }

    pub(crate) fn status(&self) -> ForecastStatus {
        ForecastStatus {
            policy: self.scale.policy.to_string(),
            target: self.target.workers,
            idle_s: self.target.idle.map(|idle| idle.as_secs_f64()),
            reason: self.forecaster.reason(),
        }
    }
}

/// Calls `tick` on a thread for blocking work, again and again: after the pause that it returns, or as soon as `wake` is notified.
/// Ends when nobody else holds `owner`.
pub(crate) async fn drive<T>(
    owner: Weak<T>,
    wake: Arc<Notify>,
    tick: impl Fn(&Arc<T>) -> Duration + Copy + Send + 'static,
) where
    T: Debug + Send + Sync + 'static,
{
    loop {
        let Some(strong) = owner.upgrade() else {
            return;
        };
        let pause = tokio::task::spawn_blocking(move || tick(&strong)).await;
        let pause = pause.unwrap_or_else(|error| {
            tracing::error!(%error, "a tick of the forecasts failed");
            RETRY_AFTER
        });
        tokio::select! {
            () = wake.notified() => {}
            () = tokio::time::sleep(pause.min(LONGEST_PAUSE)) => {}
        }
    }
}

/// An interval after the tick that was due at `due` and came at `now`, on a common grid: then a thousand forecasters wake the machine
/// forty times a second and not a thousand times. A tick that came late by less than the grid's step does not delay the next ones. After
/// a longer delay, or a first tick, the interval counts from `now`.
fn next_due(due: Instant, now: Instant, interval: Duration) -> Instant {
    let late = now.0.saturating_sub(due.0);
    let from = if late < GRID { due } else { now };
    let at = from.after(interval).0;
    Instant(at.div_ceil(GRID).saturating_mul(GRID))
}

/// 25 ms.
const GRID: u64 = 25_000_000;
/// After a tick that panicked.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// A manual clock may be set meanwhile.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(200);

    fn at(ms: f64) -> Instant {
        Instant(0).after(Duration::from_secs_f64(ms / 1e3))
    }

    #[test]
    fn ticks_lie_on_a_common_grid_and_a_first_one_is_not_followed_too_early() {
        for now in [25.0, 38.3, 1_000.0, 1_013.3] {
            let next = next_due(Instant(0), at(now), INTERVAL);
            assert_eq!(next.0 % GRID, 0, "{now}");
            assert!(next >= at(now + 200.0), "{now}");
            assert!(next <= at(now + 225.0), "{now}");
        }
    }

    #[test]
    fn ticks_that_come_a_little_late_keep_their_interval() {
        let mut due = at(1_000.0);
        for (tick, late) in [1.3, 0.0, 24.9, 2.0].into_iter().enumerate() {
            due = next_due(
                due,
                due.after(Duration::from_secs_f64(late / 1e3)),
                INTERVAL,
            );
            let expected = 1_000.0 + 200.0 * (tick as f64 + 1.0);
            assert_eq!(due, at(expected));
        }
        // It does not catch up with ticks that were missed.
        assert_eq!(next_due(due, at(5_000.0), INTERVAL), at(5_200.0));
    }
}
