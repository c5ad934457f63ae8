//! `RuntimeKey`: the canonical form of every setting that shapes a runtime (HotC, section IV-B, "Parameter Analysis"). Two
//! spellings of one configuration give one key; runtimes with one key are interchangeable.
//!
//! The user's settings are a [`RuntimeSpec`]; [`RuntimeSpec::canonical`] is the only way to a key.
//!
//! Invariants, property-tested: a runtime of a key's [base key](RuntimeKey::base_key) can be adapted to the key. If one key can
//! be adapted to another, both have the same base key. [`adaptation`](RuntimeKey::adaptation) is empty exactly for equal keys, is
//! transitive, and never crosses owners.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::choices::{Network, RootAccess};
use crate::image;

/// Settings of a runtime from a manifest, a version or an image, in any order and any spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSpec {
    /// What it is made from.
    pub base: Base,
    /// The owner whose leftovers may be in it; `None`: it has not been used.
    pub owner: Option<String>,
    /// What it can connect to.
    pub network: Network,
    /// Its host name (UTS namespace); empty: the default.
    pub host_name: String,
    /// Whether it has its own IPC objects or sees the host's.
    pub ipc: Ipc,
    /// Command and arguments; empty: the base's.
    pub command: Vec<String>,
    /// The working directory of its processes; empty: the base's.
    pub working_dir: String,
    /// Environment variables; if a name occurs twice, the last one counts.
    pub environment: Vec<(String, String)>,
    /// Execution options: variables that the base's interpreter reads only when it starts. As above.
    pub execution: Vec<(String, String)>,
    /// Host folders and files shown in it; if two have the same place, the last one counts.
    pub mounts: Vec<Mount>,
    /// Limits of memory, CPU and processes.
    pub limits: Limits,
    /// User inside; `None`: any free one.
    pub user: Option<u32>,
}

/// What a runtime is made from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// A sandbox of this machine.
    Native {
        /// The interpreter that already runs in it and waits for a function; `None`: nothing runs in it.
        interpreter: Option<PathBuf>,
        /// Host folders that are in every sandbox of this kind, read-only: interpreters outside of `/usr`.
        shown: Vec<PathBuf>,
    },
    /// A container of an image.
    Container {
        /// `qr`, `qr:1`, `docker.io/library/qr:1`, `qr@sha256:…`.
        image: String,
        /// What it may write.
        disk: ContainerDisk,
    },
}

/// What a container may write. It cannot change while the container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContainerDisk {
    /// Whether it may write to its root.
    pub root: RootAccess,
    /// Size of its volume, MiB; `None`: the daemon's.
    pub volume_mb: Option<u32>,
}

impl Default for ContainerDisk {
    fn default() -> Self {
        Self {
            root: RootAccess::Writable,
            volume_mb: None,
        }
    }
}

/// Whose System V and POSIX IPC objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ipc {
    /// Its own.
    Private,
    /// The host's.
    Host,
}

/// A host folder or file shown in a runtime.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Mount {
    /// Where it is in the runtime.
    pub inside: PathBuf,
    /// Where it lies on the host.
    pub host: PathBuf,
    /// Read-only or writable.
    pub access: Access,
}

/// The access to a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read-only.
    Read,
    /// Writable: a volume.
    Write,
}

/// Limits of a runtime; `None`: the engine's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Limits {
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// CPUs, thousandths.
    pub cpu_milli: Option<u32>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

/// The canonical form. Runtimes with equal keys are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct RuntimeKey {
    base: Base,
    owner: Option<String>,
    network: Network,
    host_name: String,
    ipc: Ipc,
    command: Vec<String>,
    working_dir: String,
    environment: BTreeMap<String, String>,
    execution: BTreeMap<String, String>,
    mounts: BTreeMap<PathBuf, (PathBuf, Access)>,
    limits: Limits,
    user: Option<u32>,
}

/// A difference between two keys that can be applied to a live runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Difference {
    /// It had no owner.
    Owner,
    /// Environment variables.
    Environment,
    /// Memory, CPU, processes.
    Limits,
    /// Command or working directory.
    Command,
    /// Host name.
    HostName,
    /// Mounts.
    Mounts,
    /// The network.
    Network,
}

