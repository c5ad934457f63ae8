//! How many workers this machine has room for: the least of what its open files, its processes and its memory allow. It is a bound
//! against exhaustion, not a forecast of what the functions need. And how many connections there may be, and what everything below the
//! daemon may have together.

use std::fs;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use pilot_sandbox::cgroup::{Around, TotalLimits};

/// Limits that the configuration says.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Configured {
    /// Memory of everything, MiB.
    pub(crate) memory_mb: Option<u64>,
    /// Processes of everything.
    pub(crate) pids: Option<u64>,
    /// Memory of all builds, MiB.
    pub(crate) builds_memory_mb: Option<u64>,
}

/// The limits of everything below the daemon together. What the configuration does not say follows from the machine and from the
/// control groups around the daemon.
pub(crate) fn total(configured: Configured, around: Around) -> TotalLimits {
    let memory = memory_bytes().into_iter().chain(around.memory_bytes).min();
    let memory_bytes = match configured.memory_mb {
        Some(limit) => limit << 20,
        None => memory.map_or(UNKNOWN_BYTES, without_the_daemons_share),
    };
    let pids = processes().into_iter().chain(around.pids).min();
    TotalLimits {
        memory_bytes,
        // The rest is for the daemon, inits and the system.
        pids: configured.pids.unwrap_or(match pids {
            Some(pids) => (pids / 4 * 3).max(PIDS_LEAST),
            None => PIDS_UNKNOWN,
        }),
        builds_memory_bytes: match configured.builds_memory_mb {
            Some(limit) => limit << 20,
            None => memory_bytes / 2,
        },
    }
}

/// Bytes of code, environments and layers that all functions may have on the disk.
pub(crate) fn disk_bytes(configured_mb: Option<u64>, data_dir: &Path) -> u64 {
    if let Some(limit) = configured_mb {
        return limit << 20;
    }
    let fs = statvfs(data_dir);
    fs.map_or(u64::MAX, |fs| fs.blocks() * fs.fragment_size() / 4 * 3)
}

/// Memory of the machine.
pub(crate) fn machine_memory_bytes() -> u64 {
    memory_bytes().unwrap_or(UNKNOWN_BYTES)
}

/// MiB for the inputs of all functions: an eighth of the machine's memory, and no more than 1 GiB.
pub(crate) fn for_inputs_mb() -> u64 {
    ((machine_memory_bytes() / 8) >> 20).clamp(16, 1024)
}

/// The daemon holds up to 256 MB of requests and as much of answers at a time, and the system needs some memory, too.
fn without_the_daemons_share(machine_bytes: u64) -> u64 {
    let share = (machine_bytes / 8).clamp(256 << 20, 2 << 30);
    machine_bytes - share.min(machine_bytes / 2)
}

/// Processes that the machine can have.
fn processes() -> Option<u64> {
    ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
        .into_iter()
        .filter_map(number_in)
        .min()
}

/// If the machine does not say what it has: high enough for any, and a limit still.
const UNKNOWN_BYTES: u64 = 1 << 50;
const PIDS_UNKNOWN: u64 = 24_576;
const PIDS_LEAST: u64 = 64;

/// How many files the daemon may have open. It raises its limit to the hard one.
pub(crate) fn open_files() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard)
}

/// How many connections there may be with so many open files: those that are configured, and no more than a share of the files. The
/// rest is for workers, for connections to servers and for the daemon's own files.
pub(crate) fn for_connections(configured: usize, files: u64, files_each: u64) -> usize {
    let room = usize::try_from(files / files_each).unwrap_or(usize::MAX);
    configured.min(room.max(1))
}

/// The first descriptor that is not for a connection to the address for functions: the last sixteenth of all is for the control API and
/// for what the daemon opens. The kernel gives the lowest descriptor that is free (open(2)).
pub(crate) fn first_kept_descriptor(files: u64) -> i32 {
    i32::try_from(files - files / 16).unwrap_or(i32::MAX)
}

/// A connection to the address for functions counts as so many open files: it may have one to a server, and both have half of all.
pub(crate) const FILES_PER_CONNECTION: u64 = 4;

/// The same for a connection to the control socket, and to the control API's address: each of the two listeners has an eighth.
pub(crate) const FILES_PER_CONTROL_CONNECTION: u64 = 8;

