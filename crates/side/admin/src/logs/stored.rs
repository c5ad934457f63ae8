//! A line of a log as it is stored: `UNIX_MS SOURCE REQUEST TEXT`. The source is `p` (platform) or `f` (function); the request is `-`
//! if there is none. Each line of a function's output gets this prefix, so a function cannot write one of the platform's lines.
//!
//! Files of earlier versions of Pilotlight have the text alone.

use std::io::Write as _;

use pilot_model::log_line::{LogLine, LogSource, rfc_3339};

/// How the lines of a file are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// With the prefix.
    Prefixed,
    /// The text alone.
    Plain,
}

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored<'a> {
    /// `None`: not known.
    pub(crate) unix_ms: Option<u64>,
    pub(crate) source: LogSource,
    /// `None`: none, or not known.
    pub(crate) request: Option<&'a str>,
    /// Without a line break.
    pub(crate) text: &'a [u8],
}

impl<'a> Stored<'a> {
    /// Appends the line to `lines`, in the format [`Format::Prefixed`].
    pub(crate) fn write(&self, lines: &mut Vec<u8>) {
        let source = match self.source {
            LogSource::Platform => 'p',
            LogSource::Function | LogSource::Unknown => 'f',
        };
        let (unix_ms, request) = (self.unix_ms.unwrap_or(0), self.request.unwrap_or("-"));
        // Writing to a Vec cannot fail.
        let _ = write!(lines, "{unix_ms} {source} {request} ");
        lines.extend_from_slice(self.text);
        lines.push(b'\n');
    }

    /// Reads a line, without its line break. A damaged prefix makes a line of unknown source.
    pub(super) fn read(line: &'a [u8], format: Format) -> Self {
        let prefixed = match format {
            Format::Prefixed => Self::read_prefixed(line),
            Format::Plain => None,
        };
        prefixed.unwrap_or(Self {
            unix_ms: None,
            source: LogSource::Unknown,
            request: None,
            text: line,
        })
    }

    fn read_prefixed(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let unix_ms = str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let source = match parts.next()? {
            b"p" => LogSource::Platform,
            b"f" => LogSource::Function,
            _ => return None,
        };
        let request = str::from_utf8(parts.next()?).ok()?;
        Some(Self {
            unix_ms: Some(unix_ms),
            source,
            request: (request != "-").then_some(request),
            text: parts.next()?,
        })
    }

    /// The line for people and programs.
    pub(super) fn line(&self) -> LogLine {
        LogLine {
            time: self.unix_ms.map(rfc_3339),
            source: self.source,
            request_id: self.request.map(str::to_owned),
            text: String::from_utf8_lossy(self.text).into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        for text in [&b"hello"[..], b"", b" 1 p - x", b"\xff \x1b[0m"] {
            for request in [None, Some("id-1")] {
                let line = Stored {
                    unix_ms: Some(12),
                    source: LogSource::Function,
                    request,
                    text,
                };
                let mut lines = Vec::new();
                line.write(&mut lines);
                let written = lines.strip_suffix(b"\n").unwrap();
                assert_eq!(Stored::read(written, Format::Prefixed), line);
            }
        }
    }

    #[test]
    fn a_line_without_a_prefix_has_no_source() {
        for line in [&b"plain"[..], b"", b"12 p", b"12 x - y", b"x p - y"] {
            let read = Stored::read(line, Format::Prefixed);
            assert_eq!((read.source, read.text), (LogSource::Unknown, line));
        }
        let read = Stored::read(b"12 p - forged", Format::Plain);
        assert_eq!(read.source, LogSource::Unknown);
    }
}
