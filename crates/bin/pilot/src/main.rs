//! `pilot`: the one binary, which is the daemon (`pilot serve`) and its command line client.
//!
//! `cli` parses the arguments, `serve` runs the daemon.

use std::process::ExitCode;

mod assemble;
mod cli;
mod daemon_config;
mod listen;
mod room;
mod serve;
mod serve_args;

fn main() -> ExitCode {
    cli::main()
}
