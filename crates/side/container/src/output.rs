//! The output of a program in a container: a pipe that is read while the program runs, so that it never blocks on a full pipe.
//! What is kept is bounded.

use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::{BoxFuture, Instant};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::parts::now;

/// The reading end.
#[derive(Debug)]
pub(crate) struct Output {
    buffer: Arc<OutputBuffer>,
    /// The task that reads; ends with this.
    reader: AbortHandle,
}

#[derive(Debug)]
struct OutputBuffer {
    /// Non-blocking.
    pipe: PipeReader,
    len_max: usize,
    /// Guards what was kept. Also serialises readers, so that the order is the pipe's.
    kept: Mutex<Kept>,
    /// Something was printed, or nothing will be.
    printed: Notify,
    /// Output was taken.
    taken: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    dropped: u64,
    first_byte: Option<Instant>,
    /// All writers are closed.
    ended: bool,
    /// Somebody takes the output while it is written. Then nothing is dropped: a full buffer holds the writer up.
    followed: bool,
}

/// The complete output of a pipe.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Up to the bound.
    pub(crate) bytes: Vec<u8>,
    /// What exceeded the bound, bytes.
    pub(crate) dropped: u64,
    /// When the first byte arrived.
    pub(crate) first_byte: Option<Instant>,
}

