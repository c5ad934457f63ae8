//! Repeatable random numbers: one stream per function and purpose, seeded with the profile's seed and the function's name.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A stream of random numbers. Xoshiro256++, whose values are guaranteed not to change.
#[derive(Debug, Clone)]
pub(crate) struct Random(Xoshiro256PlusPlus);

/// The purpose of a stream. Additional draws for one purpose do not change the values for the others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Arrivals,
    Service,
}

impl Random {
    pub(crate) fn new(seed: u64, function: &str, purpose: Purpose) -> Self {
        let purpose = match purpose {
            Purpose::Arrivals => 1,
            Purpose::Service => 2,
        };
        let mixed = fnv1a(function.as_bytes()) ^ seed.wrapping_mul(GOLDEN).wrapping_add(purpose);
        Self(Xoshiro256PlusPlus::seed_from_u64(mixed))
    }

    /// Uniform in (0, 1], so that its logarithm is finite.
    pub(crate) fn unit(&mut self) -> f64 {
        let bits = self.0.next_u64() >> 11;
        (bits + 1) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Exponential with mean 1: the gap between the events of a Poisson process of rate 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// 2^64 divided by the golden ratio: neighbouring seeds give very different values.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_seed_function_and_purpose_and_by_nothing_else() {
        let first = |seed, name, purpose| Random::new(seed, name, purpose).unit().to_bits();
        let one = first(1, "a", Purpose::Arrivals);
        assert_eq!(one, first(1, "a", Purpose::Arrivals));
        assert_ne!(one, first(2, "a", Purpose::Arrivals));
        assert_ne!(one, first(1, "b", Purpose::Arrivals));
        assert_ne!(one, first(1, "a", Purpose::Service));
    }

    #[test]
    fn an_exponential_is_finite_positive_and_has_mean_one() {
        let mut random = Random::new(7, "f", Purpose::Arrivals);
        let count = 100_000;
        let mut sum = 0.0;
        for _ in 0..count {
            let value = random.exponential();
            assert!(value.is_finite() && value >= 0.0, "{value}");
            sum += value;
        }
        assert!((sum / f64::from(count) - 1.0).abs() < 0.02, "{sum}");
    }
}
