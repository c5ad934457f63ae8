//! What a container is created with: settings that it has for life, and the first values of those that can be changed.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
};
use pilot_model::Network;
use pilot_model::runtime_key::{Access, Ipc, Limits, RuntimeKey};

use crate::folder::{OURS_INSIDE, SHIM_INSIDE, SOCKET_INSIDE, VOLUME_INSIDE};

/// Whose data directory a container belongs to.
pub(crate) const LABEL_DAEMON: &str = "io.pilotlight.daemon";

/// Which run of that daemon made it.
pub(crate) const LABEL_RUN: &str = "io.pilotlight.run";

/// A container to be created.
#[derive(Debug)]
pub(crate) struct CreateOptions<'a> {
    pub(crate) name: &'a str,
    /// The image's id: what was looked at is what is run.
    pub(crate) image: &'a str,
    pub(crate) key: &'a RuntimeKey,
    /// Host folders.
    pub(crate) ours: &'a Path,
    pub(crate) volume: &'a Path,
    pub(crate) daemon: &'a str,
    pub(crate) run: &'a str,
    /// Of each folder in memory, bytes.
    pub(crate) tmp_bytes_max: u64,
}

/// Limits in the engine's units; `None`: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EngineLimits {
    pub(crate) memory: Option<i64>,
    pub(crate) nano_cpus: Option<i64>,
    /// Never none: a fork bomb would take the machine along.
    pub(crate) pids: i64,
}

pub(crate) fn limits_of(limits: Limits) -> EngineLimits {
    let some = |value: u64| i64::try_from(value).ok().filter(|value| *value > 0);
    EngineLimits {
        memory: some(limits.memory_bytes),
        nano_cpus: some(u64::from(limits.cpu_milli) * 1_000_000),
        pids: some(u64::from(limits.pids)).unwrap_or(PIDS_MAX),
    }
}

impl CreateOptions<'_> {
    /// The request's body.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let key = self.key;
        ContainerCreateBody {
            image: Some(self.image.to_owned()),
            entrypoint: Some(vec![SHIM_INSIDE.to_owned(), SOCKET_INSIDE.to_owned()]),
            // The image's own would be appended.
            cmd: Some(Vec::new()),
            // Root, with a few capabilities that nothing else in the container has: see the shim.
            user: Some("0:0".to_owned()),
            working_dir: Some("/".to_owned()),
            hostname: (!key.host_name().is_empty()).then(|| key.host_name().to_owned()),
            // An image's check would start programs that the shim does not know.
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
            // It ends with the daemon's connection, whether or not the engine is there then.
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
            // Of both together: no swap.
            memory_swap: limits.memory,
            nano_cpus: limits.nano_cpus,
            pids_limit: Some(limits.pids),
            // What functions print goes through pipes; nothing is written here.
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            tmpfs: Some(self.in_memory()),
            mounts: Some(self.mounts()),
            ..Default::default()
        }
    }

    /// Folders that are written to by custom. They are empty, count as memory of the container, and are cleaned.
    fn in_memory(&self) -> HashMap<String, String> {
        let size = self.tmp_bytes_max;
        [("/tmp", "1777"), ("/var/tmp", "1777"), ("/run", "755")]
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

/// What the shim needs: to signal anybody's processes, to become the image's user, to give up what others must not have, and to empty
/// anybody's folders.
const CAPABILITIES: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "SETGID",
    "SETPCAP",
    "SETUID",
];

/// Processes and threads of a container whose key does not say.
const PIDS_MAX: i64 = 1024;

#[cfg(test)]
mod tests {
    use pilot_model::runtime_key::{Base, RuntimeSpec};

    use super::*;

    fn key(network: Network, limits: Limits) -> RuntimeKey {
        RuntimeSpec {
            base: Base::Container {
                image: "qr:1".to_owned(),
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
    }

    #[test]
    fn limits_are_the_keys_and_swap_is_none() {
        let limits = Limits {
            memory_bytes: 64 << 20,
            cpu_milli: 1500,
            pids: 32,
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
