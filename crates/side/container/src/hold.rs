//! Starts the holder of a worker's inputs (`pilot_protocols::Holders`) in the worker's container, by the shim and as the image's user.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Weak};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;
use pilot_model::BoxFuture;
use pilot_model::ports::{Input, InputKind};
use pilot_protocols::{HeldFiles, HolderHost, Holders};

use crate::container::Container;
use crate::shim::{Program, Shim, ShimError, User};

/// Shows inputs in the container.
///
/// # Errors
/// Why they cannot be shown.
pub(crate) async fn hold(
    holders: &Holders,
    container: &Container,
    inputs: &[Input],
) -> Result<HeldFiles, String> {
    let is_safe = |input: &Input| {
        if matches!(input.kind, InputKind::Socket | InputKind::Script) {
            return true;
        }
        // The owner of a file can change its mode (chmod(2)), and the user of an image may be the daemon's. Memory is sealed.
        let seals = fcntl(&*input.descriptor, FcntlArg::F_GET_SEALS);
        let is_sealed = seals.is_ok_and(|seals| seals & SEALED != 0);
        is_sealed || fstat(&*input.descriptor).is_ok_and(|file| file.st_uid != container.user.uid)
    };
    if let Some(input) = inputs.iter().find(|input| !is_safe(input)) {
        return Err(format!(
            "show it the input '{}': it is on the disk, where the image's user could change it: choose another USER, or set \
             data.spill_mb to 0",
            input.name
        ));
    }
    let held = holders.hold(inputs).await;
    held.map_err(|problem| format!("show it its inputs: {problem}"))
}

/// Either of these forbids every write: nobody has the memory mapped for writing.
const SEALED: i32 = SealFlag::F_SEAL_WRITE.bits() | SealFlag::F_SEAL_FUTURE_WRITE.bits();

/// The holders of a worker in this container. They do not keep it alive.
pub(crate) fn holders(container: &Container) -> Holders {
    Holders::new(InContainer {
        shim: Arc::downgrade(&container.shim),
        user: container.user.clone(),
    })
}

#[derive(Debug)]
struct InContainer {
    shim: Weak<Shim>,
    user: User,
}

impl HolderHost for InContainer {
    fn start(&self, fds: [OwnedFd; 3]) -> BoxFuture<'_, Result<i32, String>> {
        Box::pin(async move {
            let Some(shim) = self.shim.upgrade() else {
                return Err(ShimError::Gone.to_string());
            };
            let program = Program {
                user: &self.user,
                dir: "/",
                argv: &["/proc/self/fd/0".to_owned()],
                environment: &BTreeMap::new(),
            };
            let started = shim.exec(&program, fds.each_ref().map(|fd| fd.as_fd()));
            let process = started.await.map_err(|error| error.to_string())?;
            Ok(process.pid)
        })
    }
}
