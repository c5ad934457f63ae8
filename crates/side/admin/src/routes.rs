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

pub(crate) use spool::Spool;

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

/// A body that is not JSON, for the OpenAPI document.
#[derive(utoipa::ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "it describes the body; handlers read bytes")]
pub(crate) struct RawBody(Vec<u8>);

/// Parses a JSON object from a client, or takes the defaults if there is none: nothing, or `null`.
///
/// # Errors
/// Those of [`from_json`].
fn from_optional_json<T: serde::de::DeserializeOwned + Default>(text: &[u8]) -> Result<T, String> {
    match text.trim_ascii() {
        b"" | b"null" => Ok(T::default()),
        text => from_json(text),
    }
}

/// Parses a JSON object from a client.
///
/// # Errors
/// A message that names the key and the problem.
fn from_json<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    // serde takes an array for the values of a structure in their order.
    if text.trim_ascii_start().starts_with(b"[") {
        return Err("must be a JSON object".to_owned());
    }
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
        let problem = from_json::<serde_json::Value>(b" []").unwrap_err();
        assert_eq!(problem, "must be a JSON object");
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

    #[test]
    fn nothing_and_null_are_the_defaults() {
        for text in ["", " null\n"] {
            assert_eq!(from_optional_json::<u32>(text.as_bytes()), Ok(0));
        }
        assert_eq!(from_optional_json::<u32>(b"7"), Ok(7));
        assert!(from_optional_json::<u32>(b"x").is_err());
    }
}
