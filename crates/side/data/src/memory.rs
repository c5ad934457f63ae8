//! Where buffers lie, and how much of it they may take: memory, and a folder of the disk for what exceeds the memory.
//!
//! Each medium has two limits. A buffer counts once in the total of its medium, because it is there once. It counts once in the share
//! of each function that uses it. So a function is charged for what it keeps alive, whoever fetched it, and a function without room
//! makes nobody else wait.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use pilot_model::FunctionName;
use pilot_protocols::{FunctionBudget, MemoryBudget, Reserved};
use pilot_sys::memfd;

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    Memory,
    Disk,
}

/// Closes the last descriptor of a buffer, and gives back what it counts. Giving back the pages of 128 MB takes about 10 ms, so that of a
/// large buffer is done on a blocking thread.
pub(crate) fn close(file: OwnedFd, counts: impl Send + 'static) {
    let file = File::from(file);
    let is_small = file
        .metadata()
        .is_ok_and(|metadata| metadata.len() <= CLOSED_AT_ONCE_MAX);
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) if !is_small => drop(runtime.spawn_blocking(move || drop((file, counts)))),
        _ => drop((file, counts)),
    }
}

/// The longest buffer that is closed at once, bytes.
const CLOSED_AT_ONCE_MAX: u64 = 1 << 20;

/// The limits of both places.
#[derive(Debug)]
pub(crate) struct Memory {
    memory: Budgets,
    disk: Option<(Budgets, PathBuf)>,
    /// How many wait for memory, or are about to: what falls idle meanwhile is not kept in the cache.
    wanted: AtomicUsize,
}

/// The configuration of the disk as a medium for buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpillConfig {
    /// A folder that only the daemon can write to. Files in it have no names.
    pub folder: PathBuf,
    /// For the inputs of all functions, bytes. One function can have half of it.
    pub bytes_max: u64,
}

#[derive(Debug)]
struct Budgets {
    total: MemoryBudget,
    /// The one user of the total.
    all: FunctionBudget,
    shares: MemoryBudget,
}

impl Budgets {
    fn new(bytes_max: u64, share_max: u64) -> Self {
        let everybody: FunctionName = EVERYBODY.parse().expect("it is a valid name");
        let total = MemoryBudget::new(bytes(bytes_max), bytes(bytes_max));
        Self {
            all: total.of(&everybody),
            total,
            // Only the shares are limits here: the total counts each buffer once, and this would count it for every function.
            shares: MemoryBudget::new(usize::MAX / 2, bytes(share_max)),
        }
    }
}

impl Memory {
    pub(crate) fn new(bytes_max: u64, share_max: u64, spill: Option<SpillConfig>) -> Self {
        let disk = spill.map(|spill| {
            let budgets = Budgets::new(spill.bytes_max, spill.bytes_max / 2);
            (budgets, spill.folder)
        });
        Self {
            memory: Budgets::new(bytes_max, share_max.min(bytes_max)),
            disk,
            wanted: AtomicUsize::new(0),
        }
    }

    fn budgets(&self, medium: Medium) -> &Budgets {
        match (medium, &self.disk) {
            (Medium::Disk, Some((budgets, _))) => budgets,
            _ => &self.memory,
        }
    }

    pub(crate) fn spills(&self) -> bool {
        self.disk.is_some()
    }

    /// The most that one function can have there, bytes.
    pub(crate) fn share_max(&self, medium: Medium) -> usize {
        self.budgets(medium).shares.share_max()
    }

    /// Nothing yet of the share of a function.
    pub(crate) fn share(&self, medium: Medium, function: &FunctionName) -> Reserved {
        self.budgets(medium).shares.of(function).nothing()
    }

    /// Nothing yet of the total.
    pub(crate) fn nothing(&self, medium: Medium) -> Reserved {
        self.budgets(medium).all.nothing()
    }

    /// Takes from the total until there are `len` bytes in all. `evict` drops a buffer that nobody uses, or says that there is none.
    pub(crate) fn try_grow(
        &self,
        medium: Medium,
        reserved: &mut Reserved,
        len: usize,
        evict: impl Fn() -> bool,
    ) -> bool {
        // What could never be had counts as everything.
        let len = len.min(self.budgets(medium).total.share_max());
        loop {
            if reserved.try_grow_to(len) {
                return true;
            }
            if medium == Medium::Disk || !evict() {
                return false;
            }
        }
    }

    /// As [`Memory::try_grow`], and waits.
    pub(crate) async fn grow(
        &self,
        medium: Medium,
        reserved: &mut Reserved,
        len: usize,
        evict: impl Fn() -> bool,
    ) {
        let total = self.budgets(medium).total.share_max();
        if reserved.try_grow_to(len.min(total)) {
            return;
        }
        // Before the look at the cache: what falls idle after it is given up because somebody waits.
        let _waits = Waits::new(self);
        if !self.try_grow(medium, reserved, len, evict) {
            reserved.grow_to(len).await;
        }
    }

    /// Whether somebody waits for memory.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) > 0
    }

    /// An empty file that whoever is given a descriptor may open again for reading, and nobody for writing.
    ///
    /// # Errors
    /// Out of descriptors; the disk's.
    pub(crate) fn file(&self, medium: Medium) -> io::Result<File> {
        let file = match (medium, &self.disk) {
            (Medium::Disk, Some((_, folder))) => tempfile::tempfile_in(folder)?,
            _ => memfd::create(c"pilot-input")?,
        };
        file.set_permissions(Permissions::from_mode(0o444))?;
        Ok(file)
    }

    /// Bytes of all buffers in memory.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.memory.total.held()
    }

    /// Bytes of all shares of memory.
    #[cfg(test)]
    pub(crate) fn charged(&self) -> usize {
        self.memory.shares.held()
    }

    /// Bytes of all buffers on the disk.
    #[cfg(test)]
    pub(crate) fn spilled(&self) -> usize {
        self.budgets(Medium::Disk).total.held()
    }
}

struct Waits<'a>(&'a Memory);

impl<'a> Waits<'a> {
    fn new(memory: &'a Memory) -> Self {
        memory.wanted.fetch_add(1, Ordering::SeqCst);
        Self(memory)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}

fn bytes(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The one name under which a total is counted.
const EVERYBODY: &str = "inputs";
