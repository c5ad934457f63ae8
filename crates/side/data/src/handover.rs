//! Memory that a worker fills, to hand it to another function (Truffle, section III, cross-function data passing on one node).
//!
//! The daemon makes it, with its length fixed, so no descriptor comes from a worker. The worker writes through its descriptor. Then the
//! daemon seals it: nobody can write any more, whoever has kept a descriptor. From then on targets map it like any input.

mod sealed;

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::FunctionName;
use pilot_model::ports::{BlankMemory, BoxFuture, Input, InputMemory, MemoryFault};
use pilot_model::size::Size;
use pilot_sys::memfd;
use tokio::time::timeout;

use self::sealed::{Charged, HeldSealed, Sealed};
use crate::buffers::Buffers;
use crate::flight::counted;
use crate::memory::Medium;
use crate::stores::unlike;

/// How many buffers are handed over now, their lengths in all, and those that workers keep beyond that.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    buffers: AtomicU64,
    bytes: AtomicU64,
    held: Arc<HeldSealed>,
}

impl Handed {
    /// Buffers that a worker fills or that go to other functions, and their bytes.
    pub(crate) fn now(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.buffers), load(&self.bytes))
    }
}

/// Counts one buffer until it is dropped.
#[derive(Debug)]
struct Counted {
    of: Arc<Handed>,
    bytes: u64,
}

impl Counted {
    fn new(of: &Arc<Handed>, bytes: u64) -> Self {
        of.buffers.fetch_add(1, Ordering::Relaxed);
        of.bytes.fetch_add(bytes, Ordering::Relaxed);
        Self {
            of: Arc::clone(of),
            bytes,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.of.buffers.fetch_sub(1, Ordering::Relaxed);
        self.of.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory that a worker fills.
#[derive(Debug)]
pub(crate) struct Blank {
    /// For writing. `None`: it is sealed, or is being sealed.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    /// Dropped before `sealed`, which then finds out whether a worker still has the memory.
    file: Arc<OwnedFd>,
    sealed: Sealed,
    counted: Counted,
}

impl Blank {
    /// Waits for a limited time until there is room.
    pub(crate) async fn new(
        buffers: &Buffers,
        handed: &Arc<Handed>,
        function: &FunctionName,
        len: u64,
    ) -> Result<Self, MemoryFault> {
        if len > buffers.bytes_max {
            let (len, most) = unlike(len, buffers.bytes_max);
            let problem = format!(
                "the data has {len}, and one input may have {most}: see data.input_mb and data.function_mb in pilotd.toml"
            );
            return Err(MemoryFault::TooLarge { problem });
        }
        let charge = async {
            let memory = &buffers.memory;
            let mut share = memory.share(Medium::Memory, function);
            share.grow_to(counted(len)).await;
            let mut total = memory.nothing(Medium::Memory);
            let evict = || buffers.cache.evict_idle();
            memory
                .grow(Medium::Memory, &mut total, counted(len), evict)
                .await;
            Charged {
                _share: share,
                _total: total,
            }
        };
        let Ok(charged) = timeout(ROOM_TIME_MAX, charge).await else {
            let problem = format!(
                "there is no room for {}: the function's share of the memory for inputs (data.function_mb in pilotd.toml), or all of \
                 it (data.memory_mb), is in use; release buffers, or hand over less at a time",
                Size(len)
            );
            return Err(MemoryFault::NoRoom { problem });
        };
        let made = || -> io::Result<(File, OwnedFd)> {
            let file = memfd::create_sized(c"pilot-handover", len)?;
            // As for other buffers: who opens it again can only read.
            file.set_permissions(Permissions::from_mode(0o444))?;
            // Opened before a worker has the file: a lease of the worker could hold up a later open (fcntl(2)).
            let reader = memfd::reopen(file.as_fd())?;
            Ok((file, reader))
        };
        let (file, reader) = made().map_err(failed)?;
        Ok(Self {
            open: Mutex::new(Some(Open {
                file: Arc::new(file.into()),
                sealed: Sealed::new(reader, len, charged, &handed.held),
                counted: Counted::new(handed, len),
            })),
        })
    }

    /// May take a while: the kernel waits for pages that something still reads or writes directly (`memfd_wait_for_pins` in mm/memfd.c,
    /// up to 155 ms).
    fn seal_now(&self) -> Result<Arc<dyn InputMemory>, MemoryFault> {
        let mut open = self.open.lock();
        let Some(still) = open.as_ref() else {
            let problem = "the buffer is sealed already".to_owned();
            return Err(MemoryFault::Failed { problem });
        };
        if !is_whole(&still.file, still.sealed.len()).map_err(failed)? {
            return Err(MemoryFault::NotWhole);
        }
        memfd::seal(still.file.as_fd()).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => MemoryFault::StillMapped,
            _ => failed(error),
        })?;
        // A worker that takes paths may have opened it for writing. Nobody writes any more, whoever opens it.
        let file = File::from(still.file.try_clone().map_err(failed)?);
        file.set_permissions(Permissions::from_mode(0o444))
            .map_err(failed)?;
        // It may have made a hole in the meantime. Now it cannot any more, and nobody gets this buffer.
        if !is_whole(&still.file, still.sealed.len()).map_err(failed)? {
            return Err(MemoryFault::NotWhole);
        }
        let Some(Open {
            sealed, counted, ..
        }) = open.take()
        else {
            let problem = "the buffer is sealed already".to_owned();
            return Err(MemoryFault::Failed { problem });
        };
        Ok(Arc::new(HandedBuffer {
            sealed,
            _counted: counted,
        }))
    }
}

impl BlankMemory for Blank {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        let open = self.open.lock();
        open.as_ref().map(|open| Arc::clone(&open.file))
    }

