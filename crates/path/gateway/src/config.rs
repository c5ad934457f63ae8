//! The gateway's limits and its access control, for all listeners. `listener` has those of one listener.

use std::sync::Arc;
use std::time::Duration;

use pilot_model::Traces;
use pilot_model::access::Grant;
use pilot_model::ports::{AsyncQueue, NoQueue, Tokens};
use pilot_protocols::MemoryBudget;

use crate::body::disk::BodyFiles;
use crate::connection::pace::ReadPace;
use crate::forward::TrustForwarded;
use crate::peers::RefusedConnections;

/// The gateway's limits and its access control.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Longest time from the beginning of a connection, or the end of a response, to the end of the next request's head.
    pub header_timeout: Duration,
    /// Longest time from the first byte of a request's head to its end.
    pub head_time_max: Duration,
    /// Longest time between two pieces of a request's body.
    pub body_timeout: Duration,
    /// How fast a client must read its responses.
    pub read_pace: ReadPace,
    /// The same, while another response waits for the memory that the responses of the function hold.
    pub read_pace_wanted: ReadPace,
    /// Longest time without traffic, in either direction, on an upgraded connection (a WebSocket).
    pub tunnel_idle: Duration,
    /// Time that running requests get when the daemon stops.
    pub grace: Duration,
    /// Largest request body, bytes. Bodies that are streamed to a function's server, or are inputs, have no limit here. Not more than the
    /// invoker's `payload_bytes_max`, which applies after base64 has made a binary body a third larger.
    pub body_bytes_max: usize,
    /// Limit for all request bodies of more than 64 KiB together, bytes.
    pub bodies_bytes_max: usize,
    /// Where those are kept that arrive slowly, instead of in that memory. `None`: nowhere else.
    pub slow_bodies: Option<BodyFiles>,
    /// Largest result of an event function, bytes.
    pub result_bytes_max: usize,
    /// Holds responses that are gathered, and long messages of WebSockets.
    pub answers: MemoryBudget,
    /// Takes invocations whose callers do not wait.
    pub queue: Arc<dyn AsyncQueue>,
    /// The valid tokens.
    pub tokens: Arc<dyn Tokens>,
    /// Counts the connections that were turned away.
    pub refused: Arc<RefusedConnections>,
    /// The daemon's names, apart from `localhost`. Without a token, the Invoke API and the metrics refuse requests that name
    /// another host, or come from a web page of another site.
    pub hosts: Vec<String>,
    /// Whose `X-Forwarded-*` headers are trusted.
    pub trust_forwarded: TrustForwarded,
    /// Which requests are recorded. `None`: none, and what callers say of their traces is passed on.
    pub traces: Option<Arc<Traces>>,
}

impl Default for GatewayConfig {
    /// AWS Lambda's payload limits (its results may have 100 bytes more than 6 MiB).
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(60),
            head_time_max: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            read_pace: ReadPace {
                patience: Duration::from_secs(60),
                bytes_per_s: 4 << 10,
            },
            read_pace_wanted: ReadPace {
                // A socket takes more bytes when a third of its buffer of up to 4 MiB is free, so this is not shorter.
                patience: Duration::from_secs(20),
                bytes_per_s: 64 << 10,
            },
            tunnel_idle: Duration::from_secs(600),
            grace: Duration::from_secs(30),
            body_bytes_max: 6 * 1024 * 1024,
            bodies_bytes_max: 256 * 1024 * 1024,
            slow_bodies: None,
            result_bytes_max: 6 * 1024 * 1024 + 100,
            answers: MemoryBudget::default(),
            queue: Arc::new(NoQueue),
            tokens: Arc::new(NoTokens),
            refused: Arc::default(),
            hosts: Vec::new(),
            trust_forwarded: TrustForwarded::default(),
            traces: None,
        }
    }
}

/// No token is valid.
#[derive(Debug)]
struct NoTokens;

impl Tokens for NoTokens {
    fn grant(&self, _: &[u8]) -> Option<Arc<Grant>> {
        None
    }
}
