//! What requests use and cost: usage records, the billing models of the platforms, and traces.
//!
//! Not here: the path of a request (this crate subscribes to its events), and any I/O of the command line.

pub mod bill;
pub mod infer;
pub mod log;
pub mod meter;
pub mod money;
pub mod parquet;
pub mod platform;
pub mod quota;
pub mod record;
pub mod report;
pub mod rightsize;
pub mod table;
pub mod trace;

mod export;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod metered;

pub use bill::{Amounts, Bill, Usage};
pub use meter::{Meter, MeterConfig};
pub use money::Money;
pub use platform::{Match, Platform, Size};
pub use report::{Counted, Sizes, Span, Tally};
pub use table::Table;

#[cfg(test)]
mod tests;
