//! The spawner's process: receives requests and forks a helper for each, without waiting for it. It ends when the daemon's end
//! of the socket closes; its inits notice that on their own sockets.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::setsid;
use pilot_sys::process::{self, Side};
use pilot_sys::{mount, seqpacket};

use crate::filter::Filters;
use crate::init::{self, OWN_NAMESPACES, Own, OwnNetwork};
use crate::isolation::UserNamespace;
use crate::message::{InitReply, MakeSandbox, SpawnerRequest, TreeReply};
use crate::network::host::HostNetwork;
use crate::rootfs;

use super::users;

/// The command line of this process and of the inits, for `ps`.
const SHOWN_AS: &str = "pilot: sandboxes";

/// Runs the spawner on its socket.
pub(super) fn run(
    socket: Option<OwnedFd>,
    filters: &Filters,
    user_namespace: UserNamespace,
    network: HostNetwork,
) -> Infallible {
    let served = socket.map(|socket| serve(&socket, filters, user_namespace, network));
    let status = match served {
        Some(Ok(())) => 0,
        Some(Err(_)) | None => 1,
    };
    process::exit_now(status)
}

fn serve(
    socket: &OwnedFd,
    filters: &Filters,
    wanted: UserNamespace,
    mut network: HostNetwork,
) -> io::Result<()> {
    // Inits become children of this process when their helper ends, and the kernel reaps them.
    prctl::set_child_subreaper(true)?;
    // Code in a sandbox can read the command line of the sandbox's init, which is a fork of this process. The daemon's says where its
    // files are and what it listens on. Where /proc does not allow it, sandboxes are made all the same.
    let _ = process::show_as(SHOWN_AS);
    // Ctrl-C in a terminal is for the daemon, which drains and then closes this socket.
    setsid()?;
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        process::ignore_signal(signal)?;
    }
    let user_namespace = match users::make_shared(wanted) {
        Ok(namespace) => namespace,
        Err(error) => {
            // Every request reports this error, because the daemon has long continued.
            return refuse_all(socket, &format!("make the user namespace: {error}"));
        }
    };
    loop {
        network.wait_for(socket)?;
        let Some(message) = seqpacket::receive(socket)? else {
            break;
        };
        let mut fds = message.fds.into_iter();
        let Some(control) = fds.next() else { continue };
        let (namespace, outer_users) = (fds.next(), fds.next());
        let request = match serde_json::from_slice(&message.bytes) {
            Ok(SpawnerRequest::Sandbox(request)) => request,
            Ok(SpawnerRequest::Link(request)) => {
                if let Some(namespace) = namespace {
                    network.link(&request, &control, &namespace);
                }
                continue;
            }
            Ok(SpawnerRequest::Tree { host }) => {
                give_tree(&host, &control);
                continue;
            }
            Err(error) => {
                fail(&control, &format!("invalid request: {error}"));
                continue;
            }
        };
        match process::fork_with(CloneFlags::empty()) {
            Ok(Side::Child) => {
                let outer = Outer {
                    processes: namespace.as_ref(),
                    users: outer_users.as_ref().or(user_namespace.as_ref()),
                    wanted,
                };
                if let Err(problem) = help(&request, &control, &outer, filters) {
                    fail(&control, &problem);
                }
                process::exit_now(0)
            }
            Ok(Side::Parent(_)) => {}
            Err(error) => fail(&control, &format!("fork: {error}")),
        }
    }
    if network.is_running() {
        // The rules must stay until the last process that they restrict has ended. This process's children are the outermost
        // inits, which end after everything in them. With SIGCHLD ignored, this call returns when no child is left (wait(2)).
        while !matches!(waitpid(None, None), Err(Errno::ECHILD)) {}
    }
    network.close();
    Ok(())
}

/// Sends a copy of a mount of the host, for a running sandbox.
fn give_tree(host: &Path, answers: &OwnedFd) {
    let made = mount::clone_read_only(host);
    let (reply, attached) = match &made {
        Ok(tree) => (TreeReply::Tree, Some(tree.as_fd())),
        Err(error) => {
            let problem = error.to_string();
            (TreeReply::Failed { problem }, None)
        }
    };
    let attached: Vec<_> = attached.into_iter().collect();
    // If this fails, too, the daemon sees the closed socket.
    if let Ok(bytes) = serde_json::to_vec(&reply) {
        let _ = seqpacket::send(answers.as_fd(), &bytes, &attached);
    }
}

