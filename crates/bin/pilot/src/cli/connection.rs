//! The options that say which daemon a command uses.

use clap::Args;

/// Which daemon to use.
#[derive(Debug, Clone, Args)]
pub(super) struct Connection {
    /// The daemon's address: unix:PATH or http://HOST:PORT [default: the control socket of the daemon on this machine]
    #[arg(
        long,
        global = true,
        env = "PILOT_ENDPOINT",
        value_name = "ADDRESS",
        help_heading = "Client options"
    )]
    pub(super) endpoint: Option<String>,
    /// A token, which the daemon requires over TCP
    #[arg(
        long,
        global = true,
        env = "PILOT_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Client options"
    )]
    pub(super) token: Option<String>,
}
