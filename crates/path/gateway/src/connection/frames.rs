//! The boundaries of the frames that a client of HTTP/2 sends (RFC 9113 §4.1), so that the time of a frame and of a head can be limited,
//! as the time of a head of HTTP/1 is. h2 shows a frame only when it is complete, and a head only with its last frame.
//!
//! Frames that are no part of a request cost the daemon more than the client: those without end (CVE-2019-9512, -9513, -9515, -9518) are
//! read at a pace. A request and the bytes of a response pay for those that belong to them.

use std::time::Duration;

use pilot_protocols::CellRate;
use tokio::time::Instant;

/// Follows the bytes of a connection. Its own checks are few: h2 finds what is wrong.
#[derive(Debug)]
pub(super) struct Frames {
    /// The beginning of the connection, which is not a frame.
    preface_left: usize,
    header: [u8; HEADER_LEN],
    header_len: usize,
    payload_left: usize,
    /// The current payload is a request's body, which has limits of its own.
    is_data: bool,
    /// A head has begun, and its last frame has not come.
    in_head: bool,
    begun: u32,
    pace: CellRate,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self {
            preface_left: PREFACE_LEN,
            header: [0; HEADER_LEN],
            header_len: 0,
            payload_left: 0,
            is_data: false,
            in_head: false,
            begun: 0,
            pace: CellRate::default(),
        }
    }

    /// Further bytes have come.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.preface_left > 0 {
                let len = self.preface_left.min(bytes.len());
                self.preface_left -= len;
                bytes = &bytes[len..];
            } else if self.payload_left > 0 {
                let len = self.payload_left.min(bytes.len());
                self.payload_left -= len;
                bytes = &bytes[len..];
            } else {
                if self.header_len == 0 && !self.in_head {
                    self.begun = self.begun.wrapping_add(1);
                }
                self.header[self.header_len] = bytes[0];
                self.header_len += 1;
                bytes = &bytes[1..];
                if self.header_len == HEADER_LEN {
                    self.begin_payload();
                }
            }
        }
    }

    fn begin_payload(&mut self) {
        let [a, b, c, kind, flags, ..] = self.header;
        self.header_len = 0;
        self.payload_left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        self.is_data = kind == DATA;
        match kind {
            HEADERS => self.pace.give(GAP * PER_REQUEST),
            // A request has one.
            DATA if flags & END_STREAM != 0 => {}
            DATA if self.payload_left >= SHORT_LEN => _ = self.pace.take(DATA_GAP),
            // It may change the windows of all streams.
            SETTINGS => _ = self.pace.take(SETTINGS_GAP),
            _ => _ = self.pace.take(GAP),
        }
        if kind == HEADERS || kind == CONTINUATION {
            self.in_head = flags & END_HEADERS == 0;
        }
    }

    /// The number of the frame or head that the client is sending; it may wrap around. `None`: it is not in the middle of one.
    pub(super) fn within(&self) -> Option<u32> {
        let in_payload = self.payload_left > 0 && !self.is_data;
        let within = self.preface_left > 0 || self.header_len > 0 || in_payload || self.in_head;
        within.then_some(self.begun)
    }

    /// The client has taken so many bytes.
    pub(super) fn wrote(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.pace.give(GAP * bytes / WRITTEN_PER_FRAME);
    }

    /// When more may be read; `None`: now.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pace.next()
    }
}

/// Between frames without end. A client that has been quiet may send 4,000 at once, or 200 of SETTINGS.
const GAP: Duration = Duration::from_micros(50);
const SETTINGS_GAP: Duration = Duration::from_millis(1);

/// The same for frames of a body with at least [`SHORT_LEN`] bytes: a client that does not send many in one write(2) does not reach it.
const DATA_GAP: Duration = Duration::from_micros(10);

const SHORT_LEN: usize = 64;

/// Frames that a request pays for: its priority, two updates of windows, a ping.
const PER_REQUEST: u32 = 4;

/// A client updates two windows for some kilobytes that it has read, and may ask with a ping how fast that was.
const WRITTEN_PER_FRAME: u32 = 1024;

