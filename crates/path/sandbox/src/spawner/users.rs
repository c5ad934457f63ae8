//! The user namespaces of sandboxes (user_namespaces(7)). One is shared by all sandboxes in which no template runs user code. Below
//! it, each environment's and each function's template has one of its own: what it may do as its owner is limited to its own
//! sandboxes, whatever descriptor it gets hold of.
//!
//! Templates and workers have the same user everywhere, [`TEMPLATE_USER`], and keep it: a filter allows them no other one. Each of these
//! namespaces maps it to another user of the namespace around it. The kernel counts some things for a user, in whatever namespace it is:
//! descriptors that are being sent, pages of pipes (`struct user_struct`). Who could become another function's user could use them up.
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

use crate::isolation::{IDS, TEMPLATE_USER, UserNamespace};
use crate::message::OwnUsers;

/// Inotify's instances (inotify(7)) of the sandboxes of one template: each process that watches files has one. By default, Linux
/// allows 128 for each user, here for all functions.
const INOTIFY_INSTANCES: &str = "32";

/// Inotify's watches of the sandboxes of a function's template. Programs that watch their code have one for each folder or file. Linux
/// allows each user 8,192 or more, up to a hundredth of the memory, here for all functions.
const INOTIFY_WATCHES: &str = "8192";

/// The same of an environment's template, whose functions' count there, too.
const INOTIFY_WATCHES_OF_ENVIRONMENT: &str = "32768";

/// Makes the user namespace that sandboxes share. As root with these ids: ids 0-65535 inside are `base…` outside. Otherwise: this
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

/// Who is root in the sandboxes' namespace, seen from outside.
pub(super) fn root_of(wanted: UserNamespace) -> Uid {
    match wanted {
        UserNamespace::None | UserNamespace::Own => geteuid(),
        UserNamespace::Mapped { base } => Uid::from_raw(base),
    }
}

/// Makes a user namespace inside `outer`; `None`: inside this process's. The kernel makes it inside that of the process that asks, so a
/// process of its own enters `outer` first.
pub(super) fn make_inside(
    outer: Option<&OwnedFd>,
    own: OwnUsers,
    wanted: UserNamespace,
) -> io::Result<OwnedFd> {
    let (ours, theirs) = seqpacket::pair()?;
    match process::fork_with(CloneFlags::empty())? {
        Side::Child => {
            let made = outer
                .map_or(Ok(()), |outer| enter(outer, wanted))
                .and_then(|()| fs::read_to_string("/proc/self/uid_map"))
                .and_then(|ours| make(&within(&map_of(own), &ours), || limited_namespace(own)));
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

/// The map of users and groups, a line for each range: the first id inside, the first id outside, their number.
fn map_of(own: OwnUsers) -> String {
    match own {
        OwnUsers::Environment(None) | OwnUsers::Function(None) => "0 0 1".to_owned(),
        OwnUsers::Function(Some(user)) => format!("0 0 1\n{TEMPLATE_USER} {user} 1"),
        // All ids, because any can become that of a function. The two that change places keep the map complete.
        OwnUsers::Environment(Some(user)) => {
            let (before, after) = (TEMPLATE_USER + 1, user + 1);
            format!(
                "0 0 {TEMPLATE_USER}\n{TEMPLATE_USER} {user} 1\n{before} {before} {}\n{user} {TEMPLATE_USER} 1\n{after} {after} {}",
                user - before,
                IDS - after
            )
        }
    }
}

/// The same map, cut where the ranges of the namespace around it (`outer`, as in `/proc/self/uid_map`) begin: the kernel refuses a range
/// that is not within one of them. An environment's namespace has several, and others can be made in it.
fn within(map: &str, outer: &str) -> String {
    let ranges = |text: &str| -> Vec<[u32; 3]> {
        let lines = text.lines().filter_map(|line| {
            let numbers: Vec<u32> = line
                .split_whitespace()
                .filter_map(|number| number.parse().ok())
                .collect();
            numbers.try_into().ok()
        });
        lines.collect()
    };
    let mut starts: Vec<u32> = ranges(outer).iter().map(|[first, ..]| *first).collect();
    starts.sort_unstable();
    let mut cut = String::new();
    for [mut inside, mut outside, mut count] in ranges(map) {
        while count > 0 {
            let next = starts.iter().find(|start| **start > outside);
            let most = next.map_or(count, |next| count.min(next - outside));
            cut += &format!("{inside} {outside} {most}\n");
            (inside, outside, count) = (inside + most, outside + most, count - most);
        }
    }
    cut
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
fn limited_namespace(own: OwnUsers) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWUSER)?;
    let watches = match own {
        OwnUsers::Environment(_) => INOTIFY_WATCHES_OF_ENVIRONMENT,
        OwnUsers::Function(_) => INOTIFY_WATCHES,
    };
    for (name, most) in [
        ("max_inotify_instances", INOTIFY_INSTANCES),
        ("max_inotify_watches", watches),
    ] {
        // Not where `/proc/sys` is read-only, as in most containers.
        let _ = fs::write(format!("/proc/sys/user/{name}"), most);
    }
    Ok(())
}

fn map_and_open(child: Pid, map: &str) -> io::Result<OwnedFd> {
    fs::write(format!("/proc/{child}/uid_map"), map)?;
    fs::write(format!("/proc/{child}/gid_map"), map)?;
    Ok(File::open(format!("/proc/{child}/ns/user"))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an id inside is outside.
    fn outside(own: OwnUsers, id: u32) -> Option<u32> {
        map_of(own).lines().find_map(|line| {
            let parts: Vec<u32> = line.split(' ').map(|part| part.parse().unwrap()).collect();
            let at = id.checked_sub(parts[0])?;
            (at < parts[2]).then(|| parts[1] + at)
        })
    }

    #[test]
    fn a_function_has_its_own_user_and_no_other_but_the_inits() {
        let own = OwnUsers::Function(Some(2_007));
        let mapped: Vec<_> = (0..IDS).filter_map(|id| outside(own, id)).collect();
        assert_eq!(mapped, [0, 2_007]);
        assert_eq!(outside(own, TEMPLATE_USER), Some(2_007));
    }

    #[test]
    fn an_environment_has_its_own_user_and_all_those_that_its_functions_may_get() {
        for user in [2_000, 61_999] {
            let own = OwnUsers::Environment(Some(user));
            assert_eq!(outside(own, TEMPLATE_USER), Some(user));
            assert_eq!(outside(own, user), Some(TEMPLATE_USER));
            let others = (0..IDS).filter(|id| ![TEMPLATE_USER, user].contains(id));
            for id in others {
                assert_eq!(outside(own, id), Some(id));
            }
        }
    }

    #[test]
    fn a_map_is_cut_where_that_around_it_has_its_ranges() {
        let outer = map_of(OwnUsers::Environment(Some(2_000)));
        assert_eq!(within("0 0 1\n1000 2000 1", &outer), "0 0 1\n1000 2000 1\n");
        assert_eq!(
            within("0 0 1000\n1000 1000 1500", &outer),
            "0 0 1000\n1000 1000 1\n1001 1001 999\n2000 2000 1\n2001 2001 499\n"
        );
        assert_eq!(
            within("0 0 65536", "         0  500000      65536"),
            "0 0 65536\n"
        );
        // The largest: each of the other's ranges.
        let inner = map_of(OwnUsers::Environment(Some(3_000)));
        let lines = within(&inner, &outer).lines().count();
        assert!(lines <= 10, "{lines}");
    }
}
