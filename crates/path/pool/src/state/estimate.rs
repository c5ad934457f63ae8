//! What the pool has measured: how long an invocation keeps a worker (S), how long a start takes (T), and how far apart
//! starts come up that run at the same time. Exponentially weighted means, in nanoseconds; no clock here.

use std::time::Duration;

use pilot_model::Instant;

/// An exponentially weighted mean; `None` before the first sample.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mean(Option<u64>);

impl Mean {
    /// A new sample weighs a quarter: four invocations after a change the estimate is two thirds there.
    const WEIGHT: u64 = 4;

    pub(crate) fn add(&mut self, sample: Duration) {
        let sample = nanos(sample);
        self.0 = Some(match self.0 {
            None => sample,
            Some(mean) if sample >= mean => mean + (sample - mean) / Self::WEIGHT,
            Some(mean) => mean - (mean - sample) / Self::WEIGHT,
        });
    }

    pub(crate) fn value(self) -> Option<u64> {
        self.0
    }
}

/// T and the spacing of starts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StartTimes {
    latency: Mean,
    spacing: Mean,
    last_ready: Option<Instant>,
}

impl StartTimes {
    /// Before anything was measured: about a fork of a template.
    const LATENCY_FIRST: u64 = 2_000_000;

    /// A worker that was asked for at `asked` is ready. Of one that came up alone this measures the latency. Of one
    /// that had to share the machine with others, its latency says more about them; what it measures is the spacing.
    pub(crate) fn ready(&mut self, asked: Instant, now: Instant, alone: bool) {
        if alone {
            self.latency.add(now.since(asked));
        } else if let Some(before) = self.last_ready.filter(|before| *before >= asked) {
            self.spacing.add(now.since(before));
        } else if self.latency.value().is_none() {
            self.latency.add(now.since(asked));
        }
        self.last_ready = Some(now);
    }

    /// From asking for a start to readiness when `ahead` other starts are under way.
    pub(crate) fn expected(self, ahead: u32) -> u64 {
        let latency = self.latency();
        // Until measured: two starts fit into the time of one, on a machine with two cores.
        let spacing = self.spacing.value().unwrap_or(latency / 2);
        latency.saturating_add(spacing.saturating_mul(u64::from(ahead)))
    }

    /// T.
    pub(crate) fn latency(self) -> u64 {
        self.latency.value().unwrap_or(Self::LATENCY_FIRST)
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