/// Most workers of all functions together, with this many connections.
pub(crate) fn for_workers(connections: usize) -> usize {
    let files = open_files();
    let processes = processes()
        .into_iter()
        .chain(getrlimit(Resource::RLIMIT_NPROC).map(|(soft, _)| soft))
        .min();
    room(Machine {
        files,
        connections: connections as u64,
        processes: processes.unwrap_or(u64::MAX),
        memory_bytes: memory_bytes().unwrap_or(u64::MAX),
    })
}

/// What bounds the number of workers.
struct Machine {
    files: u64,
    connections: u64,
    processes: u64,
    memory_bytes: u64,
}

fn room(machine: Machine) -> usize {
    // A connection of a client may have one to a server, and a spare sandbox is there for most workers.
    let others = FILES_OF_THE_DAEMON + 2 * machine.connections;
    let by_files = machine.files.saturating_sub(others) / FILES_PER_WORKER;
    let by_processes = machine.processes / PROCESSES_PER_WORKER;
    let by_memory = machine.memory_bytes / BYTES_PER_WORKER;
    let workers = by_files.min(by_processes).min(by_memory);
    usize::try_from(workers)
        .unwrap_or(usize::MAX)
        .max(WORKERS_LEAST)
}

/// Descriptors of the daemon for one worker: its channel, its output, five namespaces, its init, its cgroups.
const FILES_PER_WORKER: u64 = 16;

/// Files, templates and listeners.
const FILES_OF_THE_DAEMON: u64 = 1024;

/// The worker, its init, and as many again for what they start and for the rest of the machine.
const PROCESSES_PER_WORKER: u64 = 4;

/// A forked worker that does nothing has about 1.5 MB of its own, its init and its kernel structures as much again.
const BYTES_PER_WORKER: u64 = 4 << 20;

/// On the smallest machine.
const WORKERS_LEAST: usize = 4;

fn number_in(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_memory_is_kept_for_the_daemon() {
        assert_eq!(without_the_daemons_share(256 << 20), 128 << 20);
        assert_eq!(without_the_daemons_share(1 << 30), 768 << 20);
        assert_eq!(without_the_daemons_share(8 << 30), 7 << 30);
        assert_eq!(without_the_daemons_share(64 << 30), 62 << 30);
    }

    #[test]
    fn the_total_follows_from_the_configuration_else_from_the_machine_and_the_groups_around() {
        let around = Around {
            memory_bytes: Some(1 << 30),
            pids: Some(1000),
        };
        let found = total(Configured::default(), around);
        assert_eq!(found.memory_bytes, 768 << 20);
        assert_eq!(found.builds_memory_bytes, 384 << 20);
        assert_eq!(found.pids, 750);
        let configured = Configured {
            memory_mb: Some(100),
            pids: Some(70),
            builds_memory_mb: Some(80),
        };
        let found = total(configured, around);
        assert_eq!((found.memory_bytes, found.pids), (100 << 20, 70));
        assert_eq!(found.builds_memory_bytes, 80 << 20);
    }

    #[test]
    fn connections_leave_open_files_for_everything_else() {
        assert_eq!(for_connections(1024, 1 << 20, 4), 1024);
        assert_eq!(for_connections(1024, 4096, 4), 1024);
        assert_eq!(for_connections(1024, 1024, 4), 256);
        assert_eq!(for_connections(256, 1024, 8), 128);
        assert_eq!(for_connections(1024, 3, 4), 1);
        assert_eq!(for_connections(1024, u64::MAX, 4), 1024);
        assert_eq!(first_kept_descriptor(1024), 960);
        assert_eq!(first_kept_descriptor(u64::MAX), i32::MAX);
    }

    #[test]
    fn the_scarcest_thing_decides() {
        let large = || Machine {
            files: 1 << 20,
            connections: 1024,
            processes: 1 << 22,
            memory_bytes: 1 << 40,
        };
        assert_eq!(room(large()), 65_344);
        let few_files = Machine {
            files: 20_000,
            ..large()
        };
        assert_eq!(room(few_files), 1_058);
        let few_processes = Machine {
            processes: 32_768,
            ..large()
        };
        assert_eq!(room(few_processes), 8_192);
        let little_memory = Machine {
            memory_bytes: 1 << 30,
            ..large()
        };
        assert_eq!(room(little_memory), 256);
        let nothing = Machine {
            files: 1_024,
            ..large()
        };
        assert_eq!(room(nothing), WORKERS_LEAST);
    }
}
