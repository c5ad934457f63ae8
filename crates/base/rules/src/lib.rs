//! The rules of a pool: when a worker is started, who gets it, how long it is kept.
//!
//! A pure state machine: events come in with the time at which they happened, actions go out. The daemon (`path/pool`) and
//! the simulator (`side/forecast`) run the same one; that is why it lies below both, and why a policy that was judged in
//! the simulator behaves so in the daemon. Nothing here waits, reads a clock or holds a lock.

mod state;

pub use state::{
    Action, Arrival, Counts, Ending, Key, Mean, PRESSURE_HOLD, PoolState, Settings, StartFault,
    WaiterId, backoff,
};
