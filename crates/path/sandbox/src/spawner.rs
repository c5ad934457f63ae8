//! The spawner: a small process that is forked from the daemon before the daemon has threads. It makes the sandboxes of
//! templates: a helper builds the root with the host's privileges, enters the sandboxes' user namespace, and forks the
//! sandbox's init.
//!
//! This is the daemon's side; [`process`] is the spawner's. They share a socket pair: when the daemon ends, for whatever
//! reason, the spawner and every init end, too.

mod process;
mod users;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use pilot_model::ports::StartError;
use pilot_sys::netlink::{Netlink, Protocol};
use pilot_sys::seqpacket;

use crate::channel::{Channel, is_closed, send_to, set_nonblocking};
use crate::filter::{FilterError, Filters};
use crate::isolation::Isolation;
use crate::kernel_memory_watch::KernelMemoryWatch;
use crate::message::{ANSWER_TIME_MAX, MakeLink, MakeSandbox, SpawnerRequest, TreeReply};
use crate::network;
use crate::network::host::HostNetwork;
use crate::process_ids::ProcessIds;
use crate::process_table::ProcessTable;
use crate::refused::refused;

/// The daemon's end.
#[derive(Debug)]
pub struct Spawner {
    /// Non-blocking: a spawner that does not read must not hold up the daemon's threads.
    socket: OwnedFd,
    process_ids: ProcessIds,
    process_table: ProcessTable,
    kernel_memory_watch: KernelMemoryWatch,
    /// Owns the packet filter's table. The spawner uses it; the rules stay as long as one of the two processes lives.
    _netfilter: Option<OwnedFd>,
}

