//! What an initscript and its function send each other while the handler may run, on a socket of the invocation (`PROTOCOL.md`,
//! "Initscripts that go on").
//!
//! A message to the worker is the length of its JSON (u32) and the JSON. One from the worker is a header of 12 bytes and its bytes.

use pilot_model::ports::StoreRead;
use serde::Serialize;

use crate::meta::{OBJECTS_LEN_MAX, StoreMeta};

/// A message to the worker. A text that says why something is not there is cut to [`PROBLEM_LEN_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note<'a> {
    /// A message of the script. Its descriptor, memory to be mapped, comes with the first byte, unless the worker takes paths.
    Message {
        /// Its id.
        id: u64,
        /// Its length, bytes.
        len: u64,
        /// Its path in a worker that takes paths.
        path: Option<&'a str>,
        /// What clients of its store call it.
        object: Option<&'a StoreRead>,
    },
    /// This message will not come.
    NoMessage {
        /// Its id.
        id: u64,
        /// Why.
        problem: &'a str,
    },
    /// A connection of the script. Its descriptor, a stream socket, comes with the first byte, unless the worker takes paths.
    Connection {
        /// Its id.
        id: u64,
        /// The path to connect to, in a worker that takes paths.
        path: Option<&'a str>,
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

/// Bytes of the header of a message from the worker.
pub const HEADER_LEN: usize = 12;

/// Longest message from the worker, bytes.
pub const SENT_LEN_MAX: u32 = 1 << 20;

/// Most messages from the worker for one script.
pub const SENT_MAX: usize = 16;

/// Most bytes of all of them.
pub const SENT_TOTAL_MAX: usize = 4 << 20;

/// The header of a message from the worker, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The message's id.
    pub id: u64,
    /// Its length, bytes.
    pub len: u32,
}

/// A message from the worker over the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message {id} of {len} bytes is over the limit of {SENT_LEN_MAX}")]
pub struct TooLong {
    /// Its id.
    pub id: u64,
    /// Its length, bytes.
    pub len: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// The message is longer than [`SENT_LEN_MAX`]. The socket must not be read any more.
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Result<Self, TooLong> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let id = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let len = u32::from_le_bytes([i, j, k, l]);
        if len > SENT_LEN_MAX {
            return Err(TooLong { id, len });
        }
        Ok(Self { id, len })
    }
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
        path: Option<&'a str>,
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
        path: Option<&'a str>,
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
        Note::Message {
            id,
            len,
            path,
            object,
        } => {
            let fits = |read: &&StoreRead| {
                let len = read.object.text_len();
                len.is_some_and(|len| len <= OBJECTS_LEN_MAX)
            };
            Form::Message {
                id: id.to_string(),
                len: Some(len),
                path,
                store: object.filter(fits).map(StoreMeta::new),
                problem: None,
            }
        }
        Note::NoMessage { id, problem } => Form::Message {
            id: id.to_string(),
            len: None,
            path: None,
            store: None,
            problem: Some(cut(problem)),
        },
        Note::Connection { id, path, address } => Form::Connection {
            id: id.to_string(),
            address: Some(address),
            path,
            problem: None,
        },
        Note::NoConnection { id, problem } => Form::Connection {
            id: id.to_string(),
            address: None,
            path: None,
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
            path: None,
            object: None,
        };
        assert_eq!(
            text(message),
            r#"{"op":"message","id":"18446744073709551615","len":5}"#
        );
        let connection = Note::Connection {
            id: 3,
            path: None,
            address: "tcp://db:5432",
        };
        assert_eq!(
            text(connection),
            r#"{"op":"connection","id":"3","address":"tcp://db:5432"}"#
        );
        let shown = Note::Message {
            id: 1,
            len: 5,
            path: Some("/proc/2/fd/40"),
            object: None,
        };
        assert_eq!(
            text(shown),
            r#"{"op":"message","id":"1","len":5,"path":"/proc/2/fd/40"}"#
        );
        assert_eq!(text(Note::End { problem: None }), r#"{"op":"end"}"#);
    }

    #[test]
    fn a_message_over_the_limit_is_refused_by_its_header_alone() {
        let header = |id: u64, len: u32| {
            let mut bytes = [0; HEADER_LEN];
            bytes[..8].copy_from_slice(&id.to_le_bytes());
            bytes[8..].copy_from_slice(&len.to_le_bytes());
            Header::decode(bytes)
        };
        let (id, len) = (u64::MAX - 1, SENT_LEN_MAX);
        assert_eq!(header(id, len), Ok(Header { id, len }));
        let len = SENT_LEN_MAX + 1;
        assert_eq!(header(id, len), Err(TooLong { id, len }));
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
