//! The user namespaces of sandboxes (user_namespaces(7)). One is shared by all sandboxes in which no template runs user code. Below
//! it, each environment's and each function's template has one of its own: what it may do as its owner is limited to its own
//! sandboxes, whatever descriptor it gets hold of.
//!
//! All of them have the same ids, so files keep their owners from one level to the next.
//!
//! What the kernel limits per user, such as inotify's instances, it counts for the user inside and for the owner of each namespace
//! (`user.max_…`, namespaces(7)). So the shared one does not belong to the host's root, who would have nothing left.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid, getegid, geteuid, read, setgroups, setresgid, setresuid};
use pilot_sys::capability;
use pilot_sys::process::{self, Side};
use pilot_sys::seqpacket;

use crate::isolation::UserNamespace;

/// Number of users and groups that a sandbox's user namespace maps.
const IDS: u32 = 65_536;

/// Inotify's instances (inotify(7)) of the sandboxes of one template: each process that watches files has one. By default, Linux
/// allows 128 for each user, here for all functions.
const WATCHERS: &str = "32";

/// Makes the user namespace that sandboxes share. As the host's root: ids 0-65535 inside are `base…` outside. Otherwise: this
/// process moves into a namespace that only has its own user, as 0, and the function returns `None`.
pub(super) fn make_shared(wanted: UserNamespace) -> io::Result<Option<OwnedFd>> {
    match wanted {
        UserNamespace::None => Ok(None),
        UserNamespace::Own => {
            let (user, group) = (geteuid(), getegid());
            // Also a mount namespace of its own, so that its mounts may be copied (open_tree(2)).
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
            Ok(None)
        }
        UserNamespace::Mapped { base } => {
            let owner = Uid::from_raw(base + IDS - 1);
            make(&format!("0 {base} {IDS}"), || own_namespace(owner)).map(Some)
        }
    }
}

/// Makes a user namespace with the same ids inside `outer`; `None`: inside this process's. The kernel makes it inside that of the
/// process that asks, so a process of its own enters `outer` first.
pub(super) fn make_inside(outer: Option<&OwnedFd>, wanted: UserNamespace) -> io::Result<OwnedFd> {
    let ids = match wanted {
        UserNamespace::Mapped { .. } => IDS,
        UserNamespace::Own | UserNamespace::None => 1,
    };
    let (ours, theirs) = seqpacket::pair()?;
    match process::fork_with(CloneFlags::empty())? {
        Side::Child => {
            let made = outer
                .map_or(Ok(()), |outer| enter(outer, wanted))
                .and_then(|()| make(&format!("0 0 {ids}"), limited_namespace));
            let _ = match made {
                Ok(namespace) => seqpacket::send(theirs.as_fd(), b"made", &[namespace.as_fd()]),
                Err(error) => seqpacket::send(theirs.as_fd(), error.to_string().as_bytes(), &[]),
            };
            process::exit_now(0)
        }
        Side::Parent(_) => {
            drop(theirs);
            let message = seqpacket::receive(&ours)?;
            let (said, namespace) = message.map_or_else(Default::default, |message| {
                (message.bytes, message.fds.into_iter().next())
            });
            namespace.ok_or_else(|| io::Error::other(String::from_utf8_lossy(&said).into_owned()))
        }
    }
}

/// Enters a user namespace and becomes root there.
pub(super) fn enter(namespace: &OwnedFd, wanted: UserNamespace) -> io::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWUSER)?;
    // Without root, there is only one user, and groups cannot be dropped.
    if matches!(wanted, UserNamespace::Mapped { .. }) {
        setgroups(&[])?;
        setresgid(ROOT.1, ROOT.1, ROOT.1)?;
        setresuid(ROOT.0, ROOT.0, ROOT.0)?;
    }
    Ok(())
}

/// The user and group of inits.
const ROOT: (Uid, Gid) = (Uid::from_raw(0), Gid::from_raw(0));

/// Makes a user namespace inside this process's, with this map of users and groups. A child makes it with `enter_new`, and lives until
/// it has been mapped and opened.
fn make(map: &str, enter_new: impl FnOnce() -> io::Result<()>) -> io::Result<OwnedFd> {
    // Entering a namespace and changing the user have taken this away; without it, the files in `/proc` of the child belong to the
    // host's root (PR_SET_DUMPABLE(2const)).
    prctl::set_dumpable(true)?;
    let (ours, theirs) = seqpacket::pair()?;
    match process::fork_with(CloneFlags::empty())? {
        Side::Child => {
            drop(ours);
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            let said = enter_new().map_or_else(|error| error.to_string(), |()| ENTERED.to_owned());
            let _ = seqpacket::send(theirs.as_fd(), said.as_bytes(), &[]);
            let _ = read(&theirs, &mut [0]);
            process::exit_now(0)
        }
        Side::Parent(child) => {
            drop(theirs);
            let made = has_entered(&ours).and_then(|()| map_and_open(child, map));
            // The child sees that its socket is closed.
            drop(ours);
            // Without SIGCHLD's default action the kernel reaps it.
            let _ = waitpid(child, None);
            made
        }
    }
}

const ENTERED: &str = "entered";

fn has_entered(child: &OwnedFd) -> io::Result<()> {
    let said = seqpacket::receive(child)?.map_or_else(Vec::new, |message| message.bytes);
    match said == ENTERED.as_bytes() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&said).into_owned(),
        )),
    }
}

/// Moves this process into a new user namespace that belongs to `owner`. As the host's root; its real user stays root, so that
/// RLIMIT_NPROC does not apply to the namespace as a whole. Without CAP_SETPCAP, the namespace is root's.
fn own_namespace(owner: Uid) -> io::Result<()> {
    let unchanged = Uid::from_raw(u32::MAX);
    if capability::keep_for_every_user().is_ok() {
        setresuid(unchanged, owner, unchanged)?;
    }
    Ok(unshare(CloneFlags::CLONE_NEWUSER)?)
}

/// Moves this process into a new user namespace, and limits what its users may have.
fn limited_namespace() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // Not where `/proc/sys` is read-only, as in most containers.
    let _ = fs::write("/proc/sys/user/max_inotify_instances", WATCHERS);
    Ok(())
}

fn map_and_open(child: Pid, map: &str) -> io::Result<OwnedFd> {
    fs::write(format!("/proc/{child}/uid_map"), map)?;
    fs::write(format!("/proc/{child}/gid_map"), map)?;
    Ok(File::open(format!("/proc/{child}/ns/user"))?.into())
}