    fn open_for_paths(&self) -> io::Result<Arc<OwnedFd>> {
        let open = self.open.lock();
        let open = open.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        let file = File::from(open.file.try_clone()?);
        file.set_permissions(Permissions::from_mode(0o666))?;
        Ok(Arc::clone(&open.file))
    }

    fn seal(self: Arc<Self>) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>> {
        Box::pin(async move {
            let sealed = tokio::task::spawn_blocking(move || self.seal_now());
            sealed
                .await
                .unwrap_or_else(|error| Err(failed(io::Error::other(error))))
        })
    }
}

/// Whether every page is there. A page that is missing would be made when a worker of the target reads it, and count as memory of that
/// worker. The daemon makes none: that is work for the function's own CPU time.
fn is_whole(file: &OwnedFd, len: u64) -> io::Result<bool> {
    let file = File::from(file.try_clone()?);
    Ok(file.metadata()?.blocks().saturating_mul(BLOCK_LEN) >= len)
}

fn failed(error: io::Error) -> MemoryFault {
    MemoryFault::Failed {
        problem: format!("no memory to hand over: {error}"),
    }
}

/// Memory that was handed over.
#[derive(Debug)]
struct HandedBuffer {
    sealed: Sealed,
    _counted: Counted,
}

impl InputMemory for HandedBuffer {
    fn bytes(&self) -> u64 {
        self.sealed.len()
    }

    fn input(&self, name: &str) -> io::Result<Input> {
        self.sealed.input(name)
    }
}

/// How long a function waits for room: what it holds itself may be what is in the way.
const ROOM_TIME_MAX: Duration = Duration::from_secs(2);

