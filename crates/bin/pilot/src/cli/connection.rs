//! The options that say which daemon a command uses.

use clap::Args;

/// Which daemon to use.
#[derive(Debug, Clone, Args)]
pub(super) struct Connection {
    /// The daemon's address
    #[arg(
        long,
        global = true,
        env = "PILOT_ENDPOINT",
        value_name = "URL",
        default_value = DEFAULT_ENDPOINT,
        help_heading = "Client options"
    )]
    pub(super) endpoint: String,
    /// The daemon's bearer token, if it requires one
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

const DEFAULT_ENDPOINT: &str = "http://127.0.0.1:8080";
