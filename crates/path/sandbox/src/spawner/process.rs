//! The spawner's own process: receives requests, forks a helper for each, never waits for one. It ends when the daemon's
//! end of the socket closes; its inits have sockets of their own to notice by.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Uid, getegid, geteuid, read, setgroups, setresgid, setresuid, write};
use pilot_sys::process::{self, Side};
use pilot_sys::{mount, seqpacket};

use crate::filter::Filters;
use crate::init::{self, OWN_NAMESPACES, OwnNetwork};
use crate::isolation::UserNamespace;
use crate::message::{InitReply, MakeSandbox, SpawnerRequest, TreeReply};
use crate::network::host::HostNetwork;
use crate::rootfs;

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
    // Inits come to us when their helper ends, and are reaped by the kernel.
    prctl::set_child_subreaper(true)?;
    // A terminal's Ctrl-C is for the daemon, which drains and then closes our socket.
    for signal in [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ] {
        process::ignore_signal(signal)?;
    }
    let user_namespace = match make_user_namespace(wanted) {
        Ok(namespace) => namespace,
        Err(error) => {
            // Told with each request: the daemon has long gone on.
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
        let namespace = fds.next();
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
                fail(&control, &format!("a request is not understood: {error}"));
                continue;
            }
        };
        match process::fork_with(CloneFlags::empty()) {
            Ok(Side::Child) => {
                if let Err(problem) = help(
                    &request,
                    &control,
                    namespace.as_ref(),
                    user_namespace.as_ref(),
                    filters,
                ) {
                    fail(&control, &problem);
                }
                process::exit_now(0)
            }
            Ok(Side::Parent(_)) => {}
            Err(error) => fail(&control, &format!("fork: {error}")),
        }
    }
    if network.is_running() {
        // The rules stay until nobody is left whom they keep in: our children are the outermost inits, which end after all
        // that is in them. With SIGCHLD ignored this returns when there are none any more (wait(2)).
        while !matches!(waitpid(None, None), Err(Errno::ECHILD)) {}
    }
    network.close();
    Ok(())
}

/// A copy of something of the host for a sandbox that is up.
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
    // The daemon sees the closed socket where even this fails.
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

/// The helper: builds the root, goes where the sandbox is to be, and forks its init. (As the spawner's own child
/// it cannot be: clone(2) has no CLONE_PARENT with CLONE_NEWPID.)
fn help(
    request: &MakeSandbox,
    control: &OwnedFd,
    nested_in: Option<&OwnedFd>,
    user_namespace: Option<&OwnedFd>,
    filters: &Filters,
) -> Result<(), String> {
    let what = |step: &'static str| move |error: nix::Error| format!("{step}: {error}");
    unshare(CloneFlags::CLONE_NEWNS).map_err(what("unshare the mount namespace"))?;
    rootfs::enter(&request.root).map_err(|error| error.to_string())?;
    if let Some(parent) = nested_in {
        setns(parent, CloneFlags::CLONE_NEWPID).map_err(what("nest the PID namespace"))?;
        // Only a process that is itself in a PID namespace can make one inside it (copy_pid_ns() in kernel/pid_namespace.c).
        match process::fork_with(CloneFlags::empty()).map_err(|error| format!("fork: {error}"))? {
            Side::Parent(_) => return Ok(()),
            Side::Child => {}
        }
    }
    if let Some(user_namespace) = user_namespace {
        setns(user_namespace, CloneFlags::CLONE_NEWUSER)
            .map_err(what("enter the user namespace"))?;
        setgroups(&[]).map_err(what("drop groups"))?;
        setresgid(ROOT_INSIDE.1, ROOT_INSIDE.1, ROOT_INSIDE.1).map_err(what("change group"))?;
        setresuid(ROOT_INSIDE.0, ROOT_INSIDE.0, ROOT_INSIDE.0).map_err(what("change user"))?;
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
                init::run(kept.pop(), filters, network, request.tmp_bytes_max)
            })
        }
    }
}

/// The inits' user and group, as seen in the user namespace.
const ROOT_INSIDE: (Uid, Gid) = (Uid::from_raw(0), Gid::from_raw(0));

/// How many users and groups a sandbox's user namespace maps.
const IDS: u32 = 65_536;

/// Makes the user namespace that all sandboxes share. With the host's root: ids 0-65535 inside are `base…` outside.
/// Without: this process moves into one in which only its own user exists, as 0, and `None` is given.
fn make_user_namespace(wanted: UserNamespace) -> io::Result<Option<OwnedFd>> {
    match wanted {
        UserNamespace::None => Ok(None),
        UserNamespace::Own => {
            let (user, group) = (geteuid(), getegid());
            // A mount namespace of its own as well: what is in it may be copied (open_tree(2)).
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
            Ok(None)
        }
        UserNamespace::Mapped { base } => {
            // The child makes it and stays until it has been mapped and opened.
            let (ours, theirs) = seqpacket::stream_pair()?;
            match process::fork_with(CloneFlags::CLONE_NEWUSER)? {
                Side::Child => {
                    drop(ours);
                    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
                    let _ = read(&theirs, &mut [0]);
                    process::exit_now(0)
                }
                Side::Parent(child) => {
                    drop(theirs);
                    let map = format!("0 {base} {IDS}");
                    fs::write(format!("/proc/{child}/uid_map"), &map)?;
                    fs::write(format!("/proc/{child}/gid_map"), &map)?;
                    let namespace = File::open(format!("/proc/{child}/ns/user"))?;
                    write(&ours, b"x")?;
                    Ok(Some(namespace.into()))
                }
            }
        }
    }
}

fn fail(control: &OwnedFd, problem: &str) {
    let reply = InitReply::Failed {
        problem: problem.to_owned(),
        errno: None,
    };
    // The daemon sees the closed socket where even this fails.
    if let Ok(bytes) = serde_json::to_vec(&reply) {
        let _ = seqpacket::send(control.as_fd(), &bytes, &[]);
    }
}
