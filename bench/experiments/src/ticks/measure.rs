//! Measures ticks: one forecaster many times, and many forecasters in turn as in the daemon.

use std::time::{Duration, Instant as Wall};

use pilot_forecast::forecaster;
use pilot_model::forecast::{Forecaster, Tick};
use pilot_model::policy::Policy;
use pilot_model::{Instant, ScaleConfig};
use serde::Serialize;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Runs {
    /// Ticks of the one forecaster.
    pub(super) ticks: u32,
    /// Forecasters that are ticked in turn.
    pub(super) functions: u32,
    /// How often all of them are ticked.
    pub(super) rounds: u32,
}

/// The times of one policy's ticks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TickTimes {
    /// The policy with its constants.
    pub(super) policy: String,
    /// Ticks of the one forecaster.
    pub(super) ticks: u32,
    /// One tick, nanoseconds: the median.
    pub(super) tick_ns_p50: u64,
    /// One tick, nanoseconds: the 99th percentile.
    pub(super) tick_ns_p99: u64,
    /// One tick, nanoseconds: the longest.
    pub(super) tick_ns_max: u64,
    /// The time to read the clock, nanoseconds (median). It is included in the times above.
    pub(super) clock_ns: u64,
    /// Forecasters that were ticked in turn.
    pub(super) functions: u32,
    /// One tick of each of them, milliseconds: the median.
    pub(super) round_ms_p50: f64,
    /// One tick of each of them, milliseconds: the longest.
    pub(super) round_ms_max: f64,
}

/// Measures `policy` with mixed traffic: bursts, noise, rare requests, none. `None` for `demand`, which has no ticks.
pub(super) fn tick_times(policy: &Policy, runs: Runs) -> Option<TickTimes> {
    let scale = ScaleConfig {
        min: 0,
        max: 10_000,
        spare: 0,
        idle: Duration::from_secs(6),
        policy: *policy,
        max_wait: None,
        reserved: 0,
    };
    let mut one = Traffic::new(forecaster(policy, &scale)?, 0);
    let mut many: Vec<Traffic> = (0..runs.functions)
        .filter_map(|number| Some(Traffic::new(forecaster(policy, &scale)?, number)))
        .collect();
    let mut clock: Vec<u64> = (0..1000).map(|_| nanos(Wall::now().elapsed())).collect();
    // The first ticks fill windows and touch memory for the first time.
    for _ in 0..WARM_UP {
        one.pass();
    }
    let mut ticks: Vec<u64> = (0..runs.ticks.max(1)).map(|_| one.pass()).collect();
    many.iter_mut().for_each(Traffic::hurry);
    let mut rounds: Vec<u64> = (0..runs.rounds.max(1))
        .map(|_| {
            let ready: Vec<Tick> = many.iter_mut().map(Traffic::next).collect();
            let begin = Wall::now();
            for (function, tick) in many.iter_mut().zip(&ready) {
                std::hint::black_box(function.forecaster.tick(tick));
            }
            nanos(begin.elapsed())
        })
        .collect();
    Some(TickTimes {
        policy: policy.to_string(),
        ticks: runs.ticks,
        tick_ns_p50: quantile(&mut ticks, 50),
        tick_ns_p99: quantile(&mut ticks, 99),
        tick_ns_max: quantile(&mut ticks, 100),
        clock_ns: quantile(&mut clock, 50),
        functions: runs.functions,
        round_ms_p50: Duration::from_nanos(quantile(&mut rounds, 50)).as_secs_f64() * 1e3,
        round_ms_max: Duration::from_nanos(quantile(&mut rounds, 100)).as_secs_f64() * 1e3,
    })
}

/// A forecaster and its traffic.
struct Traffic {
    forecaster: Box<dyn Forecaster>,
    /// Selects the kind of traffic.
    number: u32,
    /// Number of ticks so far. Functions begin at different positions of their cycles.
    turn: u64,
    noise: u64,
    last_arrival: Option<Instant>,
}

impl Traffic {
    fn new(forecaster: Box<dyn Forecaster>, number: u32) -> Self {
        Self {
            forecaster,
            number,
            turn: u64::from(number) * 7,
            noise: u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            last_arrival: None,
        }
    }

    /// One tick. Returns its duration in nanoseconds.
    fn pass(&mut self) -> u64 {
        let tick = self.next();
        let begin = Wall::now();
        std::hint::black_box(self.forecaster.tick(&tick));
        nanos(begin.elapsed())
    }

    /// A few ticks that are not measured.
    fn hurry(&mut self) {
        for _ in 0..4 {
            let tick = self.next();
            self.forecaster.tick(&tick);
        }
    }

    fn next(&mut self) -> Tick {
        self.turn += 1;
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        let noise = self.noise % 8;
        let cycle = self.turn % 28;
        let arrivals = match self.number % 4 {
            0 if cycle < 17 => 4 + noise,
            0 if cycle < 22 => 13 * (cycle - 16),
            0 => 0,
            1 => 20 + noise,
            2 if self.turn.is_multiple_of(300) => 1,
            _ => 0,
        };
        let span = self.forecaster.interval();
        let now = Instant(0).after(span * u32::try_from(self.turn).unwrap_or(u32::MAX));
        if arrivals > 0 {
            self.last_arrival = Some(now);
        }
        let demand = u32::try_from(arrivals / 4).unwrap_or(u32::MAX);
        Tick {
            now,
            span,
            arrivals,
            last_arrival: self.last_arrival,
            demand,
            demand_max: demand + 1,
            busy_max: demand,
            workers: demand,
            concurrency: 1,
            service: Some(Duration::from_millis(500)),
            start: Some(Duration::from_millis(100)),
            worker_bytes: Some(12 << 20),
        }
    }
}

/// The percentile; sorts the values.
fn quantile(values: &mut [u64], percent: usize) -> u64 {
    values.sort_unstable();
    let place = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(place).copied().unwrap_or(0)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const WARM_UP: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_measured_but_demand_which_has_no_ticks() {
        for policy in Policy::all() {
            let runs = Runs {
                ticks: 100,
                functions: 10,
                rounds: 2,
            };
            let Some(times) = tick_times(&policy, runs) else {
                assert_eq!(policy, Policy::Demand);
                continue;
            };
            assert!(times.tick_ns_p50 <= times.tick_ns_p99, "{times:?}");
            assert!(times.tick_ns_p99 <= times.tick_ns_max, "{times:?}");
            // A generous limit, for debug builds on busy machines.
            assert!(times.tick_ns_p50 < 200_000_000, "{times:?}");
        }
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut values = [5, 1, 4, 2, 3];
        assert_eq!(quantile(&mut values, 50), 3);
        assert_eq!(quantile(&mut values, 99), 5);
        assert_eq!(quantile(&mut [], 50), 0);
    }
}
