//! Containers through the Docker Engine API, as runtimes that are kept and reused (HotC): [`ContainerHost`] implements the port
//! [`RuntimeHost`](pilot_model::ports::RuntimeHost).
//!
//! Process 1 of every container is a shim of ours (`base/sys/native/shim.c`), so that a container of an image is *pre-warmed* until a
//! function is loaded into it: what the image itself would run is started, like everything else, through the shim. Engine calls
//! make and remove containers and change their limits and network; nothing that happens per invocation, and nothing on the
//! way from a cleaned container to a function's worker, needs the engine.
//!
//! Not here: which container to use, keep or give up (`path/pool`); what is said to workers by HTTP (`base/protocols`).

mod cgroup;
mod container;
mod engine;
mod environment;
mod folder;
mod host;
mod image;
mod instance;
mod output;
mod program_worker;
mod reaper;
mod shim;
mod watch;

pub use host::{ContainerConfig, ContainerHost};
