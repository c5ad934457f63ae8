//! How many workers a tick would have needed had every one been there at once.
//!
//! While nobody waits that is what ran. Who waits for a start makes others wait: then the count of those that run or wait
//! says what the queue needs, not what the traffic needs, and what was started for the queue runs as soon as it is up.
//! Therefore a tick with a queue, and those that still work it off, count by Little's law over the arrivals alone.

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
    /// Until then a queue is worked off.
    queue_until: Instant,
}

impl Peak {
    pub(super) fn new() -> Self {
        Self {
            arrivals: VecDeque::new(),
            queue_until: Instant(0),
        }
    }

    /// Ticks that are looked back on at most: services that take longer are taken as if they took so long.
    const TICKS_MAX: f64 = 64.0;

    /// The need of this tick, invocations at once.
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
        if tick.now >= self.queue_until {
            return tick.demand_max;
        }
        let arrivals: u64 = self
            .arrivals
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count));
        let by_rate = whole(exact(arrivals) / (ticks * span_s) * service_s);
        // Services that are shorter than a tick may have run together within it.
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
        // Thirty a second of half a second each are fifteen at once, however many wait or work the queue off.
        for tenths in 0..10 {
            peak.of(&at(tenths, 6, 5, 30), 0.5, TICK);
        }
        assert_eq!(peak.of(&at(10, 6, 5, 40), 0.5, TICK), 15);
        assert_eq!(peak.of(&at(11, 6, 24, 24), 0.5, TICK), 15);
        assert_eq!(peak.of(&at(15, 6, 16, 16), 0.5, TICK), 16);
    }
}
