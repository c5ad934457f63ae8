//! Processes: from a template to a worker in its own sandbox.
//!
//! ```text
//! daemon ─▶ spawner ─▶ init of a template's sandbox ─▶ template (Python) ──fork──▶ worker
//!                              └▶ init of a worker's sandbox: namespaces, /tmp, /proc ──▲ entered with setns
//! ```
//! - [`spawner`] is a small process that is forked before the daemon has threads: only it builds root file systems.
//! - Every sandbox has an [`init`], which is process 1 of its PID namespace and runs code of this crate. Closing its control socket
//!   ends the sandbox and everything in it.
//! - A template forks, and the child enters a sandbox that was made before, so that a start does not wait for namespaces.
//! - [`hold`] shows inputs as files to programs that cannot receive descriptors.
//! - [`build`] runs installers and compilers in sandboxes.
//! - [`decode`] runs decoders of inputs in sandboxes.
//! - [`engine`] owns the tree of templates (interpreter → environment → function) and implements the `Engine` port.
//!
//! User code never has a capability outside the user namespace of its own function or environment; `docs/security-model.md`
//! lists those that it has inside.

mod build;
pub mod cgroup;
mod channel;
mod child;
mod control;
mod daemon_id;
mod decode;
mod descriptors;
pub mod engine;
pub mod filter;
mod hold;
mod init;
pub mod isolation;
mod kernel_memory_watch;
mod living_thread;
mod machine;
mod memory;
mod message;
mod native;
mod network;
mod pace;
mod places;
mod process_ids;
mod process_table;
mod refused;
mod rootfs;
mod runtime_files;
mod sandbox;
mod slots;
pub mod spawner;
mod template;
mod variables;
mod worker;

pub use build::{BuildLimits, SandboxedBuilds};
pub use decode::SandboxedDecoders;
pub use engine::ForkEngine;
pub use isolation::{Enforcement, Finding, Isolation};
pub use machine::{EngineConfig, EngineError, Machine};
pub use native::NativeHost;
pub use network::{OUTBOUND_CIDR_DEFAULT, forwarding_left_behind};
pub use spawner::Spawner;
