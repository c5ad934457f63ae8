//! The daemon's handle of a sandbox: its init's control socket, its namespaces, its cgroup. Dropping it ends everything in it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::sys::stat::fstat;
use pilot_model::ports::StartError;

use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::child::{Child, ChildEnd};
use crate::control::{Control, Reply, answer, unexpected};
use crate::kernel_memory_watch::{KernelMemoryWatch, Watched};
use crate::memory::pss_bytes;
use crate::message::{
    ExecSpec, Folders, InitReply, InitRequest, MakeSandbox, NAMESPACES, NETWORK, OwnUsers, USERS,
};
use crate::process_ids::{FirstPid, ProcessIds};
use crate::process_table::ProcessTable;
use crate::refused::refused;
use crate::rootfs::RootSpec;
use crate::spawner::Spawner;

/// Namespaces, writable folders and limits, which a process can enter or be started in.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Closing it ends the sandbox.
    control: Arc<Control>,
    /// In the order of [`NAMESPACES`].
    namespaces: Vec<OwnedFd>,
    /// Its user namespace, if it has one of its own.
    users: Option<OwnedFd>,
    /// Whether it has its own network instead of the host's.
    own_network: bool,
    /// Shared for a moment by who reclaims its memory.
    cgroup: Option<Arc<Cgroup>>,
    kernel_memory_watch: KernelMemoryWatch,
    /// Until its cgroup is another one. `None` without a cgroup.
    watched: Option<Watched>,
    folders: Folders,
    process_ids: ProcessIds,
    process_table: ProcessTable,
    /// Of the current use, or the next one.
    first_pid: FirstPid,
}

/// What is decided when a sandbox with a root is made.
#[derive(Debug)]
pub(crate) struct SandboxSpec {
    /// What its processes see as `/`.
    pub(crate) root: RootSpec,
    /// Whether it has its own network namespace with loopback up; otherwise the host's.
    pub(crate) own_network: bool,
    /// Its own user namespace; `None`: that of the sandbox around it, or the shared one.
    pub(crate) own_users: Option<OwnUsers>,
    /// Size limit of `/tmp`, bytes.
    pub(crate) tmp_bytes_max: u64,
}

impl Sandbox {
    /// Makes a sandbox with its own root. Its PID namespace is inside that of `nested_in`, so that templates there can enter it
    /// (setns(2): only into descendants).
    pub(crate) async fn with_root(
        spawner: &Spawner,
        spec: SandboxSpec,
        nested_in: Option<&Self>,
        cgroup: Option<Cgroup>,
    ) -> Result<Self, StartError> {
        let (control, theirs) = Channel::pair().map_err(refused("a socket"))?;
        let outer: Vec<BorrowedFd<'_>> = nested_in
            .iter()
            .flat_map(|sandbox| {
                let users = sandbox.users.as_ref().map(AsFd::as_fd);
                [sandbox.namespaces[0].as_fd()].into_iter().chain(users)
            })
            .collect();
        let own_network = spec.own_network;
        let folders = Folders {
            tmp_bytes_max: spec.tmp_bytes_max,
            over_template: false,
            user: None,
        };
        let process_ids = spawner.process_ids().clone();
        let first_pid = process_ids.take()?;
        let request = MakeSandbox {
            root: spec.root,
            nested: nested_in.is_some(),
            own_network,
            own_users: spec.own_users,
            usage: first_pid.usage(folders),
        };
        spawner
            .make(request, theirs, &outer)
            .await
            .map_err(refused("ask the spawner"))?;
        let (namespaces, users) = ready(&control).await?;
        Ok(Self {
            control: Arc::new(Control::new(control)),
            namespaces,
            users,
            own_network,
            cgroup: cgroup.map(Arc::new),
            kernel_memory_watch: spawner.kernel_memory_watch().clone(),
            watched: None,
            folders,
            process_ids,
            process_table: spawner.process_table().clone(),
            first_pid,
        }
        .watched())
    }

