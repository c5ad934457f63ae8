//! A function of a workload.

use crate::service::ServiceTimes;

/// One function of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadFunction {
    /// The trace's hash; the profile's name where there is one function alone.
    pub name: String,
    /// How long its invocations take, where the trace has percentiles. Arrivals have times drawn from these.
    pub service: Option<ServiceTimes>,
    /// What one instance uses, where the trace says it.
    pub memory_bytes: Option<u64>,
    /// Arrivals that are to be expected in the whole run.
    pub expected: f64,
}
