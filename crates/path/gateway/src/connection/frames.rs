//! The boundaries of the frames that a client of HTTP/2 sends (RFC 9113 §4.1), so that the time of a frame and of a head can be limited,
//! as the time of a head of HTTP/1 is. h2 shows a frame only when it is complete, and a head only with its last frame.

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
}

const PREFACE_LEN: usize = 24;
const HEADER_LEN: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
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
}
