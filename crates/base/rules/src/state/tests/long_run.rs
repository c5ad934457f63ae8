//! The state machine through long runs, in simulated time: what only shows after many steps. `PILOT_SIMULATED_STEPS` and
//! `PILOT_SIMULATED_SEED` choose another run.

use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn a_long_run_loses_nobody_and_passes_no_bound() {
    let seed = number("PILOT_SIMULATED_SEED", 1);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let steps = step();
    let total = number("PILOT_SIMULATED_STEPS", 8000);
    let mut taken = 0;
    while taken < total {
        let settings = any_settings().new_tree(&mut runner).unwrap().current();
        let mut world = World::new(settings);
        // Other settings now and then, because most states need certain ones.
        let until = total.min(taken + 4000);
        while taken < until {
            world.take(&steps.new_tree(&mut runner).unwrap().current());
            world.check();
            taken += 1;
        }
    }
}
