//! The handlers, one file per group of routes. They translate between HTTP and the control plane.

pub(crate) mod asynchronous;
pub(crate) mod costs;
pub(crate) mod deploy;
pub(crate) mod functions;
pub(crate) mod layers;
pub(crate) mod logs;
mod pace;
pub(crate) mod process;
pub(crate) mod prune;
pub(crate) mod secrets;
mod spool;
pub(crate) mod tokens;

pub(crate) use spool::{Arriving, Spool};

use pilot_model::FunctionName;
use pilot_model::manifest::in_words;

use crate::error::Failure;

/// The `{name}` of a path.
fn function_name(text: &str) -> Result<FunctionName, Failure> {
    text.parse()
        .map_err(|error: pilot_model::InvalidName| Failure::new("bad_name", error.to_string()))
}

/// Parses JSON from a client.
///
/// # Errors
/// A message that names the key and the problem.
fn from_json<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| in_words(&error.path().to_string(), &error.inner().to_string()))?;
    json.end().map_err(|error| error.to_string())?;
    Ok(read)
}
