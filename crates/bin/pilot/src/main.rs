//! `pilot`: the one binary, which is the daemon (`pilot serve`) and its command line client.
//!
//! `cli` parses the arguments, `serve` runs the daemon. `component` has the commands that run in sandboxes, for functions that are
//! WebAssembly components and for decoders of inputs.

use std::process::ExitCode;

mod assemble;
mod async_runner;
mod busy_poll;
mod cli;
mod component;
mod control_socket;
mod daemon_config;
mod data_dir;
mod heap;
mod invalid;
mod listen;
mod listening;
mod open_files;
mod room;
mod sealing;
mod serve;
mod serve_args;
mod supervisor;
mod tls;
mod tokens;
mod triggered;
mod unix_path;

fn main() -> ExitCode {
    component::main().unwrap_or_else(cli::main)
}
