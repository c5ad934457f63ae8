//! The base sandbox: it has the root file system that its runtimes share, and only its init runs in it. Runtimes are nested in
//! it, which costs namespaces and two mounts instead of a new root.

use std::path::{Path, PathBuf};

use pilot_model::Network;
use pilot_model::ports::StartError;
use pilot_model::runtime_key::{Base, RuntimeKey};

use crate::machine::Machine;
use crate::rootfs::{RootSpec, java_settings};
use crate::runtime_files::{NODE_WORKER_INSIDE, PILOT_INSIDE};
use crate::sandbox::{Sandbox, SandboxSpec};

/// The key of a base sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct BaseSandboxKey {
    shown: Vec<PathBuf>,
    host_network: bool,
}

impl BaseSandboxKey {
    pub(super) fn of(key: &RuntimeKey) -> Result<Self, StartError> {
        match key.base() {
            Base::Native { shown, .. } => Ok(Self {
                shown: shown.clone(),
                host_network: key.network() == Network::Host,
            }),
            Base::Container { image, .. } => Err(StartError::Sandbox {
                problem: format!("image {image} needs a container engine, not a sandbox"),
            }),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct BaseSandbox {
    pub(super) sandbox: Sandbox,
}

/// The user in the root's `/etc/passwd`. Runtimes have other users, and files that name them.
const USER_SHOWN: u32 = 1000;

impl BaseSandbox {
    pub(super) async fn build(machine: &Machine, key: &BaseSandboxKey) -> Result<Self, StartError> {
        let mut shown = vec![(
            machine.files.node().to_owned(),
            PathBuf::from(NODE_WORKER_INSIDE),
        )];
        let pilot = machine.files.pilot().map(Path::to_owned);
        shown.extend(pilot.map(|file| (file, PathBuf::from(PILOT_INSIDE))));
        shown.extend(java_settings());
        for folder in &key.shown {
            // A folder inside another mounted one is already visible.
            let within = |(_, inside): &(PathBuf, PathBuf)| folder.starts_with(inside);
            if !shown.iter().any(within) {
                shown.push((folder.clone(), folder.clone()));
            }
        }
        let request = SandboxSpec {
            root: RootSpec {
                writable: None,
                mount_point: machine.config.dir.join(Path::new("root")),
                shown,
                user: USER_SHOWN,
                resolver: None,
                libraries: false,
            },
            own_network: !key.host_network,
            own_users: None,
            tmp_bytes_max: machine.config.tmp_bytes_max,
        };
        let sandbox = Sandbox::with_root(&machine.spawner, request, None, None).await?;
        Ok(Self { sandbox })
    }
}
