//! Frames: a 16-byte header, meta, body. The decoder gets the bytes from the socket and returns complete frames, whose parts
//! share the buffer in which they arrived.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;

/// Longest meta of a frame that carries headers or a client's context, bytes.
pub const META_LEN_MAX: u32 = 256 * 1024;

/// Longest meta of the other kinds, bytes: a few numbers.
pub const SMALL_META_LEN_MAX: u32 = 4 * 1024;

/// Longest event or beginning of a request's body, bytes: Lambda's 6 MiB, and what may arrive with the last of them.
pub const REQUEST_LEN_MAX: u32 = 8 * 1024 * 1024;

/// Longest result or error, bytes: Lambda's limit.
pub const RESULT_LEN_MAX: u32 = 6 * 1024 * 1024 + 100;

/// Longest piece of a response body, bytes. A longer body is sent in pieces, so a client that reads slowly makes the daemon hold
/// one piece.
pub const PIECE_LEN_MAX: u32 = 64 * 1024;

/// Longest body of a `WINDOW`, bytes: a number.
pub const WINDOW_LEN_MAX: u32 = 4;

/// What each frame of a response takes of its stream's window, at least. Bytes.
pub const WINDOW_COST_MIN: u32 = 256;

/// Maximum number of descriptors of one frame.
pub const DESCRIPTORS_MAX: u8 = 64;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Call the handler.
    Invoke,
    /// Call the application.
    Http,
    /// The values of secrets, before anything else.
    Secrets,
    /// The client of a request has gone.
    Cancel,
    /// There is room for more of a response.
    Window,
    /// The worker is initialised.
    Ready,
    /// The handler returned.
    Result,
    /// The handler raised.
    Error,
    /// An HTTP response begins.
    Head,
    /// More of the response's body.
    Chunk,
    /// The end of the response's body.
    End,
    /// The handler could not be imported.
    InitError,
}

impl FrameKind {
    const ALL: [(u8, Self); 12] = [
        (1, Self::Invoke),
        (2, Self::Http),
        (3, Self::Secrets),
        (4, Self::Cancel),
        (5, Self::Window),
        (16, Self::Ready),
        (17, Self::Result),
        (18, Self::Error),
        (19, Self::Head),
        (20, Self::Chunk),
        (21, Self::End),
        (22, Self::InitError),
    ];

    /// Its number in the protocol.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Invoke => 1,
            Self::Http => 2,
            Self::Secrets => 3,
            Self::Cancel => 4,
            Self::Window => 5,
            Self::Ready => 16,
            Self::Result => 17,
            Self::Error => 18,
            Self::Head => 19,
            Self::Chunk => 20,
            Self::End => 21,
            Self::InitError => 22,
        }
    }

    /// The longest meta and the longest body of such a frame, bytes.
    #[must_use]
    pub const fn len_max(self) -> (u32, u32) {
        match self {
            Self::Invoke | Self::Http => (META_LEN_MAX, REQUEST_LEN_MAX),
            Self::Secrets => (META_LEN_MAX, 0),
            Self::Cancel => (0, 0),
            Self::Window => (0, WINDOW_LEN_MAX),
            Self::Ready => (SMALL_META_LEN_MAX, 0),
            Self::Result | Self::Error | Self::InitError => (SMALL_META_LEN_MAX, RESULT_LEN_MAX),
            Self::Head => (META_LEN_MAX, PIECE_LEN_MAX),
            Self::Chunk | Self::End => (SMALL_META_LEN_MAX, PIECE_LEN_MAX),
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(known, _)| *known == number)
            .map(|(_, kind)| *kind)
    }
}

/// A frame's header, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of meta.
    pub meta_len: u32,
    /// Bytes of body.
    pub body_len: u32,
    /// The invocation within the worker; 0 is the worker itself.
    pub stream: u32,
    /// The type of the frame.
    pub kind: FrameKind,
    /// For `INVOKE` and `HTTP`: the number of descriptors. Otherwise 0.
    pub flags: u8,
}

