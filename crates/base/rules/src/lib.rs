//! The rules of a pool: when a worker is started, which request gets it, and how long it is kept. And which function gets the next
//! permit for a worker (`permits`).
//!
//! A pure state machine: it takes events with the time at which they happened, and returns actions. The daemon (`path/pool`) and the
//! simulator (`side/forecast`) run the same one, so a policy behaves in the daemon as it did in the simulator. Nothing here waits,
//! reads a clock or holds a lock.

mod permits;
mod state;

pub use permits::{FairPermits, Ticket};
pub use state::{
    Action, Arrival, Awaited, Class, Counts, Ending, Key, Mean, PRESSURE_HOLD, PoolState,
    RestStage, RestTimes, Settings, StartFault, Urgency, Wait, WaiterId, backoff, short_starts_max,
};
