//! How many workers a function has, and how their number follows the traffic: the table `[functions.NAME.scale]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checks::{KeyProblem, in_range};
use crate::policy::{Policy, PolicySpec};

/// The `[functions.NAME.scale]` table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScaleSpec {
    /// Workers that are always kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Maximum number of workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Forked, initialised workers kept ready in addition to the busy ones, while the function is in use. Formerly `parked`.
    #[serde(alias = "parked", skip_serializing_if = "Option::is_none")]
    pub spare: Option<u32>,
    /// Idle workers are reaped after this time, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<f64>,
    /// How their number follows the traffic: a policy's name, or a table with the name and constants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySpec>,
    /// The longest that a request waits for a busy worker, seconds. Beyond it, it is refused, at once if that can be foreseen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_s: Option<f64>,
    /// So many workers always have a place, whatever other functions need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u32>,
}

/// How many workers a function has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScaleConfig {
    /// Always kept.
    pub min: u32,
    /// Maximum; at least 1.
    pub max: u32,
    /// Idle workers kept ready in addition to the busy ones, while the function is in use. Stored configurations may say `parked`.
    #[serde(alias = "parked")]
    pub spare: u32,
    /// An idle worker is reaped after this time.
    #[serde(rename = "idle_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub idle: Duration,
    /// How their number follows the traffic. Configurations that were stored before policies existed have none.
    #[serde(default)]
    pub policy: Policy,
    /// The longest that a request waits for a busy worker. `None`: as the daemon's configuration says.
    #[serde(
        default,
        rename = "max_wait_s",
        with = "crate::seconds::option",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub max_wait: Option<Duration>,
    /// Workers that other functions leave room for, whatever they need.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserved: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ScaleSpec {
    /// # Errors
    /// The first key whose value is out of range or unknown.
    pub(crate) fn check(&self) -> Result<ScaleConfig, KeyProblem> {
        let fail = |key: &'static str, problem: String| (key, problem);
        let max = in_range(self.max.unwrap_or(64), 1, 10_000)
            .map_err(|problem| fail("scale.max", problem))?;
        let min = in_range(self.min.unwrap_or(0), 0, max)
            .map_err(|problem| fail("scale.min", format!("{problem}, which is scale.max")))?;
        let spare = in_range(self.spare.unwrap_or(0), 0, max)
            .map_err(|problem| fail("scale.spare", problem))?;
        let idle_s = in_range(self.idle_s.unwrap_or(60.0), 0.0, 86_400.0)
            .map_err(|problem| fail("scale.idle_s", problem))?;
        let policy = self.policy.as_ref().map_or(Ok(Policy::Demand), |policy| {
            policy
                .check()
                .map_err(|error| fail(error.key, error.problem))
        })?;
        if let Some(workers) = policy.fixed_workers().filter(|workers| *workers > max) {
            let problem = format!(
                "is {workers}, must be at most scale.max, which is {max}: with policy = \"static:N\", N is the number of workers"
            );
            return Err(fail("scale.policy.workers", problem));
        }
        let max_wait_s = self.max_wait_s.map(|wait| in_range(wait, 0.0, 900.0));
        let max_wait_s = max_wait_s
            .transpose()
            .map_err(|problem| fail("scale.max_wait_s", problem))?;
        let reserved = in_range(self.reserved.unwrap_or(0), 0, max)
            .map_err(|problem| fail("scale.reserved", problem))?;
        Ok(ScaleConfig {
            min,
            max,
            spare,
            idle: Duration::from_secs_f64(idle_s),
            policy,
            max_wait: max_wait_s.map(Duration::from_secs_f64),
            reserved,
        })
    }
}
