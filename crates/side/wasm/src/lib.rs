//! Initscripts: WebAssembly programs of functions that send their first requests while a worker starts (the paper `initscripts`,
//! sections 3 and 4).
//!
//! [`Initscripts`] is the port [`InitRunner`](pilot_model::ports::InitRunner). `module` checks and compiles, `host` is what a script can
//! call, `script` is a running one with its limits, requests and connections, `shared` keeps what shared scripts have sent, and `threads`
//! has the thread that runs scripts and the clock that stops them. What a script connects to is behind the port
//! [`Remotes`](pilot_model::ports::Remotes). When a script runs, and what waits for it, is decided in `path/invoke`.
//!
//! A script is hostile. Its machine code is made here and is never taken from outside; a process with limits compiles it on trial
//! first (`trial`). It has no system interface (no WASI). Its memory, its time, its CPU time, its calls and what it sends are
//! bounded. It begins on the thread of its invocation, for about a millisecond at most, and continues on the thread of scripts
//! (decision 0050). `turns` sees to it that no code runs on without looking whether its turn is over (decision 0056).

mod engine;
mod errors;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), expect(dead_code, reason = "the tests use the rest"))]
mod fakes;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod host;
mod module;
mod request;
mod runner;
mod script;
mod script_memory;
mod shared;
#[cfg(test)]
mod tests;
mod threads;
mod trial;
mod turns;

pub use runner::{Initscripts, InitscriptsConfig};
pub use trial::{Trials, trial};
