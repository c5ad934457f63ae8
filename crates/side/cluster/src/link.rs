//! The socket of a link, and the limits of HTTP/2 on it.

use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

/// What a sender may send of one call before it is taken, bytes: 130 ms of 1 Gbit/s, so that neither the delay of a link nor a busy CPU makes
/// the sender wait.
pub(crate) const STREAM_WINDOW: u32 = 16 << 20;
/// The same for all calls of a connection.
pub(crate) const CONNECTION_WINDOW: u32 = 32 << 20;
/// Bytes of a frame.
pub(crate) const FRAME_LEN_MAX: u32 = 256 << 10;
/// Bytes of a call's headers.
pub(crate) const HEADERS_LEN_MAX: u32 = 16 << 10;

/// The kernel gives the connection up if nothing is acknowledged for this time, also while nothing is sent (tcp(7)). It counts progress
/// and not the time of a round trip through full buffers, as a ping of HTTP/2 would.
pub(crate) fn prepare(socket: &TcpStream, silence_max: Duration) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let ms = u32::try_from(silence_max.as_millis()).unwrap_or(u32::MAX);
    setsockopt(socket, sockopt::TcpUserTimeout, &ms)?;
    setsockopt(socket, sockopt::KeepAlive, &true)?;
    let probe_s = u32::try_from(silence_max.as_secs() / PROBES).unwrap_or(u32::MAX);
    let probe_s = probe_s.clamp(1, PROBE_S_MAX);
    setsockopt(socket, sockopt::TcpKeepIdle, &probe_s)?;
    setsockopt(socket, sockopt::TcpKeepInterval, &probe_s)?;
    Ok(())
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

const PROBES: u64 = 3;
/// The kernel takes no more.
const PROBE_S_MAX: u32 = 32_767;
