//! How many workers this machine has room for: the least of what its open files, its processes and its memory allow. It is a bound
//! against exhaustion, not a forecast of what the functions need.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};

/// Most workers of all functions together, with so many connections. The daemon raises its limit of open files to the hard one.
pub(crate) fn for_workers(connections: usize) -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard);
    let processes = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
        .into_iter()
        .filter_map(number_in)
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
