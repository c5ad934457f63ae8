//! Starts and ends one worker before a version is deployed. A template that has imported a handler does not prove that workers
//! start: code that replaces what the worker itself needs, `after_restore` hooks, an application's startup, and the import
//! without a template fail only in a worker.
//!
//! The worker serves nothing, and its sandbox ends with it: a function that is deployed and never invoked costs no more than
//! its template.

use std::sync::Arc;

use pilot_model::ports::{StartError, Worker};
use pilot_model::timeline::Instant;
use pilot_model::{Exception, WorkerId};
use pilot_sys::clock::monotonic_ns;

use super::TemplateTree;
use super::nodes::Function;
use crate::child::NO_PROCESS_LEFT;

/// Starts a worker and ends it.
///
/// # Errors
/// Why it does not start, with what to change.
pub(super) async fn run(
    tree: &Arc<TemplateTree>,
    function: &Arc<Function>,
) -> Result<(), StartError> {
    let asked = Instant(monotonic_ns());
    // A secret that is gone explains itself, and no worker was started.
    tree.machine.secrets(function.version())?;
    match tree.start_from(function, TRIAL, asked, asked).await {
        Ok(worker) => {
            worker.kill();
            Ok(())
        }
        Err(error) => Err(in_a_worker(error, function)),
    }
}

/// The error of a worker's start whose function was imported successfully.
fn in_a_worker(error: StartError, function: &Function) -> StartError {
    let imported = function.is_imported();
    match error {
        StartError::Import { body, output } if imported => StartError::Runtime {
            problem: format!(
                "the import succeeds, but a worker does not start: {}, in an after_restore hook or in the application's startup",
                Exception::of_text(&body)
            ),
            output,
        },
        StartError::Runtime { problem, output } if imported => {
            let mut problem =
                format!("the import succeeds, but a worker does not start: {problem}");
            if !problem.contains(NO_PROCESS_LEFT) {
                problem = format!("{problem}; {REPLACED}");
            }
            StartError::Runtime { problem, output }
        }
        other => other,
    }
}

/// The error of a template that failed in the worker's own code.
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

/// Not an id of the pool's, which start at 1.
const TRIAL: WorkerId = WorkerId(0);

const REPLACED: &str = "most likely something that is imported replaces parts of the standard library that the worker itself \
                        needs (json, socket, asyncio, time …): do not replace them";

/// Marks lines of a traceback in the worker's own code.
const OWN_FRAME: &str = "File \"/opt/pilot/python/pilot_worker/";
