//! The bytes that pass beside a body: through a tunnel, or as the messages of a WebSocket.

use std::sync::atomic::AtomicU64;

/// Bytes that have passed so far. The gateway counts them.
#[derive(Debug, Default)]
pub struct TunnelTraffic {
    /// From the client to the server.
    pub bytes_in: AtomicU64,
    /// From the server to the client.
    pub bytes_out: AtomicU64,
}
