//! The memory of one input: written once by the daemon, sealed, and mapped read-only by one worker.
//!
//! It counts in the budget of all inputs until nobody has it any more, and not only until the invocation has ended: a function that
//! keeps its inputs has less room for the next ones, and nobody else has.

pub(crate) mod handover;

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::ports::{Input, InputKind, InputMemory};
use pilot_protocols::{FunctionBudget, Reserved};
use pilot_sys::memfd;

/// A buffer that is being filled.
#[derive(Debug)]
pub(crate) struct Filling {
    file: File,
    len: u64,
    reserved: Reserved,
}

impl Filling {
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn new(memory: &FunctionBudget) -> io::Result<Self> {
        let file = memfd::create(c"pilot-input")?;
        // Whoever is given a descriptor may open it again for reading, and nobody for writing.
        file.set_permissions(Permissions::from_mode(0o444))?;
        Ok(Self {
            file,
            len: 0,
            reserved: memory.nothing(),
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Waits until there is room for so many bytes in all.
    pub(crate) async fn make_room(&mut self, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.reserved.grow_to(len.max(COUNTED_MIN)).await;
    }

    /// # Errors
    /// Out of memory.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// The complete buffer.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn seal(self, held: &Arc<HeldBuffers>) -> io::Result<Buffer> {
        memfd::seal(self.file.as_fd())?;
        Ok(Buffer {
            // A file description that only reads, so that one more of them can be noticed.
            file: Some(memfd::reopen(self.file.as_fd())?),
            reserved: Some(self.reserved),
            len: self.len,
            held: Arc::clone(held),
        })
    }
}

/// A complete input.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// `None` only while it is dropped.
    file: Option<OwnedFd>,
    reserved: Option<Reserved>,
    len: u64,
    held: Arc<HeldBuffers>,
}

impl Buffer {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The descriptor for a worker: an open file of its own.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn input(&self, name: &str) -> io::Result<Input> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok(Input {
            name: name.to_owned(),
            kind: InputKind::Memory { len: self.len },
            descriptor: Arc::new(memfd::reopen(file.as_fd())?),
        })
    }
}

impl InputMemory for Buffer {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn input(&self, name: &str) -> io::Result<Input> {
        Buffer::input(self, name)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (Some(file), Some(reserved)) = (self.file.take(), self.reserved.take()) else {
            return;
        };
        if memfd::is_used_elsewhere(file.as_fd()) {
            self.held.add(file, reserved);
        } else {
            close(file, reserved);
        }
    }
}

/// Buffers of ended invocations that a worker still has.
#[derive(Debug, Default)]
pub(crate) struct HeldBuffers {
    buffers: Mutex<Vec<(OwnedFd, Reserved)>>,
}

impl HeldBuffers {
    fn add(self: &Arc<Self>, file: OwnedFd, reserved: Reserved) {
        let mut buffers = self.buffers.lock();
        buffers.push((file, reserved));
        let is_first = buffers.len() == 1;
        drop(buffers);
        if is_first && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(Arc::clone(self).release());
        }
    }

    /// Gives back what is released, until nothing is held.
    async fn release(self: Arc<Self>) {
        let mut pause = PAUSE_MIN;
        loop {
            tokio::time::sleep(pause).await;
            let mut buffers = self.buffers.lock();
            let before = buffers.len();
            for (file, reserved) in
                buffers.extract_if(.., |(file, _)| !memfd::is_used_elsewhere(file.as_fd()))
            {
                close(file, reserved);
            }
            if buffers.is_empty() {
                return;
            }
            pause = if buffers.len() < before {
                PAUSE_MIN
            } else {
                (pause * 2).min(PAUSE_MAX)
            };
        }
    }
}

/// Closes the last descriptor. That gives all pages back, which takes about 10 ms for 128 MB, so it is done on a blocking thread.
fn close(file: OwnedFd, reserved: Reserved) {
    let file = File::from(file);
    let is_small = file
        .metadata()
        .is_ok_and(|metadata| metadata.len() <= CLOSED_AT_ONCE_MAX);
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !is_small => drop(runtime.spawn_blocking(move || drop((file, reserved)))),
        _ => drop((file, reserved)),
    }
}

/// The longest buffer that is closed at once, bytes.
const CLOSED_AT_ONCE_MAX: u64 = 1 << 20;

/// What a small input counts, bytes. It takes a descriptor of the daemon until nobody has it any more, so their number is bounded, too.
const COUNTED_MIN: usize = 256 << 10;

/// A worker lets go of its inputs soon after its answer.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::io::Read;

    use pilot_protocols::MemoryBudget;

    use super::*;

    // Above what a small buffer counts.
    const KIB: usize = 16 * 1024;

    async fn filled(memory: &FunctionBudget, held: &Arc<HeldBuffers>, bytes: &[u8]) -> Buffer {
        let mut filling = Filling::new(memory).unwrap();
        filling.make_room(bytes.len() as u64).await;
        filling.push(bytes).unwrap();
        filling.seal(held).unwrap()
    }

    #[tokio::test]
    async fn a_buffer_is_read_and_cannot_be_written() {
        let memory = MemoryBudget::new(64 * KIB, 64 * KIB);
        let held = Arc::default();
        let buffer = filled(&memory.of(&"f".parse().unwrap()), &held, b"pixels").await;
        let input = buffer.input("photo").unwrap();
        let mut text = String::new();
        let mut file = File::from(Arc::into_inner(input.descriptor).unwrap());
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), buffer.len()), ("pixels", 6));
        assert!(file.write_at(b"x", 0).is_err() && file.set_len(0).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_counts_until_the_worker_lets_go_of_it() {
        let memory = MemoryBudget::new(64 * KIB, 64 * KIB);
        let of_function = memory.of(&"f".parse().unwrap());
        let held = Arc::default();
        let buffer = filled(&of_function, &held, &[7; 40 * KIB]).await;
        let input = buffer.input("photo").unwrap();
        drop(buffer);
        assert_eq!(memory.held(), 40 * KIB);
        let waits = of_function.reserve(32 * KIB);
        let waits = tokio::time::timeout(Duration::from_secs(10), waits);
        assert!(waits.await.is_err(), "the first buffer is still held");
        drop(input);
        let reserved = of_function.reserve(32 * KIB);
        let reserved = tokio::time::timeout(Duration::from_secs(10), reserved)
            .await
            .unwrap();
        drop(reserved);
        assert_eq!(memory.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_function_cannot_keep_any_number_of_small_buffers() {
        let memory = MemoryBudget::new(2 * COUNTED_MIN, 2 * COUNTED_MIN);
        let of_function = memory.of(&"f".parse().unwrap());
        let held = Arc::default();
        let mut kept = Vec::new();
        for _ in 0..2 {
            let buffer = filled(&of_function, &held, b"x").await;
            kept.push(buffer.input("x").unwrap());
        }
        let third = filled(&of_function, &held, b"x");
        let third = tokio::time::timeout(Duration::from_secs(10), third);
        assert!(third.await.is_err(), "the worker still has both");
        drop(kept);
        let third = filled(&of_function, &held, b"x");
        let third = tokio::time::timeout(Duration::from_secs(10), third);
        assert!(third.await.is_ok());
    }

    #[tokio::test]
    async fn what_nobody_has_is_given_back_at_once() {
        let memory = MemoryBudget::new(64 * KIB, 64 * KIB);
        let held = Arc::default();
        let buffer = filled(&memory.of(&"f".parse().unwrap()), &held, &[7; 40 * KIB]).await;
        drop(buffer.input("photo").unwrap());
        drop(buffer);
        assert_eq!(memory.held(), 0);
    }
}
