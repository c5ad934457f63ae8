//! `[limits]` of `pilotd.toml`.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use pilot_container::VolumeLimit;
use serde::{Deserialize, Deserializer};

use super::ranges::in_range;
use crate::room;

/// `[limits]` of `pilotd.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Limit of the memory of all templates and workers (PSS), MiB. Above it the coldest are evicted. 0: no limit.
    #[serde(deserialize_with = "zero_is_no_limit")]
    pub(crate) memory_mb: Option<NonZeroU64>,
    /// Memory limit of everything below the daemon, MiB. By default what the machine has, without a share for the daemon and the
    /// system: see `room`.
    pub(crate) total_memory_mb: Option<u64>,
    /// Highest number of processes and threads of everything below the daemon. By default three quarters of the machine's.
    pub(crate) total_pids: Option<u64>,
    /// Memory limit of the template of an interpreter or environment, MiB.
    pub(crate) template_memory_mb: u64,
    /// Size of a worker's `/tmp`, MiB. It counts as the worker's memory, too.
    pub(crate) tmp_mb: u64,
    /// Size of a container's volume, MiB; 0: as much as the disk has. By default 1,024 where the machine can enforce it.
    pub(crate) volume_mb: Option<u64>,
    /// Highest number of processes and threads of a worker.
    pub(crate) pids: u32,
    /// Highest number of workers of all functions together. By default what the machine has room for: see `room`.
    pub(crate) workers: Option<NonZeroU32>,
    /// Highest number of functions.
    pub(crate) functions: usize,
    /// Highest number of MiB of code, environments and layers on the disk. By default three quarters of the file system of the data
    /// directory.
    pub(crate) disk_mb: Option<u64>,
    /// Highest number of MiB of the disk for request bodies that arrive slowly; 0: they stay in memory.
    pub(crate) bodies_disk_mb: u32,
    /// Size of the usage records on the disk, MiB. Beyond it, the oldest are removed.
    pub(crate) usage_mb: u64,
    /// Highest number of asynchronous invocations that wait or run; for one function the half, for dead letters a quarter more.
    pub(crate) async_records: NonZeroU32,
    /// Highest number of MiB of those, likewise.
    pub(crate) async_mb: NonZeroU32,
    /// Highest number of waiting requests of one function.
    pub(crate) queue: usize,
    /// The longest that a request waits for a busy worker, seconds, if its function does not say. By default the function's timeout.
    pub(crate) max_wait_s: Option<f64>,
    /// Highest number of open connections to the address for functions.
    pub(crate) connections: usize,
    /// How many of them may come from one address. `None`: three quarters.
    pub(crate) connections_per_address: Option<usize>,
    /// Highest number of open connections to the control socket, and to the control API's address.
    pub(crate) control_connections: usize,
    /// Time that running requests get when the daemon stops, seconds.
    pub(crate) drain_s: f64,
    /// Highest number of runtimes that cannot fork (sandboxes, containers), used and kept ones together. 0: none is kept, and every
    /// worker gets a new one.
    pub(crate) runtimes: usize,
    /// Used share of the machine's memory and swap above which kept runtimes are ended, oldest first, per cent.
    pub(crate) runtimes_memory_percent: u8,
    /// A kept runtime is ended after this time without use, unless a forecast wants it, seconds.
    pub(crate) runtimes_keep_s: f64,
    /// First host user and group id for functions. They use 65,536 ids from there.
    pub(crate) id_base: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mb: None,
            total_memory_mb: None,
            total_pids: None,
            template_memory_mb: 2048,
            tmp_mb: 512,
            volume_mb: None,
            pids: 256,
            workers: None,
            functions: 1000,
            disk_mb: None,
            bodies_disk_mb: 256,
            usage_mb: 128,
            async_records: ASYNC_RECORDS,
            async_mb: ASYNC_MB,
            queue: 1000,
            max_wait_s: None,
            connections: 1024,
            connections_per_address: None,
            control_connections: 256,
            drain_s: 30.0,
            runtimes: 500,
            runtimes_memory_percent: 80,
            runtimes_keep_s: 600.0,
            id_base: 1_900_000_000,
        }
    }
}

/// Asynchronous invocations by default, and their MiB.
const ASYNC_RECORDS: NonZeroU32 = NonZeroU32::new(100_000).expect("it is not zero");
const ASYNC_MB: NonZeroU32 = NonZeroU32::new(256).expect("it is not zero");
/// Size of a container's volume by default, MiB.
const VOLUME_MB: u64 = 1024;

fn zero_is_no_limit<'de, D: Deserializer<'de>>(limit: D) -> Result<Option<NonZeroU64>, D::Error> {
    u64::deserialize(limit).map(NonZeroU64::new)
}

impl Limits {
    /// Refuses values out of range, with the key.
    pub(super) fn check(&self) -> Result<(), String> {
        check_sizes(self)?;
        check_counts(self)
    }

    pub(crate) fn runtimes_keep(&self) -> Duration {
        Duration::from_secs_f64(self.runtimes_keep_s)
    }

    /// The limit of containers' volumes.
    pub(crate) fn volume(&self) -> VolumeLimit {
        match self.volume_mb {
            None => VolumeLimit::IfPossible(VOLUME_MB << 20),
            Some(0) => VolumeLimit::None,
            Some(limit) => VolumeLimit::Enforced(limit << 20),
        }
    }

