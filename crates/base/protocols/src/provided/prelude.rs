//! The prelude of `application/vnd.awslambda.http-integration-response`: a JSON object with status, headers and cookies, then
//! eight NUL bytes, then the body. It may be split into chunks anywhere.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use pilot_model::ports::HttpHead;
use serde::Deserialize;

/// The content type of a response with a prelude.
pub(super) const CONTENT_TYPE: &str = "application/vnd.awslambda.http-integration-response";

/// A prelude that is being received.
#[derive(Debug, Default)]
pub(super) struct Prelude {
    read: BytesMut,
    /// Where the JSON ends, once known.
    end: Option<usize>,
}

/// Why a prelude is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PreludeError {
    /// Longer than [`PRELUDE_LEN_MAX`].
    #[error("the prelude is longer than {PRELUDE_LEN_MAX} bytes")]
    TooLong,
    /// The JSON is followed by something else than eight NUL bytes.
    #[error("the prelude ends with fewer than {DELIMITER_LEN} NUL bytes")]
    Delimiter,
    /// No eight NUL bytes at all.
    #[error("the response ended within its prelude")]
    Ended,
    /// Invalid JSON.
    #[error("the prelude is invalid: {problem}")]
    Json {
        /// serde's message.
        problem: String,
    },
    /// A status that a response cannot have.
    #[error("the prelude's statusCode is {status}, must be 200 to 599")]
    Status {
        /// As sent.
        status: u16,
    },
}

impl Prelude {
    /// Takes a chunk. `Some`: the prelude is complete; the bytes are the beginning of the body.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Result<Option<(HttpHead, Bytes)>, PreludeError> {
        // JSON contains no NUL, so the first one ends it.
        if self.end.is_none() {
            let at = chunk.iter().position(|byte| *byte == 0);
            self.end = at.map(|at| self.read.len() + at);
        }
        self.read.extend_from_slice(chunk);
        if self.end.unwrap_or(self.read.len()) > PRELUDE_LEN_MAX {
            return Err(PreludeError::TooLong);
        }
        let Some(end) = self.end else {
            return Ok(None);
        };
        let delimiter = self.read[end..].iter().take(DELIMITER_LEN);
        if delimiter.clone().any(|byte| *byte != 0) {
            return Err(PreludeError::Delimiter);
        }
        if delimiter.len() < DELIMITER_LEN {
            return Ok(None);
        }
        let head = parse(&self.read[..end])?;
        let body = self.read.split_off(end + DELIMITER_LEN).freeze();
        Ok(Some((head, body)))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    #[serde(default = "ok")]
    status_code: u16,
    #[serde(default)]
    headers: Option<BTreeMap<String, Values>>,
    #[serde(default)]
    cookies: Option<Vec<String>>,
}

/// A header's value: one, several (as `http` crates write a repeated header), or a number from JavaScript.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(Value),
    Several(Vec<Value>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Number(serde_json::Number),
    Truth(bool),
}

fn ok() -> u16 {
    200
}

fn parse(json: &[u8]) -> Result<HttpHead, PreludeError> {
    let written: Written = serde_json::from_slice(json).map_err(|error| PreludeError::Json {
        problem: error.to_string(),
    })?;
    if !(200..=599).contains(&written.status_code) {
        return Err(PreludeError::Status {
            status: written.status_code,
        });
    }
    let mut headers = Vec::new();
    for (name, values) in written.headers.unwrap_or_default() {
        let values = match values {
            Values::One(value) => vec![value],
            Values::Several(values) => values,
        };
        for value in values {
            headers.push((name.clone(), value.into_text()));
        }
    }
    let cookies = written.cookies.unwrap_or_default();
    headers.extend(
        cookies
            .into_iter()
            .map(|cookie| ("set-cookie".to_owned(), cookie)),
    );
    Ok(HttpHead {
        status: written.status_code,
        headers,
        is_prelude: true,
    })
}

impl Value {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Number(number) => number.to_string(),
            Self::Truth(truth) => truth.to_string(),
        }
    }
}

/// Longest JSON of a prelude, bytes.
const PRELUDE_LEN_MAX: usize = 256 * 1024;

/// NUL bytes between prelude and body.
const DELIMITER_LEN: usize = 8;

#[cfg(test)]
mod tests;
