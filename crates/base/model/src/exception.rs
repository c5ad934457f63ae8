//! A function's exception, read from Lambda's error body: `{"errorType", "errorMessage", "stackTrace"}`.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use serde_json::value::RawValue;

/// What a function raised. What the body does not have is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exception {
    /// `ValueError`.
    pub error_type: String,
    /// `no network yet`.
    pub error_message: String,
    /// The frames, as their language writes them. Empty if they are not texts, as those of Go.
    pub stack_trace: Vec<String>,
}

impl Exception {
    /// Reads an error body. `None`: it has another form.
    #[must_use]
    pub fn read(body: &[u8]) -> Option<Self> {
        let fields: Fields<'_> = serde_json::from_slice(body).ok()?;
        let frames = fields.stack_trace.map(|frames| frames.get());
        let frames: Vec<Text> = serde_json::from_str(frames.unwrap_or("[]")).unwrap_or_default();
        Some(Self {
            error_type: fields.error_type.0,
            error_message: fields.error_message.0,
            stack_trace: frames.into_iter().map(|Text(frame)| frame).collect(),
        })
    }

    /// Reads an error body. One that has another form is a message.
    #[must_use]
    pub fn of_text(body: &str) -> Self {
        Self::read(body.as_bytes()).unwrap_or_else(|| Self {
            error_type: "Error".to_owned(),
            error_message: body.to_owned(),
            stack_trace: Vec::new(),
        })
    }
}

/// `ValueError: no`, or `AssertionError`. It has as many lines as the message.
impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error_type)?;
        if self.error_message.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.error_message)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(default)]
    error_type: Text,
    #[serde(default)]
    error_message: Text,
    #[serde(borrow)]
    stack_trace: Option<&'a RawValue>,
}

/// A text of a function. Python and JavaScript have texts that are not Unicode, because a surrogate is alone: it is shown as U+FFFD.
#[derive(Debug, Default)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // serde_json gives bytes where a text must be Unicode.
        deserializer.deserialize_bytes(TextVisitor)
    }
}

struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Text, E> {
        Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_with_a_lone_surrogate_can_be_read() {
        let body = br#"{"errorMessage": "a \ud800 \ud83d\ude00 b", "errorType": "Odd", "stackTrace": ["\udfff"]}"#;
        let exception = Exception::read(body).unwrap();
        assert_eq!(exception.error_type, "Odd");
        assert!(exception.error_message.starts_with("a \u{fffd}"));
        assert!(exception.error_message.ends_with(" \u{1f600} b"));
        assert!(exception.stack_trace[0].contains('\u{fffd}'));
    }

    #[test]
    fn frames_that_are_objects_do_not_hide_the_error() {
        let body = br#"{"errorMessage": "no", "errorType": "errorString", "stackTrace": [{"path": "main.go", "line": 7}]}"#;
        let exception = Exception::read(body).unwrap();
        assert_eq!(exception.to_string(), "errorString: no");
        assert!(exception.stack_trace.is_empty());
    }

    #[test]
    fn an_error_in_another_form_is_said_as_it_is() {
        for other in ["no JSON", r#"{"errorType": 5}"#, "[]"] {
            assert_eq!(Exception::read(other.as_bytes()), None);
            assert_eq!(
                Exception::of_text(other).to_string(),
                format!("Error: {other}")
            );
        }
        assert_eq!(Exception::of_text(r#"{"errorType": "E"}"#).to_string(), "E");
    }
}