    /// Highest number of workers of all functions together.
    pub(crate) fn workers_max(&self) -> usize {
        match self.workers {
            Some(workers) => workers.get() as usize,
            None => room::for_workers(self.connections_max() + self.control_connections_max()),
        }
    }

    /// Highest number of open connections to the address for functions, for which there are open files.
    pub(crate) fn connections_max(&self) -> usize {
        let files = room::open_files();
        room::for_connections(self.connections, files, room::FILES_PER_CONNECTION)
    }

    /// The same for the control socket, and for the control API's address.
    pub(crate) fn control_connections_max(&self) -> usize {
        let (configured, files) = (self.control_connections, room::open_files());
        room::for_connections(configured, files, room::FILES_PER_CONTROL_CONNECTION)
    }

    /// How many of so many connections may come from one address.
    pub(crate) fn connections_per_address(&self, connections_max: usize) -> usize {
        let default = connections_max - connections_max / 4;
        self.connections_per_address.unwrap_or(default)
    }

    /// What to change if there are not enough open files for the connections.
    pub(crate) fn few_files(&self) -> Option<String> {
        let (functions, control) = (self.connections_max(), self.control_connections_max());
        if functions == self.connections && control == self.control_connections {
            return None;
        }
        let wanted = (self.connections as u64 * room::FILES_PER_CONNECTION)
            .max(self.control_connections as u64 * room::FILES_PER_CONTROL_CONNECTION);
        Some(format!(
            "the daemon may have {} files open, which is too few for limits.connections = {} and limits.control_connections = {}; there \
             are at most {functions} and {control} connections. Raise the limit of open files to {wanted} (`LimitNOFILE=` of the service, \
             or `ulimit -n`), or lower these limits",
            room::open_files(),
            self.connections,
            self.control_connections
        ))
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs_f64(self.drain_s)
    }
}

fn check_sizes(limits: &Limits) -> Result<(), String> {
    in_range(&[
        (
            "limits.template_memory_mb",
            "at least 32",
            limits.template_memory_mb >= 32,
        ),
        (
            "limits.total_memory_mb",
            "from 64 to 1073741824",
            limits
                .total_memory_mb
                .is_none_or(|limit| (64..=1 << 30).contains(&limit)),
        ),
        (
            "limits.total_pids",
            "from 64 to 4194304",
            limits
                .total_pids
                .is_none_or(|limit| (64..=1 << 22).contains(&limit)),
        ),
        (
            "limits.tmp_mb",
            "from 1 to 1073741824",
            (1..=1 << 30).contains(&limits.tmp_mb),
        ),
        (
            "limits.volume_mb",
            "0, or from 16 to 1073741824",
            limits
                .volume_mb
                .is_none_or(|limit| limit == 0 || (16..=1 << 30).contains(&limit)),
        ),
        (
            "limits.pids",
            "from 4 to 4194304",
            (4..=1 << 22).contains(&limits.pids),
        ),
        ("limits.functions", "at least 1", limits.functions >= 1),
        (
            "limits.disk_mb",
            "from 16 to 1099511627776",
            limits
                .disk_mb
                .is_none_or(|limit| (16..=1 << 40).contains(&limit)),
        ),
    ])
}

fn check_counts(limits: &Limits) -> Result<(), String> {
    in_range(&[
        (
            "limits.usage_mb",
            "from 1 to 1048576",
            (1..=1 << 20).contains(&limits.usage_mb),
        ),
        (
            "limits.connections",
            "from 1 to 16777216",
            (1..=1 << 24).contains(&limits.connections),
        ),
        (
            "limits.connections_per_address",
            "at least 1",
            limits
                .connections_per_address
                .is_none_or(|limit| limit >= 1),
        ),
        (
            "limits.control_connections",
            "from 1 to 16777216",
            (1..=1 << 24).contains(&limits.control_connections),
        ),
        (
            "limits.max_wait_s",
            "from 0 to 900",
            limits
                .max_wait_s
                .is_none_or(|wait| (0.0..=900.0).contains(&wait)),
        ),
        (
            "limits.drain_s",
            "from 0 to 3600",
            (0.0..=3600.0).contains(&limits.drain_s),
        ),
        (
            "limits.runtimes_memory_percent",
            "from 1 to 100",
            (1..=100).contains(&limits.runtimes_memory_percent),
        ),
        (
            "limits.runtimes_keep_s",
            "from 0 to 86400",
            (0.0..=86_400.0).contains(&limits.runtimes_keep_s),
        ),
        (
            "limits.id_base",
            "from 65536 to 1999999999",
            (65_536..2_000_000_000).contains(&limits.id_base),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_the_kernel_does_not_take_are_refused_with_the_range() {
        let check = |text: &str| toml::from_str::<Limits>(text).unwrap().check();
        for text in ["pids = 4194304", "connections = 16777216"] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (text, wanted) in [
            ("pids = 3", "limits.pids must be from 4 to 4194304"),
            ("pids = 4194305", "limits.pids must be from 4 to 4194304"),
            (
                "connections = 9223372036854775807",
                "limits.connections must be from 1 to 16777216",
            ),
            (
                "control_connections = 0",
                "limits.control_connections must be from 1 to 16777216",
            ),
        ] {
            assert_eq!(check(text), Err(wanted.to_owned()));
        }
    }
}
