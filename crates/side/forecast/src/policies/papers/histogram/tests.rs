use super::*;
use crate::policies::tests::{scale, tick};

/// A function over ticks of two seconds: invoked at the given seconds, each time for a tenth of a second.
struct Life {
    histogram: Histogram,
    now_s: u64,
    last_arrival: Option<Instant>,
}

impl Life {
    fn new(constants: HistogramPolicy) -> Self {
        Self {
            histogram: Histogram::new(constants, &scale(64)),
            now_s: 0,
            last_arrival: None,
        }
    }

    /// Ticks until `until_s`, with `arrivals` in the first one. Returns the newest target.
    fn pass(&mut self, arrivals: u64, until_s: u64) -> Target {
        let mut arrivals = arrivals;
        let mut target = Target::default();
        while self.now_s < until_s {
            if arrivals > 0 {
                self.last_arrival = Some(Instant(self.now_s * 1_000_000_000));
            }
            self.now_s += 2;
            target = self.histogram.tick(&Tick {
                now: Instant(self.now_s * 1_000_000_000),
                span: Duration::from_secs(2),
                arrivals,
                last_arrival: self.last_arrival,
                demand_max: u32::try_from(arrivals).unwrap(),
                busy_max: 0,
                service: Some(Duration::from_millis(100)),
                ..tick()
            });
            arrivals = 0;
        }
        target
    }

    /// One invocation every `period_s`, `times` times; ends when the last one begins.
    fn every(&mut self, period_s: u64, times: u64) {
        for _ in 0..times {
            self.pass(1, self.now_s + period_s);
        }
    }
}

#[test]
fn a_new_function_has_the_standard_keep_alive_which_is_the_range() {
    let mut life = Life::new(HistogramPolicy::default());
    let target = life.pass(1, 10);
    assert_eq!(target.idle, Some(Duration::from_secs(4 * 3600)));
    assert_eq!(target.workers, 0);
    assert_eq!(
        life.histogram.reason(),
        "each worker is kept for 14400 s after a request; 0 pauses between requests (0 more were too long to count) are too few to learn from"
    );
}

#[test]
fn a_period_is_prewarmed_shortly_before_it_ends() {
    let mut life = Life::new(HistogramPolicy::default());
    // Idle times of 1199.9 s: minute 19. From 19 × 60 × 0.9 = 1026 s to 20 × 60 × 1.1 = 1320 s.
    life.every(1200, 12);
    let begins = life.now_s;
    let unloaded = Target {
        workers: 0,
        idle: Some(Duration::ZERO),
    };
    let held = Target {
        workers: 1,
        idle: Some(Duration::ZERO),
    };
    assert_eq!(life.pass(1, begins + 2), unloaded);
    assert_eq!(life.pass(0, begins + 1024), unloaded);
    assert_eq!(life.pass(0, begins + 1028), held);
    assert_eq!(
        life.histogram.reason(),
        "1 worker is kept: 1.0 requests at once, from 1026 s to 1320 s after a request; most of 12 pauses between requests (5 % to 99 %) ended within that time"
    );
    assert_eq!(life.pass(0, begins + 1318), held);
    assert_eq!(life.pass(0, begins + 1322), unloaded);
}

#[test]
fn as_many_are_prewarmed_as_the_burst_before_needed() {
    // If five arrive at once, four have an idle time of zero. With the paper's head percentile, the window begins at the first
    // bin, so nothing is ever unloaded. The 90th percentile is the pause.
    let mut life = Life::new(HistogramPolicy {
        head_percentile: 90.0,
        ..HistogramPolicy::default()
    });
    for _ in 0..12 {
        life.pass(5, life.now_s + 1200);
    }
    let begins = life.now_s;
    assert_eq!(life.pass(3, begins + 1024).workers, 0);
    assert_eq!(life.pass(0, begins + 1030).workers, 3);
}

#[test]
fn frequent_traffic_is_kept_as_long_as_its_tail_and_never_unloaded() {
    let mut life = Life::new(HistogramPolicy::default());
    life.every(10, 100);
    let target = life.pass(1, life.now_s + 2);
    // All in the first minute: from 0 to 60 × 1.1.
    assert_eq!(target.idle, Some(Duration::from_secs(66)));
}

#[test]
fn idle_times_that_are_spread_evenly_say_nothing() {
    let mut life = Life::new(HistogramPolicy {
        range_s: 600.0,
        keep_alive_s: 600.0,
        ..HistogramPolicy::default()
    });
    for round in 0..40 {
        life.pass(1, life.now_s + 30 + (round % 10) * 60);
    }
    assert_eq!(life.histogram.windows.origin, Origin::Standard);
    assert!(life.histogram.idle_times.variation() < 2.0);
}

#[test]
fn idle_times_beyond_the_range_are_forecast_one_by_one() {
    let mut life = Life::new(HistogramPolicy {
        range_s: 600.0,
        keep_alive_s: 600.0,
        ..HistogramPolicy::default()
    });
    life.every(1000, 9);
    assert_eq!(life.histogram.windows.origin, Origin::Standard);
    life.every(1000, 3);
    let windows = life.histogram.windows;
    assert_eq!(windows.origin, Origin::Arima);
    // 1000 s, minus the tenth of a second that it ran: 15 % on either side.
    assert!((windows.from_s - 850.0).abs() < 5.0, "{windows:?}");
    assert!((windows.to_s - 1150.0).abs() < 5.0, "{windows:?}");
}

#[test]
fn a_function_that_runs_is_not_idle() {
    let mut life = Life::new(HistogramPolicy::default());
    life.pass(1, 2);
    for second in 2..100 {
        life.histogram.tick(&Tick {
            now: Instant(second * 2_000_000_000),
            span: Duration::from_secs(2),
            arrivals: 1,
            demand: 1,
            demand_max: 2,
            busy_max: 0,
            ..tick()
        });
    }
    // One arrival in every tick while another runs: 97 idle times of zero, and the one of the pause before.
    assert_eq!(life.histogram.idle_times.within(), 98);
    assert_eq!(life.histogram.idle_times.tail_s(), 60.0);
}

#[test]
fn a_function_takes_less_than_a_kilobyte_and_a_half() {
    let histogram = Histogram::new(HistogramPolicy::default(), &scale(64));
    assert!(size_of::<Histogram>() + histogram.idle_times.bytes() <= 1536);
}
