//! The arrivals of phases, calculated. The number of arrivals expected until a time t, Λ(t), is the integral of the rate: a
//! parabola per phase. An arrival happens where Λ reaches a whole number (even spacing), or the next point of a Poisson process
//! of rate 1 (the inverse of Λ maps it to the Poisson process with this rate). Both are exact on ramps.

use std::time::Duration;

use crate::random::Random;

/// How the arrivals of a phase are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spacing {
    /// At even intervals.
    #[default]
    Even,
    /// Independently of one another.
    Poisson,
}

/// One phase, in the time of the run: the rate changes linearly from `from` to `to`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Segment {
    /// Seconds since the start of the run.
    pub(crate) start_s: f64,
    pub(crate) length_s: f64,
    /// Arrivals per second.
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Λ at its beginning.
    pub(crate) before: f64,
}

impl Segment {
    /// Λ at its end.
    fn after(&self) -> f64 {
        self.before + self.expected()
    }

    /// Arrivals expected in it.
    pub(crate) fn expected(&self) -> f64 {
        self.length_s * (self.from + self.to) / 2.0
    }

    /// When Λ reaches `position`, which is in this segment.
    fn when(&self, position: f64) -> Duration {
        let wanted = position - self.before;
        let slope = (self.to - self.from) / self.length_s;
        // The smaller root of from·τ + slope·τ²/2 = wanted, in the form without cancellation.
        let root = (self.from * self.from + 2.0 * slope * wanted)
            .max(0.0)
            .sqrt();
        let into = 2.0 * wanted / (self.from + root);
        // 0/0 if a ramp begins at rate 0.
        let into = if into.is_finite() {
            into.clamp(0.0, self.length_s)
        } else {
            0.0
        };
        Duration::try_from_secs_f64(self.start_s + into).unwrap_or(Duration::MAX)
    }
}

/// The arrivals of phases, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct PhaseStream<'a> {
    segments: &'a [Segment],
    /// The value of Λ at the next arrival.
    position: f64,
    chance: Option<Random>,
}

impl<'a> PhaseStream<'a> {
    pub(crate) fn new(segments: &'a [Segment], spacing: Spacing, mut random: Random) -> Self {
        let (position, chance) = match spacing {
            Spacing::Even => (0.0, None),
            Spacing::Poisson => (random.exponential(), Some(random)),
        };
        Self {
            segments,
            position,
            chance,
        }
    }

    pub(crate) fn next(&mut self) -> Option<Duration> {
        loop {
            let (segment, rest) = self.segments.split_first()?;
            if self.position < segment.after() {
                let at = segment.when(self.position);
                self.position += self.chance.as_mut().map_or(1.0, Random::exponential);
                return Some(at);
            }
            self.segments = rest;
        }
    }
}
