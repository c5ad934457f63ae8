//! What the daemon's log says of deployments.

use std::time::Duration;

use pilot_model::FunctionName;
use pilot_model::deployment::{DeployError, DeployReport};
use pilot_model::log_line::visible;

use crate::state::Function;

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

/// What older versions miss at a start. Of the first ones, so that a disk that is away does not fill the log.
pub(super) fn log_broken_older(functions: &[(FunctionName, Function)]) {
    let all = functions.iter();
    let mut broken =
        all.flat_map(|(name, function)| function.older_broken().map(move |one| (name, one)));
    for (name, (version, problem)) in broken.by_ref().take(BROKEN_LOGGED_MAX) {
        let problem = shortened(problem);
        tracing::warn!(
            function = %name,
            version,
            problem,
            "an older version cannot run: its files are kept, and it can be rolled back to when nothing is missing at a start"
        );
    }
    let count = broken.count();
    if count > 0 {
        tracing::warn!(count, "more older versions cannot run");
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
const BROKEN_LOGGED_MAX: usize = 10;

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
