//! Lambda's error body: `{"errorType", "errorMessage", "stackTrace"}`. Every error that leaves this crate has this form,
//! whatever the runtime sent.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorBody<'a> {
    error_type: &'a str,
    error_message: &'a str,
    stack_trace: [&'a str; 0],
}

/// An error body that the daemon makes.
pub(crate) fn error_body(kind: &str, message: &str) -> Bytes {
    let body = ErrorBody {
        error_type: kind,
        error_message: message,
        stack_trace: [],
    };
    serde_json::to_vec(&body)
        .expect("text is always JSON")
        .into()
}

/// Turns what a runtime sent into an error body. A JSON object stays as it is; anything else becomes the error's message.
/// `kind` is the error type that the runtime named outside of the body.
pub(crate) fn as_error_body(sent: Bytes, kind: Option<&str>) -> Bytes {
    let is_object =
        serde_json::from_slice::<&RawValue>(&sent).is_ok_and(|value| value.get().starts_with('{'));
    if is_object {
        return sent;
    }
    let message = String::from_utf8_lossy(&sent[..sent.len().min(MESSAGE_LEN_MAX)]);
    let message = serde_json::from_str::<String>(&message).unwrap_or(message.into_owned());
    error_body(kind.unwrap_or(UNKNOWN), &message)
}

/// The error that replaces an answer above the size limit.
pub(crate) fn too_large() -> Bytes {
    error_body(
        "Function.ResponseSizeTooLarge",
        &format!(
            "Response payload size exceeded maximum allowed payload size ({} bytes).",
            crate::RESPONSE_LEN_MAX
        ),
    )
}

/// The error that replaces an incomplete answer when the worker continues to run.
pub(crate) fn truncated() -> Bytes {
    error_body(
        "Runtime.TruncatedResponse",
        "The response is incomplete: the connection was closed before its end.",
    )
}

/// Longest message made of an error that is not JSON, bytes.
const MESSAGE_LEN_MAX: usize = 16 * 1024;

/// Lambda's type of an error that the runtime did not name.
const UNKNOWN: &str = "Runtime.Unknown";

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(sent: &'static str, kind: Option<&str>) -> String {
        let body = as_error_body(Bytes::from_static(sent.as_bytes()), kind);
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn an_object_passes_as_it_is() {
        let sent = r#" {"errorType": "E", "more": [1]}"#;
        assert_eq!(taken(sent, Some("Other")), sent);
    }

    #[test]
    fn anything_else_becomes_the_message() {
        assert_eq!(
            taken("no json", Some("Function.Odd")),
            r#"{"errorType":"Function.Odd","errorMessage":"no json","stackTrace":[]}"#
        );
        assert_eq!(
            taken(r#""quoted""#, None),
            r#"{"errorType":"Runtime.Unknown","errorMessage":"quoted","stackTrace":[]}"#
        );
        assert_eq!(
            taken("", None),
            r#"{"errorType":"Runtime.Unknown","errorMessage":"","stackTrace":[]}"#
        );
        assert!(taken("{\"cut\": ", None).contains("Runtime.Unknown"));
    }
}
