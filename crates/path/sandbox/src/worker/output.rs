//! What a process in a sandbox writes to its descriptors 1 and 2: a pipe that the daemon reads while it waits for an answer, so
//! that the process never blocks on a full pipe. What is kept is bounded.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{pipe2, read};
use tokio::net::unix::pipe::Receiver;

use crate::channel::set_nonblocking;

/// Most output kept per invocation, bytes. The rest is read and counted.
pub(crate) const OUTPUT_LEN_MAX: usize = 256 * 1024;

/// The reading end.
#[derive(Debug)]
pub(crate) struct Output {
    /// Shared with tasks that wait until it is readable.
    pipe: Arc<Receiver>,
    kept: Vec<u8>,
    dropped: u64,
    /// All writers are closed.
    ended: bool,
    /// Somebody takes the output while it is written. Then nothing is dropped: a full buffer holds the writer up.
    followed: bool,
}

impl Output {
    /// The reading end and the writing end.
    pub(crate) fn pipe() -> io::Result<(Self, OwnedFd)> {
        let (here, there) = pipe2(OFlag::O_CLOEXEC)?;
        set_nonblocking(&here)?;
        Ok((
            Self {
                pipe: Arc::new(Receiver::from_owned_fd(here)?),
                kept: Vec::new(),
                dropped: 0,
                ended: false,
                followed: false,
            },
            there,
        ))
    }

    /// Reads everything that is there, without waiting. Reads the pipe directly instead of waiting for tokio's readiness, so
    /// that everything written before an answer is included.
    pub(crate) fn drain_now(&mut self) {
        let mut chunk = [0; 8192];
        while !self.ended && !self.is_full() {
            match read(&*self.pipe, &mut chunk) {
                Ok(0) => self.ended = true,
                Ok(len) => self.keep(&chunk[..len]),
                Err(Errno::EINTR) => {}
                Err(_) => return,
            }
        }
    }

    fn keep(&mut self, chunk: &[u8]) {
        let room = match self.followed {
            // At most one chunk more.
            true => chunk.len(),
            false => OUTPUT_LEN_MAX - self.kept.len().min(OUTPUT_LEN_MAX),
        };
        let (kept, dropped) = chunk.split_at(chunk.len().min(room));
        self.kept.extend_from_slice(kept);
        self.dropped += dropped.len() as u64;
    }

    /// Waits until something can be read, and reads it. Never resolves once all writers are closed.
    pub(crate) async fn drain_next(&mut self) {
        if self.ended {
            return std::future::pending().await;
        }
        if self.pipe.readable().await.is_err() {
            self.ended = true;
            return;
        }
        self.drain_ready();
    }

    /// Somebody takes the output while it is written.
    pub(crate) fn follow(&mut self) {
        self.followed = true;
    }

    /// Whether the reader must wait until output is taken.
    pub(crate) fn is_full(&self) -> bool {
        self.followed && self.kept.len() >= OUTPUT_LEN_MAX
    }

    /// Reads through tokio, which clears its readiness. Returns false once all writers are closed.
    pub(crate) fn drain_ready(&mut self) -> bool {
        let mut chunk = [0; 8192];
        while !self.ended && !self.is_full() {
            match self.pipe.try_read(&mut chunk) {
                Ok(0) => self.ended = true,
                Ok(len) => self.keep(&chunk[..len]),
                Err(_) => break,
            }
        }
        !self.ended
    }

    /// Whether [`Output::take`] has something to return.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.dropped == 0
    }

    /// Whether all writers are closed.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// The pipe, for tasks that wait for its readiness without holding the output.
    pub(crate) fn pipe_shared(&self) -> Arc<Receiver> {
        Arc::clone(&self.pipe)
    }

    /// Reads output until `work` is done.
    pub(crate) async fn drain_while<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.drain_next() => {}
            }
        }
    }

    /// Everything since the last call, with a last line that says how much is missing.
    pub(crate) fn take(&mut self) -> Bytes {
        self.drain_now();
        if self.dropped > 0 {
            let note = format!("\n[{} bytes more were not kept]\n", self.dropped);
            self.kept.extend_from_slice(note.as_bytes());
            self.dropped = 0;
        }
        if self.kept.is_empty() {
            return Bytes::new();
        }
        std::mem::take(&mut self.kept).into()
    }

    /// The same, as text.
    pub(crate) fn take_text(&mut self) -> String {
        String::from_utf8_lossy(&self.take()).into_owned()
    }
}
