//! The options with which a container is created: permanent settings, and initial values of those that can change.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
};
use pilot_model::runtime_key::{Access, Base, Ipc, Limits, RuntimeKey};
use pilot_model::{Network, RootAccess};

use crate::folder::{OURS_INSIDE, SHIM_INSIDE, SOCKET_INSIDE, VOLUME_INSIDE};

/// The data directory of the daemon that created the container.
pub(crate) const LABEL_DAEMON: &str = "io.pilotlight.daemon";

/// The run of that daemon.
pub(crate) const LABEL_RUN: &str = "io.pilotlight.run";

/// A container to be created.
#[derive(Debug)]
pub(crate) struct CreateOptions<'a> {
    pub(crate) name: &'a str,
    /// The image's id, so that exactly the inspected image runs.
    pub(crate) image: &'a str,
    pub(crate) key: &'a RuntimeKey,
    /// The control group around it; `None`: the engine's default.
    pub(crate) group: Option<&'a str>,
    /// Folders on the host.
    pub(crate) ours: &'a Path,
    pub(crate) volume: &'a Path,
    pub(crate) daemon: &'a str,
    pub(crate) run: &'a str,
    /// For each tmpfs, bytes.
    pub(crate) tmp_bytes_max: u64,
}

/// Limits in the engine's units; `None`: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineLimits {
    pub(crate) memory: Option<i64>,
    pub(crate) nano_cpus: Option<i64>,
    /// Always set: a fork bomb could exhaust the machine.
    pub(crate) pids: i64,
}

pub(crate) fn limits_of(limits: Limits) -> EngineLimits {
    EngineLimits {
        memory: limits
            .memory_bytes
            .and_then(|bytes| i64::try_from(bytes).ok()),
        nano_cpus: limits.cpu_milli.map(|milli| i64::from(milli) * 1_000_000),
        pids: limits.pids.map_or(PIDS_MAX, i64::from),
    }
}

impl CreateOptions<'_> {
    /// The request's body.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let key = self.key;
        ContainerCreateBody {
            image: Some(self.image.to_owned()),
            entrypoint: Some(vec![SHIM_INSIDE.to_owned(), SOCKET_INSIDE.to_owned()]),
            // Otherwise the image's own would be appended.
            cmd: Some(Vec::new()),
            // Root, with a few capabilities that nothing else in the container has: see the shim.
            user: Some("0:0".to_owned()),
            working_dir: Some("/".to_owned()),
            hostname: (!key.host_name().is_empty()).then(|| key.host_name().to_owned()),
            // An image's health check would start programs that the shim does not know.
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..Default::default()
            }),
            labels: Some(HashMap::from(
                [
                    ("io.pilotlight", "1"),
                    (LABEL_DAEMON, self.daemon),
                    (LABEL_RUN, self.run),
                ]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
            )),
            host_config: Some(self.host_config()),
            ..Default::default()
        }
    }

    fn host_config(&self) -> HostConfig {
        let key = self.key;
        let limits = limits_of(key.limits());
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        HostConfig {
            // It ends with the daemon's connection, even while the engine is unreachable.
            auto_remove: Some(true),
            network_mode: Some(
                match key.network() {
                    Network::None => "none",
                    Network::Outbound => "bridge",
                    Network::Host => "host",
                }
                .to_owned(),
            ),
            ipc_mode: Some(
                match key.ipc() {
                    Ipc::Private => "private",
                    Ipc::Host => "host",
                }
                .to_owned(),
            ),
            cap_drop: Some(words(&["ALL"])),
            cap_add: Some(words(CAPABILITIES)),
            security_opt: Some(words(&["no-new-privileges:true"])),
            init: Some(false),
            memory: limits.memory,
            // Memory and swap together: no swap.
            memory_swap: limits.memory,
            nano_cpus: limits.nano_cpus,
            pids_limit: Some(limits.pids),
            cgroup_parent: self.group.map(str::to_owned),
            readonly_rootfs: Some(self.root_is_read_only()),
            // Functions' output goes through pipes; nothing uses this log.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            tmpfs: Some(self.in_memory()),
            mounts: Some(self.mounts()),
            ..Default::default()
        }
    }

    fn root_is_read_only(&self) -> bool {
        match self.key.base() {
            Base::Container { disk, .. } => disk.root == RootAccess::ReadOnly,
            Base::Native { .. } => false,
        }
    }

    /// Folders that programs usually write to. They are empty tmpfs mounts, count towards the container's memory, and are
    /// cleaned.
    fn in_memory(&self) -> HashMap<String, String> {
        let size = self.tmp_bytes_max;
        [("/tmp", "1777"), ("/var/tmp", "1777"), ("/run", "1777")]
            .map(|(folder, mode)| {
                let options = format!("rw,nosuid,nodev,exec,size={size},mode={mode}");
                (folder.to_owned(), options)
            })
            .into()
    }

    fn mounts(&self) -> Vec<Mount> {
        let bind = |inside: &str, host: &Path, access: Access| Mount {
            typ: Some(MountType::BIND),
            target: Some(inside.to_owned()),
            source: Some(host.display().to_string()),
            read_only: Some(access == Access::Read),
            ..Default::default()
        };
        let own = [
            bind(OURS_INSIDE, self.ours, Access::Read),
            bind(VOLUME_INSIDE, self.volume, Access::Write),
        ];
        let asked = self.key.mounts().map(|mount| {
            let inside = mount.inside.display().to_string();
            bind(&inside, &mount.host, mount.access)
        });
        own.into_iter().chain(asked).collect()
    }
}

