//! The limits of what all functions together keep: their number, and the bytes of code, environments and layers on the disk.

use std::path::PathBuf;

use pilot_model::FunctionName;
use pilot_model::deployment::DeployError;

use super::Inner;
use crate::errors;
use crate::state::Admission;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Highest number of functions.
    pub functions_max: usize,
    /// Highest number of bytes of code, environments and layers.
    pub disk_bytes_max: u64,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            functions_max: 1000,
            disk_bytes_max: u64::MAX,
        }
    }
}

impl Inner {
    /// Takes the place of a function among all, until the function is there or the deployment has failed.
    pub(super) fn admit(&self, name: &FunctionName) -> Result<Admission, DeployError> {
        let max = self.store_limits.functions_max;
        let admitted = self.state.admit(name, max);
        admitted.ok_or_else(|| errors::too_many_functions(name, max))
    }

    /// Checks the disk before something new is kept on it. A deployment that runs at the same time may use what is left, too, so that
    /// the limit may be exceeded by what is being built. Blocks.
    pub(super) fn check_disk(&self, name: &FunctionName, more: u64) -> Result<(), DeployError> {
        let max = self.store_limits.disk_bytes_max;
        if max == u64::MAX {
            return Ok(());
        }
        if self.kept_bytes()?.saturating_add(more) <= max {
            return Ok(());
        }
        // Files of versions whose workers have ended meanwhile.
        if let Err(error) = self.sweep() {
            tracing::warn!(%error, "files that nothing needs are left");
        }
        let used = self.kept_bytes()?;
        if used.saturating_add(more) <= max {
            return Ok(());
        }
        Err(errors::disk_is_full(name, used, more, max))
    }

    /// Bytes of everything that is kept on the disk. Blocks.
    pub(super) fn kept_bytes(&self) -> Result<u64, DeployError> {
        let used = self.disk_use.below(&self.kept_folders());
        used.map_err(|error| DeployError::Internal {
            message: format!("cannot measure the data directory: {error}"),
        })
    }

    /// The folders in which code, layers and environments are.
    pub(super) fn kept_folders(&self) -> [PathBuf; 3] {
        [
            self.data_dir.code(),
            self.data_dir.layers(),
            self.data_dir.environments(),
        ]
    }
}