const PREFACE_LEN: usize = 24;
const HEADER_LEN: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let len = u8::try_from(payload).unwrap();
        let mut frame = vec![0, 0, len, kind, flags, 0, 0, 0, 1];
        frame.resize(HEADER_LEN + payload, 7);
        frame
    }

    #[test]
    fn a_head_lasts_until_its_last_continuation_however_it_is_cut() {
        for step in [1, 2, 5, 9, 100] {
            let mut frames = Frames::new();
            let mut feed = |bytes: &[u8]| {
                for piece in bytes.chunks(step) {
                    frames.read(piece);
                }
                frames.within()
            };
            assert_eq!(feed(&[b'P'; 23]), Some(0));
            assert_eq!(feed(b"\n"), None);
            assert_eq!(feed(&frame(4, 0, 6)), None, "SETTINGS");
            let head = feed(&frame(HEADERS, 0, 20));
            assert_eq!(head, Some(2));
            assert_eq!(feed(&frame(CONTINUATION, 0, 0)), head);
            assert_eq!(feed(&frame(CONTINUATION, END_HEADERS, 3)), None);
            let body = frame(DATA, 0, 30);
            assert_eq!(feed(&body[..8]), Some(3));
            assert_eq!(feed(&body[8..20]), None, "a body has limits of its own");
            assert_eq!(feed(&body[20..]), None);
            let ping = frame(6, 0, 8);
            assert_eq!(feed(&ping[..12]), Some(4));
            assert_eq!(feed(&ping[12..]), None);
        }
    }

    /// How long such frames are read.
    async fn reads(frames: &mut Frames, frame: &[u8], count: usize) -> Duration {
        let begun = Instant::now();
        for _ in 0..count {
            if let Some(next) = frames.next() {
                tokio::time::sleep_until(next).await;
            }
            frames.read(frame);
        }
        begun.elapsed()
    }

    fn opened() -> Frames {
        let mut frames = Frames::new();
        frames.read(&[b'P'; PREFACE_LEN]);
        frames
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_end_have_a_pace() {
        const PRIORITY: u8 = 2;
        const PING: u8 = 6;
        const GOAWAY: u8 = 7;
        const WINDOW_UPDATE: u8 = 8;
        const UNKNOWN: u8 = 0x20;
        for (kind, flags, payload) in [
            (PING, 0, 8),
            (PING, 1, 8),
            (PRIORITY, 0, 5),
            (GOAWAY, 0, 8),
            (WINDOW_UPDATE, 0, 4),
            (UNKNOWN, 0, 0),
            (DATA, 0, 0),
            (DATA, 0, SHORT_LEN - 1),
        ] {
            let took = reads(&mut opened(), &frame(kind, flags, payload), 24_000).await;
            assert!((990..=1010).contains(&took.as_millis()), "{kind}: {took:?}");
        }
        let took = reads(&mut opened(), &frame(DATA, 0, SHORT_LEN), 120_000).await;
        assert!((990..=1010).contains(&took.as_millis()), "{took:?}");
        let took = reads(&mut opened(), &frame(SETTINGS, 0, 6), 1_200).await;
        assert!((990..=1010).contains(&took.as_millis()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_and_what_the_client_reads_pay_for_frames() {
        const WINDOW_UPDATE: u8 = 8;
        let mut frames = opened();
        let request = [
            frame(HEADERS, END_HEADERS, 30),
            frame(DATA, END_STREAM, 2),
            frame(WINDOW_UPDATE, 0, 4),
            frame(WINDOW_UPDATE, 0, 4),
        ]
        .concat();
        let took = reads(&mut frames, &request, 100_000).await;
        assert_eq!(took, Duration::ZERO);
        let update = frame(WINDOW_UPDATE, 0, 4);
        for _ in 0..100_000 {
            frames.wrote(4096);
            let took = reads(&mut frames, &update, 2).await;
            assert_eq!(took, Duration::ZERO);
        }
    }
}
