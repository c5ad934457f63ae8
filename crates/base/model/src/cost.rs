//! What metered invocations would have cost on other platforms: the request and the report of the control API.

use serde::{Deserialize, Serialize};

/// What a report is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CostRequest {
    /// Only invocations received from this time on, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
    /// Platforms that replace or extend the daemon's table, in the form of `billing.toml`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub billing: Option<String>,
    /// Where CPU follows memory, take a size with at least the function's `cpu`. Otherwise `memory_mb` alone decides.
    pub match_cpu: bool,
}

/// What invocations would have cost. Amounts of money are exact decimal numbers of US dollars, rounded to 12 places when written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CostReport {
    /// Begin of the first invocation, Unix milliseconds. `None`: there is none.
    pub since_unix_ms: Option<u64>,
    /// End of the time that machines are billed for, Unix milliseconds.
    pub until_unix_ms: Option<u64>,
    /// What was used.
    pub used: UsageTotals,
    /// What each platform bills for it, the cheapest first; those that cannot bill it come last.
    pub platforms: Vec<PlatformCost>,
    /// Things to know about the figures.
    pub notes: Vec<String>,
}

/// What invocations used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UsageTotals {
    /// Invocations that ran, or tried to.
    pub calls: u64,
    /// Of these, how many waited for a worker to start.
    pub cold: u64,
    /// Wall-clock time of executions, microseconds.
    pub execution_us: u64,
    /// Time that cold ones waited for initialisation, microseconds.
    pub init_us: u64,
    /// CPU time, microseconds.
    pub cpu_us: u64,
    /// Invocations whose CPU time is not known: their workers serve several at a time.
    pub cpu_unknown: u64,
    /// Used memory times execution, kilobyte-milliseconds of 2^10 bytes.
    pub memory_kb_ms: u64,
    /// Invocations whose used memory is not known. It counts as what was allocated.
    pub memory_unknown: u64,
    /// Lifetimes of workers, milliseconds.
    pub instances_ms: u64,
    /// Workers.
    pub instances: u64,
    /// Bytes of request bodies.
    pub bytes_in: u64,
    /// Bytes of response bodies.
    pub bytes_out: u64,
}

/// What one platform bills.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlatformCost {
    /// The platform's id in the table.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What is billed: `execution`, `turnaround`, `cpu`, `instance` or `machine`.
    pub time: String,
    /// Why there is no bill, or not of everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The bill, and its parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bill: Option<CostParts>,
    /// Billable memory divided by used memory, hundredths. `None`: memory is not billed, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_inflation_hundredths: Option<u64>,
    /// Billable CPU time divided by used CPU time, hundredths. `None`: CPU is not billed, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_inflation_hundredths: Option<u64>,
    /// Where its prices come from.
    pub source: String,
    /// When they were read there.
    pub as_of: String,
}

/// A bill and its parts, US dollars. The parts add up to the total, up to the last written place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CostParts {
    /// All of it.
    pub total: String,
    /// Of it, per million invocations, two places.
    pub per_million: String,
    /// For a machine: what a month of it costs, two places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_month: Option<String>,
    /// The fee per invocation.
    pub fee: String,
    /// Granularities and least amounts.
    pub rounding: String,
    /// Initialisation.
    pub cold_start: String,
    /// What was allocated and not used.
    pub idle: String,
    /// What was used.
    pub used: String,
    /// The parts in this order, thousandths of the total.
    pub shares_thousandths: [u64; 5],
}
