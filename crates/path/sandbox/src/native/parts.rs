//! What all runtimes of a host share.

use std::sync::Arc;

use pilot_model::ports::StartError;

use super::base_sandbox::{BaseSandbox, BaseSandboxKey};
use super::start_limiter::StartLimiter;
use crate::machine::Machine;
use crate::slots::Slots;

/// See the module.
#[derive(Debug)]
pub(super) struct NativeParts {
    pub(super) machine: Arc<Machine>,
    pub(super) base_sandboxes: Slots<BaseSandboxKey, BaseSandbox>,
    pub(super) start_limiter: StartLimiter,
}

impl NativeParts {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        Self {
            machine,
            base_sandboxes: Slots::default(),
            start_limiter: StartLimiter::new(),
        }
    }

    pub(super) async fn base_sandbox(
        &self,
        key: &BaseSandboxKey,
    ) -> Result<Arc<BaseSandbox>, StartError> {
        let usable = |base: &BaseSandbox| !base.sandbox.has_ended();
        self.base_sandboxes
            .find_or_build(key, usable, || BaseSandbox::build(&self.machine, key))
            .await
    }
}
