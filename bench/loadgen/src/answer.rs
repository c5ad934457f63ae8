//! Reads one HTTP/1.1 answer out of bytes that come in pieces: where it ends, its status, its headers. It keeps the
//! bytes of the head and counts those of the body.

use anyhow::{Context as _, bail};

/// How far an answer has come.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    bytes: Vec<u8>,
    head_len: Option<usize>,
    body: Body,
}

#[derive(Debug, Default)]
enum Body {
    #[default]
    Unknown,
    Length(usize),
    Chunked,
}

impl Answer {
    /// Forgets the answer before.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.head_len = None;
        self.body = Body::Unknown;
    }

    /// Takes the next bytes. True once the answer is complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> anyhow::Result<bool> {
        self.bytes.extend_from_slice(bytes);
        if self.head_len.is_none() {
            let Some(at) = find(&self.bytes, b"\r\n\r\n") else {
                return Ok(false);
            };
            self.head_len = Some(at + 4);
            self.body = self.framing()?;
        }
        let body = &self.bytes[self.head_len.unwrap_or_default()..];
        Ok(match self.body {
            Body::Unknown => false,
            Body::Length(length) => body.len() >= length,
            // Correct for what is sent here: a body that itself ends a piece with this very sequence is not.
            Body::Chunked => body == b"0\r\n\r\n" || body.ends_with(b"\r\n0\r\n\r\n"),
        })
    }

    fn framing(&self) -> anyhow::Result<Body> {
        if self.status()? == 204 {
            return Ok(Body::Length(0));
        }
        if let Some(length) = self.header("content-length") {
            return Ok(Body::Length(length.parse().context("content-length")?));
        }
        if self.header("transfer-encoding").is_some() {
            return Ok(Body::Chunked);
        }
        bail!("an answer without length: {:?}", self.head());
    }

    /// The status code.
    pub(crate) fn status(&self) -> anyhow::Result<u16> {
        self.head()
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("not an answer: {:?}", self.head()))
    }

    /// A header's first value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head().lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Body and framing as text.
    pub(crate) fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[self.head_len.unwrap_or_default()..]).into_owned()
    }

    fn head(&self) -> &str {
        let end = self.head_len.unwrap_or(self.bytes.len());
        std::str::from_utf8(&self.bytes[..end]).unwrap_or("")
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_byte_by_byte_is_complete_at_its_last_one() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Pilot-Start: cold\r\n\r\nok",
            "HTTP/1.1 204 No Content\r\nX-Pilot-Start: cold\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Pilot-Start: cold\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        ] {
            let mut answer = Answer::default();
            let (last, all_but_last) = text.as_bytes().split_last().unwrap();
            for byte in all_but_last {
                assert!(!answer.push(&[*byte]).unwrap(), "{text:?}");
            }
            assert!(answer.push(&[*last]).unwrap(), "{text:?}");
            assert_eq!(answer.header("x-pilot-start"), Some("cold"));
        }
    }

    #[test]
    fn an_answer_without_length_is_an_error() {
        assert!(Answer::default().push(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