    /// Makes a sandbox inside this one, with the same root; everything else is its own, including the network if requested.
    pub(crate) async fn nest(
        &self,
        network: NestNetwork,
        cgroup: Option<Cgroup>,
        folders: Folders,
    ) -> Result<Self, StartError> {
        let (control, theirs) = Channel::pair().map_err(refused("a socket"))?;
        let own_network = network == NestNetwork::Own;
        let first_pid = self.process_ids.take()?;
        let usage = first_pid.usage(folders);
        let request = InitRequest::Nest { own_network, usage };
        self.control.tell(&request, &[theirs.as_fd()]).await?;
        drop(theirs);
        let (namespaces, users) = ready(&control).await?;
        Ok(Self {
            control: Arc::new(Control::new(control)),
            namespaces,
            users,
            own_network: own_network || self.own_network,
            cgroup: cgroup.map(Arc::new),
            kernel_memory_watch: self.kernel_memory_watch.clone(),
            watched: None,
            folders,
            process_ids: self.process_ids.clone(),
            process_table: self.process_table.clone(),
            first_pid,
        }
        .watched())
    }

    fn watched(mut self) -> Self {
        self.watched = self.watch_kernel_memory();
        self
    }

    fn watch_kernel_memory(&self) -> Option<Watched> {
        let cgroup = self.cgroup.as_ref()?;
        let network = self.own_network.then(|| self.network_namespace());
        self.kernel_memory_watch
            .watch(network, &self.control, cgroup)
    }

    /// Starts a program in it. `fds[n]` becomes its descriptor `n`.
    pub(crate) async fn exec(
        &self,
        spec: ExecSpec,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Child, StartError> {
        let mut all = fds.to_vec();
        all.extend(self.join_files());
        let spec = ExecSpec {
            cgroup_files: all.len() - fds.len(),
            ..spec
        };
        let (reply, answers) = self.control.ask(&InitRequest::Exec(spec), &all).await?;
        match reply {
            Reply {
                what: InitReply::Started { .. },
                ..
            } => Ok(Child::watched(end_of_program(answers))),
            other => Err(unexpected(&other.what)),
        }
    }

    /// Whether its init has ended, and with it everything inside.
    pub(crate) fn has_ended(&self) -> bool {
        self.control.is_closed()
    }

    /// The connection to its init. Holding it keeps the sandbox alive.
    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Cleans it after a use whose process has ended. After an error it must be dropped.
    pub(crate) async fn clean(&mut self) -> Result<(), StartError> {
        let first_pid = self.process_ids.take()?;
        let usage = first_pid.usage(self.folders);
        let request = InitRequest::Clean { usage };
        match self.control.ask(&request, &[]).await?.0.what {
            InitReply::Clean => {
                self.first_pid = first_pid;
                if let Some(cgroup) = &self.cgroup {
                    cgroup.reset();
                }
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Replaces its cgroup, and so its limits and counters. Running processes stay in the old one.
    pub(crate) fn set_cgroup(&mut self, cgroup: Option<Cgroup>) {
        self.cgroup = cgroup.map(Arc::new);
        self.watched = self.watch_kernel_memory();
    }

    /// Its user namespace, if it has one of its own.
    pub(crate) fn users(&self) -> Option<BorrowedFd<'_>> {
        self.users.as_ref().map(AsFd::as_fd)
    }

    /// Names (of the wire protocol) and descriptors that a process needs to enter. Not of the host's network: entering that
    /// needs rights over the host (setns(2)), so processes in it must be made there.
    pub(crate) fn entrance(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        let namespaces = NAMESPACES
            .into_iter()
            .zip(self.namespaces.iter().map(AsFd::as_fd))
            .take(if self.own_network {
                NAMESPACES.len()
            } else {
                NETWORK
            });
        // First, because entering the others needs rights in it.
        let users = self.users.iter().map(|users| (USERS, users.as_fd()));
        users
            .chain(namespaces)
            .chain(self.join_files().map(|file| ("cgroup", file)))
    }

    pub(crate) fn join_files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.cgroup
            .iter()
            .flat_map(|cgroup| cgroup.join_files().iter().map(AsFd::as_fd))
    }

    /// The inode of its PID namespace, which `/proc/PID/ns/pid` of its processes has, too (namespaces(7)).
    pub(crate) fn pid_namespace(&self) -> Option<u64> {
        let namespace = fstat(&self.namespaces[0]).ok()?;
        Some(namespace.st_ino)
    }

    /// Which processes are in it.
    pub(crate) fn members(&self) -> Members {
        match (&self.cgroup, self.pid_namespace()) {
            (Some(cgroup), _) => Members::OfGroup(Arc::clone(cgroup)),
            (None, Some(namespace)) => Members::OfNamespace(namespace, self.process_table.clone()),
            (None, None) => Members::Unknown,
        }
    }

    pub(crate) fn network_namespace(&self) -> BorrowedFd<'_> {
        self.namespaces[NETWORK].as_fd()
    }

    pub(crate) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_deref()
    }

