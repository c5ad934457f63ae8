//! Which requests' traces are recorded.

use std::sync::Arc;

use crate::ports::EventSink;
use crate::trace::{Recorded, SpanId, TraceContext, xray};

/// What a daemon that records traces does with a request.
#[derive(Debug, Clone)]
pub struct Traces {
    /// Which requests without a caller's decision are recorded.
    pub sample: Ratio,
    /// Whether a caller's decision counts.
    pub callers: Callers,
    /// Takes the spans of requests that are no invocations: see [`Hop`](crate::trace::Hop).
    pub sink: Arc<dyn EventSink>,
}

impl Traces {
    /// Whether a request is recorded. `random`: any number that is random for each request.
    #[must_use]
    pub fn records(&self, context: Option<&TraceContext>, random: u32) -> bool {
        let said = context.map_or(Recorded::Undecided, |context| context.recorded);
        match (self.callers, said) {
            (Callers::Follow, Recorded::Yes) => true,
            (Callers::Follow, Recorded::No) => false,
            (Callers::Follow, Recorded::Undecided) | (Callers::Ignore, _) => {
                self.sample.takes(random)
            }
        }
    }

    /// The trace that an invocation without a caller begins, as text ([`Trace::to_text`](crate::Trace::to_text)). `None`: it is not
    /// recorded.
    #[must_use]
    pub fn begin(&self) -> Option<String> {
        let [.., a, b, c, d] = SpanId::random().0;
        let takes = self.sample.takes(u32::from_be_bytes([a, b, c, d]));
        takes.then(|| xray(TraceContext::begun().trace, None, true))
    }
}

/// Whether a caller decides if its requests are recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Callers {
    /// It does, if it says so.
    #[default]
    Follow,
    /// It does not. Its trace is continued all the same.
    Ignore,
}

/// A share of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio(u64);

impl Ratio {
    /// From 0, none, to 1, all. `None`: it is not in this range.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is from 0 to 2^32"
        )]
        (0.0..=1.0)
            .contains(&share)
            .then(|| Self((share * f64::from(u32::MAX)).ceil() as u64 + u64::from(share == 1.0)))
    }

    /// Whether a request with this random number is among them.
    #[must_use]
    pub fn takes(self, random: u32) -> bool {
        u64::from(random) < self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_takes_its_share_and_the_ends_are_exact() {
        let of = |share| Ratio::new(share).unwrap();
        assert!(!of(0.0).takes(0) && of(1.0).takes(u32::MAX));
        assert!(of(0.5).takes(u32::MAX / 2) && !of(0.5).takes(u32::MAX / 2 + 2));
        assert!(of(1e-9).takes(0));
        for wrong in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Ratio::new(wrong), None, "{wrong}");
        }
    }
}
