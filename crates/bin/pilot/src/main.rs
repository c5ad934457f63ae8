//! `pilot`: the one binary. The daemon (`pilot serve`) and every verb that speaks to it.
//!
//! Nothing is decided here: `cli` reads the arguments, `serve` runs the daemon.

use std::process::ExitCode;

mod assemble;
mod cli;
mod daemon_config;
mod serve;
mod serve_args;

fn main() -> ExitCode {
    cli::main()
}