/// Needed by the shim: to signal any process, switch to the image's user, drop capabilities, and empty any user's folders.
const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "SETGID",
    "SETPCAP",
    "SETUID",
];

/// Limit of processes and threads if the key has none.
const PIDS_MAX: i64 = 1024;

#[cfg(test)]
mod tests {
    use pilot_model::runtime_key::{ContainerDisk, RuntimeSpec};

    use super::*;

    fn key(network: Network, limits: Limits) -> RuntimeKey {
        RuntimeSpec {
            base: Base::Container {
                image: "qr:1".to_owned(),
                disk: ContainerDisk::default(),
            },
            owner: None,
            network,
            host_name: String::new(),
            ipc: Ipc::Private,
            command: Vec::new(),
            working_dir: String::new(),
            environment: Vec::new(),
            execution: Vec::new(),
            mounts: Vec::new(),
            limits,
            user: None,
        }
        .canonical()
    }

    fn host_config(key: &RuntimeKey) -> HostConfig {
        let options = CreateOptions {
            name: "n",
            image: "sha256:0",
            key,
            group: Some("/pilotlight/containers"),
            ours: Path::new("/data/run/n/ours"),
            volume: Path::new("/data/run/n/volume"),
            daemon: "/data",
            run: "1",
            tmp_bytes_max: 1 << 20,
        };
        options.body().host_config.unwrap()
    }

    #[test]
    fn a_container_gets_no_privileges_beyond_the_shims() {
        let host = host_config(&key(Network::None, Limits::default()));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(
            host.security_opt,
            Some(vec!["no-new-privileges:true".to_owned()])
        );
        assert_eq!(host.privileged, None);
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.pids_limit, Some(PIDS_MAX));
        assert_eq!(
            host.cgroup_parent.as_deref(),
            Some("/pilotlight/containers")
        );
        assert_eq!(host.readonly_rootfs, Some(false));
    }

    #[test]
    fn limits_are_the_keys_and_swap_is_none() {
        let limits = Limits {
            memory_bytes: Some(64 << 20),
            cpu_milli: Some(1500),
            pids: Some(32),
        };
        let host = host_config(&key(Network::Outbound, limits));
        assert_eq!(host.memory, Some(64 << 20));
        assert_eq!(host.memory_swap, host.memory);
        assert_eq!(host.nano_cpus, Some(1_500_000_000));
        assert_eq!(host.pids_limit, Some(32));
        assert_eq!(host.network_mode.as_deref(), Some("bridge"));
    }

    #[test]
    fn what_the_daemon_shows_is_read_only_and_the_volume_is_not() {
        let host = host_config(&key(Network::None, Limits::default()));
        let mounts = host.mounts.unwrap();
        let access: Vec<_> = mounts
            .iter()
            .map(|mount| (mount.target.as_deref().unwrap(), mount.read_only.unwrap()))
            .collect();
        assert_eq!(access, [(OURS_INSIDE, true), (VOLUME_INSIDE, false)]);
    }
}
