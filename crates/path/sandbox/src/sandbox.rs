//! The daemon's handle of a sandbox: its init's control socket, its namespaces, its cgroup. Dropping it ends everything in it.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use pilot_model::ports::StartError;
use tokio::time::timeout;

use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::child::{Child, ChildEnd};
use crate::message::{
    ANSWER_TIME_MAX, ExecSpec, Folders, InitReply, InitRequest, MakeSandbox, NAMESPACES, NETWORK,
    USERS,
};
use crate::process_ids::{FirstPid, ProcessIds};
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
    folders: Folders,
    process_ids: ProcessIds,
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
    /// Whether it has its own user namespace, if the machine has them.
    pub(crate) own_users: bool,
    /// Size limit of `/tmp`, bytes.
    pub(crate) tmp_bytes_max: u64,
}

/// The connection to a sandbox's init. Each request has its own socket for the answer.
#[derive(Debug)]
pub(crate) struct Control {
    channel: Channel,
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
            .map_err(refused("ask the spawner"))?;
        let (namespaces, users) = ready(&control).await?;
        Ok(Self {
            control: Arc::new(Control { channel: control }),
            namespaces,
            users,
            own_network,
            cgroup: cgroup.map(Arc::new),
            folders,
            process_ids,
            first_pid,
        })
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
        self.control
            .channel
            .send(&request, &[theirs.as_fd()])
            .await
            .map_err(refused("send to the sandbox's init"))?;
        drop(theirs);
        let (namespaces, users) = ready(&control).await?;
        Ok(Self {
            control: Arc::new(Control { channel: control }),
            namespaces,
            users,
            own_network: own_network || self.own_network,
            cgroup: cgroup.map(Arc::new),
            folders,
            process_ids: self.process_ids.clone(),
            first_pid,
        })
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
        self.control.channel.is_closed()
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

struct Reply {
    what: InitReply,
    fds: Vec<OwnedFd>,
}

impl Control {
    /// Mounts a folder or file of the host, read-only, at an existing path in the sandbox.
    pub(crate) async fn show(
        &self,
        spawner: &Spawner,
        host: &Path,
        inside: &Path,
    ) -> Result<(), StartError> {
        let tree = spawner.tree(host).await?;
        let inside = inside.to_owned();
        self.command(&InitRequest::Show { inside }, &[tree.as_fd()])
            .await
    }

    /// Shows secrets as files that this user alone can read, until the sandbox is cleaned.
    pub(crate) async fn show_secrets(
        &self,
        files: &[(String, Vec<u8>)],
        user: Option<u32>,
    ) -> Result<(), StartError> {
        if files.is_empty() {
            return Ok(());
        }
        let contents = in_memory(files).map_err(refused("hold secrets in memory"))?;
        let files = files
            .iter()
            .map(|(name, content)| (name.clone(), content.len()))
            .collect();
        self.command(&InitRequest::Secrets { files, user }, &[contents.as_fd()])
            .await
    }

    /// Removes such a mount.
    pub(crate) async fn hide(&self, inside: &Path) -> Result<(), StartError> {
        let inside = inside.to_owned();
        self.command(&InitRequest::Hide { inside }, &[]).await
    }

