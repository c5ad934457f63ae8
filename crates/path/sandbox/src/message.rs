//! The messages between the daemon, its spawner and the inits of sandboxes. All of them are the same binary, so this is plain
//! serde. Descriptors travel beside a message, in the order that its variant gives.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::rootfs::RootSpec;

/// Daemon → spawner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum SpawnerRequest {
    /// Makes a sandbox.
    Sandbox(MakeSandbox),
    /// Makes the link of a function's network namespace.
    Link(MakeLink),
    /// Returns a read-only copy of what is mounted at a folder or file of the host, to be mounted in a running sandbox.
    /// Descriptor: the socket for the answer.
    Tree {
        /// The folder or file.
        host: PathBuf,
    },
}

/// Spawner → daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum TreeReply {
    /// Descriptor: the copy.
    Tree,
    /// The request failed.
    Failed {
        /// The step and the error.
        problem: String,
    },
}

/// Daemon → spawner. Descriptors: the socket for the answer; the function's network namespace.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MakeLink {
    /// Unique among the daemon's links.
    pub(crate) number: u32,
    /// The function's address.
    pub(crate) address: Ipv4Addr,
}

/// Spawner → daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum LinkReply {
    /// The link and the rules are in place.
    Up,
    /// Another daemon of this machine uses the address.
    Taken,
    /// The link could not be made.
    Failed {
        /// The step and the error.
        problem: String,
    },
}

/// Daemon → spawner. Descriptors: the new init's control socket; then, if `nested`, the outer PID namespace; then, if the sandbox
/// around it has its own, the outer user namespace. The new init answers on its own control socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MakeSandbox {
    /// What its processes see as `/`.
    pub(crate) root: RootSpec,
    /// Whether the descriptor of an outer PID namespace is attached.
    pub(crate) nested: bool,
    /// Whether it has its own network namespace with loopback up; otherwise the host's.
    pub(crate) own_network: bool,
    /// Its own user namespace; `None`: that of the sandbox that it is nested in, or the shared one.
    pub(crate) own_users: Option<OwnUsers>,
    /// Its first use.
    pub(crate) usage: Usage,
}

/// What a user namespace is for, and which user of the namespace around it [`TEMPLATE_USER`](crate::isolation::TEMPLATE_USER) is. `None`:
/// there is only one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OwnUsers {
    /// The template of an environment, with the user namespaces of its functions below it.
    Environment(Option<u32>),
    /// A function.
    Function(Option<u32>),
}

/// What each use of a sandbox begins with.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) folders: Folders,
    /// Id of its first process; see [`crate::process_ids`].
    pub(crate) first_pid: u32,
}

/// The folders that the sandbox's processes may write to, and the files that name their user.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Folders {
    /// Size limit of `/tmp`, bytes.
    pub(crate) tmp_bytes_max: u64,
    /// Whether they show what the outer sandbox's template has written there.
    pub(crate) over_template: bool,
    /// The user that `/etc/passwd` names, where it is not the root's ([`RootSpec::user`](crate::rootfs::RootSpec)).
    pub(crate) user: Option<u32>,
}

/// Daemon → init. The first descriptor of each, except for [`InitRequest::Nest`], is the socket for the answer. So requests of
/// several callers can run at once, and a cancelled one leaves nothing behind.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum InitRequest {
    /// Makes a sandbox inside this one with the same root. Descriptor: its control socket.
    Nest {
        /// Whether it has its own network namespace with loopback up; otherwise this one's.
        own_network: bool,
        /// Its first use.
        usage: Usage,
    },
    /// Starts a program. Descriptors: its 0, 1, 2 …, then cgroup files. The answer [`InitReply::Started`] is followed by
    /// [`InitReply::Exited`].
    Exec(ExecSpec),
    /// Sends a signal to the programs, and to the worker that a template has forked into the sandbox.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Kills every process in the sandbox, also in those nested in it.
    End,
    /// Kills processes whose parents have ended and that hold a pipe as their output, if they did at the last such request.
    EndOrphans,
    /// Mounts something of the host at an existing path. Descriptor: the spawner's copy.
    Show {
        /// The path.
        inside: PathBuf,
    },
    /// Removes such a mount.
    Hide {
        /// The path.
        inside: PathBuf,
    },
    /// Shows files at [`pilot_model::secret::SECRETS_INSIDE`] until the next [`InitRequest::Clean`]. Descriptor: a memfd with their
    /// contents, one after the other.
    Secrets {
        /// Their names and lengths, bytes.
        files: Vec<(String, usize)>,
        /// Who may read them; `None`: the init's own user.
        user: Option<u32>,
    },
    /// Returns a socket that listens on 127.0.0.1 in the sandbox's network.
    Listen {
        /// 0: any free port.
        port: u16,
    },
    /// Returns a non-blocking socket that is connecting to 127.0.0.1 in the sandbox's network.
    Connect {
        /// The port.
        port: u16,
    },
    /// Answers [`InitReply::Done`] once no process but the init runs.
    Rest,
    /// Cleans the sandbox: kills processes, removes files and IPC objects of the previous use.
    Clean {
        /// The next use.
        usage: Usage,
    },
}

/// A program to start in a sandbox.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExecSpec {
    /// Executable, as seen in the sandbox.
    pub(crate) path: String,
    /// Arguments after the program's name.
    pub(crate) arguments: Vec<String>,
    /// Environment variables.
    pub(crate) environment: Vec<(String, String)>,
    /// Its working folder.
    pub(crate) cwd: PathBuf,
    /// User and group in the sandbox; `None` keeps the init's.
    pub(crate) user: Option<u32>,
    /// Number of cgroup files, to which the process writes `0`, after the program's descriptors.
    pub(crate) cgroup_files: usize,
    /// Whether it is a template, which must be able to enter namespaces, or a worker.
    pub(crate) template: bool,
    /// A program of ours that takes more rights from itself, by a filter of its own. What makes filters impossible is left to that one.
    pub(crate) own_filter: bool,
}

/// Init → daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum InitReply {
    /// The sandbox is ready. Descriptors: its namespaces in the order of [`NAMESPACES`]; then its user namespace, if it has its own.
    Ready,
    /// A request failed, or the sandbox could not be made and its init has ended.
    Failed {
        /// The step and the error.
        problem: String,
        /// The kernel's error number (errno(3)), if the caller needs it.
        errno: Option<i32>,
    },
    /// The program is running.
    Started {
        /// Its process id in the sandbox.
        pid: i32,
    },
    /// The program has ended.
    Exited {
        /// Exit status.
        code: Option<i32>,
        /// Signal.
        signal: Option<i32>,
    },
    /// The request is done.
    Done,
    /// Descriptor: the socket.
    Socket,
    /// The sandbox is clean.
    Clean,
    /// The sandbox cannot be cleaned and must be dropped.
    Dirty {
        /// What could not be removed.
        leftover: String,
    },
}

/// The namespaces that an init hands out, by their names in `/proc/self/ns`.
pub(crate) const NAMESPACES: [&str; 5] = ["pid", "mnt", "ipc", "uts", "net"];

/// The name of user namespaces.
pub(crate) const USERS: &str = "user";

/// Index of the network namespace in [`NAMESPACES`].
pub(crate) const NETWORK: usize = 4;

/// Longest time for an init to start or to answer. Inits do nothing that blocks.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
