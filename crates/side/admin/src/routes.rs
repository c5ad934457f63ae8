//! The handlers, a file for each group of routes. They translate; what is done is the control plane's.

pub(crate) mod deploy;
pub(crate) mod functions;
pub(crate) mod logs;
pub(crate) mod process;

use pilot_model::FunctionName;

use crate::error::Failure;

/// The `{name}` of a path.
fn function_name(text: &str) -> Result<FunctionName, Failure> {
    text.parse()
        .map_err(|error: pilot_model::InvalidName| Failure::new("bad_name", error.to_string()))
}
