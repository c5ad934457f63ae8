//! The queue through long runs against what it promises, with simulated time, disk and scheduler: the test says which command the
//! writer takes, which attempt goes on and how it ends, when the clock moves, when the disk takes nothing, and when the daemon or
//! the power fails. The store is SQLite in memory; after a kill its files are as they are, and after a power failure what the last
//! transaction wrote is there in part. `PILOT_SIMULATED_STEPS` and `PILOT_SIMULATED_SEED` choose another run.

mod world;

use pilot_testkit::{Random, simulated_seed, simulated_steps};

use world::World;

#[test]
fn whatever_fails_an_acknowledged_invocation_ends_and_is_not_lost() {
    let seed = simulated_seed();
    let mut random = Random::new(seed);
    let total = simulated_steps(3000);
    let mut taken = 0;
    while taken < total {
        let mut world = World::new(random.any());
        let until = total.min(taken + 3000);
        while taken < until {
            world.step();
            taken += 1;
        }
        world.wind_up();
    }
}
