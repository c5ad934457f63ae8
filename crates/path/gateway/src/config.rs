//! The gateway's limits and its access control.

use std::time::Duration;

use pilot_protocols::AnswerMemory;

use crate::forward::TrustForwarded;
use crate::token::InvokeToken;

/// The gateway's limits and its access control.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Highest number of open connections. Further ones wait in the kernel's backlog.
    pub connections_max: usize,
    /// Longest time from the beginning of a connection, or the end of a response, to the end of the next request's head.
    pub header_timeout: Duration,
    /// Longest time between two pieces of a request's body.
    pub body_timeout: Duration,
    /// Longest time that one write waits for a client that does not read.
    pub write_timeout: Duration,
    /// Longest time without traffic, in either direction, on an upgraded connection (a WebSocket).
    pub tunnel_idle: Duration,
    /// Time that running requests get when the daemon stops.
    pub grace: Duration,
    /// Largest request body, bytes. Bodies that are streamed to a function's server have no limit. Not more than the invoker's
    /// `payload_bytes_max`, which applies after base64 has made a binary body a third larger.
    pub body_bytes_max: usize,
    /// Limit for all request bodies of more than 64 KiB together, bytes.
    pub bodies_bytes_max: usize,
    /// Largest result of an event function, bytes.
    pub result_bytes_max: usize,
    /// Holds responses that are gathered, and long messages of WebSockets.
    pub answers: AnswerMemory,
    /// Token that callers of functions must send, if any.
    pub invoke_token: Option<InvokeToken>,
    /// The control API requires a token, which its handler checks.
    pub control_requires_token: bool,
    /// The daemon's names, apart from `localhost`. Without a token, the control API and the Invoke API refuse requests that name
    /// another host, or come from a web page of another site.
    pub hosts: Vec<String>,
    /// Whose `X-Forwarded-*` headers are trusted.
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
            answers: AnswerMemory::default(),
            invoke_token: None,
            control_requires_token: false,
            hosts: Vec::new(),
            trust_forwarded: TrustForwarded::default(),
        }
    }
}
