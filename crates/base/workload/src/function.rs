//! A function of a workload.

use crate::service::ServiceTimes;

/// One function of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadFunction {
    /// The trace's hash; the profile's name if there is only one function.
    pub name: String,
    /// How long its invocations take, if the trace has percentiles. The times of its arrivals are drawn from these.
    pub service: Option<ServiceTimes>,
    /// Memory of one instance, if the trace says it.
    pub memory_bytes: Option<u64>,
    /// The expected number of arrivals in the whole run.
    pub expected: f64,
}
