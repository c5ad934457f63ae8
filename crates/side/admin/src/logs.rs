//! Functions' logs: two bounded files per function under `logs/NAME/`, the current one and the previous one. There is one writer
//! (the events' subscriber) and any number of readers. `stored` knows how a line is written.
//!
//! Earlier versions of Pilotlight wrote plain text to `current.log` and `previous.log`. These files are read, but not written, and
//! removed when the new files are full.
//!
//! Not here: the daemon's own log. The caller counts failures. No invocation waits for its log.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::FunctionName;
use tokio::sync::watch;

use crate::long_reads::LongReads;

mod stored;

pub(crate) use stored::Stored;

use stored::Format;

/// The log files of all functions.
#[derive(Debug)]
pub struct LogStore {
    folder: PathBuf,
    file_bytes_max: u64,
    /// Wakes followers.
    written: watch::Sender<Written>,
    /// Whether logs may be written.
    room: Option<Room>,
}

/// Asked before each write.
struct Room(Box<dyn Fn() -> io::Result<()> + Send + Sync>);

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
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
            room: None,
        })
    }

    /// From now on, lines are written only while this is no error. So logs do not take the last room on a disk.
    #[must_use]
    pub fn while_there_is_room(
        mut self,
        room: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.room = Some(Room(Box::new(room)));
        self
    }

    /// Appends whole lines to a function's log. Only one caller at a time.
    ///
    /// # Errors
    /// Those of the disk. Some of the lines may have been written.
    pub fn append(&self, name: &FunctionName, lines: &[u8]) -> io::Result<()> {
        if let Some(Room(room)) = &self.room {
            room()?;
        }
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
            for plain in [PLAIN_CURRENT, PLAIN_PREVIOUS] {
                // Usually there is none.
                let _ = fs::remove_file(folder.join(plain));
            }
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

    /// Removes a function's log. Other files in its folder stay, and the folder with them.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn forget(&self, name: &FunctionName) -> io::Result<()> {
        let removed = remove_log(&self.folder.join(name.as_str()));
        self.wake_followers();
        removed
    }

    /// Functions that have a log. A folder with anything else is not a log: the folder of logs may be a link to a disk that has other
    /// files.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn names(&self) -> io::Result<Vec<FunctionName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().and_then(|name| name.parse().ok());
            names.extend(name.filter(|_| is_log(&entry.path())));
        }
        Ok(names)
    }

    /// Opens a function's log at its last lines.
    ///
    /// # Errors
    /// Those of the disk. A function without a log has an empty one.
    pub fn read(&self, name: &FunctionName, wanted: LogsWanted) -> io::Result<LogReader> {
        LogReader::open(self.folder.join(name.as_str()), wanted)
    }

    /// As [`LogStore::read`], and then all lines that are written later, until the log is removed or the store is closed.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn follow(
        self: &Arc<Self>,
        name: &FunctionName,
        wanted: LogsWanted,
    ) -> io::Result<LogFollower> {
        Ok(LogFollower {
            written: self.written.subscribe(),
            reader: self.read(name, wanted)?,
        })
    }
}

/// Which lines of a log, and how they are written.
#[derive(Debug, Clone, Default)]
pub struct LogsWanted {
    /// Number of last lines of those that pass the filters.
    pub lines: usize,
    /// Only lines from this time on, Unix milliseconds. Lines without a time are left out.
    pub since_unix_ms: Option<u64>,
    /// Only lines of this request.
    pub request: Option<String>,
    /// How lines are written.
    pub form: LogForm,
}

/// How lines are written for a reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogForm {
    /// Text with time and source.
    #[default]
    Text,
    /// JSON, one object per line.
    Json,
}

impl LogsWanted {
    fn filters(&self) -> bool {
        self.since_unix_ms.is_some() || self.request.is_some()
    }

    fn passes(&self, line: &Stored<'_>) -> bool {
        let is_new = |since: u64| line.unix_ms.is_some_and(|at| at >= since);
        let is_of = |request: &str| line.request == Some(request);
        self.since_unix_ms.is_none_or(is_new) && self.request.as_deref().is_none_or(is_of)
    }

    fn write(&self, line: &Stored<'_>, out: &mut Vec<u8>) {
        let line = line.line();
        let text = match self.form {
            LogForm::Text => line.render(),
            LogForm::Json => line.to_json(),
        };
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }
}

/// Reads a function's log to its end, across a rotation.
#[derive(Debug)]
pub struct LogReader {
    folder: PathBuf,
    wanted: LogsWanted,
    /// Oldest first. The last one is the current file, or was when it was opened.
    files: VecDeque<Opened>,
    /// Inode of the last file.
    inode: Option<u64>,
    /// The beginning of a line whose end was not read yet.
    begun: Vec<u8>,
    /// Lines that pass the filters and are still left out, because they are not among the last ones.
    skip: usize,
    /// What was read last.
    block: Vec<u8>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    format: Format,
}

impl LogReader {
    fn open(folder: PathBuf, wanted: LogsWanted) -> io::Result<Self> {
        let lines = wanted.lines;
        let mut reader = Self {
            folder,
            files: VecDeque::new(),
            inode: None,
            begun: Vec::new(),
            skip: 0,
            block: vec![0; CHUNK_BYTES],
            wanted,
        };
        let filters = reader.wanted.filters();
        let mut found = 0;
        for (index, (name, format)) in NEWEST_FIRST.into_iter().enumerate() {
            if index > 0 && found >= lines && !filters {
                break;
            }
            let Some(mut file) = open_if_there(&reader.folder.join(name))? else {
                continue;
            };
            let inode = Some(file.metadata()?.ino());
            // After a rotation between two of these calls, both would be the same file.
            if name == PREVIOUS && inode == reader.inode {
                continue;
            }
            if name == CURRENT {
                reader.inode = inode;
            }
            if !filters {
                found += seek_to_last_lines(&mut file, lines.saturating_sub(found))?;
            }
            reader.files.push_front(Opened { file, format });
        }
        if filters {
            reader.skip = reader.count()?.saturating_sub(lines);
        }
        Ok(reader)
    }

