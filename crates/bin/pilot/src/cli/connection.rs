//! The options that say which daemon a command talks to.

use clap::Args;

/// Which daemon to speak to.
#[derive(Debug, Clone, Args)]
pub(super) struct Connection {
    /// The daemon to speak to
    #[arg(
        long,
        global = true,
        env = "PILOT_ENDPOINT",
        value_name = "URL",
        default_value = DEFAULT_ENDPOINT,
        help_heading = "Client options"
    )]
    pub(super) endpoint: String,
    /// Its bearer token, if it wants one
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
