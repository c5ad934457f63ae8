//! The state machine of kept runtimes through long runs, in simulated time. `PILOT_SIMULATED_STEPS` and `PILOT_SIMULATED_SEED` choose
//! another run.

use pilot_testkit::{Random, simulated_seed, simulated_steps};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::properties::{World, step};

#[test]
fn a_long_run_keeps_the_invariants_and_ends_with_nothing_held() {
    let mut random = Random::new(simulated_seed());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&random.any().to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let steps = step();
    let total = simulated_steps(8000);
    let mut taken = 0;
    while taken < total {
        let mut world = World::new(1 + random.below(7));
        let until = total.min(taken + 4000);
        while taken < until {
            world.perform(steps.new_tree(&mut runner).unwrap().current());
            world.check();
            taken += 1;
        }
        world.wind_up();
    }
}
