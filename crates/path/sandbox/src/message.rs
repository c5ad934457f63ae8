//! What the daemon says to its spawner and to the inits of sandboxes, and what they answer. Both ends are this binary, so
//! it is plain serde; descriptors travel beside the message in the order the variant names.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::network::MakeLink;
use crate::rootfs::RootSpec;

/// Daemon → spawner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum SpawnerRequest {
    /// Make a sandbox.
    Sandbox(MakeSandbox),
    /// Give a function's network namespace its link.
    Link(MakeLink),
    /// A read-only copy of what is mounted at a folder or file of the host, to be shown in a sandbox that is up. Descriptor: where the
    /// answer goes.
    Tree {
        /// Which.
        host: PathBuf,
    },
}

/// Spawner → daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum TreeReply {
    /// Descriptor: the copy.
    Tree,
    /// There is none.
    Failed {
        /// Which step and why.
        problem: String,
    },
}

/// Daemon → spawner. Descriptors: the new init's control socket; then, if `nested`, the PID namespace it goes into.
/// The answer comes from the new init on its own control socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MakeSandbox {
    /// What its processes see as `/`.
    pub(crate) root: RootSpec,
    /// Whether a PID namespace to nest in is attached.
    pub(crate) nested: bool,
    /// A network namespace of its own, with loopback up; otherwise the host's.
    pub(crate) own_network: bool,
    /// Size limit of `/tmp`, bytes.
    pub(crate) tmp_bytes_max: u64,
}

/// Daemon → init. The first descriptor of each, but of [`InitRequest::Nest`], is where the answer goes: requests of several callers
/// can be under way, and one that nobody waits for any more leaves nothing behind.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum InitRequest {
    /// Make a sandbox inside this one with the same root. Descriptor: its control socket.
    Nest {
        /// A network namespace of its own, with loopback up; otherwise this one's.
        own_network: bool,
        /// Size limit of its `/tmp`, bytes.
        tmp_bytes_max: u64,
    },
    /// Start a program. Descriptors: what it finds as 0, 1, 2 …, and cgroup files. The answer [`InitReply::Started`] is followed by
    /// [`InitReply::Exited`].
    Exec(ExecSpec),
    /// Send the programs a signal.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Show something of the host at a place that is there. Descriptor: the spawner's copy.
    Show {
        /// Where.
        inside: PathBuf,
    },
    /// Show it no longer.
    Hide {
        /// Where.
        inside: PathBuf,
    },
    /// A socket that listens on 127.0.0.1 in the sandbox's network.
    Listen {
        /// 0: any that is free.
        port: u16,
    },
    /// A socket that connects to 127.0.0.1 in the sandbox's network, without blocking.
    Connect {
        /// Where to.
        port: u16,
    },
    /// Say [`InitReply::Done`] once no process runs but the init: no program, and nothing that one has left.
    Rest,
    /// Make the sandbox as new: no process, no file, no IPC object of the use before.
    Clean {
        /// Size limit of `/tmp`, bytes.
        tmp_bytes_max: u64,
    },
}

/// A program to start in a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExecSpec {
    /// Executable, as seen in the sandbox.
    pub(crate) path: String,
    /// Arguments behind it.
    pub(crate) arguments: Vec<String>,
    /// Environment variables.
    pub(crate) environment: Vec<(String, String)>,
    /// Its working folder.
    pub(crate) cwd: PathBuf,
    /// User and group inside the sandbox; `None` keeps the init's.
    pub(crate) user: Option<u32>,
    /// How many cgroup files, to which the process writes `0`, follow the program's descriptors.
    pub(crate) cgroup_files: usize,
    /// A template, which must be able to enter namespaces; otherwise a worker.
    pub(crate) template: bool,
}

/// Init → daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum InitReply {
    /// The sandbox is up. Descriptors: its namespaces in the order of [`NAMESPACES`].
    Ready,
    /// It is not, and its init has ended; or a request failed.
    Failed {
        /// Which step and why.
        problem: String,
        /// The kernel's number for it (errno(3)), where whoever asked decides by it.
        errno: Option<i32>,
    },
    /// The program runs.
    Started,
    /// The program has ended.
    Exited {
        /// Exit status.
        code: Option<i32>,
        /// Signal.
        signal: Option<i32>,
    },
    /// It is done.
    Done,
    /// Descriptor: the socket.
    Socket,
    /// Clean again.
    Clean,
    /// Cannot be cleaned; to be thrown away.
    Dirty {
        /// What was left.
        leftover: String,
    },
}

/// The namespaces an init hands out, by the names of `/proc/self/ns`.
pub(crate) const NAMESPACES: [&str; 5] = ["pid", "mnt", "ipc", "uts", "net"];

/// Where in [`NAMESPACES`] the network's is.
pub(crate) const NETWORK: usize = 4;
