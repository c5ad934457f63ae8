//! What a program in a container prints: a pipe, read while the program runs, so that nobody who prints a lot is held up, and
//! kept up to a bound.

use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::Instant;
use tokio::net::unix::pipe::Receiver;
use tokio::task::AbortHandle;

use crate::host::now;

/// The reading end.
#[derive(Debug)]
pub(crate) struct Output {
    buffer: Arc<OutputBuffer>,
    /// Reads; ends with this.
    reader: AbortHandle,
}

#[derive(Debug)]
struct OutputBuffer {
    /// Non-blocking.
    pipe: PipeReader,
    len_max: usize,
    /// Guards what was kept, and that one reads at a time, so that its order is the pipe's.
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    dropped: u64,
    first_byte: Option<Instant>,
}

/// What came out of a pipe, all of it.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Up to the bound.
    pub(crate) bytes: Vec<u8>,
    /// What did not fit, bytes.
    pub(crate) dropped: u64,
    /// When something came first.
    pub(crate) first_byte: Option<Instant>,
}

impl Output {
    /// The reading end, which keeps [`OUTPUT_LEN_MAX`] at a time, and the one to give away. Must be called within a tokio runtime.
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
        // The copy shares its file description, which this makes non-blocking (open(2), "Open file descriptions").
        let watched = Receiver::from_owned_fd(OwnedFd::from(here.try_clone()?))?;
        let buffer = Arc::new(OutputBuffer {
            pipe: here,
            len_max,
            kept: Mutex::default(),
        });
        let reader = tokio::spawn(Arc::clone(&buffer).read(watched)).abort_handle();
        Ok((Self { buffer, reader }, there))
    }

    /// Everything since the last time, with a last line that says what is missing. It asks the kernel, not the runtime: what was
    /// written before an answer was sent is in hand when the answer is.
    pub(crate) fn take(&self) -> Bytes {
        let mut kept = self.buffer.kept.lock();
        self.buffer.drain(&mut kept);
        if kept.dropped > 0 {
            let note = format!("\n[{} bytes more were not kept]\n", kept.dropped);
            kept.bytes.extend_from_slice(note.as_bytes());
            kept.dropped = 0;
        }
        std::mem::take(&mut kept.bytes).into()
    }

    /// Everything, without a note: for what is not a log. To be asked once its writers have ended.
    pub(crate) fn whole(&self) -> Whole {
        let mut kept = self.buffer.kept.lock();
        self.buffer.drain(&mut kept);
        let Kept {
            bytes,
            dropped,
            first_byte,
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
        while watched.readable().await.is_ok() {
            let more = self.drain(&mut self.kept.lock());
            if more == More::Never {
                return;
            }
            // Tells the runtime that nothing is left, by asking through it; what came meanwhile is kept as well.
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
        // A writer that never stops is left alone between two rounds.
        for _ in 0..CHUNKS_MAX {
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
    fn keep(&mut self, chunk: &[u8], len_max: usize) {
        self.first_byte.get_or_insert_with(now);
        let room = len_max - self.bytes.len().min(len_max);
        let (kept, dropped) = chunk.split_at(chunk.len().min(room));
        self.bytes.extend_from_slice(kept);
        self.dropped += dropped.len() as u64;
    }
}

/// Whether there will be more to read.
#[derive(Debug, PartialEq, Eq)]
enum More {
    Perhaps,
    /// All writers are gone.
    Never,
}

/// Most output kept per invocation, bytes. What comes beyond it is read and counted.
const OUTPUT_LEN_MAX: usize = 256 * 1024;

const CHUNK_LEN: usize = 8192;

/// Of one round: more than a pipe holds (pipe(7): at most 1 MiB without privileges).
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
