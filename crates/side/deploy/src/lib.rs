//! Deployment: from an uploaded archive to a live version, all or nothing, and back after a restart.
//!
//! The order of a deployment is the order of the files: `archive` unpacks the code, `environment` installs what it
//! requires (`environment/python` with pip or uv, `environment/node` with npm), the platform tries it, `registry` commits it,
//! `deployer` puts the steps together and sweeps up what nothing refers to any more.
//!
//! Not here: running anything of the user's but the installers. The platform tries the function in its sandbox.

pub mod archive;
pub mod deployer;
pub mod environment;
pub mod registry;

mod blocking;
mod data_dir;
mod durable;
mod errors;
mod hash;
mod keyed_locks;
mod process;
mod state;

pub use archive::ArchiveLimits;
pub use deployer::{DeployConfig, Deployer, OpenError, Restored, VERSIONS_KEPT};
pub use environment::{EnvironmentConfig, SourceBuilds};