/// Why bytes are not a frame. After this error, the channel must not be used again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An unknown kind.
    #[error("frame kind {number} is unknown")]
    FrameKind {
        /// The number.
        number: u8,
    },
    /// A part that exceeds its limit.
    #[error("frame {part} of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// `meta` or `body`.
        part: &'static str,
        /// Its length.
        len: u64,
        /// The limit.
        limit: u32,
    },
    /// More descriptors than a frame may have.
    #[error("frame has {count} descriptors, the limit is {DESCRIPTORS_MAX}")]
    Descriptors {
        /// Their number.
        count: usize,
    },
    /// A reserved field that is not zero.
    #[error("frame has {value} in its reserved field")]
    Reserved {
        /// Its value.
        value: u16,
    },
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let mut rest = &bytes[..];
        let meta_len = rest.get_u32_le();
        let body_len = rest.get_u32_le();
        let stream = rest.get_u32_le();
        let number = rest.get_u8();
        let flags = rest.get_u8();
        let reserved = rest.get_u16_le();
        let kind = FrameKind::from_number(number).ok_or(FrameError::FrameKind { number })?;
        let (meta_len_max, body_len_max) = kind.len_max();
        check_len("meta", u64::from(meta_len), meta_len_max)?;
        check_len("body", u64::from(body_len), body_len_max)?;
        if flags > DESCRIPTORS_MAX {
            return Err(FrameError::Descriptors {
                count: flags.into(),
            });
        }
        if reserved != 0 {
            return Err(FrameError::Reserved { value: reserved });
        }
        Ok(Self {
            meta_len,
            body_len,
            stream,
            kind,
            flags,
        })
    }

    /// The header of a frame with these parts.
    ///
    /// # Errors
    /// A part exceeds its limit.
    pub fn new(kind: FrameKind, stream: u32, meta: &[u8], body: &[u8]) -> Result<Self, FrameError> {
        let (meta_len_max, body_len_max) = kind.len_max();
        Ok(Self {
            meta_len: check_len("meta", meta.len() as u64, meta_len_max)?,
            body_len: check_len("body", body.len() as u64, body_len_max)?,
            stream,
            kind,
            flags: 0,
        })
    }

    /// The same header, for a frame with this number of descriptors attached to its first byte.
    ///
    /// # Errors
    /// There are more than [`DESCRIPTORS_MAX`].
    pub fn with_descriptors(self, count: usize) -> Result<Self, FrameError> {
        match u8::try_from(count) {
            Ok(flags) if flags <= DESCRIPTORS_MAX => Ok(Self { flags, ..self }),
            _ => Err(FrameError::Descriptors { count }),
        }
    }

    fn frame_len(&self) -> usize {
        HEADER_LEN + self.meta_len as usize + self.body_len as usize
    }

    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut rest = &mut bytes[..];
        rest.put_u32_le(self.meta_len);
        rest.put_u32_le(self.body_len);
        rest.put_u32_le(self.stream);
        rest.put_u8(self.kind.number());
        rest.put_u8(self.flags);
        bytes
    }
}

fn check_len(part: &'static str, len: u64, limit: u32) -> Result<u32, FrameError> {
    u32::try_from(len)
        .ok()
        .filter(|len| *len <= limit)
        .ok_or(FrameError::TooLong { part, len, limit })
}

/// A complete frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The type of the frame.
    pub kind: FrameKind,
    /// The invocation within the worker.
    pub stream: u32,
    /// JSON, or empty.
    pub meta: Bytes,
    /// Depends on the kind.
    pub body: Bytes,
}

/// Longest frame whose memory the decoder uses again for the next one, bytes.
const KEPT_LEN_MAX: usize = 2 * PIECE_LEN_MAX as usize;

/// Assembles frames from the bytes of the socket.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: BytesMut,
}

impl FrameDecoder {
    /// The buffer for the next bytes, with room for at least `least`.
    pub fn space(&mut self, least: usize) -> &mut BytesMut {
        let missing = self.awaited().saturating_sub(self.buffer.len());
        self.buffer.reserve(least.max(missing));
        &mut self.buffer
    }

