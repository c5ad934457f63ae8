//! Why an invocation has no answer. The gateway's table translates each variant to a status.

use std::time::Duration;

use bytes::Bytes;
use pilot_model::FunctionName;
use pilot_model::calls::Refusal;
use pilot_model::ports::{InputFault, StartError, WorkerFault};
use pilot_model::size::Size;

/// Why an invocation has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvokeError {
    /// No function of this name is deployed.
    #[error("there is no function named '{name}': deploy it, or see `pilot list`")]
    FunctionNotFound {
        /// The requested name, cut to 100 characters.
        name: String,
    },
    /// The function has no such version (any more).
    #[error(
        "function '{name}' has no version '{qualifier}': use a version number of `pilot describe {name}`, or $LATEST"
    )]
    VersionNotFound {
        /// The function.
        name: String,
        /// The requested qualifier, cut to 100 characters.
        qualifier: String,
    },
    /// It is deployed but cannot be run: its files are missing or damaged.
    #[error("function '{name}' is broken: {problem}")]
    Broken {
        /// The function.
        name: String,
        /// Why, and what to do.
        problem: String,
    },
    /// The function has reached one of its limits.
    #[error("function '{name}' {reason}")]
    TooManyRequests {
        /// The function.
        name: FunctionName,
        /// Which limit.
        reason: ThrottleReason,
        /// When the client should try again, seconds.
        retry_after_s: u32,
    },
    /// The payload exceeds the limit.
    #[error("the payload of {} is over the limit of {}", Size(*.bytes as u64), Size(*.bytes_max as u64))]
    PayloadTooLarge {
        /// The payload.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// No worker could be started, in several attempts. (If a handler cannot be imported, that is an answer and not this error.)
    #[error("no worker of function '{name}' came up: {error}")]
    StartFailed {
        /// The function.
        name: FunctionName,
        /// The error of the last attempt.
        error: StartError,
    },
    /// The timeout passed while the body was streamed; the worker was ended.
    #[error("task timed out after {:.2} seconds, in the middle of its response body", .after.as_secs_f64())]
    BodyTimedOut {
        /// The function's timeout.
        after: Duration,
    },
    /// The worker ended while the body was streamed.
    #[error("the response body broke off: {fault}")]
    BodyBroken {
        /// How it ended.
        fault: WorkerFault,
    },
    /// The application raised while its body was streamed; the worker can still be used.
    #[error(
        "the response body broke off: the application raised an exception, see the function's log"
    )]
    BodyRaised {
        /// Lambda's error body, JSON.
        body: Bytes,
    },
    /// The request's body broke off before there was a response from the function's server.
    #[error("the request's body did not arrive: {problem}")]
    UploadBroken {
        /// Why.
        problem: String,
    },
    /// The request's body is an input of the function, and cannot be used.
    #[error("the request's body cannot be the input \"{}\": {}", .fault.input, .fault.problem)]
    BodyInput {
        /// Why.
        fault: InputFault,
    },
    /// It is on other nodes, and none has run it, or none has answered.
    #[error("function '{name}' is on other nodes: {}", .refusal.problem)]
    Elsewhere {
        /// The function.
        name: FunctionName,
        /// Why there is no answer.
        refusal: Refusal,
    },
    /// The daemon is stopping.
    #[error("the daemon is shutting down: try again once it is back")]
    ShuttingDown,
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ThrottleReason {
    /// `scale.max` workers are busy and the queue is full.
    QueueFull,
    /// The queue takes longer than it may wait, or than the caller's deadline permits.
    Late,
    /// It waited in the queue for as long as it may.
    QueueTimeout,
    /// No worker is ready. It waited for a start for as long as it may.
    StartTimeout,
}

impl ThrottleReason {
    /// The value of the `Reason` field in Lambda's `TooManyRequestsException`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "ReservedFunctionConcurrentInvocationLimitExceeded",
            Self::Late => "FunctionInvocationRateLimitExceeded",
            Self::QueueTimeout | Self::StartTimeout => {
                "ReservedFunctionInvocationRateLimitExceeded"
            }
        }
    }
}

impl std::fmt::Display for ThrottleReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "is at its limit: its queue is full; try again, or raise scale.max",
            Self::Late => {
                "is at its limit: no worker becomes free before its deadline (scale.max_wait_s, timeout_s, or what the request says); \
                 try again, or raise scale.max"
            }
            Self::QueueTimeout => {
                "is at its limit: no worker became free in time (scale.max_wait_s, timeout_s, or what the request says); try again, or \
                 raise scale.max"
            }
            Self::StartTimeout => {
                "has no worker, and the one that starts was not ready in time; try again, give the request more time, or keep a worker \
                 with scale.min"
            }
        })
    }
}
