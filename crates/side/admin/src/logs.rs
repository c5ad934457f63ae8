//! Functions' logs: two bounded files per function under `logs/NAME/`, the current one and the previous one. There is one writer
//! (the events' subscriber) and any number of readers.
//!
//! Not here: the daemon's own log. The caller counts failures. No invocation waits for its log.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::FunctionName;
use tokio::sync::watch;

/// The log files of all functions.
#[derive(Debug)]
pub struct LogStore {
    folder: PathBuf,
    file_bytes_max: u64,
    /// Wakes followers.
    written: watch::Sender<Written>,
}

/// The message for followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// There may be new lines.
    More(u64),
    /// There will be no new lines: the daemon stops.
    Closed,
}

impl LogStore {
    /// A usual size of one file, bytes.
    pub const FILE_BYTES_MAX: u64 = 8 << 20;

    /// Logs below `folder`. Each file has at most about `file_bytes_max` bytes, and each function has two files.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn open(folder: PathBuf, file_bytes_max: u64) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            file_bytes_max,
            written: watch::Sender::new(Written::More(0)),
        })
    }

    /// Appends whole lines to a function's log. Only one caller at a time.
    ///
    /// # Errors
    /// Those of the disk. Some of the lines may have been written.
    pub fn append(&self, name: &FunctionName, lines: &[u8]) -> io::Result<()> {
        let folder = self.folder.join(name.as_str());
        let current = folder.join(CURRENT);
        let mut file = match open_for_append(&current) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&folder)?;
                open_for_append(&current)?
            }
            opened => opened?,
        };
        let length = file.metadata()?.len();
        if length > 0 && length + lines.len() as u64 > self.file_bytes_max {
            fs::rename(&current, folder.join(PREVIOUS))?;
            file = open_for_append(&current)?;
        }
        file.write_all(lines)
    }

    /// Wakes all followers. Called once per batch of appends.
    pub fn wake_followers(&self) {
        self.written.send_if_modified(|written| match written {
            Written::More(count) => {
                *count += 1;
                true
            }
            Written::Closed => false,
        });
    }

    /// Ends every follower.
    pub fn close(&self) {
        self.written.send_replace(Written::Closed);
    }

    /// Removes a function's log.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn forget(&self, name: &FunctionName) -> io::Result<()> {
        let removed = fs::remove_dir_all(self.folder.join(name.as_str()));
        self.wake_followers();
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Functions that have a log.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn names(&self) -> io::Result<Vec<FunctionName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            names.extend(name.to_str().and_then(|name| name.parse().ok()));
        }
        Ok(names)
    }

    /// Opens a function's log at its last lines.
    ///
    /// # Errors
    /// Those of the disk. A function without a log has an empty one.
    pub fn read(&self, name: &FunctionName, lines: usize) -> io::Result<LogReader> {
        LogReader::open(self.folder.join(name.as_str()), lines)
    }

    /// As [`LogStore::read`], and then all lines that are written later, until the log is removed or the store is closed.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn follow(self: &Arc<Self>, name: &FunctionName, lines: usize) -> io::Result<LogFollower> {
        Ok(LogFollower {
            written: self.written.subscribe(),
            reader: self.read(name, lines)?,
        })
    }
}

/// Reads a function's log to its end, across a rotation.
#[derive(Debug)]
pub struct LogReader {
    folder: PathBuf,
    /// Oldest first. The last one is the current file, or was when it was opened.
    files: VecDeque<File>,
    /// Inode of the last file.
    inode: Option<u64>,
}

