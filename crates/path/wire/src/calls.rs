//! The messages by which a handler invokes other functions (`PROTOCOL.md`, "Calls").
//!
//! A message is a header of 8 bytes, JSON, and a body. The worker asks, and the daemon answers each request once, in any order.

pub use pilot_model::calls::{Reason, Refusal};
use serde::{Deserialize, Serialize};

/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

/// Longest JSON of a message, bytes.
pub const META_LEN_MAX: u32 = 4 * 1024;

/// Longest body, bytes: an event, or an answer.
pub const BODY_LEN_MAX: u32 = crate::frame::REQUEST_LEN_MAX;

/// The header of a message, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of JSON.
    pub meta: u32,
    /// Bytes of body.
    pub body: u32,
}

/// Why bytes are not a message. After this error, the socket must not be used again.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// A part that exceeds its limit.
    #[error("message {part} of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// `meta` or `body`.
        part: &'static str,
        /// Its length.
        len: u32,
        /// The limit.
        limit: u32,
    },
    /// It is no request.
    #[error("not a request: {0}")]
    Meta(#[from] serde_json::Error),
}

impl Lengths {
    /// Reads a header.
    ///
    /// # Errors
    /// [`MessageError::TooLong`].
    pub fn decode(header: [u8; HEADER_LEN]) -> Result<Self, MessageError> {
        let [a, b, c, d, e, f, g, h] = header;
        let (meta, body) = (
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, g, h]),
        );
        for (part, len, limit) in [("meta", meta, META_LEN_MAX), ("body", body, BODY_LEN_MAX)] {
            if len > limit {
                return Err(MessageError::TooLong { part, len, limit });
            }
        }
        Ok(Self { meta, body })
    }
}

/// What a worker asks for. `id` is chosen by the worker, and not in use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Ask {
    /// Memory to fill. Its number is `id`.
    Buffer {
        /// Of the request.
        id: u32,
        /// Bytes.
        len: u64,
    },
    /// So many of its bytes are there, from the beginning: they may go to another node. Has no answer.
    Filled {
        /// Which.
        buffer: u32,
        /// Bytes.
        len: u64,
    },
    /// The memory is filled.
    Seal {
        /// Of the request.
        id: u32,
        /// Which.
        buffer: u32,
    },
    /// Invoke a function. The body is the event.
    Call {
        /// Of the request.
        id: u32,
        /// The function's name.
        function: String,
        /// The memory that goes along. It may be filled and sealed later: the function's worker starts in the meantime.
        #[serde(default)]
        buffer: Option<u32>,
        /// The input of the asking invocation that goes along.
        #[serde(default)]
        input: Option<String>,
    },
    /// The memory is not needed any more. Has no answer.
    Release {
        /// Which.
        buffer: u32,
    },
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Of the request.
    pub id: u32,
    /// A descriptor comes with the first byte of the message.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub descriptor: bool,
    /// Memory, for a worker that takes paths: a file to write to, until the buffer is sealed or released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How it ended.
    #[serde(flatten)]
    pub end: End,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum End {
    /// Memory: there it is; its descriptor comes with the message, or its path is in it. A call: the body is what the function returned.
    Done,
    /// The function failed: the body is Lambda's error.
    FunctionError,
    /// It was not done.
    Refused(Refusal),
}

/// Reads the JSON of a request.
///
/// # Errors
/// [`MessageError::Meta`].
pub fn ask(meta: &[u8]) -> Result<Ask, MessageError> {
    Ok(serde_json::from_slice(meta)?)
}

/// Header and JSON of an answer whose body has `body_len` bytes.
#[must_use]
pub fn answer(answer: &Answer, body_len: u32) -> Vec<u8> {
    let mut answer = answer.clone();
    if let End::Refused(refusal) = &mut answer.end {
        let fits = refusal.problem.char_indices().nth(PROBLEM_CHARS_MAX);
        if let Some((at, _)) = fits {
            refusal.problem.truncate(at);
        }
    }
    let mut message = vec![0; HEADER_LEN];
    serde_json::to_writer(&mut message, &answer)
        .expect("strings and numbers are always JSON, and a Vec takes every write");
    let meta_len = u32::try_from(message.len() - HEADER_LEN).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&meta_len.to_le_bytes());
    message[4..HEADER_LEN].copy_from_slice(&body_len.to_le_bytes());
    message
}

/// Most characters of a problem. Each takes at most 6 bytes of JSON (RFC 8259 §7), or 4 of UTF-8.
const PROBLEM_CHARS_MAX: usize = 600;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_read() {
        let call = br#"{"op":"call","id":3,"function":"next","buffer":1}"#;
        let Ask::Call {
            id,
            function,
            buffer,
            input,
        } = ask(call).unwrap()
        else {
            panic!("not a call");
        };
        assert_eq!(
            (id, function.as_str(), buffer, input),
            (3, "next", Some(1), None)
        );
        let filled = ask(br#"{"op":"filled","buffer":7,"len":9}"#).unwrap();
        assert_eq!(filled, Ask::Filled { buffer: 7, len: 9 });
        let release = ask(br#"{"op":"release","buffer":7}"#).unwrap();
        assert_eq!(release, Ask::Release { buffer: 7 });
        for wrong in [
            &b"{}"[..],
            b"[]",
            br#"{"op":"exit"}"#,
            br#"{"op":"buffer","id":1,"len":-1}"#,
        ] {
            assert!(ask(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_length_over_its_limit_is_refused_by_the_header_alone() {
        let header = |meta: u32, body: u32| {
            let mut bytes = [0; HEADER_LEN];
            bytes[..4].copy_from_slice(&meta.to_le_bytes());
            bytes[4..].copy_from_slice(&body.to_le_bytes());
            Lengths::decode(bytes)
        };
        assert!(header(META_LEN_MAX, BODY_LEN_MAX).is_ok());
        assert!(header(META_LEN_MAX + 1, 0).is_err() && header(0, BODY_LEN_MAX + 1).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(meta in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ask(&meta);
        }

        #[test]
        fn every_answer_fits(problem in ".{0,2000}", id: u32) {
            let end = End::Refused(Refusal::new(Reason::Invalid, problem));
            let path = Some("/proc/4194304/fd/1023".to_owned());
            let message = answer(&Answer { id, descriptor: true, path, end }, 7);
            let header = message.first_chunk().copied().unwrap();
            let lengths = Lengths::decode(header).unwrap();
            prop_assert_eq!(lengths.meta as usize, message.len() - HEADER_LEN);
            prop_assert_eq!(lengths.body, 7);
        }
    }
}
