//! What is known about a connection while requests are served on it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Version;

use crate::tunnel::Tunnel;

/// What has become of a connection so far. Shared by the side that serves requests and the side that closes the socket; both
/// run in the connection's task, so that nothing but the compiler asks for the atomics.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: AtomicBool,
    body_unread: AtomicBool,
    ends_by_closing: AtomicBool,
    broke_off: AtomicBool,
    upgraded: AtomicBool,
}

impl Usage {
    /// A request's head was read.
    pub(crate) fn request_began(&self, version: Version, has_body: bool) {
        self.used.store(true, Ordering::Relaxed);
        self.body_unread.store(has_body, Ordering::Relaxed);
        self.ends_by_closing
            .store(version < Version::HTTP_11, Ordering::Relaxed);
    }

    /// Its body was read to the end.
    pub(crate) fn body_was_read(&self) {
        self.body_unread.store(false, Ordering::Relaxed);
    }

    /// A response's body failed in the middle.
    pub(super) fn response_broke_off(&self) {
        self.broke_off.store(true, Ordering::Relaxed);
    }

    /// Whether an orderly close would make half a response look whole: HTTP/1.0 knows no other end of a stream.
    pub(super) fn must_reset(&self) -> bool {
        self.broke_off.load(Ordering::Relaxed) && self.ends_by_closing.load(Ordering::Relaxed)
    }

    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether the client may still be sending when the connection closes: the body of its last request, or a first request so
    /// malformed that it never came to an answer of ours.
    pub(super) fn must_linger(&self) -> bool {
        // What comes through a tunnel is its server's to read.
        !self.upgraded.load(Ordering::Relaxed)
            && (self.body_unread.load(Ordering::Relaxed) || !self.is_used())
    }
}

/// A connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct Line {
    peer: SocketAddr,
    usage: Arc<Usage>,
    /// What the connection becomes once it has said so. Not in `usage`: that is shared with the socket, which the tunnel holds.
    tunnel: Mutex<Option<Tunnel>>,
}

impl Line {
    pub(super) fn new(peer: SocketAddr) -> Self {
        Self {
            peer,
            usage: Arc::default(),
            tunnel: Mutex::default(),
        }
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// With the response that is under way HTTP ends here.
    pub(crate) fn becomes(&self, tunnel: Tunnel) {
        self.usage.upgraded.store(true, Ordering::Relaxed);
        *self.slot() = Some(tunnel);
    }

    pub(super) fn take_tunnel(&self) -> Option<Tunnel> {
        self.slot().take()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Tunnel>> {
        // Nothing panics while it is held: only a tunnel is moved in or out.
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