impl LogReader {
    fn open(folder: PathBuf, lines: usize) -> io::Result<Self> {
        let mut reader = Self {
            folder,
            files: VecDeque::new(),
            inode: None,
        };
        let Some(mut current) = open_if_there(&reader.folder.join(CURRENT))? else {
            return Ok(reader);
        };
        reader.inode = Some(current.metadata()?.ino());
        let found = seek_to_last_lines(&mut current, lines)?;
        reader.files.push_back(current);
        if found < lines
            && let Some(mut previous) = open_if_there(&reader.folder.join(PREVIOUS))?
            // After a rotation between the two calls, both would be the same file.
            && Some(previous.metadata()?.ino()) != reader.inode
        {
            seek_to_last_lines(&mut previous, lines - found)?;
            reader.files.push_front(previous);
        }
        Ok(reader)
    }

    /// Reads more of the log; 0 at its current end.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(file) = self.files.front_mut() {
                let count = file.read(buffer)?;
                if count > 0 {
                    return Ok(count);
                }
            }
            if self.files.len() > 1 {
                self.files.pop_front();
            } else if !self.open_next()? {
                return Ok(0);
            }
        }
    }

    /// After a rotation there is a new current file. The previous file may have got more lines, so it is read again first.
    fn open_next(&mut self) -> io::Result<bool> {
        let Some(current) = open_if_there(&self.folder.join(CURRENT))? else {
            return Ok(false);
        };
        let inode = Some(current.metadata()?.ino());
        if inode == self.inode {
            return Ok(false);
        }
        self.inode = inode;
        self.files.push_back(current);
        Ok(true)
    }

    fn is_removed(&self) -> bool {
        self.inode.is_some() && !self.folder.exists()
    }
}

/// Reads a function's log as it is written.
#[derive(Debug)]
pub struct LogFollower {
    written: watch::Receiver<Written>,
    reader: LogReader,
}

impl LogFollower {
    /// Waits for the next bytes, and returns them with the follower. `None` at the end.
    ///
    /// # Errors
    /// Those of the disk.
    pub async fn next(mut self) -> io::Result<Option<(Vec<u8>, Self)>> {
        loop {
            // Before reading, so that a write during the read wakes the follower again.
            let state = *self.written.borrow_and_update();
            let (read, reader) = read_aside(self.reader).await;
            self.reader = reader;
            let bytes = read?;
            if !bytes.is_empty() {
                return Ok(Some((bytes, self)));
            }
            let over = state == Written::Closed || self.reader.is_removed();
            if over || self.written.changed().await.is_err() {
                return Ok(None);
            }
        }
    }
}

/// Reads on a blocking thread.
pub(crate) async fn read_aside(mut reader: LogReader) -> (io::Result<Vec<u8>>, LogReader) {
    crate::blocking(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        let read = reader.read(&mut buffer).map(|count| {
            buffer.truncate(count);
            buffer
        });
        (read, reader)
    })
    .await
}

fn open_for_append(path: &Path) -> io::Result<File> {
    // Only for the daemon's user, because functions may print secrets.
    File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Seeks to the start of the file's last `lines` lines. Returns their number, at most `lines`.
fn seek_to_last_lines(file: &mut File, lines: usize) -> io::Result<usize> {
    let length = file.metadata()?.len();
    let mut block = vec![0; CHUNK_BYTES];
    let (mut end, mut found) = (length, 0);
    while end > 0 {
        let start = end.saturating_sub(CHUNK_BYTES as u64);
        let size = usize::try_from(end - start).unwrap_or(CHUNK_BYTES);
        file.read_exact_at(&mut block[..size], start)?;
        for (at, _) in block[..size]
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, byte)| **byte == b'\n')
        {
            let line_start = start + at as u64 + 1;
            // The line break at the end of the file does not begin a line.
            if line_start == length {
                continue;
            }
            found += 1;
            if found >= lines {
                file.seek(SeekFrom::Start(if lines == 0 {
                    length
                } else {
                    line_start
                }))?;
                return Ok(lines);
            }
        }
        end = start;
    }
    if length == 0 || lines == 0 {
        file.seek(SeekFrom::Start(length))?;
        return Ok(0);
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(found + 1)
}

const CURRENT: &str = "current.log";
const PREVIOUS: &str = "previous.log";
const CHUNK_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests;
