//! How a command can fail, and the exit code of each failure.

use pilot_model::api::ApiError;

/// Failures with an exit code of their own. Every other error has [`GENERAL`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// No daemon answers at the endpoint.
    #[error(
        "no daemon at {endpoint}: start one with `pilot serve`, or name it with --endpoint or PILOT_ENDPOINT (unix:DATA_DIR or http://HOST:PORT)"
    )]
    Unreachable {
        /// The endpoint.
        endpoint: String,
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
    /// The command has already printed the error.
    #[error("reported")]
    Reported,
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

    /// The exit code of the process.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::ReaderGone => 0,
            Self::Refused { .. } | Self::Reported => GENERAL,
            Self::Usage { .. } => 2,
            Self::Unreachable { .. } => 3,
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
        let failure = Failure::Unreachable {
            endpoint: "http://127.0.0.1:1".to_owned(),
        };
        assert_eq!(failure.exit_code(), 3);
        assert_eq!(
            failure.to_string(),
            "no daemon at http://127.0.0.1:1: start one with `pilot serve`, \
             or name it with --endpoint or PILOT_ENDPOINT (unix:DATA_DIR or http://HOST:PORT)"
        );
        assert_eq!(Failure::usage("x").exit_code(), 2);
        assert_eq!(Failure::ReaderGone.exit_code(), 0);
    }
}
