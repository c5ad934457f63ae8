//! A client that sends `Expect: 100-continue` waits for `100 Continue` before it sends the body (RFC 9110 §10.1.1). A function's own
//! server decides: it may answer at once (417, 413, 401 …), and the body is then not sent at all.
//!
//! hyper's server sends no `100 Continue` over HTTP/2. Most clients send the body after a while without it. The request of a
//! client that does not is refused ([`Unsaid`]).

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::{Sleep, sleep};

/// The server's permission, when it comes.
#[derive(Debug, Default)]
pub(crate) struct Permission {
    given: AtomicBool,
    body: AtomicWaker,
}

impl Permission {
    /// The server sent `100 Continue`.
    pub(crate) fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.body.wake();
    }
}

/// Holds a body back until the server permits it. hyper sends `100 Continue` to the client at the first read of the body.
#[derive(Debug)]
pub(crate) struct Expectation {
    permission: Arc<Permission>,
    /// Created when the server could first read.
    until: Option<Pin<Box<Sleep>>>,
}

impl Expectation {
    pub(crate) fn new(permission: Arc<Permission>) -> Self {
        Self {
            permission,
            until: None,
        }
    }

    /// Resolves when the body may be read.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.permission.body.register(cx.waker());
        if self.permission.given.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        let until = self
            .until
            .get_or_insert_with(|| Box::pin(sleep(SILENCE_MAX)));
        until.as_mut().poll(cx)
    }
}

/// Whether a client of HTTP/2 waits for `100 Continue` for longer than others do.
#[derive(Debug, Default)]
pub(crate) struct Unsaid {
    awaited: AtomicBool,
    request: AtomicWaker,
}

impl Unsaid {
    /// Resolves when it does.
    pub(crate) async fn is_awaited(&self) {
        poll_fn(|cx| {
            self.request.register(cx.waker());
            match self.awaited.load(Ordering::Acquire) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Says so for a body of which nothing has come.
#[derive(Debug)]
pub(crate) struct Silence {
    unsaid: Arc<Unsaid>,
    longest: Duration,
    /// Created when the body is first read.
    until: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    /// `patience`: the longest wait for a piece of a body, usually 30 s. A fifth of it is more than most clients wait for the
    /// permission: one second (curl, Go, .NET) to five (Java).
    pub(crate) fn new(unsaid: Arc<Unsaid>, patience: Duration) -> Self {
        Self {
            unsaid,
            longest: patience / 5,
            until: None,
        }
    }

    /// The body is read, and nothing comes.
    pub(crate) fn goes_on(&mut self, cx: &mut Context<'_>) {
        let longest = self.longest;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(longest)));
        if !self.unsaid.awaited.load(Ordering::Relaxed) && until.as_mut().poll(cx).is_ready() {
            self.unsaid.awaited.store(true, Ordering::Release);
            self.unsaid.request.wake();
        }
    }
}

/// A server that says nothing for this long reads its bodies without `100 Continue`. curl waits as long.
const SILENCE_MAX: Duration = Duration::from_secs(1);
