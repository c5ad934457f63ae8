//! `pilot serve`: the daemon's arguments. The daemon itself is `crate::serve`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nix::sys::signal::{self, Signal};

/// What `pilot serve` takes. What is given here wins over the configuration file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where functions, environments and logs are kept
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The daemon's configuration file
    #[arg(long, value_name = "pilotd.toml")]
    pub(crate) config: Option<PathBuf>,
    /// Refuse to start where the machine cannot enforce every limit
    #[arg(long)]
    pub(crate) strict: bool,
    /// How the daemon's own log is written [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// What the daemon's own log tells: error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// Stop when the standard input closes: how `pilot dev` makes sure that its daemon never outlives it
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
}

/// How the daemon's log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Runs the daemon.
///
/// # Errors
/// See [`crate::serve::run`].
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    crate::serve::run(args, || {
        if args.until_stdin_closes {
            // Lives as long as the process does: it waits for nothing but the end.
            std::thread::Builder::new()
                .name("stdin".to_owned())
                .spawn(stop_when_stdin_closes)?;
        }
        Ok(())
    })
}

/// Stops the daemon the way everybody else does, so that it drains.
fn stop_when_stdin_closes() {
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    let _ = signal::raise(Signal::SIGTERM);
}