    /// Starts a program, as [`Sandbox::exec`] does, but all descriptors are given, also those of the cgroup, and nobody is told of its
    /// end. Its process id in the sandbox.
    pub(crate) async fn exec_unwatched(
        &self,
        spec: ExecSpec,
        fds: &[BorrowedFd<'_>],
    ) -> Result<i32, StartError> {
        match self.ask(&InitRequest::Exec(spec), fds).await?.0.what {
            InitReply::Started { pid } => Ok(pid),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a signal to the running programs, or to the worker, without waiting and without a result.
    pub(crate) fn tell_signal(&self, signal: i32) {
        let told = Channel::pair().and_then(|(_, answer)| {
            self.channel
                .send_now(&InitRequest::Signal { signal }, &[answer.as_fd()])
        });
        if let Err(error) = told {
            tracing::debug!(%error, signal, "a signal could not be sent to a sandbox's programs");
        }
    }

    /// A non-blocking socket that listens on 127.0.0.1 in the sandbox; port 0 means any free one.
    pub(crate) async fn listen(&self, port: u16) -> Result<OwnedFd, StartError> {
        let made = self.socket(&InitRequest::Listen { port }).await?;
        made.map_err(|reply| unexpected(&reply))
    }

    /// A non-blocking socket that is connecting to 127.0.0.1 in the sandbox.
    ///
    /// # Errors
    /// As connect(2) in the sandbox: `ConnectionRefused` while nothing listens.
    pub(crate) async fn connect(&self, port: u16) -> io::Result<OwnedFd> {
        let asked = self.socket(&InitRequest::Connect { port }).await;
        match asked.map_err(io::Error::other)? {
            Ok(socket) => Ok(socket),
            Err(InitReply::Failed {
                errno: Some(errno), ..
            }) => Err(io::Error::from_raw_os_error(errno)),
            Err(other) => Err(io::Error::other(unexpected(&other))),
        }
    }

    /// Waits until nothing but its init runs in the sandbox, at most [`ANSWER_TIME_MAX`].
    pub(crate) async fn at_rest(&self) {
        // If the init does not answer, it is gone and everything with it; otherwise cleaning reports the error.
        drop(self.command(&InitRequest::Rest, &[]).await);
    }

    /// A socket that the init has made.
    async fn socket(
        &self,
        request: &InitRequest,
    ) -> Result<Result<OwnedFd, InitReply>, StartError> {
        let (mut reply, _) = self.ask(request, &[]).await?;
        Ok(match (reply.what, reply.fds.pop()) {
            (InitReply::Socket, Some(socket)) => Ok(socket),
            (other, _) => Err(other),
        })
    }

    async fn command(
        &self,
        request: &InitRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StartError> {
        match self.ask(request, fds).await?.0.what {
            InitReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request and returns the answer, with the socket on which it came.
    async fn ask(
        &self,
        request: &InitRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Channel), StartError> {
        let (answers, theirs) = Channel::pair().map_err(refused("a socket"))?;
        let mut all = vec![theirs.as_fd()];
        all.extend(fds);
        self.channel
            .send(request, &all)
            .await
            .map_err(refused("send to the sandbox's init"))?;
        drop(theirs);
        let (what, fds) = answer(&answers).await?;
        Ok((Reply { what, fds }, answers))
    }
}

/// The contents, one after the other, in a file that has no path (memfd_create(2)).
fn in_memory(files: &[(String, Vec<u8>)]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("secrets", MFdFlags::MFD_CLOEXEC)?);
    for (_, content) in files {
        file.write_all(content)?;
    }
    file.rewind()?;
    Ok(file.into())
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

async fn answer(control: &Channel) -> Result<(InitReply, Vec<OwnedFd>), StartError> {
    let ended = |problem: &str| StartError::Sandbox {
        problem: format!("the sandbox's init {problem}"),
    };
    let message = timeout(ANSWER_TIME_MAX, control.receive())
        .await
        .map_err(|_| ended("did not answer in time"))?
        .map_err(refused("receive from the sandbox's init"))?
        .ok_or_else(|| ended("ended before it was ready"))?;
    let reply = serde_json::from_slice(&message.bytes)
        .map_err(|error| ended(&format!("sent an invalid answer: {error}")))?;
    Ok((reply, message.fds))
}

fn unexpected(reply: &InitReply) -> StartError {
    StartError::Sandbox {
        problem: match reply {
            InitReply::Failed { problem, .. } => problem.clone(),
            InitReply::Dirty { leftover } => format!("cannot clean {leftover}"),
            other => format!("the sandbox's init answered {other:?}"),
        },
    }
}

fn refused(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::Sandbox {
        problem: format!("{step}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use pilot_sys::seqpacket;

    use super::*;

    /// The result of a connection attempt for this answer of the init.
    async fn connected(answer: InitReply) -> io::Error {
        let (channel, init) = Channel::pair().unwrap();
        let init = std::thread::spawn(move || {
            let asked = seqpacket::receive(&init).unwrap().unwrap();
            let answer = serde_json::to_vec(&answer).unwrap();
            seqpacket::send(asked.fds[0].as_fd(), &answer, &[]).unwrap();
        });
        let error = Control { channel }.connect(8080).await.unwrap_err();
        init.join().unwrap();
        error
    }

    #[tokio::test]
    async fn a_connection_that_is_refused_is_told_by_its_number_and_not_by_words() {
        let refused = connected(InitReply::Failed {
            problem: "in whatever words".to_owned(),
            errno: Some(nix::errno::Errno::ECONNREFUSED as i32),
        });
        assert_eq!(refused.await.kind(), io::ErrorKind::ConnectionRefused);
        let other = connected(InitReply::Failed {
            problem: "it is refused: ECONNREFUSED".to_owned(),
            errno: None,
        });
        assert_ne!(other.await.kind(), io::ErrorKind::ConnectionRefused);
    }
}
