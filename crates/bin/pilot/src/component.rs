//! The commands of this binary that the daemon runs: the worker of a WebAssembly component, its compiler, and the decoder of an
//! input, in sandboxes; and the trial of an initscript's compilation, with limits. They are no verbs for people, so the command
//! line does not know them, and a start does not wait for it.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use pilot_model::initscript::TRIAL_VERB;
use pilot_model::inputs::decoded::DECODE_VERB;
use pilot_model::runtime::wasm::{COMPILE_VERB, WORKER_VERB};

/// Runs the command, if the arguments are those of one.
pub(crate) fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let verb = arguments.next()?;
    let rest: Vec<OsString> = arguments.collect();
    let done = match (verb.to_str()?, rest.as_slice()) {
        (WORKER_VERB, [settings]) => work(settings),
        (COMPILE_VERB, [component, into]) => {
            pilot_component::compile(Path::new(component), Path::new(into))
        }
        (DECODE_VERB, []) => pilot_decode::run(),
        (TRIAL_VERB, []) => pilot_wasm::trial(),
        _ => return None,
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    })
}

fn work(settings: &OsString) -> Result<(), String> {
    let settings = serde_json::from_slice(settings.as_encoded_bytes())
        .map_err(|error| format!("the settings of a worker cannot be read: {error}"))?;
    pilot_component::serve(&settings)
}
