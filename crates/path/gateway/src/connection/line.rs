//! The state of a connection that its requests need.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures_util::task::AtomicWaker;
use http::Version;
use hyper::body::Incoming;
use pilot_protocols::{FunctionBudget, PiecePace};

use super::interim::Interim;
use crate::upgraded::Upgraded;

/// The state of a connection, or of one stream of an HTTP/2 connection. Shared by the code that serves requests and the code that
/// closes the socket. Both run in the connection's task, so the atomics are never contended.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: AtomicBool,
    /// The connection is HTTP/2, so it has several requests at a time, each with a state of its own.
    multiplexed: AtomicBool,
    /// Something was written that is not flushed.
    writes: AtomicBool,
    /// The client's first byte is that of a TLS record.
    spoke_tls: AtomicBool,
    body_unread: AtomicBool,
    /// The body is read while the response is sent.
    body_streamed: AtomicBool,
    /// A handler of the control API has the body, and does not say whether it has read it.
    body_handed_over: AtomicBool,
    ends_by_closing: AtomicBool,
    broke_off: AtomicBool,
    upgraded: AtomicBool,
    /// A request's head was read, and its response has not begun.
    in_request: AtomicBool,
    /// The parts of a response are still being sent.
    streams_response: AtomicBool,
    half_closed: AtomicBool,
    /// The client has closed its direction before the end of the request's body.
    body_cut_off: AtomicBool,
    /// The code that reads from the client's socket.
    socket_reader: AtomicWaker,
    /// The code that reads the request's body, which may be another task's.
    body_reader: AtomicWaker,
    body_malformed: AtomicBool,
    /// How many heads were read.
    requests: AtomicU32,
    /// A request was answered since everything that the client has sent was read.
    had_turn: AtomicBool,
    /// The client took too long to send a head.
    too_slow: AtomicBool,
    /// The daemon drains, and does not wait for this client to read.
    unwaited: AtomicBool,
    interim: Interim,
    /// The memory of the function whose answer is being sent.
    answers: Mutex<Option<FunctionBudget>>,
    /// Of the bodies of requests.
    pieces: PiecePace,
    /// What nobody reads of the body of a request of HTTP/2.
    rest: Mutex<Option<Incoming>>,
}

impl Usage {
    /// A request's head was read. Said before hyper reads on, because the end of the client's direction means something else then.
    pub(crate) fn request_began(&self, version: Version, has_body: bool) {
        self.used.store(true, Ordering::Relaxed);
        // Only this connection's task writes it.
        let requests = self.requests.load(Ordering::Relaxed).wrapping_add(1);
        self.requests.store(requests, Ordering::Relaxed);
        self.body_unread.store(has_body, Ordering::Relaxed);
        self.body_streamed.store(false, Ordering::Relaxed);
        self.body_handed_over.store(false, Ordering::Relaxed);
        self.in_request.store(true, Ordering::Relaxed);
        *self.answers() = None;
        self.ends_by_closing
            .store(version < Version::HTTP_11, Ordering::Relaxed);
    }

    /// The client has sent nothing that is not read.
    pub(super) fn nothing_follows(&self) {
        self.had_turn.store(false, Ordering::Relaxed);
    }

