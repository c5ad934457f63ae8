//! Workers: leases, starts, keep-alive, eviction under pressure.
//!
//! A [`Pool`] holds the workers of one version. A pure state machine ([`pilot_rules::PoolState`]) makes its decisions. The pool
//! is the driver around it: it has one mutex, which is never held across an await. [`Pools`] owns what all pools share: one timer
//! task, one sampler of memory, one task that ends workers off the path. Workers are started through the
//! [`Engine`](pilot_model::ports::Engine) port. This crate does not call workers.
//!
//! A [`KeyedPool`] is such an engine, for workers that cannot fork: it keeps runtimes by their key and reuses them. [`EngineTable`]
//! sends each version to the engine of its runtime.

mod engine_table;
mod forecasting;
mod keyed;
mod permits;
mod pools;
mod printing;
mod resting;
mod shares;
mod tasks;

pub use engine_table::EngineTable;
pub use keyed::{KeyedParts, KeyedPool, KeyedSettings, MachineMemory, machine_memory};
pub use pilot_rules::{Awaited, Class, Urgency};
pub use pools::pool::{Announcement, Lease, Leased, Pool, Refusal, WaitingRequest};
pub use pools::{PoolLimits, Pools};
