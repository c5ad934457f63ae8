//! The encoding of `application/vnd.amazon.eventstream`, as far as responses of InvokeWithResponseStream need it: messages that are
//! events, with string headers. Amazon Transcribe's Developer Guide describes the format under "Event stream encoding".
//!
//! A message, all numbers big-endian: its length, its headers' length, the CRC32 of these eight bytes; per header the length of
//! the name (u8), the name, 7 for "string", the length of the value (u16), the value; the payload; the CRC32 of all before.

use bytes::{BufMut, Bytes, BytesMut};

/// The media type of such a stream.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.amazon.eventstream";

/// Larger payloads are split into several events: clients accept at most 16 MiB per event, and need the whole event first.
pub(crate) const PAYLOAD_LEN_MAX: usize = 1024 * 1024;

/// An event's kind, which says what its payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// A piece of the function's response.
    PayloadChunk,
    /// The end of the response, with an error if there was one: JSON.
    InvokeComplete,
}

impl EventKind {
    fn headers(self) -> [(&'static str, &'static str); 3] {
        let (event, content) = match self {
            Self::PayloadChunk => ("PayloadChunk", "application/octet-stream"),
            Self::InvokeComplete => ("InvokeComplete", "application/json"),
        };
        [
            (":event-type", event),
            (":content-type", content),
            (":message-type", "event"),
        ]
    }
}

/// One event. The payload is not longer than [`PAYLOAD_LEN_MAX`].
pub(crate) fn event(kind: EventKind, payload: &[u8]) -> Bytes {
    message(&kind.headers(), payload)
}

fn message(headers: &[(&str, &str)], payload: &[u8]) -> Bytes {
    let headers_len: usize = headers
        .iter()
        .map(|(name, value)| HEADER_FRAME_LEN + name.len() + value.len())
        .sum();
    let total_len = PRELUDE_LEN + headers_len + payload.len() + CRC_LEN;
    let mut message = BytesMut::with_capacity(total_len);
    message.put_u32(fitting(total_len));
    message.put_u32(fitting(headers_len));
    message.put_u32(crc32fast::hash(&message));
    for (name, value) in headers {
        message.put_u8(fitting(name.len()));
        message.put_slice(name.as_bytes());
        message.put_u8(STRING);
        message.put_u16(fitting(value.len()));
        message.put_slice(value.as_bytes());
    }
    message.put_slice(payload);
    message.put_u32(crc32fast::hash(&message));
    message.freeze()
}

fn fitting<T: TryFrom<usize>>(len: usize) -> T {
    let Ok(len) = T::try_from(len) else {
        unreachable!("names and values are ours, and payloads are bounded");
    };
    len
}

/// Lengths and their checksum.
const PRELUDE_LEN: usize = 12;
/// The checksum after the payload.
const CRC_LEN: usize = 4;
/// Length of the name, type, length of the value.
const HEADER_FRAME_LEN: usize = 4;
/// The type of a header whose value is UTF-8.
const STRING: u8 = 7;

#[cfg(test)]
mod tests;
