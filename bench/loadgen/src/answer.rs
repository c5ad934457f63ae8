//! An incremental parser of one HTTP/1.1 response: its end, its status, its headers. It keeps the bytes of the head and the beginning
//! of the body, and counts the rest. It allocates nothing after it has seen a response of the same size.

use crate::error::LoadError;

/// A response that is being received.
#[derive(Debug, Default)]
pub struct Answer {
    /// The head, including the empty line.
    head: Vec<u8>,
    status: u16,
    closes: bool,
    body: Body,
    /// The beginning of the body, for messages.
    kept: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Body {
    /// The head is not complete.
    #[default]
    Unknown,
    /// This number of bytes is missing.
    Length(u64),
    Chunked(Chunk),
    /// It ends with the connection.
    UntilClosed,
}

/// The position in a chunked body.
#[derive(Debug, Clone, Copy)]
enum Chunk {
    /// In the line of a size.
    Size {
        size: u64,
        in_digits: bool,
    },
    /// In the chunk, or in the line break after it.
    Data {
        left: u64,
    },
    /// After the last chunk, with the length of the current line so far.
    Trailer {
        line_len: u64,
    },
    Done,
}

impl Answer {
    /// Clears the previous response.
    pub fn clear(&mut self) {
        self.head.clear();
        self.kept.clear();
        self.status = 0;
        self.closes = false;
        self.body = Body::Unknown;
    }

    /// Parses the next bytes. True when the response is complete.
    ///
    /// # Errors
    /// The bytes are not an HTTP/1.1 response, or continue after its end.
    pub fn push(&mut self, bytes: &[u8]) -> Result<bool, LoadError> {
        if !matches!(self.body, Body::Unknown) {
            return self.feed(bytes);
        }
        let searched = self.head.len().saturating_sub(END_OF_HEAD.len() - 1);
        self.head.extend_from_slice(bytes);
        let found = self.head[searched..]
            .windows(END_OF_HEAD.len())
            .position(|window| window == END_OF_HEAD);
        let Some(at) = found else {
            return if self.head.len() > HEAD_BYTES_MAX {
                Err(self.wrong("has a head without an end"))
            } else {
                Ok(false)
            };
        };
        // Taken out and put back, so that the rest can be parsed while `self` changes.
        let mut head = std::mem::take(&mut self.head);
        let length = searched + at + END_OF_HEAD.len();
        self.head.extend_from_slice(&head[..length]);
        self.interpret()?;
        if (100..200).contains(&self.status) {
            self.clear();
            return self.push(&head[length..]);
        }
        let complete = self.feed(&head[length..]);
        head.truncate(length);
        self.head = head;
        complete
    }

    /// The connection has ended. True if this ends the response.
    #[must_use]
    pub fn ends_here(&self) -> bool {
        matches!(self.body, Body::UntilClosed)
    }

    /// The status code; 0 before the head is complete.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the server closes the connection after it.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.closes
    }

    /// A header's first value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .split(|byte| *byte == b'\n')
            .skip(1)
            .find_map(|line| {
                let colon = line.iter().position(|byte| *byte == b':')?;
                line[..colon]
                    .eq_ignore_ascii_case(name.as_bytes())
                    .then(|| std::str::from_utf8(&line[colon + 1..]).unwrap_or("").trim())
            })
    }

    /// The beginning of the body as text, without its framing.
    #[must_use]
    pub fn body_start(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }

    /// Parses status and framing of the complete head.
    fn interpret(&mut self) -> Result<(), LoadError> {
        let status = self
            .head
            .strip_prefix(b"HTTP/1.")
            .and_then(|rest| std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok());
        let Some(status) = status else {
            return Err(self.wrong("is not HTTP/1.1"));
        };
        self.status = status;
        let connection = self.header("connection");
        self.closes = connection.is_some_and(|value| value.eq_ignore_ascii_case("close"));
        self.body = if status == 204 || status == 304 {
            Body::Length(0)
        } else if self.header("transfer-encoding").is_some() {
            Body::Chunked(Chunk::Size {
                size: 0,
                in_digits: true,
            })
        } else if let Some(length) = self.header("content-length") {
            match length.parse() {
                Ok(length) => Body::Length(length),
                Err(_) => return Err(self.wrong("has a content-length that is not a number")),
            }
        } else {
            self.closes = true;
            Body::UntilClosed
        };
        Ok(())
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<bool, LoadError> {
        match &mut self.body {
            Body::Unknown => return Ok(false),
            Body::UntilClosed => keep(&mut self.kept, bytes),
            Body::Length(left) => {
                keep(&mut self.kept, bytes);
                match left.checked_sub(bytes.len() as u64) {
                    Some(rest) => *left = rest,
                    None => return Err(self.wrong("is longer than its content-length")),
                }
            }
            Body::Chunked(chunk) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let Some(taken) = chunk.take(rest, &mut self.kept) else {
                        return Err(self.wrong("has a broken chunk"));
                    };
                    rest = &rest[taken..];
                }
            }
        }
        Ok(matches!(
            self.body,
            Body::Length(0) | Body::Chunked(Chunk::Done)
        ))
    }

    fn wrong(&self, problem: &'static str) -> LoadError {
        let start = &self.head[..self.head.len().min(MESSAGE_BYTES_MAX)];
        LoadError::Answer {
            problem,
            head: String::from_utf8_lossy(start).into_owned(),
        }
    }
}

