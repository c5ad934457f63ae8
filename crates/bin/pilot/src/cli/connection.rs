//! The options that say which daemon a command uses. The only place that knows where its address and its token come from.
//!
//! The environment is read here and not by clap. Otherwise clap's usage lines would show `--endpoint` as an option that is required.

use std::env;
use std::path::PathBuf;

use clap::Args;

/// Which daemon to use.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Connection {
    /// The daemon's address: unix:PATH, http://HOST:PORT or https://HOST:PORT [env: PILOT_ENDPOINT] [default: the control socket of
    /// the daemon on this machine]
    #[arg(
        long = "endpoint",
        global = true,
        value_name = "ADDRESS",
        help_heading = "Client options"
    )]
    pub(super) given: Option<String>,
    /// A token, which the daemon requires over TCP [env: PILOT_TOKEN]
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        help_heading = "Client options"
    )]
    token: Option<String>,
    /// The certificates of the authorities to trust for https://, instead of the system's (PEM) [env: PILOT_CACERT]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Client options"
    )]
    cacert: Option<PathBuf>,
}

impl Connection {
    /// The daemon's address: the option, else the environment. `None`: the daemon of this machine.
    pub(super) fn endpoint(&self) -> Option<String> {
        let given = self.given.clone().or_else(|| variable(ENDPOINT));
        given.filter(|given| !given.is_empty())
    }

    /// The token: the option, else the environment.
    pub(super) fn token(&self) -> Option<String> {
        let token = self.token.clone().or_else(|| variable(TOKEN));
        token.filter(|token| !token.is_empty())
    }

    /// The file of the trusted authorities: the option, else the environment. `None`: those of the system.
    pub(super) fn authorities(&self) -> Option<PathBuf> {
        let given = self.cacert.clone();
        given.or_else(|| variable(AUTHORITIES).map(PathBuf::from))
    }
}

/// A command for the daemon at this address, as it can be typed in another terminal. `words` are the command without `pilot`.
/// `None`: the daemon of this machine.
pub(super) fn command_for(endpoint: Option<&str>, words: &str) -> String {
    match endpoint {
        Some(endpoint) if Connection::default().endpoint().as_deref() != Some(endpoint) => {
            format!("pilot {words} --endpoint {endpoint}")
        }
        _ => format!("pilot {words}"),
    }
}

/// A variable of the environment. An empty one is as if it were not set.
fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}

const ENDPOINT: &str = "PILOT_ENDPOINT";
const TOKEN: &str = "PILOT_TOKEN";
const AUTHORITIES: &str = "PILOT_CACERT";

/// Where a daemon without configuration listens for calls.
pub(super) const DEFAULT_FUNCTIONS: &str = "http://127.0.0.1:8080";
