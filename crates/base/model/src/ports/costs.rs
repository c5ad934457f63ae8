//! The port of the meter: what the control API reads of metered invocations.

use std::fmt::Debug;
use std::io;

use crate::cost::{CostReport, CostRequest};
use crate::ids::FunctionName;

/// Pieces of a text. Each call of `next` may read the disk.
pub type UsageRows = Box<dyn Iterator<Item = io::Result<Vec<u8>>> + Send>;

/// The function whose records are asked for. Records outlive their function, and somebody else may use its name later: that owner does not
/// see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CostsOf {
    /// Its name.
    pub name: FunctionName,
    /// Its owner.
    pub owner: String,
}

/// Which records are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UsageRecords {
    /// Those of invocations.
    #[default]
    Invocations,
    /// Those of workers that have ended.
    Workers,
}

/// Metered invocations.
pub trait Costs: Send + Sync + Debug {
    /// What the invocations of a function, or of all, would have cost. Reads the disk.
    ///
    /// # Errors
    /// See [`CostError`].
    fn cost(
        &self,
        function: Option<&CostsOf>,
        request: &CostRequest,
    ) -> Result<CostReport, CostError>;

    /// The records of a function, or of all, as CSV with a header: those of invocations that were received, or of workers that ended,
    /// since a time.
    ///
    /// # Errors
    /// See [`CostError`].
    fn usage(
        &self,
        function: Option<&CostsOf>,
        since_unix_ms: Option<u64>,
        records: UsageRecords,
    ) -> Result<UsageRows, CostError>;
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// The request's table of platforms is wrong.
    #[error("{0}")]
    Billing(String),
    /// Other reports are being made.
    #[error("another report is being made: try again")]
    Busy,
    /// The records cannot be read.
    #[error("the usage records cannot be read: {0}")]
    Read(#[from] io::Error),
}