impl Chunk {
    /// Consumes bytes from the front of `bytes`, which is not empty, and returns their number. `None`: they are invalid.
    fn take(&mut self, bytes: &[u8], kept: &mut Vec<u8>) -> Option<usize> {
        let first = *bytes.first()?;
        match *self {
            Self::Size { size, in_digits } => {
                *self = match (first, char::from(first).to_digit(16)) {
                    (b'\n', _) if size == 0 => Self::Trailer { line_len: 0 },
                    (b'\n', _) => Self::Data { left: size + 2 },
                    (_, Some(digit)) if in_digits => Self::Size {
                        size: size.checked_mul(16)?.checked_add(u64::from(digit))?,
                        in_digits,
                    },
                    _ => Self::Size {
                        size,
                        in_digits: false,
                    },
                };
                Some(1)
            }
            Self::Data { left } => {
                let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let data = left.saturating_sub(2).min(taken as u64);
                keep(kept, &bytes[..usize::try_from(data).unwrap_or(taken)]);
                let left = left - taken as u64;
                *self = if left == 0 {
                    Self::Size {
                        size: 0,
                        in_digits: true,
                    }
                } else {
                    Self::Data { left }
                };
                Some(taken)
            }
            Self::Trailer { line_len } => {
                *self = match first {
                    b'\n' if line_len == 0 => Self::Done,
                    b'\n' => Self::Trailer { line_len: 0 },
                    b'\r' => Self::Trailer { line_len },
                    _ => Self::Trailer {
                        line_len: line_len + 1,
                    },
                };
                Some(1)
            }
            Self::Done => None,
        }
    }
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = MESSAGE_BYTES_MAX.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

const END_OF_HEAD: &[u8] = b"\r\n\r\n";
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How many bytes of a body are kept.
const MESSAGE_BYTES_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANSWERS: [&str; 5] = [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Pilot-Start: cold\r\n\r\nok",
        "HTTP/1.1 204 No Content\r\nX-Pilot-Start: cold\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Pilot-Start: cold\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Pilot-Start: cold\r\n\r\n\
         a;name=value\r\n\r\n0\r\n\r\n123\r\n0\r\nTrailer: b\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Pilot-Start: cold\r\n\r\n",
    ];

    proptest! {
        #[test]
        fn an_answer_is_complete_at_its_last_byte_however_it_is_cut(which in 0..ANSWERS.len(), cuts in any::<[u8; 4]>()) {
            let text = ANSWERS[which].as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % text.len()).collect();
            cuts.extend([0, text.len() - 1]);
            cuts.sort_unstable();
            let mut answer = Answer::default();
            for pair in cuts.windows(2) {
                prop_assert!(!answer.push(&text[pair[0]..pair[1]]).unwrap());
            }
            prop_assert!(answer.push(&text[text.len() - 1..]).unwrap());
            prop_assert_eq!(answer.header("x-pilot-start"), Some("cold"));
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut answer = Answer::default();
            let _ = answer.push(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            let _ = answer.push(&bytes);
            let _ = Answer::default().push(&bytes);
        }
    }

    #[test]
    fn the_body_is_known_without_its_framing() {
        let mut answer = Answer::default();
        for (text, body) in ANSWERS.iter().zip(["ok", "", "ok", "\r\n0\r\n\r\n123", ""]) {
            answer.clear();
            assert!(answer.push(text.as_bytes()).unwrap(), "{text:?}");
            assert_eq!(answer.body_start(), body);
        }
    }

    #[test]
    fn an_answer_without_length_ends_with_its_connection() {
        let mut answer = Answer::default();
        assert!(!answer.push(b"HTTP/1.0 200 OK\r\n\r\nbody").unwrap());
        assert!(answer.ends_here() && answer.closes());
        assert!(!Answer::default().ends_here());
    }

    #[test]
    fn what_is_not_an_answer_says_how_it_begins() {
        for (text, problem) in [
            ("SSH-2.0-x\r\n\r\n", "is not HTTP/1.1"),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                "content-length",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
                "is longer",
            ),
        ] {
            let error = Answer::default()
                .push(text.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
    }
}
