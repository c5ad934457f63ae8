//! The gateway's named bounds, and whom it lets in.

use std::time::Duration;

use crate::forward::TrustForwarded;
use crate::token::InvokeToken;

/// The gateway's named bounds, and whom it lets in.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Open connections; at the limit, new ones wait in the kernel's backlog.
    pub connections_max: usize,
    /// From the beginning of a connection, or the end of a response, to the end of the next request's head.
    pub header_timeout: Duration,
    /// Between two pieces of a request's body.
    pub body_timeout: Duration,
    /// The longest that one write waits for a client which does not read.
    pub write_timeout: Duration,
    /// The longest that nothing passes through a connection which was upgraded (a WebSocket), in either direction.
    pub tunnel_idle: Duration,
    /// What running requests get when the daemon stops.
    pub grace: Duration,
    /// Largest request body that is read here, bytes; those that pass through to a function's server have no limit. Not more than
    /// the invoker's `payload_bytes_max`; a binary body for an event grows by a third before that one is asked.
    pub body_bytes_max: usize,
    /// All request bodies of more than 64 KiB in flight together, bytes.
    pub bodies_bytes_max: usize,
    /// Largest result of an event function, bytes.
    pub result_bytes_max: usize,
    /// What callers of functions must show; `None`: nothing.
    pub invoke_token: Option<InvokeToken>,
    /// Whose `X-Forwarded-*` headers are believed.
    pub trust_forwarded: TrustForwarded,
}

impl Default for GatewayConfig {
    /// AWS Lambda's payload limits (its results may have 100 bytes more than 6 MiB).
    fn default() -> Self {
        Self {
            connections_max: 1024,
            header_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            tunnel_idle: Duration::from_secs(600),
            grace: Duration::from_secs(30),
            body_bytes_max: 6 * 1024 * 1024,
            bodies_bytes_max: 256 * 1024 * 1024,
            result_bytes_max: 6 * 1024 * 1024 + 100,
            invoke_token: None,
            trust_forwarded: TrustForwarded::default(),
        }
    }
}
