//! How a verb can fail, and the exit code that comes of it. The one place that knows exit codes.

use pilot_model::api::ApiError;

/// Failures whose kind decides the exit code; whatever else fails is [`GENERAL`].
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Nobody listens at the endpoint.
    #[error(
        "no daemon at {endpoint}: start one with `pilot serve`, or name it with --endpoint or PILOT_ENDPOINT"
    )]
    Unreachable {
        /// Where it was looked for.
        endpoint: String,
    },
    /// The command line does not do.
    #[error("{problem}")]
    Usage {
        /// What is wrong with it and what would do.
        problem: String,
    },
    /// The daemon refused.
    #[error("{}", .error.message)]
    Refused {
        /// HTTP status; 200 where the refusal came inside a stream.
        status: u16,
        /// What it said.
        error: ApiError,
    },
    /// It has been told already, in a verb's own form.
    #[error("reported")]
    Reported,
    /// Whoever read the output has gone (`pilot list | head -1`): no failure.
    #[error("the reader of the output has gone")]
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

/// The exit code of every failure that is none of the others.
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
             or name it with --endpoint or PILOT_ENDPOINT"
        );
        assert_eq!(Failure::usage("x").exit_code(), 2);
        assert_eq!(Failure::ReaderGone.exit_code(), 0);
    }
}
