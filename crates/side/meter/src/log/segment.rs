//! One segment, frame by frame, also while it is written. A damaged frame is skipped: by its length, if there is a whole frame behind it,
//! else to the next whole frame that is found. The work for damaged frames has bounds, beyond which the segment ends.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::Path;

use super::{FRAME_BYTES_MAX, FRAME_HEAD, MAGIC};
use crate::record::Entry;

/// A segment, at one of its frames.
#[derive(Debug)]
pub(super) struct Segment {
    reader: BufReader<File>,
    /// Where the next frame begins.
    at: u64,
    /// How many damaged frames may still be skipped.
    skips: u32,
    /// How many bytes may still be compared with a checksum in searches.
    searched: usize,
}

/// What comes next in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// A whole frame.
    Whole,
    /// Something was skipped.
    Lost(Lost),
    /// Nothing, or nothing that is whole.
    End,
}

/// What was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// One frame, which did not begin the entries of another daemon.
    Records,
    /// It is not known.
    Anything,
}

/// How a segment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    /// With a whole frame at this length, and perhaps a part of one behind it. An empty file has length 0.
    Whole { length: u64 },
    /// There is more behind a damaged frame, which begins here.
    Damaged { at: u64 },
    /// It is no segment.
    Foreign,
}

impl Segment {
    /// Opens a segment and reads its beginning. `None`: it is gone, or is no segment.
    pub(super) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut reader = BufReader::with_capacity(256 << 10, file);
        let mut magic = [0; MAGIC.len()];
        let is_whole = fill(&mut reader, &mut magic)?;
        Ok((is_whole && &magic == MAGIC).then_some(Self {
            reader,
            at: MAGIC.len() as u64,
            skips: SKIPS_MAX,
            searched: SEARCHED_BYTES_MAX,
        }))
    }

    /// Reads the next frame's content. Without a whole frame, `content` is empty.
    pub(super) fn read(&mut self, content: &mut Vec<u8>) -> io::Result<Frame> {
        if frame(&mut self.reader, content)? {
            self.at += (FRAME_HEAD + content.len()) as u64;
            return Ok(Frame::Whole);
        }
        let skipped = self.skip(content);
        content.clear();
        skipped
    }

    /// Goes on behind the frame that is not whole. `window` is used for what is read meanwhile.
    fn skip(&mut self, window: &mut Vec<u8>) -> io::Result<Frame> {
        let Some(left) = self.skips.checked_sub(1) else {
            return Ok(Frame::End);
        };
        self.skips = left;
        window.clear();
        self.reader.seek(SeekFrom::Start(self.at))?;
        let mut rest = (&mut self.reader).take(WINDOW_BYTES);
        rest.read_to_end(window)?;
        let Some((bytes, lost)) = next_whole(window, &mut self.searched) else {
            return Ok(Frame::End);
        };
        self.at += bytes as u64;
        self.reader.seek(SeekFrom::Start(self.at))?;
        Ok(Frame::Lost(lost))
    }
}

/// How a segment ends.
pub(super) fn tail(path: &Path) -> io::Result<Tail> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes < MAGIC.len() as u64 {
        return Ok(Tail::Whole { length: 0 });
    }
    let Some(mut segment) = Segment::open(path)? else {
        return Ok(Tail::Foreign);
    };
    let mut content = Vec::new();
    loop {
        let at = segment.at;
        match segment.read(&mut content)? {
            Frame::Whole => {}
            Frame::Lost(_) => return Ok(Tail::Damaged { at }),
            // What was torn while it was written is not longer than a frame.
            Frame::End if bytes.saturating_sub(at) > (FRAME_HEAD + FRAME_BYTES_MAX) as u64 => {
                return Ok(Tail::Damaged { at });
            }
            Frame::End => return Ok(Tail::Whole { length: at }),
        }
    }
}

/// The next whole frame behind the one with which the window begins: how far it is, and what lies before it.
fn next_whole(window: &[u8], searched: &mut usize) -> Option<(usize, Lost)> {
    let rest = |at: usize| window.get(at..).unwrap_or_default();
    if let Some((length, _)) = head(window)
        && is_whole(rest(FRAME_HEAD + length), searched)
    {
        // A frame of another daemon does not begin with the clock.
        let lost = match postcard::take_from_bytes(rest(FRAME_HEAD)) {
            Ok((Entry::Clock(_), _)) => Lost::Records,
            _ => Lost::Anything,
        };
        return Some((FRAME_HEAD + length, lost));
    }
    let at = (1..window.len()).find(|at| is_whole(rest(*at), searched))?;
    Some((at, Lost::Anything))
}

/// Whether a whole frame is at the beginning of these bytes.
fn is_whole(bytes: &[u8], searched: &mut usize) -> bool {
    let Some((length, sum)) = head(bytes) else {
        return false;
    };
    let Some(content) = bytes.get(FRAME_HEAD..FRAME_HEAD + length) else {
        return false;
    };
    let Some(left) = searched.checked_sub(length) else {
        return false;
    };
    *searched = left;
    crc32fast::hash(content) == sum
}

/// Reads the next frame's content. False: there is no whole one.
fn frame(reader: &mut impl Read, content: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; FRAME_HEAD];
    if !fill(reader, &mut bytes)? {
        return Ok(false);
    }
    let Some((length, sum)) = head(&bytes) else {
        return Ok(false);
    };
    content.resize(length, 0);
    Ok(fill(reader, content)? && crc32fast::hash(content) == sum)
}

/// The length and the checksum of a frame's content. `None`: no frame begins so.
fn head(bytes: &[u8]) -> Option<(usize, u32)> {
    let [a, b, c, d, e, f, g, h] = *bytes.first_chunk::<FRAME_HEAD>()?;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let is_possible = (1..=FRAME_BYTES_MAX).contains(&length);
    is_possible.then_some((length, u32::from_le_bytes([e, f, g, h])))
}

/// Reads as many bytes as there is room for. False: the file has fewer.
fn fill(reader: &mut impl Read, room: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(room) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// A damaged frame, and the one behind it.
const WINDOW_BYTES: u64 = 2 * (FRAME_HEAD + FRAME_BYTES_MAX) as u64;
/// Most damaged frames of a segment that are skipped.
const SKIPS_MAX: u32 = 64;
/// Most bytes of a segment that are compared with a checksum to find whole frames.
const SEARCHED_BYTES_MAX: usize = 64 << 20;
