//! Containers through the Docker Engine API, as runtimes that are kept and reused (HotC): [`ContainerHost`] implements the port
//! [`RuntimeHost`](pilot_model::ports::RuntimeHost).
//!
//! Process 1 of every container is a shim (`base/sys/native/shim.c`), so that a container is *pre-warmed* until a function is
//! loaded into it: even the image's own program is started through the shim. Engine calls create and remove containers and
//! change their limits and network. Invocations, and making a worker from a cleaned container, do not need the engine.
//!
//! Not here: which container to use, keep or evict (`path/pool`); the HTTP protocols of workers (`base/protocols`).

mod cgroup;
mod container;
mod credentials;
mod engine;
mod environment;
mod folder;
mod hold;
mod host;
mod image;
mod instance;
mod output;
mod parts;
mod program_worker;
mod reaper;
mod rubbish;
mod secret_files;
mod shim;
mod usage;
mod volume;
mod watch;

pub use host::ContainerHost;
pub use parts::{ContainerConfig, ContainerGroup};
pub use volume::{VolumeLimit, available};
