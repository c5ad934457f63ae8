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
            self.due = next_on_grid(now, interval);
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

/// The first multiple of [`GRID`] at or after `now + interval`. On a common grid, a thousand forecasters wake the machine forty times
/// a second and not a thousand times.
fn next_on_grid(now: Instant, interval: Duration) -> Instant {
    let at = now.after(interval).0;
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

    #[test]
    fn ticks_lie_on_a_common_grid_and_never_come_too_early() {
        let interval = Duration::from_millis(200);
        for now in [0, 1, 24_999_999, 25_000_000, 1_000_000_007] {
            let at = next_on_grid(Instant(now), interval);
            assert_eq!(at.0 % GRID, 0);
            assert!(at >= Instant(now).after(interval));
            assert!(at <= Instant(now).after(interval + Duration::from_millis(25)));
        }
    }
}