impl Output {
    /// The reading end, which keeps up to [`OUTPUT_LEN_MAX`], and the writing end. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn pipe() -> io::Result<(Self, PipeWriter)> {
        Self::pipe_of(OUTPUT_LEN_MAX)
    }

    /// The same with another bound.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn pipe_of(len_max: usize) -> io::Result<(Self, PipeWriter)> {
        let (here, there) = io::pipe()?;
        // The duplicate shares the file description, which this makes non-blocking (open(2), "Open file descriptions").
        let watched = Receiver::from_owned_fd(OwnedFd::from(here.try_clone()?))?;
        let buffer = Arc::new(OutputBuffer {
            pipe: here,
            len_max,
            kept: Mutex::default(),
            printed: Notify::new(),
            taken: Notify::new(),
        });
        let reader = tokio::spawn(Arc::clone(&buffer).read(watched)).abort_handle();
        Ok((Self { buffer, reader }, there))
    }

    /// Everything since the last call, with a last line that says how much is missing. Reads the pipe directly instead of
    /// waiting for tokio's readiness, so that everything written before an answer is included.
    pub(crate) fn take(&self) -> Bytes {
        let mut kept = self.buffer.kept.lock();
        self.buffer.drain(&mut kept);
        if kept.dropped > 0 {
            let note = format!("\n[{} bytes more were not kept]\n", kept.dropped);
            kept.bytes.extend_from_slice(note.as_bytes());
            kept.dropped = 0;
        }
        let output = std::mem::take(&mut kept.bytes);
        self.buffer.taken.notify_one();
        output.into()
    }

    /// Resolves when there is something to take; false once all writers are closed.
    pub(crate) fn printed(&self) -> BoxFuture<'static, bool> {
        let buffer = Arc::clone(&self.buffer);
        buffer.kept.lock().followed = true;
        Box::pin(async move {
            loop {
                {
                    let kept = buffer.kept.lock();
                    if !kept.bytes.is_empty() || kept.dropped > 0 {
                        return true;
                    }
                    if kept.ended {
                        return false;
                    }
                }
                buffer.printed.notified().await;
            }
        })
    }

    /// Everything, without that line, for output that is not a log. Call it when all writers have ended.
    pub(crate) fn whole(&self) -> Whole {
        let mut kept = self.buffer.kept.lock();
        self.buffer.drain(&mut kept);
        let Kept {
            bytes,
            dropped,
            first_byte,
            ended: _,
            followed: _,
        } = std::mem::take(&mut *kept);
        Whole {
            bytes,
            dropped,
            first_byte,
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl OutputBuffer {
    async fn read(self: Arc<Self>, watched: Receiver) {
        self.read_to_end(watched).await;
        self.kept.lock().ended = true;
        self.printed.notify_one();
    }

    async fn read_to_end(&self, watched: Receiver) {
        while watched.readable().await.is_ok() {
            let (more, dropped) = {
                let mut kept = self.kept.lock();
                let dropped_before = kept.dropped;
                let more = self.drain(&mut kept);
                (more, kept.dropped.saturating_sub(dropped_before))
            };
            self.printed.notify_one();
            if more == More::Never {
                return;
            }
            if dropped >= DROPPED_PER_TURN_MAX {
                sleep(PAUSE).await;
            }
            while self.kept.lock().is_full(self.len_max) {
                self.taken.notified().await;
            }
            // Reading through tokio clears its readiness; what arrived meanwhile is kept.
            let mut kept = self.kept.lock();
            let mut chunk = [0; CHUNK_LEN];
            match watched.try_read(&mut chunk) {
                Ok(0) => return,
                Ok(len) => kept.keep(&chunk[..len], self.len_max),
                Err(_) => {}
            }
        }
    }

    fn drain(&self, kept: &mut Kept) -> More {
        let mut chunk = [0; CHUNK_LEN];
        // The limit interrupts a writer that never stops.
        for _ in 0..CHUNKS_MAX {
            if kept.is_full(self.len_max) {
                break;
            }
            match (&self.pipe).read(&mut chunk) {
                Ok(0) => return More::Never,
                Ok(len) => kept.keep(&chunk[..len], self.len_max),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return More::Perhaps,
            }
        }
        More::Perhaps
    }
}

impl Kept {
    /// Whether the reader must wait until output is taken.
    fn is_full(&self, len_max: usize) -> bool {
        self.followed && self.bytes.len() >= len_max
    }

    fn keep(&mut self, chunk: &[u8], len_max: usize) {
        self.first_byte.get_or_insert_with(now);
        let room = match self.followed {
            // At most one chunk more.
            true => chunk.len(),
            false => len_max - self.bytes.len().min(len_max),
        };
        let (kept, dropped) = chunk.split_at(chunk.len().min(room));
        self.bytes.extend_from_slice(kept);
        self.dropped += dropped.len() as u64;
    }
}

/// Whether more can be read later.
#[derive(Debug, PartialEq, Eq)]
enum More {
    Perhaps,
    /// All writers are closed.
    Never,
}

/// Most output kept per invocation, bytes. The rest is read and counted.
const OUTPUT_LEN_MAX: usize = 256 * 1024;

/// Most bytes read without a pause, once what is read is no longer kept. The pipe is full in between and holds the writer up.
const DROPPED_PER_TURN_MAX: u64 = 256 * 1024;
const PAUSE: Duration = Duration::from_millis(10);

const CHUNK_LEN: usize = 8192;

/// Per round: more than a pipe holds (pipe(7): at most 1 MiB without privileges).
const CHUNKS_MAX: usize = 160;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn what_was_written_is_there_at_once() {
        let (output, mut writer) = Output::pipe().unwrap();
        writer.write_all(b"one\n").unwrap();
        assert_eq!(output.take(), "one\n");
        writer.write_all(b"two\n").unwrap();
        assert_eq!(output.take(), "two\n");
        assert_eq!(output.take(), "");
    }

    #[tokio::test]
    async fn a_writer_is_not_held_up_and_what_is_too_much_is_counted() {
        let (output, mut writer) = Output::pipe().unwrap();
        let much = vec![b'x'; OUTPUT_LEN_MAX + 1000];
        tokio::task::spawn_blocking(move || writer.write_all(&much))
            .await
            .unwrap()
            .unwrap();
        let taken = output.take();
        assert!(taken.ends_with(b"[1000 bytes more were not kept]\n"));
        assert_eq!(
            taken.iter().filter(|byte| **byte == b'x').count(),
            OUTPUT_LEN_MAX
        );
    }
}