    /// Lets everybody else go first if the client has sent this request without waiting for the answer to the one before (RFC 9112
    /// §9.3.2). hyper would answer many of them at once, and a client that sends them without end would keep a thread busy.
    pub(crate) async fn turn(&self) {
        if self.had_turn.swap(true, Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    /// The state of one stream of an HTTP/2 connection.
    pub(crate) fn of_stream() -> Self {
        Self {
            multiplexed: AtomicBool::new(true),
            ..Self::default()
        }
    }

    /// The connection is HTTP/2.
    pub(super) fn is_http2(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// Whether the request is one of HTTP/2.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// A stream of the connection has a request. The request has a state of its own.
    pub(super) fn stream_began(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Something is written, or everything has been given to the client's socket.
    pub(super) fn set_writes(&self, writes: bool) {
        let wrote = self.writes.swap(writes, Ordering::Relaxed);
        if wrote && !writes {
            // It may have hidden the end of the client's direction.
            self.socket_reader.wake();
        }
    }

    /// Whether the client's socket has not taken everything yet.
    pub(super) fn writes(&self) -> bool {
        self.writes.load(Ordering::Relaxed)
    }

    /// The client's first byte is that of a TLS record.
    pub(super) fn client_spoke_tls(&self) {
        self.spoke_tls.store(true, Ordering::Relaxed);
    }

    /// Whether it is.
    pub(super) fn has_spoken_tls(&self) -> bool {
        self.spoke_tls.load(Ordering::Relaxed)
    }

    /// The request's body was read to the end.
    pub(crate) fn body_was_read(&self) {
        self.body_unread.store(false, Ordering::Relaxed);
    }

    /// The request's body is read at the pace of a function, which may respond before its end.
    pub(crate) fn body_is_streamed(&self) {
        self.body_streamed.store(true, Ordering::Relaxed);
    }

    /// A handler of the control API has read the request's body, or reads it for its response.
    pub(crate) fn body_is_handed_over(&self) {
        self.body_handed_over.store(true, Ordering::Relaxed);
    }

    /// Whether nobody will read the rest of the request's body. Over HTTP/1, the next request on this connection comes behind it.
    pub(crate) fn leaves_body(&self) -> bool {
        self.has_unread_body() && !self.body_streamed.load(Ordering::Relaxed)
    }

    /// Whether a function responds before it has read the request's body. It need not read the rest.
    pub(crate) fn may_leave_body(&self) -> bool {
        self.has_unread_body() && self.body_streamed.load(Ordering::Relaxed)
    }

    fn has_unread_body(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed) && !self.body_handed_over.load(Ordering::Relaxed)
    }

    /// Keeps the unread rest of a body until the client has the response: when it is dropped, h2 resets the stream (RFC 9113
    /// §8.1), and some clients lose a response that comes together with the reset.
    pub(crate) fn keeps_rest(&self, rest: Incoming) {
        *self.rest.lock().unwrap_or_else(PoisonError::into_inner) = Some(rest);
    }

    /// The head of the response is made.
    pub(crate) fn response_begins(&self) {
        self.in_request.store(false, Ordering::Relaxed);
    }

    /// The head of a response is made whose body comes in parts, or the last part is with hyper.
    pub(crate) fn set_streams_response(&self, streams: bool) {
        self.streams_response.store(streams, Ordering::Relaxed);
    }

    /// Whether a request is being answered.
    pub(super) fn is_answering(&self) -> bool {
        self.in_request.load(Ordering::Relaxed) || self.streams_response.load(Ordering::Relaxed)
    }

    /// Whether the client has its answer, and the connection waits for the next request. Not for HTTP/2, whose requests have states of
    /// their own.
    pub(crate) fn rests(&self) -> bool {
        self.is_used() && self.expects_head() && !self.is_answering() && !self.writes()
    }

    /// How many heads were read; it may wrap around.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether the client may be sending a head now, and nothing else.
    pub(super) fn expects_head(&self) -> bool {
        !self.in_request.load(Ordering::Relaxed)
            && !self.body_unread.load(Ordering::Relaxed)
            && !self.is_upgraded()
            && !self.multiplexed.load(Ordering::Relaxed)
    }

    /// The response holds memory of this function until the client has it.
    pub(crate) fn answers_hold(&self, memory: FunctionBudget) {
        *self.answers() = Some(memory);
    }

    /// The daemon drains, and a client that does not read its response is not waited for.
    pub(super) fn is_not_waited_for(&self) {
        self.unwaited.store(true, Ordering::Relaxed);
    }

    /// Whether a client that does not read is cut off soon.
    pub(super) fn must_read_at_once(&self) -> bool {
        self.unwaited.load(Ordering::Relaxed)
    }

    /// Whether another response waits for memory that the current one may hold.
    pub(super) fn memory_is_wanted(&self) -> bool {
        self.answers()
            .as_ref()
            .is_some_and(FunctionBudget::is_wanted)
    }

    /// The pace of the pieces that bodies of requests arrive in.
    pub(crate) fn pieces(&self) -> &PiecePace {
        &self.pieces
    }

    fn answers(&self) -> MutexGuard<'_, Option<FunctionBudget>> {
        // The lock cannot be poisoned: only a value is moved in or read while it is held.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client took too long to send or to read something.
    pub(crate) fn was_too_slow(&self) {
        self.too_slow.store(true, Ordering::Relaxed);
    }

    /// Whether it did.
    pub(super) fn is_too_slow(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed)
    }

    /// Whether a request's head was read, and its response has not begun. Its body may be with hyper, and unread.
    pub(super) fn awaits_response(&self) -> bool {
        self.in_request.load(Ordering::Relaxed) && !self.is_upgraded()
    }

    /// Whether a whole response is with hyper, and the client's socket has not taken all of it.
    pub(super) fn finishes_response(&self) -> bool {
        self.writes()
            && !self.is_answering()
            && !self.is_upgraded()
            && !self.multiplexed.load(Ordering::Relaxed)
    }

    /// Whether bytes that come may belong to the body of a request.
    pub(super) fn expects_body(&self) -> bool {
        self.body_unread.load(Ordering::Relaxed)
    }

    /// The client has closed its direction of the connection and waits for the response.
    pub(super) fn client_half_closed(&self) {
        self.half_closed.store(true, Ordering::Relaxed);
        // It finds out whether the body is complete.
        self.body_reader.wake();
    }

    /// Registers who waits for the next part of the request's body. Returns whether the client has closed its direction. Then everything
    /// that came is with hyper: if hyper still has no part, and no end, the body is cut off.
    pub(crate) fn waits_for_body(&self, cx: &Context<'_>) -> bool {
        self.body_reader.register(cx.waker());
        self.is_half_closed()
    }

    /// The request's body ends too early.
    pub(crate) fn body_is_cut_off(&self) {
        if !self.body_cut_off.swap(true, Ordering::Relaxed) {
            self.socket_reader.wake();
        }
    }

    /// Registers who reads from the client's socket. Returns whether hyper must see the end, because the request's body is cut off.
    pub(super) fn must_show_end(&self, cx: &Context<'_>) -> bool {
        self.socket_reader.register(cx.waker());
        self.body_cut_off.load(Ordering::Relaxed)
    }

    /// Whether the client has closed its direction. Then its connection ends with this response.
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

    /// Whether the client can get interim responses, and the final one has not begun. HTTP/1.0 does not have them, and hyper does not
    /// send them over HTTP/2.
    pub(crate) fn takes_interim(&self) -> bool {
        self.in_request.load(Ordering::Relaxed)
            && !self.ends_by_closing.load(Ordering::Relaxed)
            && !self.multiplexed.load(Ordering::Relaxed)
    }

    /// Whether the current request is one of HTTP/1.0.
    pub(crate) fn is_http_1_0(&self) -> bool {
        self.ends_by_closing.load(Ordering::Relaxed)
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
    /// request, which hyper rejects. A client of HTTP/2 may always be.
    pub(super) fn must_linger(&self) -> bool {
        // The server at the other end reads the bytes of a tunnel.
        !self.is_upgraded()
            && (self.body_unread.load(Ordering::Relaxed)
                || !self.is_used()
                || self.multiplexed.load(Ordering::Relaxed))
    }
}

/// How the client reached a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// As it is written in a URL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// What requests see of their connection.
#[derive(Debug)]
pub(crate) struct Line {
    peer: SocketAddr,
    scheme: Scheme,
    usage: Arc<Usage>,
    /// What the connection becomes after its response. Not in `usage`, which is shared with the socket that this holds.
    upgraded: Mutex<Option<Upgraded>>,
}

impl Line {
    pub(crate) fn new(peer: SocketAddr, scheme: Scheme, usage: Arc<Usage>) -> Self {
        Self {
            peer,
            scheme,
            usage,
            upgraded: Mutex::default(),
        }
    }

    /// The client's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// How the client reached this listener.
    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
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
