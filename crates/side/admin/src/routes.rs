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

use axum::extract::rejection::QueryRejection;
use pilot_model::FunctionName;
use pilot_model::manifest::in_words;

use crate::error::Failure;

/// The `{name}` of a path.
fn function_name(text: &str) -> Result<FunctionName, Failure> {
    text.parse()
        .map_err(|error: pilot_model::InvalidName| Failure::new("bad_name", error.to_string()))
}

/// What is wrong with a query.
fn query_in_words(error: &QueryRejection) -> String {
    let said = error.body_text();
    let (_, problem) = said.split_once("query string: ").unwrap_or(("", &said));
    problem.replace(
        "invalid digit found in string",
        "must be a whole number, not below 0",
    )
}

/// Parses JSON from a client.
///
/// # Errors
/// A message that names the key and the problem.
fn from_json<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // `?` stands for no path: the text itself is not JSON.
        let path = Some(error.path().to_string()).filter(|path| path != "?");
        in_words(&path.unwrap_or_default(), &error.inner().to_string())
    })?;
    json.end().map_err(|error| error.to_string())?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_json_or_no_number_is_said_without_a_librarys_words() {
        let problem = from_json::<serde_json::Value>(b"{").unwrap_err();
        assert!(problem.starts_with("EOF while parsing"), "{problem}");
        let uri: axum::http::Uri = "/logs?lines=x".parse().unwrap();
        let error =
            axum::extract::Query::<std::collections::BTreeMap<String, u64>>::try_from_uri(&uri);
        let said = query_in_words(&error.unwrap_err());
        assert!(
            said.ends_with("must be a whole number, not below 0"),
            "{said}"
        );
        assert!(!said.contains("deserialize"), "{said}");
    }
}