    /// The number of lines that pass the filters. Afterwards, the files are at their beginnings.
    fn count(&mut self) -> io::Result<usize> {
        let mut count = 0;
        for index in 0..self.files.len() {
            let Opened { file, format } = &mut self.files[index];
            let mut begun = Vec::new();
            loop {
                let read = file.read(&mut self.block)?;
                if read == 0 {
                    break;
                }
                each_line(&mut begun, &self.block[..read], |line| {
                    count += usize::from(self.wanted.passes(&Stored::read(line, *format)));
                });
            }
            file.seek(SeekFrom::Start(0))?;
        }
        Ok(count)
    }

    /// Reads more lines of the log, in the wanted form; nothing at its current end.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        loop {
            let Some(Opened { file, format }) = self.files.front_mut() else {
                match self.open_next()? {
                    true => continue,
                    false => return Ok(out),
                }
            };
            let read = file.read(&mut self.block)?;
            let (wanted, skip) = (&self.wanted, &mut self.skip);
            each_line(&mut self.begun, &self.block[..read], |line| {
                let line = Stored::read(line, *format);
                if !wanted.passes(&line) {
                    return;
                }
                match *skip {
                    0 => wanted.write(&line, &mut out),
                    _ => *skip -= 1,
                }
            });
            if !out.is_empty() {
                return Ok(out);
            }
            if read > 0 {
                continue;
            }
            if self.files.len() > 1 {
                self.files.pop_front();
                // Only an earlier daemon that was killed leaves a line without an end.
                self.begun.clear();
            } else if !self.open_next()? {
                return Ok(out);
            }
        }
    }

    /// After a rotation there is a new current file. The file that was read last may have got more lines, so it is read again
    /// first. After two rotations, what is the previous file now has not been read, either.
    fn open_next(&mut self) -> io::Result<bool> {
        let Some(current) = open_if_there(&self.folder.join(CURRENT))? else {
            return Ok(false);
        };
        let inode = Some(current.metadata()?.ino());
        if inode == self.inode {
            return Ok(false);
        }
        let mut unread = Vec::from([current]);
        if self.inode.is_some()
            && let Some(previous) = open_if_there(&self.folder.join(PREVIOUS))?
        {
            let rotated = Some(previous.metadata()?.ino());
            // It is the file that was just opened, if that one was rotated between the two calls.
            if rotated != self.inode && rotated != inode {
                unread.insert(0, previous);
            }
        }
        self.inode = inode;
        self.files.extend(unread.into_iter().map(|file| Opened {
            file,
            format: Format::Prefixed,
        }));
        Ok(true)
    }

    fn is_removed(&self) -> bool {
        let is_gone = |name| !self.folder.join(name).exists();
        self.inode.is_some() && is_gone(CURRENT) && is_gone(PREVIOUS)
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
    pub(crate) async fn next(mut self, reads: &LongReads) -> io::Result<Option<(Vec<u8>, Self)>> {
        loop {
            // Before reading, so that a write during the read wakes the follower again.
            let state = *self.written.borrow_and_update();
            let (read, reader) = read_aside(self.reader, reads).await;
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

/// Reads when it is its turn.
pub(crate) async fn read_aside(
    mut reader: LogReader,
    reads: &LongReads,
) -> (io::Result<Vec<u8>>, LogReader) {
    let part = reads.part(move || {
        let read = reader.read();
        (read, reader)
    });
    part.await
}

/// Whether a folder has files of a log, and nothing else.
fn is_log(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    let mut count = 0;
    for entry in entries {
        count += 1;
        let is_ours = |entry: fs::DirEntry| {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            is_file
                && NEWEST_FIRST
                    .iter()
                    .any(|(name, _)| entry.file_name() == *name)
        };
        if !entry.is_ok_and(is_ours) {
            return false;
        }
    }
    count > 0
}

fn remove_log(folder: &Path) -> io::Result<()> {
    for (name, _) in NEWEST_FIRST {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match fs::remove_dir(folder) {
        Err(error)
            if !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
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

/// Calls `each` with every whole line, without its line break. The beginning of an unfinished line is kept in `begun`. A line that
/// is too long is cut into several.
fn each_line(begun: &mut Vec<u8>, block: &[u8], mut each: impl FnMut(&[u8])) {
    let mut rest = block;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = (&rest[..at], &rest[at + 1..]);
        if begun.is_empty() {
            each(line);
        } else {
            begun.extend_from_slice(line);
            each(begun);
            begun.clear();
        }
        rest = after;
    }
    begun.extend_from_slice(rest);
    if begun.len() > LINE_BYTES_MAX {
        each(begun);
        begun.clear();
    }
}

const CURRENT: &str = "current.lines";
const PREVIOUS: &str = "previous.lines";
const PLAIN_CURRENT: &str = "current.log";
const PLAIN_PREVIOUS: &str = "previous.log";
const NEWEST_FIRST: [(&str, Format); 4] = [
    (CURRENT, Format::Prefixed),
    (PREVIOUS, Format::Prefixed),
    (PLAIN_CURRENT, Format::Plain),
    (PLAIN_PREVIOUS, Format::Plain),
];
/// More than an invocation's output in one line.
const LINE_BYTES_MAX: usize = 1 << 20;
const CHUNK_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests;
