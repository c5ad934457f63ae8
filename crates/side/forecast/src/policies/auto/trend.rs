//! Where the rate of arrivals is going: Holt's double exponential smoothing over spans of any length, and what of its slope
//! is more than noise.

/// The rate and its slope.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trend {
    /// Arrivals per second.
    pub(super) rate: f64,
    /// Of the rate, per second.
    slope: f64,
}

impl Trend {
    /// Time constant of the rate, seconds, and half of the slope's: half of a start that takes a second, so that a ramp is
    /// seen while there is still time.
    const TAU_S: f64 = 0.6;
    /// Deviations of the noise that a slope must have before it counts.
    const NOISE: f64 = 0.1;
    /// What no machine serves: more is a mistake of the clock.
    const RATE_MAX: f64 = 1e9;

    /// So many arrivals in so many seconds.
    pub(super) fn add(&mut self, arrivals: f64, span_s: f64) {
        if span_s <= 0.0 {
            return;
        }
        let before = self.rate;
        let expected = before + self.slope * span_s;
        let weight = 1.0 - (-span_s / Self::TAU_S).exp();
        let observed = (arrivals / span_s).min(Self::RATE_MAX);
        self.rate = (expected + weight * (observed - expected)).clamp(0.0, Self::RATE_MAX);
        let weight = 1.0 - (-span_s / (2.0 * Self::TAU_S)).exp();
        let slope = self.slope + weight * ((self.rate - before) / span_s - self.slope);
        self.slope = slope.clamp(-Self::RATE_MAX, Self::RATE_MAX);
    }

    /// The slope as far as it is more than what a Poisson stream's noise makes of itself, arrivals per second squared.
    pub(super) fn rise(&self) -> f64 {
        let deviation = ((self.rate + 1.0 / Self::TAU_S) / (2.0 * Self::TAU_S)).sqrt();
        (self.slope - Self::NOISE * deviation / (2.0 * Self::TAU_S)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_is_followed_and_its_slope_found() {
        let mut trend = Trend::default();
        for tick in 0..40 {
            // 4.5 arrivals per second more every second, as in the paper's ramp.
            trend.add(4.5 * f64::from(tick) * 0.2 * 0.2, 0.2);
        }
        assert!((3.5..5.0).contains(&trend.rise()), "{}", trend.rise());
        assert!((trend.rate - 36.0).abs() < 5.0, "{}", trend.rate);
    }

    #[test]
    fn what_is_steady_or_falls_does_not_rise() {
        let mut trend = Trend::default();
        (0..100).for_each(|_| trend.add(6.0, 0.2));
        assert!(trend.rise() < 0.05, "{}", trend.rise());
        (0..5).for_each(|_| trend.add(0.0, 0.2));
        assert!(trend.rise() <= 0.0);
    }
}