/// Why the spawner cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnerError {
    /// The kernel refused.
    #[error("cannot start the spawner: {0}")]
    Io(#[from] io::Error),
    /// The filters do not compile for this architecture.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

impl Spawner {
    /// Forks the spawner. Must be called while the process has one thread, before a tokio runtime is started.
    ///
    /// # Errors
    /// The kernel's, or `Unsupported` in a process with threads.
    pub fn launch(isolation: &Isolation) -> Result<Self, SpawnerError> {
        let filters = Filters::compile()?;
        let (here, there) = seqpacket::pair()?;
        let netfilter = match isolation.outbound() {
            Ok(()) => Some(OwnedFd::from(Netlink::open(Protocol::Netfilter)?)),
            Err(_) => None,
        };
        if netfilter.is_some() {
            put_back();
        }
        let daemon = isolation.daemon();
        match pilot_sys::process::fork_with(nix::sched::CloneFlags::empty())? {
            pilot_sys::process::Side::Child => {
                let user_namespace = isolation.user_namespace();
                let kept = [Some(there), netfilter].into_iter().flatten().collect();
                pilot_sys::process::child_main(kept, |kept| {
                    let mut kept = kept.into_iter();
                    let socket = kept.next();
                    let network = HostNetwork::new(daemon, kept.next(), Some(network::records()));
                    process::run(socket, &filters, user_namespace, network)
                })
            }
            pilot_sys::process::Side::Parent(_) => Ok(Self::on(here, netfilter)?),
        }
    }

    fn on(socket: OwnedFd, netfilter: Option<OwnedFd>) -> io::Result<Self> {
        set_nonblocking(&socket)?;
        Ok(Self {
            socket,
            process_ids: ProcessIds::probe(),
            process_table: ProcessTable::default(),
            kernel_memory_watch: KernelMemoryWatch::default(),
            _netfilter: netfilter,
        })
    }

    /// Whether the spawner has ended. Then nothing can be started any more, and the daemon cannot make a new one, because it has
    /// threads.
    pub(crate) fn has_ended(&self) -> bool {
        is_closed(self.socket.as_fd())
    }

    /// The ids of processes in its sandboxes.
    pub(crate) fn process_ids(&self) -> &ProcessIds {
        &self.process_ids
    }

    /// What finds the processes of its sandboxes, where no cgroup lists them.
    pub(crate) fn process_table(&self) -> &ProcessTable {
        &self.process_table
    }

    /// What watches the sockets of its sandboxes.
    pub(crate) fn kernel_memory_watch(&self) -> &KernelMemoryWatch {
        &self.kernel_memory_watch
    }

    /// Requests a sandbox, nested in this PID namespace and this user namespace. The answer comes on the other end of `control`.
    pub(crate) async fn make(
        &self,
        request: MakeSandbox,
        control: OwnedFd,
        nested_in: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut fds = vec![control.as_fd()];
        fds.extend(nested_in);
        self.ask(&SpawnerRequest::Sandbox(request), &fds).await
    }

    /// Requests a read-only copy of what is mounted at a folder or file of the host.
    pub(crate) async fn tree(&self, host: &Path) -> Result<OwnedFd, StartError> {
        let step = format!("mount {}", host.display());
        let io = refused(&step);
        let failed = |problem: String| StartError::Sandbox {
            problem: format!("{step}: {problem}"),
        };
        let (answers, theirs) = Channel::pair().map_err(&io)?;
        let request = SpawnerRequest::Tree {
            host: host.to_owned(),
        };
        let asked = self.ask(&request, &[theirs.as_fd()]).await;
        asked.map_err(&io)?;
        drop(theirs);
        let mut message = tokio::time::timeout(ANSWER_TIME_MAX, answers.receive())
            .await
            .map_err(|_| failed("the spawner did not answer in time".to_owned()))?
            .map_err(&io)?
            .ok_or_else(|| failed("the spawner closed its socket without an answer".to_owned()))?;
        match (serde_json::from_slice(&message.bytes), message.fds.pop()) {
            (Ok(TreeReply::Tree), Some(tree)) => Ok(tree),
            (Ok(TreeReply::Failed { problem }), _) => Err(failed(problem)),
            (answer, _) => Err(failed(format!("the spawner answered {answer:?}"))),
        }
    }

    /// Requests a link into a network namespace. The answer comes on the other end of `control`.
    pub(crate) async fn make_link(
        &self,
        request: MakeLink,
        control: OwnedFd,
        namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let fds = [control.as_fd(), namespace];
        self.ask(&SpawnerRequest::Link(request), &fds).await
    }

    /// Sends a request. The socket is nearly always writable, and then this does not wait.
    async fn ask(&self, request: &SpawnerRequest, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(request)?;
        let sent = tokio::time::timeout(ANSWER_TIME_MAX, send_to(&self.socket, &bytes, fds));
        // Not EAGAIN, which says that there is no room for more processes.
        sent.await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the spawner does not answer"))?
    }
}

/// Restores what a daemon has left because all its processes were killed.
fn put_back() {
    match network::forwarding::recover(network::records()) {
        Ok(interfaces) if interfaces.is_empty() => {}
        Ok(interfaces) => tracing::warn!(
            interfaces = interfaces.join(", "),
            "an earlier daemon was killed and had left IPv4 forwarding enabled; it is disabled again"
        ),
        Err(problem) => tracing::warn!("{problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon's end, with the other one.
    fn pair() -> (Spawner, OwnedFd) {
        let (socket, there) = seqpacket::pair().unwrap();
        (Spawner::on(socket, None).unwrap(), there)
    }

    fn fill(spawner: &Spawner) {
        while seqpacket::send(spawner.socket.as_fd(), &[0; 1000], &[]).is_ok() {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_spawner_that_does_not_read_holds_up_one_start_and_no_thread() {
        let (spawner, _there) = pair();
        fill(&spawner);
        let begun_at = tokio::time::Instant::now();
        let asked = tokio::spawn(async move { spawner.tree(Path::new("/srv")).await });
        // The only thread goes on.
        tokio::time::sleep(ANSWER_TIME_MAX / 2).await;
        assert!(!asked.is_finished());
        let problem = match asked.await.unwrap() {
            Err(StartError::Sandbox { problem }) => problem,
            other => panic!("{other:?}"),
        };
        assert!(
            problem.ends_with("the spawner does not answer"),
            "{problem}"
        );
        assert_eq!(begun_at.elapsed(), ANSWER_TIME_MAX);
    }

    #[tokio::test]
    async fn a_request_is_sent_as_soon_as_the_spawner_reads_on() {
        let (spawner, there) = pair();
        fill(&spawner);
        let reading = std::thread::spawn(move || {
            loop {
                let mut message = seqpacket::receive(&there).unwrap().unwrap();
                if let Some(answers) = message.fds.pop() {
                    let answer = serde_json::to_vec(&TreeReply::Tree).unwrap();
                    return seqpacket::send(answers.as_fd(), &answer, &[there.as_fd()]);
                }
            }
        });
        assert!(spawner.tree(Path::new("/srv")).await.is_ok());
        reading.join().unwrap().unwrap();
    }
}
