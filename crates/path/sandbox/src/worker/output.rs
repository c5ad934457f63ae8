//! What a process in a sandbox writes to its descriptors 1 and 2: a pipe that the daemon reads while it waits for an answer, so
//! that the process never blocks on a full pipe. What is kept is bounded. Beyond that, the pipe is emptied and dropped at most once per
//! [`PAUSE`]: reading while a process writes would wake both for every few pages, which delays everything else on their processors.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{pipe2, read};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::channel::set_nonblocking;

/// Most output kept per invocation, bytes. The rest is read and counted.
pub(crate) const OUTPUT_LEN_MAX: usize = 256 * 1024;

/// Between two reads of what is dropped: 25 MiB/s. The pipe is full in between and holds the writer up. It is never held up for good,
/// because a program that prints much must still come to its end.
const PAUSE: Duration = Duration::from_micros(2500);

/// How many outputs pause at the same time. Further ones wait for their turn to pause, so all that is read to be dropped is at most
/// 100 MiB/s.
static PAUSING: Semaphore = Semaphore::const_new(4);

/// What a pipe holds (pipe(7)): sandboxed processes cannot enlarge it.
const PIPE_LEN: usize = 64 * 1024;

/// Most bytes that are read after an answer. Everything that was written before the answer is among them.
const LAST_LEN_MAX: usize = PIPE_LEN;

/// The mode of a pipe that any user with a way to it may open to write.
const REOPENED_TO_WRITE: Mode = Mode::from_bits_truncate(0o622);

/// What a turn of reading leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Nothing for now, or the reader must wait until output is taken.
    All,
    /// There may be more; the turn is over.
    More,
    /// All writers are closed.
    Ended,
}

impl Drained {
    /// Waits as long as the next turn must.
    pub(crate) async fn rest(self) {
        if self == Self::More {
            let _turn = PAUSING.acquire().await;
            sleep(PAUSE).await;
        }
    }
}

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
        // For `/dev/stdout` and `/dev/stderr`, which open the pipe again: it belongs to the daemon's user, and the process has another.
        // Only who may trace the process finds it in `/proc`, and nobody else may read from it.
        fchmod(&there, REOPENED_TO_WRITE)?;
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

    /// Reads what is there, without waiting. Reads the pipe directly instead of waiting for tokio's readiness, so that everything
    /// written before an answer is included.
    pub(crate) fn drain_now(&mut self) {
        // Every invocation ends here, and most print little: the larger buffer is filled with zeros first.
        const SHORT: usize = 512;
        if self.drain_by(&mut [0; SHORT], SHORT) == 0 {
            self.drain_by(&mut [0; 8192], LAST_LEN_MAX - SHORT);
        }
    }

    /// Reads at most `left` bytes of what is there. How many of them were not there.
    fn drain_by(&mut self, chunk: &mut [u8], mut left: usize) -> usize {
        while !self.ended && !self.is_full() && left > 0 {
            let len = chunk.len().min(left);
            match read(&*self.pipe, &mut chunk[..len]) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    left -= len;
                    self.keep(&chunk[..len]);
                }
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        left
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
        self.drain_ready().rest().await;
    }

    /// Somebody takes the output while it is written.
    pub(crate) fn follow(&mut self) {
        self.followed = true;
    }

    /// Whether the reader must wait until output is taken.
    pub(crate) fn is_full(&self) -> bool {
        self.followed && self.kept.len() >= OUTPUT_LEN_MAX
    }

    /// Reads through tokio, which clears its readiness once there is nothing left.
    pub(crate) fn drain_ready(&mut self) -> Drained {
        let mut chunk = [0; 8192];
        while !self.ended && !self.is_full() {
            if self.kept.len() >= OUTPUT_LEN_MAX {
                return self.drop_ready();
            }
            match self.pipe.try_read(&mut chunk) {
                Ok(0) => self.ended = true,
                Ok(len) => self.keep(&chunk[..len]),
                Err(_) => return Drained::All,
            }
        }
        match self.ended {
            true => Drained::Ended,
            false => Drained::All,
        }
    }

    /// Empties the pipe.
    fn drop_ready(&mut self) -> Drained {
        match self.pipe.try_read(&mut vec![0; PIPE_LEN]) {
            Ok(0) => {
                self.ended = true;
                Drained::Ended
            }
            Ok(len) => {
                self.dropped += len as u64;
                Drained::More
            }
            Err(_) => Drained::All,
        }
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn all_that_was_printed_before_an_answer_is_taken_with_it() {
        for len in [0, 1, 511, 512, 513, 8192, 20_000, PIPE_LEN] {
            let (mut output, writer) = Output::pipe().unwrap();
            let text = b"0123456789".repeat(PIPE_LEN)[..len].to_vec();
            File::from(writer.try_clone().unwrap())
                .write_all(&text)
                .unwrap();
            assert_eq!(output.take(), text, "{len}");
        }
    }

    #[tokio::test]
    async fn a_process_that_prints_without_end_is_read_seldom_and_comes_to_its_end() {
        let (mut output, writer) = Output::pipe().unwrap();
        let more = 32 * PIPE_LEN;
        let printing = tokio::task::spawn_blocking(move || {
            let mut writer = File::from(writer);
            writer
                .write_all(&vec![b'x'; OUTPUT_LEN_MAX + more])
                .unwrap();
        });
        let began = Instant::now();
        let mut turns = 0;
        while !output.ended {
            output.drain_next().await;
            turns += usize::from(output.dropped > 0);
        }
        printing.await.unwrap();
        assert!(began.elapsed() >= PAUSE * 31);
        // One turn per full pipe, and some that found less.
        assert!((32..64).contains(&turns), "{turns}");
        let taken = output.take_text();
        assert!(taken.ends_with(&format!("[{more} bytes more were not kept]\n")));
    }
}
