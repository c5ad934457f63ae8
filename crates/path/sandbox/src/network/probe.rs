//! Tests whether this machine can make links, by doing every step once in an empty network namespace.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use nix::sched::CloneFlags;
use nix::unistd::geteuid;
use pilot_sys::netlink::{Netlink, Protocol};
use pilot_sys::process::{self, Side};
use pilot_sys::seqpacket;

use super::OUTBOUND_CIDR_DEFAULT;
use super::host::HostNetwork;
use super::link::{self, LinkProblem};
use crate::daemon_id::DaemonId;
use crate::message::MakeLink;

/// Why `network = "outbound"` is not available, if so. Must be called while the process has one thread.
pub(crate) fn probe() -> Result<(), String> {
    if !geteuid().is_root() {
        return Err(
            "the daemon is not root, and only root may make links and firewall rules".to_owned(),
        );
    }
    let (ours, theirs) = seqpacket::pair().map_err(|error| error.to_string())?;
    match process::fork_with(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("make a network namespace for the probe: {error}"))?
    {
        Side::Child => {
            // Success is reported explicitly, so that no answer means failure.
            let said = attempt().err().unwrap_or_else(|| FINE.to_owned());
            let _ = seqpacket::send(theirs.as_fd(), said.as_bytes(), &[]);
            process::exit_now(0)
        }
        Side::Parent(child) => {
            drop(theirs);
            let said = seqpacket::receive(&ours).map_err(|error| error.to_string())?;
            let _ = nix::sys::wait::waitpid(child, None);
            match said.map(|message| String::from_utf8_lossy(&message.bytes).into_owned()) {
                Some(said) if said == FINE => Ok(()),
                Some(problem) => Err(problem),
                None => Err("the probe process ended without a result".to_owned()),
            }
        }
    }
}

const FINE: &str = "fine";

/// The devices end with the namespace, and the table with the socket.
fn attempt() -> Result<(), String> {
    let netfilter = Netlink::open(Protocol::Netfilter)
        .map_err(|error| format!("the kernel has no nf_tables: {error}"))?;
    let mut host = HostNetwork::new(DaemonId::of(1, 1), Some(OwnedFd::from(netfilter)), None);
    host.run()?;
    let namespace = File::open("/proc/self/ns/net")
        .map_err(|error| format!("open /proc/self/ns/net: {error}"))?;
    let request = MakeLink {
        number: 0,
        address: OUTBOUND_CIDR_DEFAULT.network(),
    };
    link::make("pilot", request.address, namespace.as_fd()).map_err(|problem| match problem {
        LinkProblem::Taken => "the address of the probe is taken".to_owned(),
        LinkProblem::Other(problem) => problem,
    })
}
