//! The number of workers that a tick would have needed if all of them had been ready at once.
//!
//! While no request waits, that is the number that ran. A request that waits for a start makes others wait as well. Then the
//! number that run or wait shows the need of the queue and not of the traffic, and the workers that were started for the queue
//! run as soon as they are ready. Therefore ticks with a queue, and the ticks after it in which the queue is processed, use
//! Little's law over the arrivals. While the service time is unknown, Little's law says nothing, and each request counts.

use std::collections::VecDeque;
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::forecast::Tick;

use super::super::signal::exact;
use super::super::sizing::whole;

/// Arrivals of the newest ticks.
#[derive(Debug)]
pub(super) struct Peak {
    arrivals: VecDeque<u64>,
    /// Until this time, a queue is being processed.
    queue_until: Instant,
}

impl Peak {
    pub(super) fn new() -> Self {
        Self {
            arrivals: VecDeque::new(),
            queue_until: Instant(0),
        }
    }

    /// Maximum number of past ticks that are used. Longer services are treated as if they took this long.
    const TICKS_MAX: f64 = 64.0;

    /// The need of this tick: concurrent invocations.
    pub(super) fn of(&mut self, tick: &Tick, service_s: f64, interval: Duration) -> u32 {
        let span_s = tick.span.as_secs_f64().max(1e-3);
        let ticks = (service_s / span_s).ceil().clamp(1.0, Self::TICKS_MAX);
        self.arrivals.push_back(tick.arrivals);
        while self.arrivals.len() > whole(ticks) as usize {
            self.arrivals.pop_front();
        }
        let service = Duration::try_from_secs_f64(service_s).unwrap_or_default();
        if tick.demand_max > tick.busy_max {
            self.queue_until = tick.now.after(service.saturating_add(interval));
        }
        if tick.now >= self.queue_until || tick.service.is_none() {
            return tick.demand_max;
        }
        let arrivals: u64 = self
            .arrivals
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count));
        let by_rate = whole(exact(arrivals) / (ticks * span_s) * service_s);
        // Services that are shorter than a tick may have run concurrently within it.
        let ran = if service_s >= span_s {
            0
        } else {
            tick.busy_max
        };
        tick.demand_max.min(by_rate.max(ran))
    }

    /// The clock was set back.
    pub(super) fn forget_times(&mut self) {
        self.queue_until = Instant(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::tick;
    use super::*;

    const TICK: Duration = Duration::from_millis(200);

    fn at(tenths: u64, arrivals: u64, busy_max: u32, demand_max: u32) -> Tick {
        Tick {
            now: Instant(tenths * 200_000_000),
            span: TICK,
            arrivals,
            busy_max,
            demand_max,
            service: Some(Duration::from_millis(500)),
            ..tick()
        }
    }

    #[test]
    fn without_a_queue_it_is_what_ran() {
        let mut peak = Peak::new();
        assert_eq!(peak.of(&at(1, 6, 9, 9), 0.5, TICK), 9);
    }

    #[test]
    fn a_queue_is_counted_by_its_arrivals_until_it_is_worked_off() {
        let mut peak = Peak::new();
        // Thirty per second of half a second each are fifteen at once, however many wait or are processed from the queue.
        for tenths in 0..10 {
            peak.of(&at(tenths, 6, 5, 30), 0.5, TICK);
        }
        assert_eq!(peak.of(&at(10, 6, 5, 40), 0.5, TICK), 15);
        assert_eq!(peak.of(&at(11, 6, 24, 24), 0.5, TICK), 15);
        assert_eq!(peak.of(&at(15, 6, 16, 16), 0.5, TICK), 16);
    }
}
