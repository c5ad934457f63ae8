//! `pilot serve`: reads the configuration and runs the daemon (`crate::serve`).

use std::io;

use nix::sys::signal::{self, Signal};

use super::failure::Failure;
use crate::daemon_config::DaemonConfig;
use crate::invalid::Invalid;
use crate::serve_args::ServeArgs;

/// Runs the daemon.
///
/// # Errors
/// The configuration is invalid, or see [`crate::serve::run`].
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let config = DaemonConfig::load(args).map_err(|error| Failure::input(&error))?;
    let served = crate::serve::run(&config, || {
        if args.until_stdin_closes {
            // Lives as long as the process.
            std::thread::Builder::new()
                .name("stdin".to_owned())
                .spawn(stop_when_stdin_closes)?;
        }
        Ok(())
    });
    served.map_err(|error| match error.is::<Invalid>() {
        true => Failure::input(&error).into(),
        false => error,
    })
}

/// Stops the daemon with SIGTERM, so that it drains.
fn stop_when_stdin_closes() {
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    let _ = signal::raise(Signal::SIGTERM);
}
