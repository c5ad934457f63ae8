//! The isolation that this machine can enforce. Probed once, at the daemon's start, and reported then; strict mode refuses to
//! start without it.

use std::fs;
use std::path::Path;

use nix::unistd::geteuid;
use pilot_sys::seqpacket;

use crate::cgroup::{Around, Hierarchy};
use crate::daemon_id::DaemonId;
use crate::network::probe::probe;
use crate::network::resolver::Resolver;
use crate::process_ids;

/// Whether something is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// Enforced.
    Full,
    /// Not enforced: why, and the consequence.
    Missing(String),
}

/// The result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was probed.
    pub what: &'static str,
    /// Whether it is enforced.
    pub enforcement: Enforcement,
    /// By what it is enforced, where machines differ in it.
    pub by: Option<String>,
    /// What to change where it is not.
    pub remedy: &'static str,
}

/// The results of the probes.
#[derive(Debug)]
pub struct Isolation {
    daemon: DaemonId,
    user_namespace: UserNamespace,
    cgroups: Option<Hierarchy>,
    findings: Vec<Finding>,
    /// Whether functions can have links to other hosts, or why not.
    outbound: Result<(), String>,
}

/// The user namespace of sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserNamespace {
    /// Users of its own, mapped to ids from `base` on; needs root.
    Mapped {
        /// First user and group id outside of it.
        base: u32,
    },
    /// Only the daemon's own user.
    Own,
    /// None: the machine has no user namespaces.
    None,
}

/// The user of all Python templates and their workers, in the user namespace that they are in. Each namespace of an environment or
/// a function maps it to another user of the machine ([`crate::message::OwnUsers`]).
pub(crate) const TEMPLATE_USER: u32 = 1000;

impl Isolation {
    /// Probes the machine. `id_base` is the first of the 65,536 user ids of the host that sandboxes use. Must be called while
    /// the process has one thread.
    #[must_use]
    pub fn probe(id_base: u32) -> Self {
        let root = geteuid().is_root();
        let user_namespaces = Path::new("/proc/self/ns/user").exists()
            && fs::read_to_string("/proc/sys/user/max_user_namespaces")
                .map_or(true, |most| most.trim() != "0");
        let users = users(root, id_base);
        let user_namespace = match (&users, user_namespaces) {
            (Ok(()), true) => UserNamespace::Mapped { base: id_base },
            (Err(_), true) => UserNamespace::Own,
            (_, false) => UserNamespace::None,
        };
        // Without /dev/urandom the process id has to do.
        let daemon = DaemonId::new().unwrap_or_else(|_| DaemonId::of(std::process::id(), 0));
        let cgroups = Hierarchy::probe(daemon);
        let enforced_if = |is_enforced: bool, missing: &str| {
            if is_enforced {
                Enforcement::Full
            } else {
                Enforcement::Missing(missing.to_owned())
            }
        };
        let findings = vec![
            of_users(root, &users),
            Finding {
                what: "user namespaces",
                by: None,
                enforcement: enforced_if(
                    user_namespaces,
                    "the kernel allows none (user.max_user_namespaces): templates run with the host's privileges",
                ),
                remedy: "`sysctl user.max_user_namespaces=65536`, or a kernel with CONFIG_USER_NS",
            },
            Finding {
                what: "memory, CPU and pids limits",
                by: cgroups
                    .as_ref()
                    .ok()
                    .map(|hierarchy| format!("cgroup v{}", hierarchy.version())),
                enforcement: match &cgroups {
                    Ok(_) => Enforcement::Full,
                    Err(problem) => Enforcement::Missing(format!(
                        "{problem}: memory_mb, cpu and process counts are not limited"
                    )),
                },
                remedy: "run the daemon as root; in a systemd unit set Delegate=yes; in a container make /sys/fs/cgroup writable \
                         (--privileged)",
            },
            Finding {
                what: "descriptors from functions",
                by: None,
                enforcement: enforced_if(
                    seqpacket::descriptors_can_be_refused(),
                    "the kernel has no SO_PASSRIGHTS (Linux 6.16): a function can send descriptors, and the daemon takes time to \
                     close them; SO_LINGER has no effect in functions, so that no close waits",
                ),
                remedy: "use Linux 6.16 or newer",
            },
            Finding {
                what: "process ids",
                by: None,
                enforcement: enforced_if(
                    process_ids::available(),
                    "the kernel has no ns_last_pid (CONFIG_CHECKPOINT_RESTORE): a worker may have its template's process id, \
                     so libraries that detect a fork by it repeat their random numbers",
                ),
                remedy: "use a kernel with CONFIG_CHECKPOINT_RESTORE",
            },
        ];
        Self {
            daemon,
            user_namespace,
            cgroups: cgroups.ok(),
            findings,
            // As another user, the spawner may not change the daemon's network.
            outbound: match (root, users) {
                (true, Err(why)) => Err(why),
                _ => probe(),
            },
        }
    }

