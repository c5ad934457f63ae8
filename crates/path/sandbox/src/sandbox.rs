//! A sandbox as the daemon holds it: its init's control socket, its namespaces, its cgroup. Dropping it ends everything in it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::StartError;
use tokio::time::timeout;

use crate::cgroup::Cgroup;
use crate::channel::Channel;
use crate::message::{ExecSpec, InitReply, InitRequest, MakeSandbox, NAMESPACES, NETWORK};
use crate::spawner::Spawner;
use crate::template::{Child, ChildEnd};

/// Namespaces, writable places and limits, ready for a process to enter or to be executed in.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// Shared with the one task that waits for a program's end, which does not outlive the program's [`Child`].
    control: Arc<Channel>,
    /// In the order of [`NAMESPACES`].
    namespaces: Vec<OwnedFd>,
    /// Whether its network is not the host's.
    own_network: bool,
    cgroup: Option<Cgroup>,
    tmp_bytes_max: u64,
}

/// Longest that an init may take to come up, or to answer. They do nothing that waits.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

impl Sandbox {
    /// One with a root of its own; its PID namespace lies within that of `nested_in`, whose templates can therefore
    /// enter it (setns(2): into a descendant only).
    pub(crate) async fn with_root(
        spawner: &Spawner,
        request: MakeSandbox,
        nested_in: Option<&Self>,
        cgroup: Option<Cgroup>,
    ) -> Result<Self, StartError> {
        let (tmp_bytes_max, own_network) = (request.tmp_bytes_max, request.own_network);
        let (control, theirs) = Channel::pair().map_err(refused("a socket"))?;
        let parent = nested_in.map(|sandbox| &sandbox.namespaces[0]);
        spawner
            .make(request, theirs, parent)
            .map_err(refused("ask the spawner"))?;
        Self::come_up(control, own_network, cgroup, tmp_bytes_max).await
    }

    /// One inside this one, with the same root and network, and all else its own.
    pub(crate) async fn nest(
        &self,
        cgroup: Option<Cgroup>,
        tmp_bytes_max: u64,
    ) -> Result<Self, StartError> {
        let (control, theirs) = Channel::pair().map_err(refused("a socket"))?;
        let request = InitRequest::Nest { tmp_bytes_max };
        self.control
            .send(&request, &[theirs.as_fd()])
            .await
            .map_err(refused("ask the sandbox's init"))?;
        drop(theirs);
        Self::come_up(control, self.own_network, cgroup, tmp_bytes_max).await
    }

    async fn come_up(
        control: Channel,
        own_network: bool,
        cgroup: Option<Cgroup>,
        tmp_bytes_max: u64,
    ) -> Result<Self, StartError> {
        let (reply, namespaces) = answer(&control).await?;
        match reply {
            InitReply::Ready if namespaces.len() == NAMESPACES.len() => Ok(Self {
                control: Arc::new(control),
                namespaces,
                own_network,
                cgroup,
                tmp_bytes_max,
            }),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts a program in it. `fds[n]` becomes its descriptor `n`.
    pub(crate) async fn exec(
        &self,
        spec: ExecSpec,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), StartError> {
        let mut all = fds.to_vec();
        all.extend(self.join_files());
        let spec = ExecSpec {
            cgroup_files: all.len() - fds.len(),
            ..spec
        };
        self.control
            .send(&InitRequest::Exec(spec), &all)
            .await
            .map_err(refused("ask the sandbox's init"))?;
        match answer(&self.control).await?.0 {
            InitReply::Started => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The program started by [`Sandbox::exec`]. Nothing else may be asked of the sandbox until it has ended.
    pub(crate) fn program(&self) -> Child {
        let control = Arc::clone(&self.control);
        Child::watched(async move {
            while let Ok(Some(message)) = control.receive().await {
                if let Ok(InitReply::Exited { code, signal }) =
                    serde_json::from_slice(&message.bytes)
                {
                    return match (code, signal) {
                        (Some(code), _) => ChildEnd::Exited(code),
                        (None, Some(signal)) => ChildEnd::Signalled(signal),
                        (None, None) => ChildEnd::Unknown,
                    };
                }
            }
            ChildEnd::Unknown
        })
    }

    /// Makes it as new after a use whose process has ended. On an error it is to be dropped.
    pub(crate) async fn clean(&self) -> Result<(), StartError> {
        let request = InitRequest::Clean {
            tmp_bytes_max: self.tmp_bytes_max,
        };
        self.control
            .send(&request, &[])
            .await
            .map_err(refused("ask the sandbox's init"))?;
        match answer(&self.control).await?.0 {
            InitReply::Clean => {
                if let Some(cgroup) = &self.cgroup {
                    cgroup.reset();
                }
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// What a process that is to enter gets: names of the wire protocol and descriptors. Not the host's network: to enter that takes
    /// rights over the host (setns(2)), so who is to be there must have been born there.
    pub(crate) fn entrance(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        let namespaces = NAMESPACES
            .into_iter()
            .zip(self.namespaces.iter().map(AsFd::as_fd))
            .take(if self.own_network {
                NAMESPACES.len()
            } else {
                NETWORK
            });
        namespaces.chain(self.join_files().map(|file| ("cgroup", file)))
    }

    fn join_files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.cgroup
            .iter()
            .flat_map(|cgroup| cgroup.join_files().iter().map(AsFd::as_fd))
    }

    pub(crate) fn network_namespace(&self) -> BorrowedFd<'_> {
        self.namespaces[NETWORK].as_fd()
    }

    pub(crate) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }
}

/// A sandbox shared by those who keep it alive.
pub(crate) type SharedSandbox = Arc<Sandbox>;

async fn answer(control: &Channel) -> Result<(InitReply, Vec<OwnedFd>), StartError> {
    let ended = |problem: &str| StartError::Sandbox {
        problem: format!("the sandbox's init {problem}"),
    };
    let message = timeout(ANSWER_TIME_MAX, control.receive())
        .await
        .map_err(|_| ended("did not answer in time"))?
        .map_err(refused("hear the sandbox's init"))?
        .ok_or_else(|| ended("ended before it was ready"))?;
    let reply = serde_json::from_slice(&message.bytes)
        .map_err(|error| ended(&format!("answered nonsense: {error}")))?;
    Ok((reply, message.fds))
}

fn unexpected(reply: &InitReply) -> StartError {
    StartError::Sandbox {
        problem: match reply {
            InitReply::Failed { problem } => problem.clone(),
            InitReply::Dirty { leftover } => format!("cannot be cleaned of {leftover}"),
            other => format!("the sandbox's init answered {other:?}"),
        },
    }
}

fn refused(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::Sandbox {
        problem: format!("{step}: {error}"),
    }
}
