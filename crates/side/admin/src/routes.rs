//! The handlers, a file for each group of routes. They translate; what is done is the control plane's.

pub(crate) mod deploy;
pub(crate) mod functions;
pub(crate) mod logs;
pub(crate) mod process;

use pilot_model::FunctionName;
use pilot_model::manifest::in_words;

use crate::error::Failure;

/// The `{name}` of a path.
fn function_name(text: &str) -> Result<FunctionName, Failure> {
    text.parse()
        .map_err(|error: pilot_model::InvalidName| Failure::new("bad_name", error.to_string()))
}

/// Reads JSON that a client sent.
///
/// # Errors
/// Which key is how wrong, in words.
fn from_json<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| in_words(&error.path().to_string(), &error.inner().to_string()))?;
    json.end().map_err(|error| error.to_string())?;
    Ok(read)
}
