//! Deployment: from an uploaded archive to a live version, atomically, and the same versions after a restart.
//!
//! The steps of a deployment: `archive` unpacks the code, `environment` installs its requirements (`environment/python` with pip or
//! uv, `environment/node` with npm), the platform starts it once, and `registry` commits it. `deployer` runs the steps and removes
//! files that no version uses.
//!
//! Code and layers arrive as files in the staging folder, which `ControlPlane::spool` returns; `content` is their hash and size.
//!
//! Not here: running the user's code, except installers. The platform starts the function in its sandbox.

pub mod archive;
pub mod content;
pub mod deployer;
pub mod environment;
pub mod registry;

mod blocking;
mod data_dir;
mod disk_use;
mod durable;
mod errors;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod hash;
mod keyed_locks;
mod layers;
mod process;
mod reserve;
mod state;
mod version_id;

pub use archive::ArchiveLimits;
pub use data_dir::foreign as foreign_files;
pub use deployer::{
    DeployConfig, Deployer, HeldDataDir, OpenError, Restored, StoreLimits, VERSIONS_KEPT,
};
pub use environment::{EnvironmentConfig, SourceBuilds};
pub use reserve::Reserve;
