//! Workloads: profiles and traces as a stream of arrivals. `pilot bench load` sends a request at each arrival; the simulator
//! simulates one.
//!
//! It is pure: only [`Profile::read`] reads files, times come from the arrivals, and random numbers from the profile's seed. The
//! same file gives the same arrivals on every machine. A function's arrivals do not depend on which other functions were chosen.
//!
//! ```no_run
//! let profile = pilot_workload::Profile::read("bursty-ramp.toml".as_ref())?;
//! for arrival in profile.arrivals() {
//!     println!("{:?} {}", arrival.at, profile.functions()[arrival.function as usize].name);
//! }
//! # Ok::<(), pilot_workload::WorkloadError>(())
//! ```

mod arrivals;
mod azure;
mod error;
mod file;
mod function;
mod profile;
mod random;
mod schedule;
mod service;

pub use arrivals::{Arrival, Arrivals};
pub use error::WorkloadError;
pub use function::WorkloadFunction;
pub use profile::{LoadPhase, Overrides, Profile};
pub use schedule::Spacing;
pub use service::ServiceTimes;
