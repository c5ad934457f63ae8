//! How the CPU limit of workers is enforced, and their part when CPUs are short: the table `[functions.NAME.cpu_limit]`. How much the limit
//! is says the key `cpu`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checks::{KeyProblem, in_range, one_of};
use crate::choices::words;

words! {
    /// How a CPU limit is enforced.
    Enforcement {
        /// By the kernel: a quota of CPU time per period.
        Cgroup = "cgroup",
        /// A worker that serves is stopped when it is ahead of its share, and for as long as it is ahead. The kernel's quota is the
        /// backstop.
        Precise = "precise",
    }
}

/// The table as the user wrote it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CpuLimitSpec {
    /// `cgroup` or `precise`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<String>,
    /// For `cgroup`: the period of the quota, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<u32>,
    /// The part of each worker when CPUs are short, relative to the workers of other functions: 1 to 10,000. Default: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

/// How the CPU limit is enforced, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CpuLimit {
    /// By whom.
    pub enforcement: Enforcement,
    /// Period of the kernel's quota, milliseconds.
    pub period_ms: u32,
    /// The part of each worker when CPUs are short, as in cgroup v2's `cpu.weight`.
    #[serde(default = "usual_weight", skip_serializing_if = "is_usual_weight")]
    pub weight: u32,
}

fn usual_weight() -> u32 {
    WEIGHT
}

/// Versions from before this key keep their ids.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_usual_weight(weight: &u32) -> bool {
    *weight == WEIGHT
}

impl Default for CpuLimit {
    fn default() -> Self {
        Self {
            enforcement: Enforcement::Cgroup,
            period_ms: PERIOD_MS,
            weight: WEIGHT,
        }
    }
}

impl CpuLimit {
    /// Whether this is what a function without the table has.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Period of the kernel's quota.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_millis(u64::from(self.period_ms))
    }
}

impl CpuLimitSpec {
    /// `refusal`: why the runtime does not take the table.
    ///
    /// # Errors
    /// The first key that is wrong or without effect.
    pub(crate) fn check(
        &self,
        refusal: Option<&str>,
        cpu_milli: u32,
    ) -> Result<CpuLimit, KeyProblem> {
        let word = self.enforcement.as_deref();
        let enforcement = one_of(word, Enforcement::Cgroup, Enforcement::ALL)
            .map_err(|problem| ("cpu_limit.enforcement", problem))?;
        if let Some(refusal) = refusal.filter(|_| *self != Self::default()) {
            let problem = format!("{refusal}; leave the table out");
            return Err(("cpu_limit.enforcement", problem));
        }
        let weight = in_range(self.weight.unwrap_or(WEIGHT), 1, WEIGHT_MAX)
            .map_err(|problem| ("cpu_limit.weight", problem))?;
        let Some(period_ms) = self.period_ms else {
            return Ok(CpuLimit {
                enforcement,
                weight,
                ..CpuLimit::default()
            });
        };
        let key = "cpu_limit.period_ms";
        if enforcement == Enforcement::Precise {
            let problem =
                "has no effect with enforcement = \"precise\", only with \"cgroup\"; leave it out";
            return Err((key, problem.to_owned()));
        }
        let period_ms = in_range(period_ms, 1, PERIOD_MS_MAX).map_err(|problem| (key, problem))?;
        if u64::from(period_ms) * u64::from(cpu_milli) < QUOTA_MILLI_MS_MIN {
            let least = QUOTA_MILLI_MS_MIN.div_ceil(u64::from(cpu_milli.max(1)));
            let problem = format!(
                "is {period_ms}, must be at least {least} with cpu = {}: the kernel's quota is 1 ms per period or more",
                f64::from(cpu_milli) / 1e3
            );
            return Err((key, problem));
        }
        Ok(CpuLimit {
            enforcement,
            period_ms,
            weight,
        })
    }
}

/// The weight of workers without one, and the kernel's default of cgroup v2's `cpu.weight`.
pub const WEIGHT: u32 = 100;
/// CGROUP_WEIGHT_MAX in include/linux/cgroup.h.
const WEIGHT_MAX: u32 = 10_000;
/// The kernel's default.
const PERIOD_MS: u32 = 100;
/// max_cfs_quota_period in kernel/sched/core.c.
const PERIOD_MS_MAX: u32 = 1000;
/// min_cfs_quota_period in kernel/sched/core.c, in thousandths of a CPU times milliseconds.
const QUOTA_MILLI_MS_MIN: u64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_refused_if_the_kernel_would_round_its_quota_up() {
        let check = |period_ms, cpu_milli| {
            let spec = CpuLimitSpec {
                period_ms: Some(period_ms),
                ..CpuLimitSpec::default()
            };
            spec.check(None, cpu_milli)
        };
        assert_eq!(check(20, 50).unwrap().period(), Duration::from_millis(20));
        let (key, problem) = check(19, 50).unwrap_err();
        assert_eq!(key, "cpu_limit.period_ms");
        assert!(problem.contains("at least 20 with cpu = 0.05"), "{problem}");
    }

    #[test]
    fn a_weight_goes_with_both_ways_of_enforcement_and_is_in_range() {
        let check = |toml: &str| {
            let spec: CpuLimitSpec = toml::from_str(toml).unwrap();
            spec.check(None, 1000)
        };
        assert_eq!(check("").unwrap().weight, 100);
        assert_eq!(check("weight = 400").unwrap().weight, 400);
        let precise = check("enforcement = \"precise\"\nweight = 1").unwrap();
        assert_eq!(
            (precise.enforcement, precise.weight),
            (Enforcement::Precise, 1)
        );
        assert_eq!(check("period_ms = 20\nweight = 7").unwrap().weight, 7);
        for wrong in ["weight = 0", "weight = 10001"] {
            let (key, problem) = check(wrong).unwrap_err();
            assert_eq!(key, "cpu_limit.weight");
            assert!(problem.contains("from 1 to 10000"), "{problem}");
        }
    }

    #[test]
    fn a_limit_of_before_the_weight_is_read_and_written_as_it_was() {
        let before = r#"{"enforcement":"cgroup","period_ms":20}"#;
        let limit: CpuLimit = serde_json::from_str(before).unwrap();
        assert_eq!(limit.weight, WEIGHT);
        assert_eq!(serde_json::to_string(&limit).unwrap(), before);
    }
}