/// The unit of `st_blocks` (stat(2)).
const BLOCK_LEN: u64 = 512;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::buffers::HeldBuffers;
    use crate::buffers::cache::Cache;
    use crate::buffers::index::Index;
    use crate::memory::Memory;

    const KIB: u64 = 1024;
    const LEN_MAX: u64 = 4096 * KIB;

    struct World {
        buffers: Arc<Buffers>,
        handed: Arc<Handed>,
    }

    impl World {
        fn new(bytes_max: u64) -> Self {
            Self {
                buffers: Arc::new(Buffers {
                    memory: Memory::new(bytes_max, bytes_max, None),
                    cache: Cache::new(0),
                    index: Index::new(true),
                    held: HeldBuffers::default(),
                    turns: crate::room::Turns::default(),
                    bytes_max: LEN_MAX,
                }),
                handed: Arc::default(),
            }
        }

        async fn blank(&self, len: u64) -> Result<Arc<Blank>, MemoryFault> {
            let function = "f".parse().unwrap();
            let blank = Blank::new(&self.buffers, &self.handed, &function, len).await;
            blank.map(Arc::new)
        }
    }

    /// What a worker has: a duplicate.
    fn worker_of(blank: &Blank) -> File {
        let descriptor = blank.descriptor().unwrap();
        File::from(descriptor.try_clone().unwrap())
    }

    #[tokio::test]
    async fn a_worker_cannot_write_after_the_hand_over_nor_change_the_length() {
        let world = World::new(LEN_MAX);
        let blank = world.blank(6).await.unwrap();
        let worker = worker_of(&blank);
        worker.write_all_at(b"pixels", 0).unwrap();
        assert!(worker.set_len(3).is_err() && worker.set_len(60).is_err());
        let sealed = Arc::clone(&blank).seal().await.unwrap();
        assert!(worker.write_at(b"x", 0).is_err() && worker.set_len(3).is_err());
        let input = sealed.input("data").unwrap();
        let mut file = File::from(Arc::into_inner(input.descriptor).unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), sealed.bytes()), ("pixels", 6));
        assert!(file.write_at(b"x", 0).is_err());
        // And not twice.
        assert!(blank.seal().await.is_err());
    }

    #[tokio::test]
    async fn a_worker_that_takes_paths_opens_it_for_writing_until_the_hand_over() {
        let world = World::new(LEN_MAX);
        let blank = world.blank(6).await.unwrap();
        let mode = |file: &File| file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&worker_of(&blank)), 0o444);
        let shown = File::from(blank.open_for_paths().unwrap().try_clone().unwrap());
        assert_eq!(mode(&shown), 0o666);
        let path = format!("/proc/self/fd/{}", shown.as_raw_fd());
        let worker = File::options().write(true).open(&path).unwrap();
        worker.write_all_at(b"pixels", 0).unwrap();
        assert!(worker.set_len(60).is_err());
        let sealed = Arc::clone(&blank).seal().await.unwrap();
        assert_eq!((mode(&shown), sealed.bytes()), (0o444, 6));
        assert!(worker.write_at(b"x", 0).is_err());
        // Root may open it. Even so it cannot write.
        let late = File::options().write(true).open(&path);
        assert!(late.is_err() || late.is_ok_and(|file| file.write_at(b"x", 0).is_err()));
        assert!(blank.open_for_paths().is_err());
    }

    #[tokio::test]
    async fn a_buffer_with_holes_is_refused_until_it_is_filled() {
        let world = World::new(LEN_MAX);
        let blank = world.blank(1024 * KIB).await.unwrap();
        let worker = worker_of(&blank);
        worker.write_all_at(b"x", 512 * KIB).unwrap();
        let refused = Arc::clone(&blank).seal().await.unwrap_err();
        assert_eq!(refused, MemoryFault::NotWhole);
        worker.write_all_at(&[7; 1 << 20], 0).unwrap();
        blank.seal().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn memory_counts_until_the_worker_lets_go_of_it_sealed_or_not() {
        let world = World::new(2048 * KIB);
        for sealed in [false, true] {
            let blank = world.blank(2048 * KIB).await.unwrap();
            assert_eq!(world.handed.now(), (1, 2048 * KIB));
            let worker = worker_of(&blank);
            match sealed {
                true => {
                    worker.write_all_at(&[7; 2 << 20], 0).unwrap();
                    drop(blank.seal().await.unwrap());
                }
                false => drop(blank),
            }
            assert_eq!(world.handed.now(), (0, 0));
            let refused = world.blank(1).await.unwrap_err();
            assert!(matches!(refused, MemoryFault::NoRoom { .. }), "{refused}");
            drop(worker);
            let next = world.blank(1).await;
            drop(next.unwrap());
        }
        assert_eq!(world.buffers.memory.held(), 0);
    }

    #[tokio::test]
    async fn a_buffer_has_at_most_what_an_input_may_have() {
        let world = World::new(2 * LEN_MAX);
        let refused = world.blank(LEN_MAX + 1).await.unwrap_err();
        assert!(refused.to_string().contains("data.input_mb"), "{refused}");
        assert_eq!(world.buffers.memory.held(), 0);
    }
}
