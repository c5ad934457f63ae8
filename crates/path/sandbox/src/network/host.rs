//! The spawner's part of links. It has the host's privileges and outlives both daemon and sandboxes, so it can restore the
//! host's settings however they end.
//!
//! Nothing is changed before the first link: without functions that use the network, the machine tracks no connections.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use pilot_sys::netlink::route::{ADDRESS_EVENTS, FORWARDING_EVENTS, Route};
use pilot_sys::netlink::{self, Netlink};
use pilot_sys::process::{self, Side};
use pilot_sys::seqpacket;

use super::forwarding::Forwarding;
use super::link::{self, LinkProblem};
use super::table::Table;
use crate::daemon_id::DaemonId;
use crate::message::{LinkReply, MakeLink};

/// The host's side of all links of a daemon.
#[derive(Debug)]
pub(crate) struct HostNetwork {
    table: Table,
    /// `None`: this machine cannot make links; the daemon knows it as well.
    netfilter: Option<Netlink>,
    /// The folder of the records; `None` for a probe.
    records: Option<&'static Path>,
    running: Option<Running>,
}

/// Exists from the first link on.
#[derive(Debug)]
struct Running {
    route: Route,
    events: OwnedFd,
    forwarding: Forwarding,
}

impl HostNetwork {
    /// `netfilter` will own the table. What is changed is recorded in the folder `records`, so that
    /// it can be put back when all processes of the daemon are killed.
    pub(crate) fn new(
        daemon: DaemonId,
        netfilter: Option<OwnedFd>,
        records: Option<&'static Path>,
    ) -> Self {
        Self {
            table: Table::of(daemon),
            netfilter: netfilter.map(Netlink::from),
            records,
            running: None,
        }
    }

    /// Waits until `socket` is readable, and meanwhile follows changes of the machine's interfaces.
    pub(crate) fn wait_for(&mut self, socket: &OwnedFd) -> std::io::Result<()> {
        loop {
            let changed = {
                let events = self.running.as_ref().map(|running| running.events.as_fd());
                let mut fds: Vec<PollFd<'_>> = [Some(socket.as_fd()), events]
                    .into_iter()
                    .flatten()
                    .map(|fd: BorrowedFd<'_>| PollFd::new(fd, PollFlags::POLLIN))
                    .collect();
                match poll(&mut fds, PollTimeout::NONE) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(error) => return Err(error.into()),
                }
                let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
                if ready.next() == Some(true) {
                    return Ok(());
                }
                ready.next() == Some(true)
            };
            if changed {
                // Errors are ignored: interfaces change while they are read, and each change is a new event.
                let _ = self.follow();
            }
        }
    }

    /// Makes a link; the answer is sent on `control`.
    pub(crate) fn link(&mut self, request: &MakeLink, control: &OwnedFd, namespace: &OwnedFd) {
        let problem = match self.run() {
            Err(problem) => problem,
            // In a process of its own, because it enters the function's namespace, and making devices takes time.
            Ok(()) => match process::fork_with(CloneFlags::empty()) {
                Ok(Side::Parent(_)) => return,
                Ok(Side::Child) => {
                    let device = self.table.device(request.number);
                    let reply = match link::make(&device, request.address, namespace.as_fd()) {
                        Ok(()) => LinkReply::Up,
                        Err(LinkProblem::Taken) => LinkReply::Taken,
                        Err(LinkProblem::Other(problem)) => LinkReply::Failed { problem },
                    };
                    answer(control, &reply);
                    process::exit_now(0)
                }
                Err(error) => format!("fork: {error}"),
            },
        };
        answer(control, &LinkReply::Failed { problem });
    }

    /// Rules first, then forwarding; both before the first link.
    pub(super) fn run(&mut self) -> Result<(), String> {
        if self.running.is_some() {
            return self.follow();
        }
        let Some(netfilter) = &mut self.netfilter else {
            return Err("this machine has no packet filter to restrict functions".to_owned());
        };
        let io = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let route = Route::open().map_err(io("open a netlink socket"))?;
        let groups = ADDRESS_EVENTS | FORWARDING_EVENTS;
        let events = netlink::events(groups).map_err(io("listen for changes of interfaces"))?;
        let forwarding = Forwarding::new(self.records)?;
        self.table
            .make()
            .commit(netfilter)
            .map_err(|error| error.to_string())?;
        self.running = Some(Running {
            route,
            events,
            forwarding,
        });
        self.follow()
    }

    fn follow(&mut self) -> Result<(), String> {
        let (Some(running), Some(netfilter)) = (&mut self.running, &mut self.netfilter) else {
            return Ok(());
        };
        netlink::drain(&running.events);
        running
            .forwarding
            .follow(&mut running.route, &self.table, netfilter)
    }

    /// Restores the host's settings, once no process of a sandbox runs any more.
    pub(crate) fn close(mut self) {
        let (Some(mut running), Some(netfilter)) = (self.running.take(), &mut self.netfilter)
        else {
            return;
        };
        // Namespaces, and with them their devices, end shortly after their last process.
        if let Ok(links) = running.route.links() {
            for (index, _) in links.iter().filter(|(_, name)| self.table.has(name)) {
                let _ = running.route.apply(netlink::route::remove_link(*index));
            }
        }
        running.forwarding.undo(&mut running.route);
        let _ = self.table.remove().commit(netfilter);
    }

    /// Whether there is anything to restore.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

fn answer(control: &OwnedFd, reply: &LinkReply) {
    // If this fails, too, the daemon sees the closed socket.
    if let Ok(bytes) = serde_json::to_vec(reply) {
        let _ = seqpacket::send(control.as_fd(), &bytes, &[]);
    }
}