    /// Every probe's result.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// What is not enforced, one sentence each.
    pub fn missing(&self) -> impl Iterator<Item = String> + '_ {
        self.findings
            .iter()
            .filter_map(|finding| match &finding.enforcement {
                Enforcement::Full => None,
                Enforcement::Missing(why) => Some(format!("{}: {why}", finding.what)),
            })
    }

    /// Features that functions cannot use on this machine, one sentence each. Deploying a function that needs one fails. This
    /// does not weaken the isolation of others.
    pub fn unavailable(&self) -> impl Iterator<Item = String> + '_ {
        let refused = self.outbound.as_ref().err();
        let refused = refused.map(|why| format!("network = \"outbound\": {why}"));
        let unresolved = || {
            let resolvers = Resolver::find().out_of_reach?;
            Some(format!(
                "names of other hosts for network = \"outbound\": the resolvers of this machine ({resolvers}) are on the \
                 machine itself, which functions do not reach; name one on another host in /etc/resolv.conf"
            ))
        };
        refused.or_else(unresolved).into_iter()
    }

    /// The limits of the groups around the daemon; nothing, if the machine has no cgroups.
    #[must_use]
    pub fn around(&self) -> Around {
        self.cgroups
            .as_ref()
            .map_or_else(Around::default, Hierarchy::around)
    }

    /// The control group for containers below the daemon's, from the root of the hierarchy; `None` if the machine has no cgroups.
    #[must_use]
    pub fn group_for_containers(&self) -> Option<&Path> {
        self.cgroups.as_ref().map(Hierarchy::for_containers)
    }

    /// Whether `network = "outbound"` is available.
    ///
    /// # Errors
    /// Why not, as text.
    pub(crate) fn outbound(&self) -> Result<(), &str> {
        match &self.outbound {
            Ok(()) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// What the daemon's control groups and network devices are named by.
    pub(crate) fn daemon(&self) -> DaemonId {
        self.daemon
    }

    pub(crate) fn user_namespace(&self) -> UserNamespace {
        self.user_namespace
    }

    pub(crate) fn cgroups(&self) -> Option<&Hierarchy> {
        self.cgroups.as_ref()
    }

    /// Whether sandboxes' processes can have users of their own.
    pub(crate) fn has_users(&self) -> bool {
        matches!(self.user_namespace, UserNamespace::Mapped { .. })
    }
}

fn of_users(root: bool, users: &Result<(), String>) -> Finding {
    Finding {
        what: "users",
        by: None,
        enforcement: match users {
            Ok(()) => Enforcement::Full,
            Err(why) => Enforcement::Missing(format!(
                "{why}: all functions run as its own user, and only namespaces separate them"
            )),
        },
        remedy: match root {
            true => {
                "give the container more ids (user_namespaces(7)), or name some that it has with limits.id_base"
            }
            false => "run the daemon as root, for example with its systemd unit",
        },
    }
}

/// Whether functions can have users of their own, or why not.
fn users(root: bool, id_base: u32) -> Result<(), String> {
    if !root {
        return Err("the daemon is not root".to_owned());
    }
    for map in ["uid_map", "gid_map"] {
        // Without user namespaces, there is no such file, and every id.
        let ids = fs::read_to_string(Path::new("/proc/self").join(map));
        if !ids.map_or(true, |ids| has_ids(&ids, id_base)) {
            let last = id_base.saturating_add(IDS - 1);
            return Err(format!(
                "the daemon runs in a user namespace without the ids {id_base} to {last} (/proc/self/{map})"
            ));
        }
    }
    Ok(())
}

/// Whether a map of ids (user_namespaces(7)) has `base` and the ids after it inside.
fn has_ids(map: &str, base: u32) -> bool {
    let mut ranges: Vec<(u64, u64)> = map
        .lines()
        .filter_map(|line| {
            let mut columns = line.split_whitespace();
            let first = columns.next()?.parse().ok()?;
            Some((first, columns.nth(1)?.parse().ok()?))
        })
        .collect();
    ranges.sort_unstable();
    let mut next = u64::from(base);
    for (first, count) in ranges {
        if first <= next {
            next = next.max(first + count);
        }
    }
    next >= u64::from(base) + u64::from(IDS)
}

/// Number of users and groups that a sandbox's user namespace maps.
pub(crate) const IDS: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_need_their_ids_in_the_user_namespace_of_the_daemon() {
        const BASE: u32 = 1_900_000_000;
        for (map, has) in [
            ("         0          0 4294967295\n", true),
            ("0 1000 1\n", false),
            ("0 100000 65536\n", false),
            ("0 1000 1\n1 100000 65535\n1900000000 200000 65536\n", true),
            ("1900000000 200000 65535\n", false),
            ("1900000000 200000 65535\n1900065535 5 1\n", true),
            ("1900065535 5 1\n1900000000 200000 65535\n", true),
            ("1900000000 200000 65534\n1900065535 5 1\n", false),
            ("", false),
        ] {
            assert_eq!(has_ids(map, BASE), has, "{map}");
        }
        assert!(has_ids("0 100000 165536\n", 100_000));
        assert!(users(false, BASE).unwrap_err().contains("not root"));
    }
}
