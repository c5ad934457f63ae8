//! Keeps bodies that arrive slowly in files without names, so that they hold little of the daemon's memory. A whole one is handed on
//! as a mapping of its file.
//!
//! Writes run on the runtime's blocking threads, a few at a time. What all files have together is bounded, and they leave the
//! disk's reserve alone.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pilot_sys::scratch::{Mapping, Scratch};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::errors::RequestError;

/// Where bodies that arrive slowly are kept.
#[derive(Clone)]
pub struct BodyFiles {
    /// A folder on the file system that has the room.
    pub dir: PathBuf,
    /// Limit for all of them together, bytes.
    pub bytes_max: usize,
    /// Whether the disk has room for more. May block.
    pub has_room: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for BodyFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyFiles")
            .field("dir", &self.dir)
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

/// The room on the disk, shared by all connections.
#[derive(Debug)]
pub(super) struct Disk {
    files: BodyFiles,
    /// One permit per KiB.
    room: Arc<Semaphore>,
    /// One permit per write at a time, so that a disk that does not answer blocks few threads.
    writers: Arc<Semaphore>,
    /// Longest time of a write, with the wait for its turn.
    patience: Duration,
}

impl Disk {
    pub(super) fn new(files: BodyFiles, patience: Duration) -> Self {
        let permits = (files.bytes_max / 1024).min(Semaphore::MAX_PERMITS);
        Self {
            files,
            room: Arc::new(Semaphore::new(permits)),
            writers: Arc::new(Semaphore::new(WRITERS)),
            patience,
        }
    }

    /// Moves the beginning of a body to a file of its own. Returns the bytes if they must stay in memory: the disk or the share of
    /// it is full, or the file system has no files without names.
    pub(super) async fn take(self: &Arc<Self>, begin: Bytes) -> Result<OnDisk, Bytes> {
        let mut share = None;
        if !self.reserve(begin.len(), &mut share) {
            return Err(begin);
        }
        let files = self.files.clone();
        let bytes = begin.clone();
        let written = self.run(move || {
            let mut file = Scratch::create_in(&files.dir)?;
            append(&mut file, &bytes, &files)?;
            Ok(file)
        });
        match written.await {
            Ok(file) => Ok(OnDisk {
                disk: Arc::clone(self),
                len: begin.len(),
                file: Some(file),
                unwritten: BytesMut::new(),
                share,
            }),
            Err(error) => {
                tracing::debug!(%error, dir = %self.files.dir.display(), "a body that arrives slowly stays in memory");
                Err(begin)
            }
        }
    }

    /// Room that nobody has, KiB.
    #[cfg(test)]
    pub(super) fn free_kib(&self) -> usize {
        self.room.available_permits()
    }

    /// Raises a share of the room to that of `len` bytes. Returns whether there was room.
    fn reserve(&self, len: usize, share: &mut Option<OwnedSemaphorePermit>) -> bool {
        let held = share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Ok(more) = u32::try_from(len.div_ceil(1024).saturating_sub(held)) else {
            return false;
        };
        let Ok(permit) = Arc::clone(&self.room).try_acquire_many_owned(more) else {
            return false;
        };
        match share {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        true
    }

    /// Runs this on a thread that may block. It runs to its end even if nobody waits for it any more.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let writers = Arc::clone(&self.writers);
        let done = async move {
            let turn = writers.acquire_owned().await.map_err(io::Error::other)?;
            let work = move || {
                let _turn = turn;
                work()
            };
            let done = tokio::task::spawn_blocking(work).await;
            done.map_err(io::Error::other)?
        };
        match tokio::time::timeout(self.patience, done).await {
            Ok(done) => done,
            Err(late) => Err(late.into()),
        }
    }
}

/// A body of which the beginning is in a file.
#[derive(Debug)]
pub(super) struct OnDisk {
    disk: Arc<Disk>,
    len: usize,
    /// `None` only while a write runs, and after one failed.
    file: Option<Scratch>,
    /// What comes behind the file's bytes.
    unwritten: BytesMut,
    share: Option<OwnedSemaphorePermit>,
}

impl OnDisk {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a piece. Waits for the disk if there is enough to write.
    ///
    /// # Errors
    /// [`RequestError::BodiesFull`]: the disk or the share of it is full.
    pub(super) async fn push(&mut self, piece: Bytes) -> Result<(), RequestError> {
        self.len += piece.len();
        if self.unwritten.is_empty() && piece.len() >= WRITE_BYTES {
            return self.write(piece).await;
        }
        self.unwritten.extend_from_slice(&piece);
        drop(piece);
        self.write_rest(WRITE_BYTES).await
    }

    /// The whole body. Its room is given back when the last reference to its bytes is dropped.
    ///
    /// # Errors
    /// As [`OnDisk::push`].
    pub(super) async fn finish(mut self) -> Result<Bytes, RequestError> {
        self.write_rest(1).await?;
        let Some(file) = self.file.take() else {
            return Err(RequestError::BodiesFull);
        };
        let mapping = self.disk.run(move || file.map()).await;
        let mapping = mapping.map_err(|error| self.failed(&error))?;
        Ok(Bytes::from_owner(Mapped {
            mapping,
            _share: self.share,
        }))
    }

    /// Writes what is gathered, if it is at least so much. Its memory is not kept for later.
    async fn write_rest(&mut self, least: usize) -> Result<(), RequestError> {
        if self.unwritten.len() < least {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.unwritten).freeze();
        self.write(bytes).await
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), RequestError> {
        if !self.disk.reserve(self.len, &mut self.share) {
            return Err(RequestError::BodiesFull);
        }
        let Some(mut file) = self.file.take() else {
            return Err(RequestError::BodiesFull);
        };
        let files = self.disk.files.clone();
        let written = self.disk.run(move || {
            append(&mut file, &bytes, &files)?;
            Ok(file)
        });
        let file = written.await.map_err(|error| self.failed(&error))?;
        self.file = Some(file);
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> RequestError {
        tracing::debug!(%error, dir = %self.disk.files.dir.display(), "a body that arrived slowly was not kept");
        RequestError::BodiesFull
    }
}

/// Writes, unless that would take the disk's last room.
fn append(file: &mut Scratch, bytes: &[u8], files: &BodyFiles) -> io::Result<()> {
    if !(files.has_room)() {
        return Err(io::ErrorKind::StorageFull.into());
    }
    file.append(bytes)
}

/// A whole body in a file.
struct Mapped {
    mapping: Mapping,
    _share: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.mapping.as_ref()
    }
}

/// So much is gathered before it is written.
const WRITE_BYTES: usize = 64 * 1024;

/// Writes at a time.
const WRITERS: usize = 4;
