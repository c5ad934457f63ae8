//! The boundaries of the frames that a client of a WebSocket sends (RFC 6455 §5.2), so that they have a pace. Pings, pongs, empty fragments
//! and short messages cost the daemon more than the client. tungstenite reads fragments and skips over what it need not show, however many
//! there are.
//!
//! Its own checks are none: tungstenite finds what is wrong.

use pilot_protocols::PiecePace;
use tokio::time::Instant;

/// Follows the bytes of a connection.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; HEADER_LEN_MAX],
    header_len: usize,
    payload_left: u64,
    pace: PiecePace,
}

impl Frames {
    /// Further bytes have come.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if self.payload_left > 0 {
                let len = usize::try_from(self.payload_left).unwrap_or(usize::MAX);
                let (payload, rest) = bytes.split_at(len.min(bytes.len()));
                self.payload_left -= payload.len() as u64;
                bytes = rest;
                continue;
            }
            self.header[self.header_len] = *first;
            self.header_len += 1;
            bytes = rest;
            if self.header_len >= 2 && self.header_len == header_len(self.header[1]) {
                self.begin_payload();
            }
        }
    }

    fn begin_payload(&mut self) {
        self.header_len = 0;
        let [kind, short, a, b, c, d, e, f, g, h, ..] = self.header;
        self.payload_left = match short & LEN_BITS {
            LEN_16 => u16::from_be_bytes([a, b]).into(),
            LEN_64 => u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            len => len.into(),
        };
        let is_control = kind & CONTROL_BIT != 0;
        let len = usize::try_from(self.payload_left).unwrap_or(usize::MAX);
        let len = if is_control { 1 } else { len.max(1) };
        self.pace.came(PiecePace::cost(len));
    }

    /// When more may be read; `None`: now.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pace.next()
    }
}

/// The length of a header with this second byte.
fn header_len(second: u8) -> usize {
    let mask = if second & MASK_BIT != 0 { 4 } else { 0 };
    let len = match second & LEN_BITS {
        LEN_16 => 2,
        LEN_64 => 8,
        _ => 0,
    };
    2 + len + mask
}

const HEADER_LEN_MAX: usize = 14;
const CONTROL_BIT: u8 = 0x08;
const MASK_BIT: u8 = 0x80;
const LEN_BITS: u8 = 0x7f;
/// The length is in the next two bytes, or in the next eight.
const LEN_16: u8 = 126;
const LEN_64: u8 = 127;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FRAGMENT: u8 = 0x00;
    const TEXT: u8 = 0x81;
    const PING: u8 = 0x89;
    const PONG: u8 = 0x8a;

    fn frame(kind: u8, len: usize) -> Vec<u8> {
        let mut frame = vec![kind];
        match len {
            0..126 => frame.push(MASK_BIT | u8::try_from(len).unwrap()),
            126..0x1_0000 => {
                frame.push(MASK_BIT | LEN_16);
                frame.extend(u16::try_from(len).unwrap().to_be_bytes());
            }
            _ => {
                frame.push(MASK_BIT | LEN_64);
                frame.extend((len as u64).to_be_bytes());
            }
        }
        // The mask and the payload look like other frames.
        frame.resize(frame.len() + 4 + len, PING);
        frame
    }

    /// How long so many of these frames are read, in pieces of so many bytes.
    async fn reads(frame: &[u8], count: usize, step: usize) -> Duration {
        let mut frames = Frames::default();
        let begun = Instant::now();
        for _ in 0..count {
            for piece in frame.chunks(step) {
                if let Some(next) = frames.next() {
                    tokio::time::sleep_until(next).await;
                }
                frames.read(piece);
            }
        }
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn frames_have_a_pace_by_their_length() {
        for step in [1, 7, 1000] {
            for (kind, len) in [
                (PING, 0),
                (PING, 125),
                (PONG, 0),
                (FRAGMENT, 0),
                (TEXT, 0),
                (TEXT, 63),
            ] {
                let took = reads(&frame(kind, len), 24_000, step).await;
                let expected = 990..=1010;
                assert!(
                    expected.contains(&took.as_millis()),
                    "{kind} {len}: {took:?}"
                );
            }
            for len in [64, 125, 126, 1000] {
                let took = reads(&frame(TEXT, len), 24_000, step).await;
                assert!((30..=50).contains(&took.as_millis()), "{len}: {took:?}");
            }
        }
        let took = reads(&frame(FRAGMENT, 70_000), 6_000, 70_014).await;
        assert_eq!(took, Duration::ZERO);
    }
}
