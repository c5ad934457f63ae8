//! Why a measurement ended without a result.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Not an address that can be loaded.
    #[error("'{url}' {problem}, for example http://127.0.0.1:8080/fn/hello/")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Nobody accepts connections there.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A connection broke.
    #[error("{doing} failed: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The server closed a connection too early.
    #[error("the server closed the connection before its answer was complete")]
    Closed,
    /// No answer in time.
    #[error("{waiting} requests had no answer within {patience:?}")]
    Silent {
        /// How many were waiting.
        waiting: usize,
        /// How long.
        patience: Duration,
    },
    /// What came is not HTTP/1.1 as it is understood here.
    #[error("the server's answer {problem}: {head:?}")]
    Answer {
        /// What is wrong with it.
        problem: &'static str,
        /// How it begins.
        head: String,
    },
    /// The request that comes before each round was refused.
    #[error("the request before a round was answered {status}: {body}")]
    Before {
        /// HTTP status.
        status: u16,
        /// The beginning of its body.
        body: String,
    },
}

impl LoadError {
    /// For `map_err`.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
