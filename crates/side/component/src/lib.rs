//! Functions that are WebAssembly components of the world `wasi:http/proxy` (`runtime = "wasm"`).
//!
//! Nothing here runs in the daemon. [`compile()`] is a command of a build, which has a sandbox of its own. [`serve`] is a worker: a process
//! in a function's sandbox that loads the compiled component and serves HTTP on loopback, as the server of an `http` function does. The
//! daemon starts it and speaks with it (`path/sandbox`, `base/protocols`).
//!
//! `engine` has the settings of wasmtime, `artefact` compiles and loads, `state` is what one instance has and may use, `memory` is the
//! memory that instances share, `outgoing` sends their requests, `instance` runs one, `answer` is its response, and `server` accepts.
//!
//! A component is hostile, and so may be a bug of wasmtime that it has found: what holds it then is the sandbox. So a compiled component
//! needs no more trust than any program of a function.

mod answer;
mod artefact;
mod engine;
mod instance;
mod memory;
mod outgoing;
mod server;
mod state;

pub use artefact::compile;
pub use server::serve;

/// An error and its causes in one line. Its text may have parts of the component.
pub(crate) fn in_words(error: &wasmtime::Error) -> String {
    pilot_model::log_line::one_line(&format!("{error:#}"), WORDS_MAX)
}

const WORDS_MAX: usize = 600;
