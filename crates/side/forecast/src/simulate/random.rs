//! Repeatable random numbers: SplitMix64, one stream per function and purpose. So a policy that starts more workers does not
//! change how long invocations take.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = SplitMix64::seed_from_u64(seed ^ stream.wrapping_mul(GAMMA));
        Self(SplitMix64::seed_from_u64(mixed.next_u64()))
    }

    /// Uniform in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

/// 2^64 divided by the golden ratio: neighbouring streams have very different values.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stays_what_it_is() {
        let mut random = Random::new(7, 3);
        let drawn = [random.unit(), random.unit(), random.unit()];
        assert_eq!(
            drawn,
            [0.9812118586360137, 0.9126746284805989, 0.391525919106291]
        );
    }
}
