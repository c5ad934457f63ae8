//! What this machine lets us enforce. Found out once, at start; said then, and refused in strict mode.

use std::fs;
use std::path::Path;

use nix::unistd::geteuid;

use crate::cgroup::Hierarchy;
use crate::network::{self, Resolver};

/// Whether something is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// It is.
    Full,
    /// It is not: why, and what that means.
    Missing(String),
}

/// What the machine gives.
#[derive(Debug)]
pub struct Isolation {
    user_namespace: UserNamespace,
    cgroups: Option<Hierarchy>,
    findings: Vec<(&'static str, Enforcement)>,
    /// Whether functions may have links to other hosts, or why not.
    outbound: Result<(), String>,
}

/// The user namespace in which sandboxes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserNamespace {
    /// Its own users, mapped from `base` on: needs root.
    Mapped {
        /// First user and group id outside.
        base: u32,
    },
    /// The daemon's own user alone.
    Own,
    /// None: the machine has no user namespaces.
    None,
}

impl Isolation {
    /// Looks at the machine. `id_base`: first of the 65,536 host user ids given to sandboxes. Must be called while the
    /// process has one thread.
    #[must_use]
    pub fn probe(id_base: u32) -> Self {
        let root = geteuid().is_root();
        let user_namespaces = Path::new("/proc/self/ns/user").exists()
            && fs::read_to_string("/proc/sys/user/max_user_namespaces")
                .map_or(true, |most| most.trim() != "0");
        let user_namespace = match (root, user_namespaces) {
            (true, true) => UserNamespace::Mapped { base: id_base },
            (false, true) => UserNamespace::Own,
            (_, false) => UserNamespace::None,
        };
        let cgroups = Hierarchy::probe();
        let missing = |text: &str| Enforcement::Missing(text.to_owned());
        let findings = vec![
            (
                "users",
                if root {
                    Enforcement::Full
                } else {
                    missing(
                        "the daemon is not root: all functions run as its own user, and are kept apart by namespaces alone",
                    )
                },
            ),
            (
                "user namespaces",
                if user_namespaces {
                    Enforcement::Full
                } else {
                    missing(
                        "the kernel has none (user.max_user_namespaces): templates cannot be kept from the host's privileges",
                    )
                },
            ),
            (
                "memory, CPU and pids limits",
                match &cgroups {
                    Ok(_) => Enforcement::Full,
                    Err(problem) => Enforcement::Missing(format!(
                        "{problem}: memory_mb, cpu and process counts are not limited"
                    )),
                },
            ),
        ];
        Self {
            user_namespace,
            cgroups: cgroups.ok(),
            findings,
            outbound: network::probe(),
        }
    }

    /// What is not enforced, a sentence each.
    pub fn missing(&self) -> impl Iterator<Item = String> + '_ {
        self.findings
            .iter()
            .filter_map(|(what, found)| match found {
                Enforcement::Full => None,
                Enforcement::Missing(why) => Some(format!("{what}: {why}")),
            })
    }

    /// What functions cannot have here, a sentence each: the deployment of one that asks for it fails. Nothing is less
    /// enforced for it.
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

    /// Whether `network = "outbound"` is to be had.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) fn outbound(&self) -> Result<(), &str> {
        match &self.outbound {
            Ok(()) => Ok(()),
            Err(why) => Err(why),
        }
    }

    pub(crate) fn user_namespace(&self) -> UserNamespace {
        self.user_namespace
    }

    pub(crate) fn cgroups(&self) -> Option<&Hierarchy> {
        self.cgroups.as_ref()
    }

    /// Whether a sandbox's processes can have users of their own.
    pub(crate) fn has_users(&self) -> bool {
        matches!(self.user_namespace, UserNamespace::Mapped { .. })
    }
}
