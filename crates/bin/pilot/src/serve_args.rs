//! The arguments of `pilot serve`, as typed. `daemon_config` resolves them.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The arguments of `pilot serve`. An argument wins over the configuration file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServeArgs {
    /// Address for functions, ADDRESS:PORT or NAME:PORT [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR", value_parser = crate::listen::address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Address for the control API, in addition to its socket in the data directory; over it, every request needs a token
    #[arg(long, value_name = "ADDR", value_parser = crate::listen::address)]
    pub(crate) control_listen: Option<SocketAddr>,
    /// TLS on the address for functions: the certificate and those of its issuers (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// TLS on the address for the control API: its certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) control_tls_certificate: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) control_tls_key: Option<PathBuf>,
    /// Also accept HTTP/2 without TLS from clients that begin with it (h2c with prior knowledge)
    #[arg(long)]
    pub(crate) h2c: bool,
    /// Data directory: functions, environments, logs [default: /var/lib/pilotlight for root, otherwise $XDG_DATA_HOME/pilotlight or
    /// ~/.local/share/pilotlight]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The daemon's configuration file, pilotd.toml; without this option, none is read
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Refuse to start if the machine cannot enforce every limit
    #[arg(long)]
    pub(crate) strict: bool,
    /// Format of the daemon's own log [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// Level of the daemon's own log: error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = log_level)]
    pub(crate) log_level: Option<String>,
    /// Stop when standard input closes. `pilot dev` uses it so that its daemon ends with it
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
}

fn log_level(text: &str) -> Result<String, pilot_telemetry::logging::LoggingError> {
    pilot_telemetry::logging::check_level(text).map(|()| text.to_owned())
}

/// Format of the daemon's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text lines.
    Text,
    /// A JSON object per line.
    Json,
}
