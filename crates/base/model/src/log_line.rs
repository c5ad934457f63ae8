//! A line of a function's log: when, from whom, of which request, and the text. One definition for the daemon and the command line.
//!
//! A function may print anything, also lines that look like Pilotlight's. The source of a line is stored beside its text, where a
//! function cannot write.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::calendar::Utc;

/// A line of a function's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// RFC 3339, UTC, milliseconds. What a function printed has the time at which the daemon took it over: at the end of the
    /// invocation, or, of an HTTP server, at once. `None`: the line was written before lines had a time.
    pub time: Option<String>,
    /// Who wrote it.
    pub source: LogSource,
    /// The request. `None`: none, or not known, because an HTTP server may serve several requests at the same time.
    pub request_id: Option<String>,
    /// The text, without its line break. Bytes that are not UTF-8 are U+FFFD.
    pub text: String,
}

/// Who wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogSource {
    /// Pilotlight: START, END, REPORT, and why an invocation failed.
    Platform,
    /// The function, its runtime or its packages.
    Function,
    /// Not known: the line was written before sources were stored.
    Unknown,
}

impl LogSource {
    /// As in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Platform => "platform",
            Self::Function => "function",
            Self::Unknown => "unknown",
        }
    }
}

impl LogLine {
    /// `TIME SOURCE TEXT`, without a line break. The text begins at a fixed column. Control characters are visible.
    #[must_use]
    pub fn render(&self) -> String {
        let (prefix, text) = self.render_parts();
        prefix + &text
    }

    /// The same in two parts: what Pilotlight says about the line, and its text.
    #[must_use]
    pub fn render_parts(&self) -> (String, String) {
        let time = self.time.as_deref().unwrap_or("-");
        let prefix = format!("{time:<24} {:<8} ", self.source.as_str());
        let text = self.text.strip_suffix('\r').unwrap_or(&self.text);
        (prefix, visible(text))
    }

    /// The line as JSON, without a line break. Every control character is written as an escape sequence of JSON, also those that JSON
    /// allows (U+007F to U+009F).
    #[must_use]
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string(self).expect("strings and words can be written as JSON");
        safe_json(json)
    }
}

/// JSON of which every control character in a text is an escape sequence of JSON, also those that JSON allows.
#[must_use]
pub fn safe_json(json: String) -> String {
    // Line breaks are between the texts.
    let is_unsafe = |character| character != '\n' && is_unsafe(character);
    if !json.chars().any(is_unsafe) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_unsafe(character) {
            // All of them are in the Basic Multilingual Plane. Writing to a String cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(character));
        } else {
            safe.push(character);
        }
    }
    safe
}

/// The text with every character visible that a terminal may obey: control characters except the tabulator, and characters that
/// change the direction or the lines of the text after them. `\x1b[2J` becomes `\u{1b}[2J`.
#[must_use]
pub fn visible(text: &str) -> String {
    if !text.chars().any(|c| c != '\t' && is_unsafe(c)) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if character != '\t' && is_unsafe(character) {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

/// As [`visible`], for text of several lines: line breaks stay.
#[must_use]
pub fn visible_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(visible).collect();
    lines.join("\n")
}

/// The text with U+FFFD for every character that [`visible_lines`] would escape. For texts that are read again.
#[must_use]
pub fn without_controls(text: &str) -> String {
    let plain = |character| match character {
        '\t' | '\n' => character,
        other if is_unsafe(other) => char::REPLACEMENT_CHARACTER,
        other => other,
    };
    text.chars().map(plain).collect()
}

/// A text from outside in one line of at most `chars_max` characters: what would steer a terminal, or change the order of what it
/// shows, are spaces.
#[must_use]
pub fn one_line(text: &str, chars_max: usize) -> String {
    let plain = |character: char| match is_unsafe(character) {
        true => ' ',
        false => character,
    };
    text.chars().map(plain).take(chars_max).collect()
}

/// Whether a character may steer a terminal, or change the order or the lines of the text after it: category Cc, bidirectional formatting
/// (Unicode Standard Annex #9), line and paragraph separators.
#[must_use]
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// `2026-11-22T18:09:53.276Z`.
#[must_use]
pub fn rfc_3339(unix_ms: u64) -> String {
    let at = Utc::of_unix_ms(unix_ms);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year, at.month, at.day, at.hour, at.minute, at.second, at.millisecond,
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(text: &str) -> LogLine {
        LogLine {
            time: Some(rfc_3339(1_709_251_199_007)),
            source: LogSource::Function,
            request_id: Some("id-1".to_owned()),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_line_begins_with_its_time_and_its_source_at_fixed_columns() {
        assert_eq!(
            line("hello\tworld\r").render(),
            "2024-02-29T23:59:59.007Z function hello\tworld"
        );
        let old = LogLine {
            time: None,
            source: LogSource::Unknown,
            request_id: None,
            text: "hello".to_owned(),
        };
        assert_eq!(old.render(), "-                        unknown  hello");
    }

    #[test]
    fn escapes_of_terminals_are_visible() {
        assert_eq!(
            visible("a\x1b[2J\u{9b}31m\u{7f}\u{202e}b\r\nc"),
            r"a\u{1b}[2J\u{9b}31m\u{7f}\u{202e}b\u{d}\u{a}c"
        );
        assert_eq!(visible("grüße 東京 \\x1b"), "grüße 東京 \\x1b");
        assert_eq!(visible_lines("a\x1b\nb"), "a\\u{1b}\nb");
    }

    #[test]
    fn a_text_from_outside_is_one_short_line() {
        assert_eq!(one_line("a\tb\n\x1b[2J grüße", 12), "a b  [2J grü");
        assert_eq!(one_line("a\u{202e}b\u{2028}c", 12), "a b c");
    }

    proptest! {
        #[test]
        fn nothing_that_a_terminal_obeys_is_left_and_json_loses_nothing(text in any::<String>()) {
            let line = line(&text);
            prop_assert!(!line.render().chars().any(|c| c != '\t' && is_unsafe(c)));
            let json = line.to_json();
            prop_assert!(!json.chars().any(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<LogLine>(&json).unwrap(), line);
        }
    }
}
