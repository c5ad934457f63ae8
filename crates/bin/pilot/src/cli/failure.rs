//! How a command can fail, and the exit code of each failure.

use pilot_model::FunctionName;
use pilot_model::api::ApiError;

use super::interrupt;
use crate::invalid::Invalid;

/// Failures with an exit code of their own. Every other error has [`GENERAL`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// No daemon answers at the endpoint.
    #[error(
        "no daemon at {endpoint}: {}, or name another one with --endpoint or PILOT_ENDPOINT (unix:DATA_DIR, http://HOST:PORT or https://HOST:PORT)",
        remedy(endpoint, *has_address)
    )]
    Unreachable {
        /// The endpoint.
        endpoint: String,
        /// Whether the name of its host has an address.
        has_address: bool,
    },
    /// No server answers that is to be measured.
    #[error("{problem}")]
    NoServer {
        /// Which server, and why not.
        problem: String,
    },
    /// Invalid arguments.
    #[error("{problem}")]
    Usage {
        /// What is wrong, and what would be valid.
        problem: String,
    },
    /// The daemon refused the request.
    #[error("{}", .error.message)]
    Refused {
        /// HTTP status; 200 if the refusal came inside a stream.
        status: u16,
        /// The daemon's error.
        error: ApiError,
    },
    /// The daemon hung up while it deployed.
    #[error(
        "the daemon hung up before the deployment of '{name}' was over ({problem}): it is not known whether it is deployed. When the daemon \
         runs again, `pilot list` and `pilot describe {name}` show which version is live"
    )]
    HungUp {
        /// The function.
        name: FunctionName,
        /// How the connection ended.
        problem: String,
    },
    /// The command has already printed the error.
    #[error("reported")]
    Reported,
    /// The same, of a file or folder that is invalid or missing.
    #[error("reported")]
    InputReported,
    /// The user has interrupted the command (Ctrl-C). It has printed what it has so far.
    #[error("interrupted")]
    Interrupted,
    /// The command was told to end (SIGTERM).
    #[error("terminated")]
    Terminated,
    /// The reader of the output has closed it (`pilot list | head -1`). Not a failure.
    #[error("the reader of the output has closed it")]
    ReaderGone,
}

impl Failure {
    /// A [`Failure::Usage`].
    pub(super) fn usage(problem: impl Into<String>) -> Self {
        Self::Usage {
            problem: problem.into(),
        }
    }

    /// An invalid or missing file or folder of the user, whatever went wrong with it.
    pub(super) fn input(error: &anyhow::Error) -> Self {
        Self::usage(Invalid::of(error).to_string())
    }

    /// The exit code of the process.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::ReaderGone => 0,
            Self::Refused { .. } | Self::HungUp { .. } | Self::Reported => GENERAL,
            Self::Usage { .. } | Self::InputReported => 2,
            Self::Unreachable { .. } | Self::NoServer { .. } => 3,
            Self::Interrupted => interrupt::EXIT_CODE,
            Self::Terminated => interrupt::EXIT_CODE_TERMINATED,
        }
    }
}

/// How there would be a daemon at the endpoint.
fn remedy(endpoint: &str, has_address: bool) -> &'static str {
    match endpoint.starts_with("unix:") {
        false if !has_address => "the name of the host has no address: check it",
        true => "start one with `pilot serve`",
        false => {
            "check the address, and that a daemon listens there (`pilot serve --control-listen`)"
        }
    }
}

/// The exit code of all other failures.
pub(super) const GENERAL: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_daemon_is_told_apart_by_its_exit_code_and_says_what_to_do() {
        for (endpoint, has_address, remedy) in [
            ("unix:/d/control.sock", true, "start one with `pilot serve`"),
            (
                "http://nosuch.invalid",
                false,
                "the name of the host has no address: check it",
            ),
            (
                "http://192.0.2.1:1",
                true,
                "check the address, and that a daemon listens there (`pilot serve --control-listen`)",
            ),
        ] {
            let failure = Failure::Unreachable {
                endpoint: endpoint.to_owned(),
                has_address,
            };
            assert_eq!(failure.exit_code(), 3);
            assert_eq!(
                failure.to_string(),
                format!(
                    "no daemon at {endpoint}: {remedy}, or name another one with --endpoint or PILOT_ENDPOINT \
                     (unix:DATA_DIR, http://HOST:PORT or https://HOST:PORT)"
                )
            );
        }
        assert_eq!(Failure::usage("x").exit_code(), 2);
        assert_eq!(Failure::ReaderGone.exit_code(), 0);
    }
}
