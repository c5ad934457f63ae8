//! Why a measurement ended without a result.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Not a valid URL for a measurement.
    #[error("'{url}' {problem}, for example http://127.0.0.1:8080/fn/hello/")]
    Url {
        /// The given URL.
        url: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The URL's host has no address.
    #[error("the host of '{url}' has no address: check its name")]
    UnknownHost {
        /// The given URL.
        url: String,
    },
    /// No server accepts connections at the address.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// No TLS with the server.
    #[error("TLS with {address} failed: {source}")]
    Tls {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: rustls::Error,
    },
    /// A connection broke.
    #[error("{doing} failed: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The server closed a connection too early.
    #[error("the server closed the connection before its response was complete")]
    Closed,
    /// No response in time.
    #[error("{waiting} requests had no response within {patience:?}")]
    Silent {
        /// Number of waiting requests.
        waiting: usize,
        /// The time limit.
        patience: Duration,
    },
    /// The response is not HTTP/1.1, or uses a feature that the client does not support.
    #[error("the server's response {problem}: {head:?}")]
    Answer {
        /// What is wrong.
        problem: &'static str,
        /// Its beginning.
        head: String,
    },
    /// What is done before a round failed.
    #[error("before a round: {problem}")]
    Before {
        /// Why.
        problem: String,
    },
}

impl LoadError {
    /// For `map_err`.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
