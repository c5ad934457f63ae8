//! Starts the holder of a worker's inputs (`pilot_protocols::Holders`) in the worker's container, by the shim and as the image's user.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Weak};

use pilot_model::BoxFuture;
use pilot_protocols::{HolderHost, Holders};

use crate::container::Container;
use crate::shim::{Program, Shim, User};

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
                return Err("the container has ended".to_owned());
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
