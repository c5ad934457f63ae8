//! `pilot`: the one binary, which is the daemon (`pilot serve`) and its command line client.
//!
//! `cli` parses the arguments, `serve` runs the daemon.

use std::process::ExitCode;

mod assemble;
mod async_runner;
mod cli;
mod control_socket;
mod daemon_config;
mod data_dir;
mod listen;
mod listening;
mod room;
mod sealing;
mod serve;
mod serve_args;
mod tls;
mod tokens;
mod triggered;
mod unix_path;

fn main() -> ExitCode {
    cli::main()
}
