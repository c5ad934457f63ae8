//! Reading a usage log, also while it is written.
//!
//! A damaged frame is left out, and with it what it may have said of the entries behind it: no record is given to a function that it may
//! not be of.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::segment::{Frame, Lost, Segment};
use super::{path, segments};
use crate::record::Entry;

/// The entries of the log in a folder, from the oldest. A damaged frame is left out; so is one that is being written. A
/// segment that is removed meanwhile is left out. No folder: no entries.
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
        indices: Indices::default(),
    })
}

/// The entries of a log.
#[derive(Debug)]
pub struct Entries {
    folder: PathBuf,
    /// The numbers of the segments that come, the next one last.
    waiting: Vec<u64>,
    segment: Option<Segment>,
    /// The content of the frame, and how much of it is read.
    frame: Vec<u8>,
    at: usize,
    ahead: Ahead,
    indices: Indices,
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

/// Which indices of functions are known to be what the segment says.
#[derive(Debug, Default)]
struct Indices {
    /// Defined since the daemon of the entries is known.
    defined: HashSet<u32>,
    /// Something is missing before the entries. Then only those that are `defined` are known.
    is_damaged: bool,
}

impl Indices {
    fn lose(&mut self, lost: Lost) {
        self.is_damaged = true;
        if lost == Lost::Anything {
            // Another daemon may have begun, with other functions.
            self.defined.clear();
        }
    }

    /// Takes what is known from an entry. False: it is not known of which function it is.
    fn admit(&mut self, entry: &Entry) -> bool {
        let index = match entry {
            Entry::Began { .. } | Entry::Daemon(_) => {
                *self = Self::default();
                return true;
            }
            Entry::Function(function) => {
                self.defined.insert(function.index);
                return true;
            }
            Entry::Call(call) => call.function,
            Entry::WorkerStarted { function, .. } => *function,
            Entry::WorkerEnded(end) => end.function,
            _ => return true,
        };
        !self.is_damaged || self.defined.contains(&index)
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
                        Some(entry) if self.indices.admit(&entry) => return Some(Ok(entry)),
                        _ => continue,
                    }
                }
                // A whole frame that has something else in it was written by a later version: the rest of it is left out.
                self.at = self.frame.len();
                continue;
            }
            let Some(segment) = &mut self.segment else {
                let number = self.waiting.pop()?;
                match Segment::open(&path(&self.folder, number)) {
                    Ok(opened) => {
                        self.segment = opened;
                        self.ahead = Ahead::default();
                        self.indices = Indices::default();
                    }
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            self.at = 0;
            match segment.read(&mut self.frame) {
                Ok(Frame::Whole) => {}
                Ok(Frame::Lost(lost)) => {
                    self.ahead = Ahead::default();
                    self.indices.lose(lost);
                }
                Ok(Frame::End) => self.segment = None,
                Err(error) => {
                    self.frame.clear();
                    self.segment = None;
                    return Some(Err(error));
                }
            }
        }
    }
}