impl Difference {
    /// The word for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Environment => "environment",
            Self::Limits => "limits",
            Self::Command => "command",
            Self::HostName => "host name",
            Self::Mounts => "mounts",
            Self::Network => "network",
        }
    }
}

impl RuntimeSpec {
    /// Whether an interpreter that already runs waits in it for a function.
    #[must_use]
    pub fn has_interpreter(&self) -> bool {
        matches!(
            &self.base,
            Base::Native {
                interpreter: Some(_),
                ..
            }
        )
    }

    /// The one form of all spellings: paths without `//`, `.` and trailing `/`, complete image references, variables and mounts
    /// sorted by name, host names in lower case.
    #[must_use]
    pub fn canonical(self) -> RuntimeKey {
        RuntimeKey {
            base: match self.base {
                Base::Native {
                    interpreter,
                    mut shown,
                } => {
                    shown = shown.iter().map(|folder| normal(folder)).collect();
                    shown.sort();
                    shown.dedup();
                    Base::Native {
                        interpreter: interpreter.map(|path| normal(&path)),
                        shown,
                    }
                }
                Base::Container { image, disk } => Base::Container {
                    image: image::full(&image),
                    disk,
                },
            },
            owner: self.owner,
            network: self.network,
            host_name: self.host_name.to_ascii_lowercase(),
            ipc: self.ipc,
            command: self.command,
            working_dir: match self.working_dir.as_str() {
                "" => String::new(),
                dir => normal(Path::new(dir)).display().to_string(),
            },
            environment: self.environment.into_iter().collect(),
            execution: self.execution.into_iter().collect(),
            mounts: self
                .mounts
                .into_iter()
                .map(|mount| (normal(&mount.inside), (normal(&mount.host), mount.access)))
                .collect(),
            limits: self.limits,
            user: self.user,
        }
    }
}

impl RuntimeKey {
    /// What it is made from.
    #[must_use]
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// The owner whose leftovers may be in it; `None`: it has not been used.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// What it can connect to.
    #[must_use]
    pub fn network(&self) -> Network {
        self.network
    }

    /// Its host name; empty: the default.
    #[must_use]
    pub fn host_name(&self) -> &str {
        &self.host_name
    }

    /// Whose IPC objects it sees.
    #[must_use]
    pub fn ipc(&self) -> Ipc {
        self.ipc
    }

    /// Command and arguments; empty: the base's.
    #[must_use]
    pub fn command(&self) -> &[String] {
        &self.command
    }

    /// The working directory of its processes; empty: the base's.
    #[must_use]
    pub fn working_dir(&self) -> &str {
        &self.working_dir
    }

