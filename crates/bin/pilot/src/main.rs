//! `pilot`: the one binary, which is the daemon (`pilot serve`) and its command line client.
//!
//! `cli` parses the arguments, `serve` runs the daemon. `component` has the commands that run in sandboxes, for functions that are
//! WebAssembly components and for decoders of inputs.

use std::process::ExitCode;

mod assemble;
mod async_runner;
mod cli;
mod component;
mod control_socket;
mod daemon_config;
mod data_dir;
mod listen;
mod listening;
mod room;
mod sealing;
mod serve;
mod serve_args;
mod supervisor;
mod tls;
mod tokens;
mod triggered;
mod unix_path;

/// A warm request makes some twenty allocations, a few of them of several kilobytes, for which the C library has no fast path: with its
/// allocator they take 3 µs more. That of musl is slower still.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    component::main().unwrap_or_else(cli::main)
}
