//! The output of a program in a container: a pipe that is read while the program runs, so that it never blocks on a full pipe.
//! What is kept is bounded. An answer also needs memory of the function's share: it is reserved before it is read, and where nothing is
//! left, the full pipe holds the program up.

use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::{BoxFuture, Instant};
use pilot_protocols::{FREE_LEN, FunctionBudget, Reserved};
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
    /// The memory for what is kept; `None`: its bound is enough.
    reserved: tokio::sync::Mutex<Option<Reserved>>,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    /// How many bytes there is memory for.
    memory_len: usize,
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
    /// The memory of the bytes.
    pub(crate) reserved: Option<Reserved>,
}

impl Output {
    /// The reading end, which keeps up to [`OUTPUT_LEN_MAX`], and the writing end. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn pipe() -> io::Result<(Self, PipeWriter)> {
        Self::pipe_of(OUTPUT_LEN_MAX, None)
    }

    /// The same with another bound, and with memory for it.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn pipe_of(
        len_max: usize,
        memory: Option<&FunctionBudget>,
    ) -> io::Result<(Self, PipeWriter)> {
        let (here, there) = io::pipe()?;
        // The duplicate shares the file description, which this makes non-blocking (open(2), "Open file descriptions").
        let watched = Receiver::from_owned_fd(OwnedFd::from(here.try_clone()?))?;
        let buffer = Arc::new(OutputBuffer {
            pipe: here,
            len_max,
            kept: Mutex::new(Kept {
                memory_len: memory.map_or(usize::MAX, |_| FREE_LEN),
                ..Kept::default()
            }),
            reserved: tokio::sync::Mutex::new(memory.map(FunctionBudget::nothing)),
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
    pub(crate) async fn whole(&self) -> Whole {
        loop {
            let needs_memory = {
                let mut kept = self.buffer.kept.lock();
                self.buffer.drain(&mut kept);
                kept.needs_memory()
            };
            if !needs_memory {
                break;
            }
            self.buffer.reserve().await;
        }
        let reserved = self.buffer.reserved.lock().await.take();
        let Kept {
            bytes,
            dropped,
            first_byte,
            ..
        } = std::mem::take(&mut *self.buffer.kept.lock());
        Whole {
            bytes,
            dropped,
            first_byte,
            reserved,
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
            if dropped > 0 {
                // Reading while a program writes would wake both for every few pages.
                sleep(PAUSE).await;
            }
            while self.kept.lock().is_full(self.len_max) {
                self.taken.notified().await;
            }
            let needs_memory = self.kept.lock().needs_memory();
            if needs_memory {
                self.reserve().await;
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

    /// Waits for memory for more bytes.
    async fn reserve(&self) {
        let mut reserved = self.reserved.lock().await;
        let whole = self.len_max + CHUNK_LEN;
        let (needs_memory, mut wanted) = {
            let kept = self.kept.lock();
            let wanted = kept.memory_len.saturating_mul(2).min(whole);
            (kept.needs_memory(), wanted)
        };
        // It may have been reserved meanwhile, or everything may have been taken.
        if let Some(reserved) = reserved.as_mut().filter(|_| needs_memory) {
            if reserved.is_empty() {
                reserved.grow_to(wanted).await;
            } else if !reserved.try_grow_to(wanted) {
                // Programs that wait with a part of their answers would wait for each other.
                wanted = whole;
                reserved.grow_to_whole(whole).await;
            }
            self.kept.lock().memory_len = if wanted > self.len_max {
                usize::MAX
            } else {
                wanted
            };
        }
    }

    fn drain(&self, kept: &mut Kept) -> More {
        let mut chunk = [0; CHUNK_LEN];
        // The limit interrupts a writer that never stops.
        for _ in 0..CHUNKS_MAX {
            if kept.only_counts(self.len_max) {
                return self.drop_some(kept);
            }
            if kept.is_full(self.len_max) || kept.needs_memory() {
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

    /// Empties a pipe of the usual length.
    fn drop_some(&self, kept: &mut Kept) -> More {
        match (&self.pipe).read(&mut vec![0; PIPE_LEN]) {
            Ok(0) => More::Never,
            Ok(len) => {
                kept.dropped += len as u64;
                More::Perhaps
            }
            Err(_) => More::Perhaps,
        }
    }
}

impl Kept {
    /// Whether what comes is dropped.
    fn only_counts(&self, len_max: usize) -> bool {
        !self.followed && self.bytes.len() >= len_max
    }

    /// Whether the reader must wait until output is taken.
    fn is_full(&self, len_max: usize) -> bool {
        self.followed && self.bytes.len() >= len_max
    }

    /// Whether the next chunk needs more memory than there is.
    fn needs_memory(&self) -> bool {
        self.bytes.len().saturating_add(CHUNK_LEN) > self.memory_len
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

/// Between two reads of what is not kept. The pipe is full in between and holds the writer up.
const PAUSE: Duration = Duration::from_micros(2500);
/// What a pipe holds (pipe(7)).
const PIPE_LEN: usize = 64 * 1024;

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
    async fn an_answer_waits_for_the_memory_of_its_function() {
        const LEN: usize = 3 << 20;
        let memory = pilot_protocols::MemoryBudget::for_answers(0, 0);
        let of = memory.of(&"lab".parse().unwrap());
        let others = of.reserve(memory.share_max()).await;
        let (output, mut writer) = Output::pipe_of(6 << 20, Some(&of)).unwrap();
        let mut writing = tokio::task::spawn_blocking(move || writer.write_all(&vec![b'x'; LEN]));
        let early = tokio::time::timeout(Duration::from_millis(100), &mut writing).await;
        assert!(early.is_err(), "the program is held up");
        assert_eq!(memory.held(), memory.share_max());
        drop(others);
        writing.await.unwrap().unwrap();
        let whole = output.whole().await;
        assert_eq!((whole.bytes.len(), whole.dropped), (LEN, 0));
        assert!(memory.held() >= LEN);
        drop(whole);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn programs_with_a_part_of_their_answers_do_not_wait_for_each_other_for_ever() {
        const LEN: usize = 5 << 20;
        let memory = pilot_protocols::MemoryBudget::for_answers(0, 0);
        let of = memory.of(&"lab".parse().unwrap());
        let all = (0..4).map(async |_| {
            let (output, mut writer) = Output::pipe_of(6 << 20, Some(&of)).unwrap();
            let mut left = LEN;
            while left > 0 {
                let part = left.min(64 << 10);
                left -= part;
                let written = tokio::task::spawn_blocking(move || {
                    writer.write_all(&vec![b'x'; part]).map(|()| writer)
                });
                writer = written.await.unwrap().unwrap();
            }
            drop(writer);
            let whole = output.whole().await;
            assert_eq!((whole.bytes.len(), whole.dropped), (LEN, 0));
            memory.held()
        });
        let all = futures_util::future::join_all(all);
        let held = tokio::time::timeout(Duration::from_secs(20), all).await;
        let held = held.expect("they wait for each other");
        // One is beyond the limits at a time.
        let most = memory.share_max() + (6 << 20) + CHUNK_LEN;
        assert!(held.iter().all(|held| *held <= most), "{held:?}");
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test]
    async fn an_answer_over_its_limit_is_read_to_its_end_and_counted() {
        let memory = pilot_protocols::MemoryBudget::default();
        let of = memory.of(&"lab".parse().unwrap());
        let (output, mut writer) = Output::pipe_of(1 << 20, Some(&of)).unwrap();
        tokio::task::spawn_blocking(move || writer.write_all(&vec![b'x'; 3 << 20]))
            .await
            .unwrap()
            .unwrap();
        let whole = output.whole().await;
        assert_eq!((whole.bytes.len(), whole.dropped), (1 << 20, 2 << 20));
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
