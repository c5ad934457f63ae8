//! Watches memory of the kernel that no control group is charged for. Ends what is in a network namespace whose sockets hold too much
//! of it, or are too many, and sandboxes that hold too many locks of files, watches of epoll or open folders
//! ([`by_descriptor`]). Ends functions whose ended workers have left too much memory ([`left_behind`]).
//!
//! The kernel charges a control group for sockets that a process has made or accepted, but nobody for what a connection has received
//! before it is accepted (`inet_csk_accept` in net/ipv4/inet_connection_sock.c), for datagrams that are kept back (`MSG_MORE`), and for
//! messages of netlink. Version 1 also lets accepted connections exceed the limit. No setting of a namespace limits any of it. So one
//! task looks once a second at the namespaces of all sandboxes in which processes run, and earlier if the memory of the machine's
//! connections grows fast. The host's is not among them.
//!
//! Invocations do not pass here. A look is two small reads for each sandbox. The tables of sockets are read only where there are many
//! ([`SOCKETS_UNREAD_MAX`]), as often as [`Paces`] says: reading them takes at most a few percent of a CPU. Where there are more than
//! [`SOCKETS_MAX`], no table is read.

mod by_descriptor;
mod left_behind;
mod pace;
mod tables;

use std::collections::HashMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::sys::stat::fstat;
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use pilot_model::Seldom;
use pilot_model::ports::{MemoryShortage, SOCKETS_MAX};
use tokio::task::JoinHandle;

use self::by_descriptor::{ByDescriptor, TooMany};
use self::left_behind::LeftBehindWatch;
use self::pace::Paces;
use self::tables::Held;
use crate::cgroup::Cgroup;
use crate::control::Control;

/// Watches the sandboxes of a daemon. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct KernelMemoryWatch {
    /// Guards what is watched. Never held while something is read.
    state: Arc<Mutex<WatchedSandboxes>>,
}

#[derive(Debug, Default)]
struct WatchedSandboxes {
    watched: HashMap<u64, Sandboxed>,
    next_number: u64,
    /// Runs while something is watched.
    task: Option<JoinHandle<()>>,
}

/// A sandbox. Being watched does not keep it.
#[derive(Debug, Clone)]
struct Sandboxed {
    /// The inode of its network namespace. `None`: it is the host's, whose sockets are not watched.
    network: Option<u64>,
    control: Weak<Control>,
    cgroup: Weak<Cgroup>,
}

/// A sandbox is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    watch: KernelMemoryWatch,
    number: u64,
}

impl KernelMemoryWatch {
    /// Watches a sandbox, and its network if that is its own. `None`: its namespace is unknown. Must be called within a tokio runtime.
    pub(crate) fn watch(
        &self,
        network: Option<BorrowedFd<'_>>,
        control: &Arc<Control>,
        cgroup: &Arc<Cgroup>,
    ) -> Option<Watched> {
        let sandboxed = Sandboxed {
            network: match network {
                Some(network) => Some(fstat(network).ok()?.st_ino),
                None => None,
            },
            control: Arc::downgrade(control),
            cgroup: Arc::downgrade(cgroup),
        };
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.watched.insert(number, sandboxed);
        if state.task.as_ref().is_none_or(JoinHandle::is_finished) {
            state.task = Some(tokio::spawn(keep_looking(Arc::downgrade(&self.state))));
        }
        drop(state);
        Some(Watched {
            watch: self.clone(),
            number,
        })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.state.lock().watched.remove(&self.number);
    }
}

async fn keep_looking(state: Weak<Mutex<WatchedSandboxes>>) {
    let mut paces = Paces::default();
    let mut held = ByDescriptor::new();
    let mut left_behind = LeftBehindWatch::default();
    loop {
        let most = paces.most();
        let before = tables::machine_tcp_bytes();
        for _ in 0..LOOK_EVERY_TICKS {
            tokio::time::sleep(TICK).await;
            left_behind.tick(&state);
            if most == Most::Much
                || tables::machine_tcp_bytes() > before + TCP_BYTES_MUCH
                || held.grows_fast()
            {
                break;
            }
        }
        let Some(state) = state.upgrade() else {
            return;
        };
        {
            let mut state = state.lock();
            if state.watched.is_empty() {
                state.task = None;
                return;
            }
        }
        let looked = tokio::task::spawn_blocking(move || {
            look_at_all(&state, &mut paces);
            look_at_descriptors(&state, &mut held);
            (paces, held)
        });
        (paces, held) = match looked.await {
            Ok(looked) => looked,
            // The runtime ends.
            Err(_) => return,
        };
    }
}

/// How much a namespace has that nobody is charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Most {
    Little,
    Much,
}

/// A namespace in which processes run.
struct Running {
    inode: u64,
    /// One of the processes.
    pid: u32,
    /// The limits of all that runs in it, together.
    charged_bytes_max: u64,
    /// How many there are.
    sockets: u64,
}

fn look_at_all(state: &Mutex<WatchedSandboxes>, paces: &mut Paces) {
    let mut networks: HashMap<u64, Vec<Arc<Cgroup>>> = HashMap::new();
    for sandboxed in state.lock().watched.values() {
        if let (Some(network), Some(cgroup)) = (sandboxed.network, sandboxed.cgroup.upgrade()) {
            networks.entry(network).or_default().push(cgroup);
        }
    }
    let running = networks
        .into_iter()
        .filter_map(|(inode, inside)| Running::of(inode, &inside));
    let (too_many, mut running): (Vec<_>, Vec<_>) =
        running.partition(|network| network.sockets > SOCKETS_MAX);
    for network in too_many {
        end_for_number(&network, state);
    }
    running.retain(|network| network.sockets > SOCKETS_UNREAD_MAX);
    let counts = running
        .iter()
        .map(|network| (network.inode, network.sockets));
    for inode in paces.due(counts, Instant::now()) {
        if let Some(network) = running.iter().find(|network| network.inode == inode) {
            let before = cpu_time();
            let most = look_at(network, state);
            let took = cpu_time().saturating_sub(before);
            paces.was_read(inode, most, took, Instant::now());
        }
    }
}

