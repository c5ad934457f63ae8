//! One worker, started and ended before a version is deployed: that a template has imported a handler does not say that a worker
//! comes of it. What fails only in workers: code that replaced what the worker itself needs, `after_restore` hooks, an
//! application's startup, and without a template the import.
//!
//! It serves nothing, and its sandbox ends with it: a function that is deployed and not invoked costs no more than its template.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::WorkerId;
use pilot_model::ports::{StartError, Worker};
use pilot_model::timeline::Instant;
use pilot_sys::clock::monotonic_ns;
use serde::Deserialize;
use tokio::time::timeout;

use super::TemplateTree;
use super::nodes::Function;

/// Longest that the worker may take.
const TRIAL_TIME_MAX: Duration = Duration::from_secs(30);

/// Starts a worker and ends it.
///
/// # Errors
/// Why none comes up, with what to change.
pub(super) async fn run(
    tree: &Arc<TemplateTree>,
    function: &Arc<Function>,
) -> Result<(), StartError> {
    let asked = Instant(monotonic_ns());
    match timeout(TRIAL_TIME_MAX, tree.start(function, TRIAL, asked)).await {
        Ok(Ok(worker)) => {
            worker.kill();
            Ok(())
        }
        Ok(Err(error)) => Err(in_a_worker(error, function)),
        Err(_) => Err(StartError::Runtime {
            problem: format!(
                "it is imported, but no worker comes up within {} s: an after_restore hook or the application's startup takes \
                 that long; do less there",
                TRIAL_TIME_MAX.as_secs()
            ),
            output: String::new(),
        }),
    }
}

/// What a failed start says of a function that has been imported before.
fn in_a_worker(error: StartError, function: &Function) -> StartError {
    let imported = function.is_imported();
    match error {
        StartError::Import { body, output } if imported => StartError::Runtime {
            problem: format!(
                "it is imported, but no worker comes up: {}, in an after_restore hook or in the application's startup",
                raised(&body)
            ),
            output,
        },
        StartError::Runtime { problem, output } if imported => StartError::Runtime {
            problem: format!("it is imported, but no worker comes up: {problem}; {REPLACED}"),
            output,
        },
        other => other,
    }
}

/// What to say of a template that failed in the worker's own code.
pub(super) fn in_the_template(error: StartError) -> StartError {
    match error {
        StartError::Runtime { problem, output } if output.contains(OWN_FRAME) => {
            StartError::Runtime {
                problem: format!("{problem}; {REPLACED}"),
                output,
            }
        }
        other => other,
    }
}

/// `ValueError: no network yet`.
fn raised(body: &str) -> String {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Raised {
        error_type: String,
        error_message: String,
    }
    let raised: Raised = serde_json::from_str(body).unwrap_or_default();
    format!("{}: {}", raised.error_type, raised.error_message)
}

/// Not one of the pool's, which count from 1.
const TRIAL: WorkerId = WorkerId(0);

const REPLACED: &str = "most likely something that is imported replaces parts of the standard library that the worker itself \
                        needs (json, socket, asyncio, time …): leave them as they are";

/// A line of a traceback that leads into the worker's code.
const OWN_FRAME: &str = "File \"/opt/pilot/python/pilot_worker/";
