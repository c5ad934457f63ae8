//! The state of a connection that its requests need.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::Version;

use super::interim::Interim;
use crate::upgraded::Upgraded;

/// The state of a connection. Shared by the code that serves requests and the code that closes the socket. Both run in the
/// connection's task, so the atomics are never contended.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: AtomicBool,
    body_unread: AtomicBool,
    ends_by_closing: AtomicBool,
    broke_off: AtomicBool,
    upgraded: AtomicBool,
    /// A request's head was read, and its response has not begun.
    in_request: AtomicBool,
    half_closed: AtomicBool,
    body_malformed: AtomicBool,
    /// How many heads were read.
    requests: AtomicU32,
    /// The client took too long to send a head.
    too_slow: AtomicBool,
    interim: Interim,
}

impl Usage {
    /// A request's head was read.
    pub(crate) fn request_began(&self, version: Version, has_body: bool) {
        self.used.store(true, Ordering::Relaxed);
        // Only this connection's task writes it.
        let requests = self.requests.load(Ordering::Relaxed).wrapping_add(1);
        self.requests.store(requests, Ordering::Relaxed);
        self.body_unread.store(has_body, Ordering::Relaxed);
        self.in_request.store(true, Ordering::Relaxed);
        self.ends_by_closing
            .store(version < Version::HTTP_11, Ordering::Relaxed);
    }

    /// The request's body was read to the end.
    pub(crate) fn body_was_read(&self) {
        self.body_unread.store(false, Ordering::Relaxed);
    }

    /// The head of the response is made.
    pub(crate) fn response_begins(&self) {
        self.in_request.store(false, Ordering::Relaxed);
    }

    /// How many heads were read; it may wrap around.
    pub(super) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether the client may be sending a head now, and nothing else.
    pub(super) fn expects_head(&self) -> bool {
        !self.in_request.load(Ordering::Relaxed)
            && !self.body_unread.load(Ordering::Relaxed)
            && !self.is_upgraded()
    }

    /// The client took too long to send something.
    pub(crate) fn was_too_slow(&self) {
        self.too_slow.store(true, Ordering::Relaxed);
    }

    /// Whether it did.
    pub(super) fn is_too_slow(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed)
    }

    /// Whether the whole request was read, and its response has not begun.
    pub(super) fn awaits_response(&self) -> bool {
        self.in_request.load(Ordering::Relaxed)
            && !self.body_unread.load(Ordering::Relaxed)
            && !self.is_upgraded()
    }

    /// The client has closed its direction of the connection and waits for the response.
    pub(super) fn client_half_closed(&self) {
        self.half_closed.store(true, Ordering::Relaxed);
    }

    /// Whether it has done so. Then its connection ends with this response.
    pub(crate) fn is_half_closed(&self) -> bool {
        self.half_closed.load(Ordering::Relaxed)
    }

    /// The request's body is not what its head says.
    pub(crate) fn body_is_malformed(&self) {
        self.body_malformed.store(true, Ordering::Relaxed);
    }

    /// Whether the request's body is not what its head says.
    pub(crate) fn has_malformed_body(&self) -> bool {
        self.body_malformed.load(Ordering::Relaxed)
    }

    /// The interim responses to the current request.
    pub(crate) fn interim(&self) -> &Interim {
        &self.interim
    }

    /// Whether the client understands interim responses, which HTTP/1.0 does not have, and the final one has not begun.
    pub(crate) fn takes_interim(&self) -> bool {
        self.in_request.load(Ordering::Relaxed) && !self.ends_by_closing.load(Ordering::Relaxed)
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// The body of a response was interrupted.
    pub(super) fn response_broke_off(&self) {
        self.broke_off.store(true, Ordering::Relaxed);
    }

    /// Whether an orderly close would make an interrupted response look complete: in HTTP/1.0 a stream ends with the connection.
    pub(super) fn must_reset(&self) -> bool {
        self.broke_off.load(Ordering::Relaxed) && self.ends_by_closing.load(Ordering::Relaxed)
    }

    /// Whether a head was read.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether the client may still be sending when the connection closes: the body of its last request, or a malformed first
    /// request, which hyper rejects.
    pub(super) fn must_linger(&self) -> bool {
        // The server at the other end reads the bytes of a tunnel.
        !self.is_upgraded() && (self.body_unread.load(Ordering::Relaxed) || !self.is_used())
    }
}

/// What requests see of their connection.
#[derive(Debug)]
pub(crate) struct Line {
    peer: SocketAddr,
    usage: Arc<Usage>,
    /// What the connection becomes after its response. Not in `usage`, which is shared with the socket that this holds.
    upgraded: Mutex<Option<Upgraded>>,
}

impl Line {
    pub(super) fn new(peer: SocketAddr, usage: Arc<Usage>) -> Self {
        Self {
            peer,
            usage,
            upgraded: Mutex::default(),
        }
    }

    /// The client's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// What the connection becomes after the current response.
    pub(crate) fn becomes(&self, upgraded: impl Into<Upgraded>) {
        self.usage.upgraded.store(true, Ordering::Relaxed);
        *self.slot() = Some(upgraded.into());
    }

    pub(super) fn take_upgraded(&self) -> Option<Upgraded> {
        self.slot().take()
    }

    fn slot(&self) -> MutexGuard<'_, Option<Upgraded>> {
        // The lock cannot be poisoned: only a value is moved in or out while it is held.
        self.upgraded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
