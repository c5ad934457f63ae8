//! Starts the holder of a worker's inputs (`pilot_protocols::Holders`) in the worker's sandbox, as the worker's user and in its control
//! group, without privileges and with the worker's filter.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use pilot_model::FunctionConfig;
use pilot_model::ports::{BoxFuture, StartError};
use pilot_protocols::{HolderHost, Holders};

use crate::control::Control;
use crate::message::ExecSpec;
use crate::refused::refused;
use crate::sandbox::Sandbox;

/// The holders of a worker in this sandbox. The first one starts at once if the function has inputs. They do not keep the sandbox alive.
///
/// # Errors
/// Out of descriptors.
pub(crate) fn holders(
    sandbox: &Sandbox,
    user: Option<u32>,
    config: &FunctionConfig,
) -> Result<Holders, StartError> {
    let join_files = sandbox
        .join_files()
        .map(|file| file.try_clone_to_owned())
        .collect::<io::Result<_>>()
        .map_err(refused("a descriptor"))?;
    let holders = Holders::new(InSandbox {
        control: Arc::downgrade(sandbox.control()),
        user,
        join_files,
    });
    if config.may_have_inputs() {
        holders.start_ahead();
    }
    Ok(holders)
}

#[derive(Debug)]
struct InSandbox {
    control: Weak<Control>,
    /// The worker's.
    user: Option<u32>,
    /// Of the sandbox's cgroup.
    join_files: Vec<OwnedFd>,
}

impl HolderHost for InSandbox {
    fn start(&self, fds: [OwnedFd; 3]) -> BoxFuture<'_, Result<i32, String>> {
        Box::pin(async move {
            let Some(control) = self.control.upgrade() else {
                return Err("the sandbox has ended".to_owned());
            };
            let spec = ExecSpec {
                path: "/proc/self/fd/0".to_owned(),
                arguments: Vec::new(),
                environment: Vec::new(),
                cwd: PathBuf::from("/"),
                user: self.user,
                cgroup_files: self.join_files.len(),
                template: false,
                own_filter: false,
            };
            let files = fds.iter().chain(&self.join_files);
            let files: Vec<_> = files.map(AsFd::as_fd).collect();
            let started = control.exec_unwatched(spec, &files).await;
            started.map_err(|error| error.to_string())
        })
    }
}