    /// Environment variables.
    #[must_use]
    pub fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }

    /// Execution options: variables that its interpreter was started with.
    #[must_use]
    pub fn execution(&self) -> &BTreeMap<String, String> {
        &self.execution
    }

    /// Host folders and files shown in it, by place.
    pub fn mounts(&self) -> impl Iterator<Item = Mount> + '_ {
        self.mounts.iter().map(|(inside, (host, access))| Mount {
            inside: inside.clone(),
            host: host.clone(),
            access: *access,
        })
    }

    /// Limits of memory, CPU and processes.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// User inside; `None`: any free one.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        self.user
    }

    /// The key of the pre-warmed runtime that this one can be made from: without owner, code, variables and command, and without
    /// a network. It keeps what cannot change after the start: base, IPC namespace, the host's network, a fixed user, and
    /// execution options. If there are execution options, it also keeps the mounts and the owner, because an interpreter may read
    /// and run files of the code when it starts (`NODE_EXTRA_CA_CERTS`).
    #[must_use]
    pub fn base_key(&self) -> Self {
        let is_born_so = !self.execution.is_empty();
        let (owner, mounts) = match is_born_so {
            true => (self.owner.clone(), self.mounts.clone()),
            false => (None, BTreeMap::new()),
        };
        Self {
            base: self.base.clone(),
            owner,
            network: match self.network {
                Network::Host => Network::Host,
                Network::None | Network::Outbound => Network::None,
            },
            host_name: String::new(),
            ipc: self.ipc,
            command: Vec::new(),
            working_dir: String::new(),
            environment: BTreeMap::new(),
            execution: self.execution.clone(),
            mounts,
            limits: Limits::default(),
            user: self.user,
        }
    }

    /// Eight hexadecimal digits, so that people can tell keys apart. They may differ between builds, and do not prove that keys
    /// are equal.
    #[must_use]
    pub fn short(&self) -> String {
        let mut hash = Fnv::default();
        self.hash(&mut hash);
        let (high, low) = (hash.0 >> 32, hash.0 & 0xffff_ffff);
        format!("{:08x}", high ^ low)
    }

    /// The differences that must be applied to a live, clean runtime of this key to make it one of `to`. `None`: it is
    /// impossible. Empty: the keys are equal.
    ///
    /// Never across owners: a used runtime stays with its owner. What a process has from its start cannot be changed: base, IPC
    /// namespace, the host's network, a fixed user, execution options, and, if there are execution options, the mounts and the
    /// owner.
    #[must_use]
    pub fn adaptation(&self, to: &Self) -> Option<Vec<Difference>> {
        let same_owner = self.owner == to.owner;
        let fixed = self.base == to.base
            && self.ipc == to.ipc
            && self.execution == to.execution
            && (self.execution.is_empty() || (same_owner && self.mounts == to.mounts))
            && (same_owner || self.owner.is_none())
            && self.user == to.user
            && (self.network == to.network
                || (self.network == Network::None && to.network == Network::Outbound));
        if !fixed {
            return None;
        }
        let differs = [
            (!same_owner, Difference::Owner),
            (self.environment != to.environment, Difference::Environment),
            (self.limits != to.limits, Difference::Limits),
            (
                self.command != to.command || self.working_dir != to.working_dir,
                Difference::Command,
            ),
            (self.host_name != to.host_name, Difference::HostName),
            (self.mounts != to.mounts, Difference::Mounts),
            (self.network != to.network, Difference::Network),
        ];
        Some(
            differs
                .into_iter()
                .filter_map(|(differs, what)| differs.then_some(what))
                .collect(),
        )
    }
}

/// One line for people. It contains only the number of variables and mounts, and the names of execution options, because values
/// may be secrets.
impl fmt::Display for RuntimeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.base {
            Base::Native { interpreter, .. } => match interpreter {
                Some(interpreter) => write!(f, "sandbox with {}", interpreter.display())?,
                None => f.write_str("sandbox")?,
            },
            Base::Container { image, disk } => {
                write!(f, "container of {image}")?;
                if disk.root == RootAccess::ReadOnly {
                    f.write_str(", root read-only")?;
                }
                if let Some(size) = disk.volume_mb {
                    write!(f, ", volume of {size} MB")?;
                }
            }
        }
        match &self.owner {
            Some(owner) => write!(f, ", owner {owner}")?,
            None => f.write_str(", nobody's")?,
        }
        write!(f, ", network {}", self.network.as_str())?;
        if self.ipc == Ipc::Host {
            f.write_str(", the host's IPC")?;
        }
        if !self.host_name.is_empty() {
            write!(f, ", host name {}", self.host_name)?;
        }
        let limits = &self.limits;
        if let Some(bytes) = limits.memory_bytes {
            write!(f, ", {} MB", bytes >> 20)?;
        }
        if let Some(milli) = limits.cpu_milli {
            write!(f, ", {} CPU", f64::from(milli) / 1e3)?;
        }
        if let Some(pids) = limits.pids {
            write!(f, ", {pids} processes")?;
        }
        if let Some(user) = self.user {
            write!(f, ", user {user}")?;
        }
        for (count, word) in [
            (self.mounts.len(), "mount"),
            (self.environment.len(), "variable"),
        ] {
            if count > 0 {
                let plural = if count == 1 { "" } else { "s" };
                write!(f, ", {count} {word}{plural}")?;
            }
        }
        if !self.execution.is_empty() {
            let names: Vec<&str> = self.execution.keys().map(String::as_str).collect();
            write!(f, ", started with {}", names.join(" and "))?;
        }
        Ok(())
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv, section 2).
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Without `.`, `//` and a trailing `/`. `..` stays: its meaning depends on links.
fn normal(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| !matches!(part, Component::CurDir))
        .collect()
}

#[cfg(test)]
mod tests;
