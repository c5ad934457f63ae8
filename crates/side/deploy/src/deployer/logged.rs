//! What the daemon's log says of deployments.

use std::time::Duration;

use pilot_model::FunctionName;
use pilot_model::deployment::{DeployError, DeployReport};
use pilot_model::log_line::visible;

/// Who was deployed, and why not. Errors quote what the function or its installer said.
pub(super) fn log_deployment(
    name: &FunctionName,
    deployed: &Result<DeployReport, DeployError>,
    took: Duration,
) {
    match deployed {
        Ok(report) => {
            let (version, id, changed) = (report.number, &report.version, report.changed);
            tracing::info!(function = %name, version, %id, changed, ?took, "deployed");
        }
        Err(error) => {
            let problem = shortened(&error.to_string());
            tracing::warn!(function = %name, problem, ?took, "not deployed");
        }
    }
}

/// A problem may quote a value of any length.
fn shortened(problem: &str) -> String {
    match problem.char_indices().nth(PROBLEM_CHARS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes)", visible(&problem[..end]), problem.len()),
        None => visible(problem),
    }
}

const PROBLEM_CHARS_MAX: usize = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_problem_is_shortened() {
        assert_eq!(shortened("a\nb"), visible("a\nb"));
        let long = "\u{e4}".repeat(100_000);
        let logged = shortened(&long);
        assert!(
            logged.ends_with("\u{e4}\u{2026} (200000 bytes)"),
            "{logged}"
        );
        assert!(logged.len() < 9_000);
    }
}