    /// Length of the frame whose header has arrived, bytes; 0 if there is none.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.buffer
            .first_chunk()
            .and_then(|bytes| Header::decode(bytes).ok())
            .map_or(0, |header| header.frame_len())
    }

    /// The next complete frame, if it has arrived.
    ///
    /// # Errors
    /// The bytes are not a frame.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(bytes) = self.buffer.first_chunk() else {
            return Ok(None);
        };
        let header = Header::decode(bytes)?;
        let whole = header.frame_len();
        if self.buffer.len() < whole {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(whole).freeze();
        if whole > KEPT_LEN_MAX {
            // Otherwise the buffer would keep the memory of a long frame as long as it lives.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        frame.advance(HEADER_LEN);
        let meta = frame.split_to(header.meta_len as usize);
        Ok(Some(Frame {
            kind: header.kind,
            stream: header.stream,
            meta,
            body: frame,
        }))
    }

    /// Whether there are no bytes of an unfinished frame.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(kind: FrameKind, stream: u32, meta: &[u8], body: &[u8]) -> Vec<u8> {
        let header = Header::new(kind, stream, meta, body).unwrap();
        [&header.encode()[..], meta, body].concat()
    }

    #[test]
    fn a_part_over_the_limit_of_its_kind_is_refused_by_its_header_alone() {
        for (_, kind) in FrameKind::ALL {
            let (meta_len, body_len) = kind.len_max();
            for (at, len, part) in [(0, meta_len, "meta"), (4, body_len, "body")] {
                let mut header = Header::new(kind, 1, b"", b"").unwrap().encode();
                header[at..at + 4].copy_from_slice(&len.to_le_bytes());
                assert!(Header::decode(&header).is_ok());
                header[at..at + 4].copy_from_slice(&(len + 1).to_le_bytes());
                let refused = Header::decode(&header);
                assert!(matches!(refused, Err(FrameError::TooLong { part: at, .. }) if at == part));
            }
        }
    }

    #[test]
    fn the_memory_of_a_long_frame_goes_with_it() {
        let body = vec![7; 4 * KEPT_LEN_MAX];
        let mut decoder = FrameDecoder::default();
        let bytes = encode(FrameKind::Result, 1, b"{}", &body);
        decoder.space(bytes.len()).extend_from_slice(&bytes);
        decoder.space(3).extend_from_slice(b"\x02\0\0");
        assert_eq!(decoder.next_frame().unwrap().unwrap().body, body);
        assert_eq!(decoder.buffer.len(), 3);
        assert!(decoder.buffer.capacity() <= KEPT_LEN_MAX);
    }

    #[test]
    fn every_kind_keeps_its_number() {
        for (number, kind) in FrameKind::ALL {
            assert_eq!(kind.number(), number);
            assert_eq!(FrameKind::from_number(number), Some(kind));
        }
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting_of_the_stream(
            parts in prop::collection::vec((0usize..12, any::<u32>(), prop::collection::vec(any::<u8>(), 0..80), prop::collection::vec(any::<u8>(), 0..300)), 1..8),
            cuts in prop::collection::vec(1usize..64, 1..40),
        ) {
            let mut stream = Vec::new();
            let parts: Vec<_> = parts
                .into_iter()
                .map(|(kind, id, meta, body)| match FrameKind::ALL[kind].1 {
                    FrameKind::Ready | FrameKind::Secrets => (kind, id, meta, Vec::new()),
                    FrameKind::Cancel | FrameKind::Window => (kind, id, Vec::new(), Vec::new()),
                    _ => (kind, id, meta, body),
                })
                .collect();
            for (kind, id, meta, body) in &parts {
                stream.extend(encode(FrameKind::ALL[*kind].1, *id, meta, body));
            }
            let mut decoder = FrameDecoder::default();
            let mut decoded = Vec::new();
            let mut cuts = cuts.iter().cycle();
            let mut rest = &stream[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                decoder.space(now.len()).extend_from_slice(now);
                rest = later;
                while let Some(frame) = decoder.next_frame().unwrap() {
                    decoded.push(frame);
                }
            }
            prop_assert!(decoder.is_empty());
            prop_assert_eq!(decoded.len(), parts.len());
            for (frame, (kind, id, meta, body)) in decoded.iter().zip(&parts) {
                prop_assert_eq!(frame.kind, FrameKind::ALL[*kind].1);
                prop_assert_eq!(frame.stream, *id);
                prop_assert_eq!(&frame.meta[..], &meta[..]);
                prop_assert_eq!(&frame.body[..], &body[..]);
            }
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = FrameDecoder::default();
            decoder.space(bytes.len()).extend_from_slice(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }
}
