//! Rest between invocations: a group is frozen or throttled, and its memory is reclaimed. Nothing here waits for the group's
//! processes.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

use pilot_model::Rest;
use pilot_model::keep_alive::THROTTLED_CPU_MILLI;

use super::{CPU_PERIOD_US, Cgroup, Layout, Limits, v1, v2};

impl Cgroup {
    /// Lets its processes rest until [`Cgroup::wake`].
    ///
    /// # Errors
    /// `Unsupported`: it cannot be frozen. Otherwise the kernel's.
    pub fn rest(&self, how: Rest) -> io::Result<()> {
        let mut rested = self.rested.lock();
        match how {
            Rest::Freeze => self.write_freeze(b"1")?,
            Rest::Throttle => self.throttle()?,
        }
        *rested = Some(how);
        Ok(())
    }

    fn throttle(&self) -> io::Result<()> {
        let limits = *self.limits.lock();
        self.write_cpu(&Limits {
            cpu_milli: THROTTLED_CPU_MILLI.min(limits.cpu_milli),
            // A shorter period with the kernel's least quota would be more.
            cpu_period_us: CPU_PERIOD_US,
            ..limits
        })
    }

    /// Lets them run again. Does nothing if they do not rest.
    ///
    /// # Errors
    /// The kernel's.
    pub fn wake(&self) -> io::Result<()> {
        let mut rested = self.rested.lock();
        match rested.take() {
            None => Ok(()),
            Some(Rest::Freeze) => {
                self.write_freeze(b"0")?;
                self.allow_swap(Swap::No);
                Ok(())
            }
            Some(Rest::Throttle) => {
                let limits = *self.limits.lock();
                self.write_cpu(&limits)
            }
        }
    }

    /// Stops its processes until [`Cgroup::go_on`], in the middle of an invocation.
    ///
    /// # Errors
    /// As [`Cgroup::rest`].
    pub(crate) fn stop(&self) -> io::Result<()> {
        self.write_freeze(b"1")
    }

    /// Lets stopped processes go on.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        self.write_freeze(b"0")
    }

    fn write_freeze(&self, value: &[u8]) -> io::Result<()> {
        match &self.files.freeze {
            Some(freeze) => freeze.write_all_at(value, 0),
            None => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Reclaims the memory that is charged to the group, if it rests. Takes as long as writing it to the swap takes.
    ///
    /// # Errors
    /// The kernel's. `WouldBlock` if less was reclaimed than asked for is not one.
    pub fn reclaim(&self) -> io::Result<()> {
        if *self.rested.lock() != Some(Rest::Freeze) {
            return Ok(());
        }
        self.allow_swap(Swap::Yes);
        let reclaimed = match &self.hierarchy.inner.layout {
            Layout::V1(folders) => v1::reclaim(&folders.memory().join(&self.files.name)),
            Layout::V2(folder) => v2::reclaim(&folder.path().join(&self.files.name)),
        };
        if self.rested.lock().is_none() {
            // It was woken in the meantime.
            self.allow_swap(Swap::No);
        }
        match reclaimed {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        }
    }

    fn write_cpu(&self, limits: &Limits) -> io::Result<()> {
        match &self.hierarchy.inner.layout {
            Layout::V1(folders) => folders.limit_cpu(&self.files, limits),
            Layout::V2(folder) => folder.limit_cpu(&self.files, limits),
        }
    }

    /// Processes that run must not swap, or they would have more memory than their limit. In version 1 the limit of memory and swap
    /// together says so.
    fn allow_swap(&self, swap: Swap) {
        if let Layout::V2(folder) = &self.hierarchy.inner.layout {
            let file = folder.path().join(&self.files.name).join("memory.swap.max");
            let most = match swap {
                Swap::Yes => "max",
                Swap::No => "0",
            };
            // Missing in a kernel without swap.
            let _ = fs::write(file, most);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Swap {
    Yes,
    No,
}