    pub(crate) fn shared_cgroup(&self) -> Option<Arc<Cgroup>> {
        self.cgroup.clone()
    }
}

/// The processes in a sandbox, which can be asked for without the sandbox.
#[derive(Debug)]
pub(crate) enum Members {
    /// Those of its cgroup.
    OfGroup(Arc<Cgroup>),
    /// There is no cgroup: those of its PID namespace, with the init.
    OfNamespace(u64, ProcessTable),
    Unknown,
}

impl Members {
    /// Their memory (PSS), bytes. Blocks. Not to be called under a lock that ending and waking the worker need: reading the memory of a
    /// process that forks waits until the fork is done, which may take many seconds if it waits for memory.
    pub(crate) fn pss_bytes(&self) -> u64 {
        let processes = match self {
            Self::OfGroup(cgroup) => cgroup.processes(),
            Self::OfNamespace(namespace, table) => table.in_namespace(*namespace),
            Self::Unknown => Vec::new(),
        };
        processes.into_iter().map(pss_bytes).sum()
    }

    /// Peak of their memory, bytes. `None`: nobody counts it.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        match self {
            Self::OfGroup(cgroup) => cgroup.peak_bytes(),
            Self::OfNamespace(..) | Self::Unknown => None,
        }
    }
}

/// A sandbox with several owners.
pub(crate) type SharedSandbox = Arc<Sandbox>;

/// Whether a nested sandbox has its own network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NestNetwork {
    /// Its own.
    Own,
    /// The outer sandbox's.
    Shared,
}

/// Waits for a program's end, which is reported on the socket of its start.
async fn end_of_program(answers: Channel) -> ChildEnd {
    while let Ok(Some(message)) = answers.receive().await {
        if let Ok(InitReply::Exited { code, signal }) = serde_json::from_slice(&message.bytes) {
            return match (code, signal) {
                (Some(code), _) => ChildEnd::Exited(code),
                (None, Some(signal)) => ChildEnd::Signalled(signal),
                (None, None) => ChildEnd::Unknown,
            };
        }
    }
    ChildEnd::Unknown
}

/// Waits until a new sandbox's init is ready, and returns the namespaces, and the user namespace if it has its own.
async fn ready(control: &Channel) -> Result<(Vec<OwnedFd>, Option<OwnedFd>), StartError> {
    match answer(control).await? {
        (InitReply::Ready, mut namespaces)
            if (NAMESPACES.len()..=NAMESPACES.len() + 1).contains(&namespaces.len()) =>
        {
            let users = namespaces.drain(NAMESPACES.len()..).next();
            Ok((namespaces, users))
        }
        (other, _) => Err(unexpected(&other)),
    }
}