fn refuse_all(socket: &OwnedFd, problem: &str) -> io::Result<()> {
    while let Some(message) = seqpacket::receive(socket)? {
        if let Some(control) = message.fds.first() {
            fail(control, problem);
        }
    }
    Ok(())
}

/// What a sandbox is nested in.
struct Outer<'a> {
    /// A PID namespace.
    processes: Option<&'a OwnedFd>,
    /// A user namespace; `None`: the spawner's.
    users: Option<&'a OwnedFd>,
    wanted: UserNamespace,
}

/// The helper: builds the root, enters the namespaces, and forks the sandbox's init. (The init cannot be the spawner's own
/// child: clone(2) does not allow CLONE_PARENT with CLONE_NEWPID.)
fn help(
    request: &MakeSandbox,
    control: &OwnedFd,
    outer: &Outer<'_>,
    filters: &Filters,
) -> Result<(), String> {
    let what = |step: &'static str| move |error: nix::Error| format!("{step}: {error}");
    // While /proc is still the host's.
    prefer_for_oom_kill();
    let own_users = request
        .own_users
        .map(|own_users| users::make_inside(outer.users, own_users, outer.wanted))
        .transpose()
        .map_err(|error| {
            format!("make a user namespace (user.max_user_namespaces is its limit): {error}")
        })?;
    unshare(CloneFlags::CLONE_NEWNS).map_err(what("unshare the mount namespace"))?;
    rootfs::enter(&request.root, users::root_of(outer.wanted))
        .map_err(|error| error.to_string())?;
    if let Some(parent) = outer.processes {
        setns(parent, CloneFlags::CLONE_NEWPID).map_err(what("nest the PID namespace"))?;
        // Only a process that is itself in a PID namespace can make one inside it (copy_pid_ns() in kernel/pid_namespace.c).
        match process::fork_with(CloneFlags::empty()).map_err(|error| format!("fork: {error}"))? {
            Side::Parent(_) => return Ok(()),
            Side::Child => {}
        }
    }
    if let Some(user_namespace) = own_users.as_ref().or(outer.users) {
        users::enter(user_namespace, outer.wanted)
            .map_err(|error| format!("enter the user namespace: {error}"))?;
    }
    let mut flags = OWN_NAMESPACES;
    let mut network = OwnNetwork::No;
    if request.own_network {
        flags |= CloneFlags::CLONE_NEWNET;
        network = OwnNetwork::Yes;
    }
    match process::fork_with(flags).map_err(|error| format!("fork the init: {error}"))? {
        Side::Parent(_) => Ok(()),
        Side::Child => {
            let control = control.try_clone().map_err(|error| error.to_string())?;
            process::child_main(vec![control], |mut kept| {
                let own = Own {
                    network,
                    users: request.own_users.is_some(),
                };
                init::run(kept.pop(), filters, own, request.usage)
            })
        }
    }
}

/// When the machine has no memory left, the kernel kills processes of sandboxes before the daemon and the spawner
/// (proc_pid_oom_score_adj(5)). All of them inherit it from here, and none can lower it: this process still has the privileges of
/// the host's root, if the daemon has, and what such a process writes is the least that it and its children may have
/// (`__set_oom_adj` in fs/proc/base.c). Where it cannot be written, it stays as it is.
fn prefer_for_oom_kill() {
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
}

/// Of processes in sandboxes; 1000 would kill them before anything else on the machine.
const OOM_SCORE_ADJ: &str = "300";

fn fail(control: &OwnedFd, problem: &str) {
    let reply = InitReply::Failed {
        problem: problem.to_owned(),
        errno: None,
    };
    // If this fails, too, the daemon sees the closed socket.
    if let Ok(bytes) = serde_json::to_vec(&reply) {
        let _ = seqpacket::send(control.as_fd(), &bytes, &[]);
    }
}
