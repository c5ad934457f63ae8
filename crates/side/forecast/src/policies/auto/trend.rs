//! The trend of the arrival rate: Holt's double exponential smoothing over intervals of any length, and the part of its slope
//! that is more than noise.

/// The rate and its slope.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trend {
    /// Arrivals per second.
    pub(super) rate: f64,
    /// Slope of the rate, per second.
    slope: f64,
    /// Time constant of the rate, seconds, and half of the slope's.
    tau_s: f64,
}

impl Trend {
    /// The time constant is this share of a lead, so that a ramp is detected in time and the noise is not multiplied by a long lead.
    const TAU_LEADS: f64 = 0.5;
    /// The shortest time constant, seconds.
    const TAU_MIN_S: f64 = 0.6;
    /// A slope counts only beyond this number of standard deviations of the noise.
    const NOISE: f64 = 0.1;
    /// A higher rate is an error of the clock.
    const RATE_MAX: f64 = 1e9;

    /// Adds the arrivals of an interval of `span_s` seconds. The forecast is for `lead_s` seconds ahead.
    pub(super) fn add(&mut self, arrivals: f64, span_s: f64, lead_s: f64) {
        self.tau_s = (Self::TAU_LEADS * lead_s).max(Self::TAU_MIN_S);
        if span_s <= 0.0 {
            return;
        }
        let before = self.rate;
        let expected = before + self.slope * span_s;
        let weight = 1.0 - (-span_s / self.tau_s).exp();
        let observed = (arrivals / span_s).min(Self::RATE_MAX);
        self.rate = (expected + weight * (observed - expected)).clamp(0.0, Self::RATE_MAX);
        let weight = 1.0 - (-span_s / (2.0 * self.tau_s)).exp();
        let slope = self.slope + weight * ((self.rate - before) / span_s - self.slope);
        self.slope = slope.clamp(-Self::RATE_MAX, Self::RATE_MAX);
    }

    /// The part of the slope that exceeds the noise of a Poisson stream, arrivals per second squared.
    pub(super) fn rise(&self) -> f64 {
        if self.tau_s <= 0.0 {
            return 0.0;
        }
        let deviation = ((self.rate + 1.0 / self.tau_s) / (2.0 * self.tau_s)).sqrt();
        (self.slope - Self::NOISE * deviation / (2.0 * self.tau_s)).max(0.0)
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
            trend.add(4.5 * f64::from(tick) * 0.2 * 0.2, 0.2, 1.1);
        }
        assert!((3.5..5.0).contains(&trend.rise()), "{}", trend.rise());
        assert!((trend.rate - 36.0).abs() < 5.0, "{}", trend.rate);
    }

    #[test]
    fn what_is_steady_or_falls_does_not_rise() {
        let mut trend = Trend::default();
        (0..100).for_each(|_| trend.add(6.0, 0.2, 1.1));
        assert!(trend.rise() < 0.05, "{}", trend.rise());
        (0..5).for_each(|_| trend.add(0.0, 0.2, 1.1));
        assert!(trend.rise() <= 0.0);
    }
}
