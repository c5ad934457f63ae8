//! The arguments of `pilot serve`, as they are typed. `daemon_config` says what they mean.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The arguments of `pilot serve`. An argument wins over the configuration file.
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
