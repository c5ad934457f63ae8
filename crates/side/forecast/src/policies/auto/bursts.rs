//! How soon the next request follows within a tick. The life tables of [`super::gaps`] do not resolve gaps that are shorter than a
//! tick.

use pilot_model::forecast::Tick;

use super::super::signal::exact;

/// The rate of requests in ticks that have some, without the first of each tick.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bursts {
    /// Per second.
    pub(super) rate: f64,
}

impl Bursts {
    /// The rate before any observation: a client that calls again as soon as it has its answer is common.
    const RATE: f64 = 10.0;
    /// The weight of the newest tick.
    const NEWEST: f64 = 0.1;

    pub(super) fn new() -> Self {
        Self { rate: Self::RATE }
    }

    pub(super) fn add(&mut self, tick: &Tick) {
        let span_s = tick.span.as_secs_f64();
        if tick.arrivals > 0 && span_s > 0.0 {
            let rate = exact(tick.arrivals - 1) / span_s;
            self.rate += Self::NEWEST * (rate - self.rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::tick_of;
    use super::*;

    #[test]
    fn single_requests_are_no_burst_and_a_client_in_a_loop_is_one() {
        let mut bursts = Bursts::new();
        (0..100).for_each(|_| bursts.add(&tick_of(1, 1.0, 0.01)));
        assert!(bursts.rate < 0.01, "{bursts:?}");
        bursts.add(&tick_of(500, 1.0, 0.01));
        assert!(bursts.rate > 40.0, "{bursts:?}");
        let before = bursts.rate;
        bursts.add(&tick_of(0, 1.0, 0.01));
        assert_eq!(bursts.rate, before);
    }
}
