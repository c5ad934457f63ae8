//! Errors of engine calls, as messages for whoever deploys or runs a function.

use bollard::errors::Error as Cause;
use pilot_model::ports::StartError;

use super::address::{Address, InvalidAddress};
use super::transport::is_too_long;

/// Why an engine call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum EngineError {
    #[error(transparent)]
    Address(#[from] InvalidAddress),
    #[error(
        "the container engine at {address} does not answer ({problem}); start it (Debian: apt install docker.io, then systemctl start \
         docker), or set its address in DOCKER_HOST"
    )]
    Unreachable { address: Address, problem: String },
    #[error(
        "there is no image '{image}' on the engine at {address}, and images are never pulled automatically; get it with `docker pull \
         {image}`, `docker build -t {image} .` or `docker import FILE.tar {image}`"
    )]
    NoImage { image: String, address: Address },
    #[error("the container engine did not {what}: {message} (status {status})")]
    Refused {
        what: &'static str,
        status: u16,
        message: String,
    },
    #[error("the container engine did not {what} in time; look at its log")]
    TooSlow { what: &'static str },
    #[error("could not {what}: {problem}")]
    Other { what: &'static str, problem: String },
}

impl EngineError {
    pub(super) fn of(what: &'static str, address: &Address, cause: Cause) -> Self {
        match cause {
            cause if is_too_long(&cause) => Self::Other {
                what,
                problem: root(&cause),
            },
            Cause::DockerResponseServerError {
                status_code,
                message,
            } => Self::Refused {
                what,
                status: status_code,
                message: message.trim().to_owned(),
            },
            Cause::RequestTimeoutError => Self::TooSlow { what },
            Cause::SocketNotFoundError(_) => Self::Unreachable {
                address: address.clone(),
                problem: "there is no such socket".to_owned(),
            },
            Cause::HyperLegacyError { .. }
            | Cause::HyperResponseError { .. }
            | Cause::IOError { .. } => Self::Unreachable {
                address: address.clone(),
                problem: root(&cause),
            },
            other => Self::Other {
                what,
                problem: root(&other),
            },
        }
    }
}

impl From<EngineError> for StartError {
    fn from(error: EngineError) -> Self {
        Self::Sandbox {
            problem: error.to_string(),
        }
    }
}

/// The innermost error: the outer ones only name libraries.
fn root(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
