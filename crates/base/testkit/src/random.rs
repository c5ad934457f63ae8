//! Random numbers for tests that must be the same on every machine, and how long simulations run.

/// xorshift64*.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // The state must not be 0, and similar seeds should differ.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.any() >> 33).unwrap_or(0) % end.max(1)
    }
}

/// How many steps a simulation takes: `PILOT_SIMULATED_STEPS`, else `usual`.
///
/// # Panics
/// The variable is not a number.
#[must_use]
pub fn simulated_steps(usual: usize) -> usize {
    number("PILOT_SIMULATED_STEPS", usual)
}

/// The seed of simulations: `PILOT_SIMULATED_SEED`, else 1.
///
/// # Panics
/// The variable is not a number.
#[must_use]
pub fn simulated_seed() -> u64 {
    number("PILOT_SIMULATED_SEED", 1)
}

fn number<T: std::str::FromStr>(variable: &str, usual: T) -> T
where
    T::Err: std::fmt::Debug,
{
    std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"))
}
