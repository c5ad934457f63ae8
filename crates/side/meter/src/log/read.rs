//! Reading a usage log, also while it is written.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::{FRAME_BYTES_MAX, FRAME_HEAD, MAGIC, path, segments};
use crate::record::Entry;

/// The entries of the log in a folder, from the oldest. A segment ends at its first damaged frame; so does one that is being
/// written. A segment that is removed meanwhile is left out. No folder: no entries.
///
/// # Errors
/// The folder cannot be listed.
pub fn read(folder: &Path) -> io::Result<Entries> {
    let mut waiting = match segments(folder) {
        Ok(numbers) => numbers,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    waiting.reverse();
    Ok(Entries {
        folder: folder.to_owned(),
        waiting,
        segment: None,
        frame: Vec::new(),
        at: 0,
        ahead: Ahead::default(),
    })
}

/// The entries of a log.
#[derive(Debug)]
pub struct Entries {
    folder: PathBuf,
    /// The numbers of the segments that come, the next one last.
    waiting: Vec<u64>,
    segment: Option<BufReader<File>>,
    /// The content of the frame, and how much of it is read.
    frame: Vec<u8>,
    at: usize,
    ahead: Ahead,
}

/// What was read of the call, or of the start or end of a worker, that comes next.
#[derive(Debug, Default)]
struct Ahead {
    throttled_ns: Option<u64>,
    pss_bytes: Option<u64>,
    worker: Option<u64>,
    thawed_ns: Option<u64>,
}

impl Ahead {
    /// Takes what belongs to the next entry, or completes that entry.
    fn complete(&mut self, entry: Entry) -> Option<Entry> {
        match entry {
            Entry::Throttled(nanos) => self.throttled_ns = Some(nanos),
            Entry::Pss(bytes) => self.pss_bytes = Some(bytes),
            Entry::Worker(number) => self.worker = Some(number),
            Entry::Thawed(nanos) => self.thawed_ns = Some(nanos),
            Entry::Call(mut call) => {
                let ahead = std::mem::take(self);
                call.throttled_ns = ahead.throttled_ns;
                call.pss_bytes = ahead.pss_bytes;
                call.worker = ahead.worker;
                call.thawed_ns = ahead.thawed_ns;
                return Some(Entry::Call(call));
            }
            Entry::WorkerStarted {
                function, unix_ms, ..
            } => {
                return Some(Entry::WorkerStarted {
                    function,
                    unix_ms,
                    worker: self.worker.take(),
                });
            }
            Entry::WorkerEnded(mut end) => {
                end.worker = self.worker.take();
                return Some(Entry::WorkerEnded(end));
            }
            entry => return Some(entry),
        }
        None
    }
}

impl Iterator for Entries {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.frame.get(self.at..).unwrap_or_default();
            if !rest.is_empty() {
                if let Ok((entry, after)) = postcard::take_from_bytes(rest) {
                    self.at = self.frame.len() - after.len();
                    match self.ahead.complete(entry) {
                        Some(entry) => return Some(Ok(entry)),
                        None => continue,
                    }
                }
                // A whole frame that has something else in it was written by a later version: the rest of it is left out.
                self.at = self.frame.len();
                continue;
            }
            let Some(segment) = &mut self.segment else {
                let number = self.waiting.pop()?;
                match open(&path(&self.folder, number)) {
                    Ok(opened) => {
                        self.segment = opened;
                        self.ahead = Ahead::default();
                    }
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            self.at = 0;
            match frame(segment, &mut self.frame) {
                Ok(true) => {}
                Ok(false) => {
                    self.frame.clear();
                    self.segment = None;
                }
                Err(error) => {
                    self.frame.clear();
                    self.segment = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Opens a segment and reads its beginning. `None`: it is gone, or is no segment.
fn open(path: &Path) -> io::Result<Option<BufReader<File>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::with_capacity(256 << 10, file);
    let mut magic = [0; MAGIC.len()];
    let whole = fill(&mut reader, &mut magic)?;
    Ok((whole && &magic == MAGIC).then_some(reader))
}

/// Reads the next frame's content. False: there is no whole one.
fn frame(reader: &mut impl Read, content: &mut Vec<u8>) -> io::Result<bool> {
    let mut head = [0; FRAME_HEAD];
    if !fill(reader, &mut head)? {
        return Ok(false);
    }
    let [a, b, c, d, e, f, g, h] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let sum = u32::from_le_bytes([e, f, g, h]);
    if length == 0 || length > FRAME_BYTES_MAX {
        return Ok(false);
    }
    content.resize(length, 0);
    Ok(fill(reader, content)? && crc32fast::hash(content) == sum)
}

/// Reads as many bytes as there is room for. False: the file has fewer.
fn fill(reader: &mut impl Read, room: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(room) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Length of a segment up to its last whole frame. `None`: it is no segment. An empty file has length 0.
pub(super) fn whole_length(path: &Path) -> io::Result<Option<u64>> {
    if std::fs::metadata(path)?.len() < MAGIC.len() as u64 {
        return Ok(Some(0));
    }
    let Some(mut reader) = open(path)? else {
        return Ok(None);
    };
    let mut length = MAGIC.len() as u64;
    let mut content = Vec::new();
    while frame(&mut reader, &mut content)? {
        length += (FRAME_HEAD + content.len()) as u64;
    }
    Ok(Some(length))
}