impl Running {
    /// `None`: nothing runs in it.
    fn of(inode: u64, inside: &[Arc<Cgroup>]) -> Option<Self> {
        let mut charged_bytes_max = 0_u64;
        let mut shown_by = None;
        for cgroup in inside {
            let threads = cgroup.threads();
            if !threads.is_empty() {
                charged_bytes_max = charged_bytes_max.saturating_add(cgroup.memory_bytes_max());
            }
            shown_by = shown_by.or_else(|| threads.into_iter().find(|pid| is_in(*pid, inode)));
        }
        let pid = shown_by?;
        Some(Self {
            inode,
            pid,
            charged_bytes_max,
            sockets: tables::sockets_used(pid),
        })
    }
}

fn look_at(network: &Running, state: &Mutex<WatchedSandboxes>) -> Most {
    let held = Held::read(network.pid, network.charged_bytes_max);
    if held.is_too_much(network.charged_bytes_max) {
        let sandboxes = end_all(network.inode, MemoryShortage::Sockets, state);
        if let Some(left_out) = ENDED.admit(Instant::now()) {
            tracing::warn!(
                uncharged_mb = held.uncharged_bytes >> 20,
                charged_mb = held.charged_bytes >> 20,
                sandboxes,
                left_out,
                "the sockets of a function hold too much memory of the kernel: its processes are ended"
            );
        }
    }
    if held.uncharged_bytes > UNCHARGED_BYTES_MUCH {
        Most::Much
    } else {
        Most::Little
    }
}

fn end_for_number(network: &Running, state: &Mutex<WatchedSandboxes>) {
    let sandboxes = end_all(network.inode, MemoryShortage::TooManySockets, state);
    if let Some(left_out) = ENDED.admit(Instant::now()) {
        tracing::warn!(
            sockets = network.sockets,
            sockets_max = SOCKETS_MAX,
            sandboxes,
            left_out,
            "a function has too many sockets: its processes are ended"
        );
    }
}

/// A sandbox whose descriptors hold too much is ended alone: they are of processes, and not of a namespace.
fn look_at_descriptors(state: &Mutex<WatchedSandboxes>, held: &mut ByDescriptor) {
    let too_many = held.look(|| {
        let state = state.lock();
        let watched = state.watched.iter();
        watched
            .filter_map(|(number, sandboxed)| Some((*number, sandboxed.cgroup.upgrade()?)))
            .collect()
    });
    for TooMany {
        sandbox,
        count,
        kind,
    } in too_many
    {
        let sandboxed = state.lock().watched.get(&sandbox).cloned();
        let sandboxes = end(sandboxed.into_iter().collect(), kind.shortage);
        if let Some(left_out) = ENDED.admit(Instant::now()) {
            tracing::warn!(
                count_min = count,
                count_max = kind.most,
                sandboxes,
                left_out,
                "a function holds too many {}: its processes are ended",
                kind.name
            );
        }
    }
}

/// CPU time of this thread. That it waited for a CPU is not what reading costs.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Ends that are logged per interval, of all functions.
static ENDED: Seldom = Seldom::new(20);

/// Ends what runs in a network namespace now, which is more than at the beginning of the look if a worker was started meanwhile. All of it
/// is blamed first: the end of one, a template, is the end of others, and why these ended is asked at once. Returns how many sandboxes.
fn end_all(inode: u64, why: MemoryShortage, state: &Mutex<WatchedSandboxes>) -> usize {
    let mut inside: Vec<Sandboxed> = state.lock().watched.values().cloned().collect();
    inside.retain(|sandboxed| sandboxed.network == Some(inode));
    end(inside, why)
}

/// Ends what runs in these sandboxes.
fn end(inside: Vec<Sandboxed>, why: MemoryShortage) -> usize {
    let running: Vec<(Sandboxed, Arc<Cgroup>)> = inside
        .into_iter()
        .filter_map(|sandboxed| {
            let cgroup = sandboxed.cgroup.upgrade()?;
            (!cgroup.threads().is_empty()).then_some((sandboxed, cgroup))
        })
        .collect();
    for (_, cgroup) in &running {
        cgroup.blame(why);
    }
    for (sandboxed, _) in &running {
        if let Some(control) = sandboxed.control.upgrade() {
            control.tell_end();
        }
    }
    running.len()
}

/// Whether a process is in this network namespace: a process that is being made joins its control group first.
fn is_in(pid: u32, inode: u64) -> bool {
    fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|namespace| namespace.ino() == inode)
}

/// The pause while some namespace has [`UNCHARGED_BYTES_MUCH`], or the machine's connections quickly take more.
const TICK: Duration = Duration::from_millis(200);

/// The usual pause: a second.
const LOOK_EVERY_TICKS: u32 = 5;

/// By how much the memory of all connections of the machine grows until a look is due. In a second, one function could take hundreds of
/// megabytes.
const TCP_BYTES_MUCH: u64 = 16 << 20;

/// So many sockets of a namespace hold little, whatever is in them.
const SOCKETS_UNREAD_MAX: u64 = 64;

/// What nobody is charged for, of one namespace. A server with a full backlog of 511 connections with requests that have 128 KiB each
/// is at the limit.
const UNCHARGED_BYTES_MAX: u64 = 64 << 20;

/// Enough to look more often.
const UNCHARGED_BYTES_MUCH: u64 = UNCHARGED_BYTES_MAX / 8;
