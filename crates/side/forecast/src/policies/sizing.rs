//! From a rate to a number of workers: Little's law, N = ⌈λT̄⌉ + M (Edge FaaS, Eq. 3), for workers with `concurrency` slots,
//! limited to `scale.max`.

use std::fmt;

use pilot_model::ScaleConfig;
use pilot_model::forecast::{Target, Tick};

/// The constants of the sizing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizing {
    margin: u32,
    max: u32,
}

/// One application of the law: the inputs, for [`fmt::Display`], and the result.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Sized {
    need: Need,
    margin: u32,
    concurrency: u32,
    bounded: bool,
    workers: u32,
}

/// How many invocations are expected to run at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Need {
    /// λT̄.
    Product { rate: f64, service_s: f64 },
    /// The maximum that ran at once: used instead of λT̄ until a service time is measured.
    Seen(u32),
    /// A forecast number of invocations.
    Forecast(f64),
}

impl Default for Need {
    fn default() -> Self {
        Self::Seen(0)
    }
}

impl Sizing {
    /// With the safety margin M of `margin` workers.
    pub(super) fn new(margin: u32, scale: &ScaleConfig) -> Self {
        Self {
            margin,
            max: scale.max,
        }
    }

    /// The workers for `rate` arrivals per second, with the service time of `tick`.
    pub(super) fn by_rate(&self, rate: f64, tick: &Tick) -> Sized {
        let need = tick
            .service
            .map_or(Need::Seen(tick.demand_max), |service| Need::Product {
                rate,
                service_s: service.as_secs_f64(),
            });
        self.size(need, tick.concurrency)
    }

    /// The workers for `invocations` concurrent invocations.
    pub(super) fn by_count(&self, invocations: f64, tick: &Tick) -> Sized {
        self.size(Need::Forecast(invocations), tick.concurrency)
    }

    fn size(&self, need: Need, concurrency: u32) -> Sized {
        let expected = match need {
            Need::Product { rate, service_s } => rate * service_s,
            Need::Seen(invocations) => f64::from(invocations),
            Need::Forecast(invocations) => invocations,
        };
        let concurrency = concurrency.max(1);
        let wanted = whole(expected)
            .saturating_add(self.margin)
            .div_ceil(concurrency);
        Sized {
            need,
            margin: self.margin,
            concurrency,
            bounded: wanted > self.max,
            workers: wanted.min(self.max),
        }
    }
}

impl Sized {
    /// The target; workers beyond it are kept for `idle_s`.
    pub(super) fn target(&self) -> Target {
        Target {
            workers: self.workers,
            idle: None,
        }
    }
}

/// What is kept, and how it was calculated: `8 workers are kept: 12.3/s × 0.510 s + 1`.
impl fmt::Display for Sized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kept: ", workers_are(self.workers))?;
        match self.need {
            Need::Product { rate, service_s } => {
                write!(f, "{rate:.1} requests/s × {service_s:.3} s each")?;
            }
            Need::Seen(count) => {
                write!(f, "{count} requests at once (no duration measured yet)")?;
            }
            Need::Forecast(count) => write!(f, "{count:.1} requests at once")?,
        }
        if self.margin > 0 {
            write!(f, " + {} spare", self.margin)?;
        }
        if self.concurrency > 1 {
            write!(f, ", {} per worker", self.concurrency)?;
        }
        if self.bounded {
            f.write_str(", at most scale.max")?;
        }
        Ok(())
    }
}

/// `1 worker is`, `3 workers are`.
pub(super) fn workers_are(count: u32) -> String {
    match count {
        0 => "no worker is".to_owned(),
        1 => "1 worker is".to_owned(),
        _ => format!("{count} workers are"),
    }
}

/// ⌈x⌉ as a count: 0 for a NaN, at most `u32::MAX`.
///
/// Less than a thousandth counts as zero. An exponentially smoothed rate never reaches zero, and ⌈10⁻³⁰⌉ would hold a worker
/// forever after one request. For the same reason, a rounding error in a product must not add a worker.
pub(super) fn whole(x: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates, and makes 0 of a NaN and of what is negative"
    )]
    let count = (x - NEGLIGIBLE).ceil() as u32;
    count
}

const NEGLIGIBLE: f64 = 1e-3;

#[cfg(test)]
mod tests {
    use super::super::tests::{scale, tick};
    use super::*;
    use std::time::Duration;

    fn sized(rate: f64, service_ms: u64, concurrency: u32, margin: u32, max: u32) -> Sized {
        let tick = Tick {
            service: Some(Duration::from_millis(service_ms)),
            concurrency,
            ..tick()
        };
        Sizing::new(margin, &scale(max)).by_rate(rate, &tick)
    }

    #[test]
    fn the_papers_static_15_is_its_littles_law() {
        // §4.2: 30 × 0.5 = 15.
        assert_eq!(sized(30.0, 500, 1, 0, 64).target().workers, 15);
    }

    #[test]
    fn the_target_is_equation_3() {
        // ⌈12.3 × 0.51⌉ + 1 = ⌈6.273⌉ + 1
        let sized = sized(12.3, 510, 1, 1, 64);
        assert_eq!(sized.target().workers, 8);
        assert_eq!(
            sized.to_string(),
            "8 workers are kept: 12.3 requests/s × 0.510 s each + 1 spare"
        );
    }

    #[test]
    fn workers_that_serve_several_are_fewer() {
        // ⌈(7 + 1) / 3⌉
        let sized = sized(12.3, 510, 3, 1, 64);
        assert_eq!(sized.target().workers, 3);
        assert_eq!(
            sized.to_string(),
            "3 workers are kept: 12.3 requests/s × 0.510 s each + 1 spare, 3 per worker"
        );
    }

    #[test]
    fn the_target_is_within_max() {
        let sized = sized(1e6, 500, 1, 1, 64);
        assert_eq!(sized.target().workers, 64);
        let said = sized.to_string();
        assert!(said.starts_with("64 workers are kept: ") && said.ends_with(", at most scale.max"));
    }

    #[test]
    fn what_is_left_of_smoothed_traffic_holds_nothing() {
        assert_eq!(sized(1e-12, 500, 1, 0, 64).target().workers, 0);
    }

    #[test]
    fn before_a_service_time_is_known_the_most_at_once_counts() {
        let tick = Tick {
            demand_max: 5,
            busy_max: 0,
            ..tick()
        };
        let sized = Sizing::new(1, &scale(64)).by_rate(100.0, &tick);
        assert_eq!(sized.target().workers, 6);
    }

    #[test]
    fn nothing_finite_or_not_gets_past_the_bounds() {
        let sizing = Sizing::new(u32::MAX, &scale(64));
        for count in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, -1.0] {
            assert!(sizing.by_count(count, &tick()).target().workers <= 64);
        }
        assert_eq!(whole(f64::NAN), 0);
    }
}
