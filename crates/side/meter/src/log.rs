//! The usage log: segment files of bounded total size. A frame is the length of its content (4 bytes, little-endian), the CRC-32 of
//! the content (4 bytes), and the content: entries of `record`, one after the other. A frame is written with one call, so a daemon
//! that is killed loses no frame that it has written, and a torn frame at the end of a file is recognised and cut off. The writer
//! synchronises the file at most once per second, so a power cut costs the last second.
//!
//! A frame that is damaged costs itself, as far as what comes after it can still be understood; see `read`. A file that has whole frames
//! behind a damaged one is never cut.
//!
//! Each segment can be read alone: it says itself what its indices stand for, and which workers lived when it began.

mod read;
mod segment;
pub(crate) mod time;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

pub use read::{Entries, read};

use segment::Tail;

use crate::record::Entry;

/// The first bytes of a segment: format and its version.
pub(crate) const MAGIC: &[u8; 8] = b"PLUSAGE1";
/// Length and checksum.
pub(crate) const FRAME_HEAD: usize = 8;
/// Longest content of a frame, bytes.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;
/// A frame is closed when its content reaches this.
const FRAME_BYTES: usize = 256 << 10;
/// Number of segments of a full log.
const SEGMENTS: u64 = 16;
/// Smallest segment, bytes.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Writes a log. One per folder.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    bytes_max: u64,
    file: File,
    number: u64,
    /// Length of the file up to the last whole frame.
    length: u64,
    /// There is something that is not synchronised.
    dirty: bool,
}

/// What an append did besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Nothing.
    Here,
    /// It was the last of its segment: the next append goes to a new one, which must say what its indices stand for.
    SegmentFull,
}

impl Writer {
    /// Opens the log in a folder, and makes the folder if needed. A torn frame at the end is cut off. If more is wrong with the newest
    /// segment, it stays as it is, and a new one begins. The log takes at most about
    /// `bytes_max` of the disk; the oldest segment is removed for a new one.
    ///
    /// # Errors
    /// The folder or the newest segment cannot be opened or written.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (number, length) = match segments(folder)?.pop() {
            None => (1, 0),
            Some(newest) => match segment::tail(&path(folder, newest))? {
                Tail::Whole { length } => (newest, length),
                // A file that is no segment of this format is left as it is.
                Tail::Foreign => (newest + 1, 0),
                Tail::Damaged { at } => {
                    tracing::warn!(
                        file = %path(folder, newest).display(),
                        at,
                        "the usage log is damaged: the file is left as it is, and a new one begins"
                    );
                    (newest + 1, 0)
                }
            },
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path(folder, number))?;
        let writer = Self {
            folder: folder.to_owned(),
            bytes_max,
            file,
            number,
            length,
            dirty: false,
        };
        // The rest is written with the first entries: a daemon starts on a full disk, too.
        if writer.file.metadata()?.len() > writer.length {
            writer.file.set_len(writer.length)?;
        }
        Ok(writer)
    }

    /// Appends entries. If it fails, nothing of the frame that failed is in the log.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, entries: &[Entry]) -> io::Result<Appended> {
        let mut frame = vec![0; FRAME_HEAD];
        for (index, entry) in entries.iter().enumerate() {
            frame = postcard::to_extend(entry, frame).map_err(io::Error::other)?;
            if frame.len() >= FRAME_BYTES || index + 1 == entries.len() {
                self.write(&mut frame)?;
                frame.truncate(0);
                frame.resize(FRAME_HEAD, 0);
            }
        }
        if self.length < self.segment_bytes() {
            return Ok(Appended::Here);
        }
        self.rotate()?;
        Ok(Appended::SegmentFull)
    }

    /// Puts what was appended on the disk.
    ///
    /// # Errors
    /// The file cannot be synchronised.
    pub fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.dirty) {
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Whether there is something that is not synchronised.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty
    }

    fn write(&mut self, frame: &mut [u8]) -> io::Result<()> {
        let Some((head, content)) = frame.split_at_mut_checked(FRAME_HEAD) else {
            return Ok(());
        };
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let sum = crc32fast::hash(content);
        for (to, from) in head
            .iter_mut()
            .zip(length.to_le_bytes().into_iter().chain(sum.to_le_bytes()))
        {
            *to = from;
        }
        if self.length == 0 {
            self.put(MAGIC)?;
        }
        self.put(frame)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(bytes) {
            // A part of it may be there, and would hide what comes after it.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += bytes.len() as u64;
        self.dirty = true;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.sync()?;
        let number = self.number + 1;
        self.file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path(&self.folder, number))?;
        (self.number, self.length) = (number, 0);
        self.file.set_len(0)?;
        self.make_room()
    }

    /// Removes the oldest segments, so that the newest can grow to its size.
    fn make_room(&self) -> io::Result<()> {
        let mut sizes = Vec::new();
        for number in segments(&self.folder)? {
            let path = path(&self.folder, number);
            let bytes = fs::metadata(&path)?.len();
            sizes.push((number, path, bytes));
        }
        let mut total: u64 = sizes.iter().map(|(_, _, bytes)| bytes).sum();
        let most = self.bytes_max.saturating_sub(self.segment_bytes());
        for (number, path, bytes) in sizes {
            if total <= most || number == self.number {
                break;
            }
            fs::remove_file(path)?;
            total -= bytes;
        }
        Ok(())
    }

    /// Length at which a segment is full.
    pub(crate) fn segment_bytes(&self) -> u64 {
        (self.bytes_max / SEGMENTS).max(SEGMENT_BYTES_MIN)
    }
}

/// The numbers of the segments in a folder, oldest first.
pub(crate) fn segments(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".usage"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

pub(crate) fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:010}.usage"))
}

#[cfg(test)]
mod tests;
