//! What an initscript sends while the handler may run, on a socket of the invocation (`PROTOCOL.md`, "Initscripts that go on").
//!
//! A message is the length of its JSON (u32) and the JSON. Nothing comes from the worker.

use pilot_model::ports::StoreObject;
use serde::Serialize;

use crate::meta::{OBJECTS_LEN_MAX, StoreMeta};

/// A message to the worker. A text that says why something is not there is cut to [`PROBLEM_LEN_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note<'a> {
    /// A message of the script. Its descriptor, memory to be mapped, comes with the first byte.
    Message {
        /// Its id.
        id: u64,
        /// Its length, bytes.
        len: u64,
        /// What clients of its store call it.
        object: Option<&'a StoreObject>,
    },
    /// This message will not come.
    NoMessage {
        /// Its id.
        id: u64,
        /// Why.
        problem: &'a str,
    },
    /// A connection of the script. Its descriptor, a stream socket, comes with the first byte.
    Connection {
        /// Its id.
        id: u64,
        /// Where it leads.
        address: &'a str,
    },
    /// This connection will not come.
    NoConnection {
        /// Its id.
        id: u64,
        /// Why.
        problem: &'a str,
    },
    /// The script has ended. The last message.
    End {
        /// Why it failed.
        problem: Option<&'a str>,
    },
}

/// Longest reason, bytes.
pub const PROBLEM_LEN_MAX: usize = 4 * 1024;

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Form<'a> {
    Message {
        id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        len: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        store: Option<StoreMeta<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<&'a str>,
    },
    Connection {
        id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        address: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<&'a str>,
    },
    End {
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<&'a str>,
    },
}

/// The bytes of a message.
#[must_use]
pub fn encode(note: Note<'_>) -> Vec<u8> {
    let form = match note {
        Note::Message { id, len, object } => {
            let fits = |object: &&StoreObject| {
                let len = object.text_len();
                len.is_some_and(|len| len <= OBJECTS_LEN_MAX)
            };
            Form::Message {
                id: id.to_string(),
                len: Some(len),
                store: object.filter(fits).map(StoreMeta::new),
                problem: None,
            }
        }
        Note::NoMessage { id, problem } => Form::Message {
            id: id.to_string(),
            len: None,
            store: None,
            problem: Some(cut(problem)),
        },
        Note::Connection { id, address } => Form::Connection {
            id: id.to_string(),
            address: Some(address),
            problem: None,
        },
        Note::NoConnection { id, problem } => Form::Connection {
            id: id.to_string(),
            address: None,
            problem: Some(cut(problem)),
        },
        Note::End { problem } => Form::End {
            problem: problem.map(cut),
        },
    };
    let mut bytes = vec![0; LEN_LEN];
    serde_json::to_writer(&mut bytes, &form)
        .expect("strings and numbers are always JSON, and a Vec takes every write");
    let len = u32::try_from(bytes.len() - LEN_LEN).unwrap_or(u32::MAX);
    if let Some(place) = bytes.first_chunk_mut() {
        *place = len.to_le_bytes();
    }
    bytes
}

fn cut(text: &str) -> &str {
    let mut len = text.len().min(PROBLEM_LEN_MAX);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    text.get(..len).unwrap_or_default()
}

/// Bytes of the length.
const LEN_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(note: Note<'_>) -> String {
        let bytes = encode(note);
        let (len, json) = bytes.split_at(LEN_LEN);
        assert_eq!(len, u32::try_from(json.len()).unwrap().to_le_bytes());
        String::from_utf8(json.to_vec()).unwrap()
    }

    #[test]
    fn messages_are_json_with_their_length() {
        let message = Note::Message {
            id: u64::MAX,
            len: 5,
            object: None,
        };
        assert_eq!(
            text(message),
            r#"{"op":"message","id":"18446744073709551615","len":5}"#
        );
        let connection = Note::Connection {
            id: 3,
            address: "tcp://db:5432",
        };
        assert_eq!(
            text(connection),
            r#"{"op":"connection","id":"3","address":"tcp://db:5432"}"#
        );
        assert_eq!(text(Note::End { problem: None }), r#"{"op":"end"}"#);
    }

    #[test]
    fn a_reason_is_cut_between_letters() {
        let problem = "ä".repeat(PROBLEM_LEN_MAX);
        let json = text(Note::NoMessage {
            id: 0,
            problem: &problem,
        });
        assert!(json.len() < PROBLEM_LEN_MAX + 100, "{}", json.len());
        assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
    }
}
