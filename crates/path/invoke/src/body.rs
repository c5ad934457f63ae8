//! The body of an application's HTTP response: complete, or streamed from the worker.
//!
//! A streamed body owns the invocation's lease. At its end, or if the application raises in the middle, the worker goes back. If
//! it is dropped before, the worker is ended and the invocation recorded as cancelled. An HTTP server stops reading after
//! `content-length` bytes (or at once, for `HEAD`, 204 and 304). A body that is dropped there was not cancelled: a task waits for
//! the rest of the exchange. Its worker is expected to be free soon: the next request waits for it. But an application that goes on
//! sending what nobody reads (events without end, asked for with `HEAD`) is treated as if its caller had hung up.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::ports::{Done, HttpHead, Part, WorkerFault};
use pilot_model::{InvocationRecord, Outcome};
use pilot_pool::Lease;
use tokio::time::{Instant as Deadline, timeout, timeout_at};

use crate::error::InvokeError;
use crate::fault::{Failure, LAST_WORDS};
use crate::invocation::Invocation;
use crate::traffic::TunnelTraffic;

/// A response body.
#[derive(Debug)]
pub struct HttpBody {
    /// The whole body, or the first part of a streamed one; `None` once it is taken.
    first: Option<Bytes>,
    rest: Option<Box<Streaming>>,
    /// Bytes that were returned.
    sent: u64,
    /// The reader may stop after this number of bytes.
    enough: Option<u64>,
    /// The record of a streamed body, after its end.
    record: Option<Arc<InvocationRecord>>,
}

impl HttpBody {
    pub(crate) fn whole(body: Bytes) -> Self {
        Self {
            first: Some(body),
            rest: None,
            sent: 0,
            enough: None,
            record: None,
        }
    }

    pub(crate) fn streaming(
        mut rest: Streaming,
        first: Bytes,
        head: &HttpHead,
        ignores_body: bool,
    ) -> Self {
        let declared = || {
            let length = head
                .headers
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            length.and_then(|(_, value)| value.trim().parse().ok())
        };
        rest.invocation.bytes_out = first.len() as u64;
        Self {
            first: Some(first),
            rest: Some(Box::new(rest)),
            sent: 0,
            enough: if ignores_body { Some(0) } else { declared() },
            record: None,
        }
    }

    /// The whole body, if the answer was complete and nothing of it was taken yet.
    #[must_use]
    pub fn complete(&self) -> Option<&Bytes> {
        match self.rest {
            None => self.first.as_ref(),
            Some(_) => None,
        }
    }

    /// The next part, not empty; `None` at the end and after an error.
    ///
    /// # Errors
    /// [`InvokeError::BodyTimedOut`], [`InvokeError::BodyBroken`] and [`InvokeError::BodyRaised`].
    pub async fn next(&mut self) -> Option<Result<Bytes, InvokeError>> {
        if let Some(first) = self.first.take().filter(|first| !first.is_empty()) {
            return Some(Ok(self.hand_out(first)));
        }
        loop {
            let rest = self.rest.as_mut()?;
            let heard = rest.next().await;
            if !matches!(heard, Ok(Received::More(_))) {
                self.record = rest.record.take();
                self.rest = None;
            }
            match heard {
                Ok(Received::More(bytes) | Received::Last(bytes)) if !bytes.is_empty() => {
                    return Some(Ok(self.hand_out(bytes)));
                }
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Nobody reads the rest: a task waits for the end of the exchange, so that its worker can be used again.
    pub fn leave_unread(mut self) {
        self.enough = Some(self.sent);
        if let Some(rest) = &mut self.rest {
            rest.answered();
        }
    }

    /// The messages of a WebSocket, which pass beside the body. The record counts what passed until the end.
    pub fn counts(&mut self, traffic: Arc<TunnelTraffic>) {
        if let Some(rest) = &mut self.rest {
            rest.invocation.traffic = Some(traffic);
        }
    }

    /// As [`Response::log_tail`](crate::Response::log_tail), for a streamed body: empty until its end.
    #[must_use]
    pub fn log_tail(&self) -> Bytes {
        self.record
            .as_deref()
            .map_or_else(Bytes::new, crate::tail::of)
    }

    fn hand_out(&mut self, bytes: Bytes) -> Bytes {
        self.sent += bytes.len() as u64;
        let is_whole = self.enough.is_some_and(|enough| self.sent >= enough);
        if let Some(rest) = self.rest.as_mut().filter(|_| is_whole) {
            rest.answered();
        }
        bytes
    }
}

impl Drop for HttpBody {
    fn drop(&mut self) {
        let enough = self.enough.is_some_and(|enough| self.sent >= enough);
        if let Some(mut rest) = self.rest.take().filter(|_| enough) {
            let context = Arc::clone(rest.invocation().context());
            let ends = Deadline::now() + UNREAD_TIME_MAX;
            context.pools.spawn(async move {
                while let Ok(Received::More(_)) = rest.next().await
                    && Deadline::now() < ends
                {}
            });
        }
    }
}

/// An exchange whose answer is still arriving.
#[derive(Debug)]
pub(crate) struct Streaming {
    /// `None` after the end. Declared before `invocation`, so that the worker is released or ended first.
    lease: Option<Lease>,
    invocation: Invocation,
    stream: u32,
    /// `None`: a WebSocket, which lasts as long as it likes.
    deadline: Option<Deadline>,
    record: Option<Arc<InvocationRecord>>,
}

impl Drop for Streaming {
    /// A caller that hangs up: what the worker has used until then counts.
    fn drop(&mut self) {
        if let Some(lease) = &self.lease {
            let now = self.invocation.now();
            self.invocation.measure(lease, now);
        }
    }
}

/// Ends a worker of one call, whose time is over. What it had printed.
async fn last_words(invocation: &mut Invocation, lease: &Lease) -> Bytes {
    if invocation.version.config.concurrency > 1 {
        // The pool publishes it, because others may have printed it.
        return Bytes::new();
    }
    // Afterwards there is nothing to read.
    invocation.measure(lease, invocation.now());
    lease.worker().kill();
    let printed = timeout(LAST_WORDS, lease.worker().last_output()).await;
    printed.unwrap_or_default()
}

/// The next event of a body.
enum Received {
    More(Bytes),
    Last(Bytes),
}

impl Streaming {
    pub(crate) fn new(
        invocation: Invocation,
        lease: Lease,
        stream: u32,
        deadline: Option<Deadline>,
    ) -> Self {
        Self {
            lease: Some(lease),
            invocation,
            stream,
            deadline,
            record: None,
        }
    }

    pub(crate) fn invocation(&self) -> &Invocation {
        &self.invocation
    }

    /// The next part. Must not be called after the end or an error.
    async fn next(&mut self) -> Result<Received, InvokeError> {
        let Some(lease) = &self.lease else {
            return Err(InvokeError::BodyBroken {
                fault: WorkerFault::Protocol {
                    problem: "the body is over".to_owned(),
                    output: Bytes::new(),
                },
            });
        };
        let next = lease.worker().next(self.stream);
        let part = match self.deadline {
            Some(deadline) => timeout_at(deadline, next).await,
            None => Ok(next.await),
        };
        let (failure, error) = match part {
            Ok(Ok(part)) => return self.took(part),
            Ok(Err(fault)) => (
                Failure::fault(&self.invocation.id, &fault),
                InvokeError::BodyBroken { fault },
            ),
            Err(_) => {
                let after = self.invocation.version.config.timeout;
                let printed = last_words(&mut self.invocation, lease).await;
                (
                    Failure::timeout(&self.invocation.id, after, &printed),
                    InvokeError::BodyTimedOut { after },
                )
            }
        };
        let now = self.invocation.now();
        if let Some(lease) = self.lease.take() {
            // Nothing, if the worker was killed.
            self.invocation.measure(&lease, now);
            lease.fail(now, failure.reason);
        }
        self.record = Some(self.invocation.end(now, failure.outcome, failure.output));
        Err(error)
    }

    fn took(&mut self, part: Part) -> Result<Received, InvokeError> {
        match part {
            Part::Chunk(bytes) => {
                self.invocation.bytes_out += bytes.len() as u64;
                Ok(Received::More(bytes))
            }
            Part::End(bytes, done) => {
                self.invocation.bytes_out += bytes.len() as u64;
                self.over(Outcome::Ok, done);
                Ok(Received::Last(bytes))
            }
            Part::Error(body, done) => {
                self.over(Outcome::FunctionError, done);
                Err(InvokeError::BodyRaised { body })
            }
        }
    }

    /// What is handed out now completes the answer, as its head announced it. The caller may send its next request before the worker
    /// has said that this exchange is over.
    fn answered(&mut self) {
        let now = self.invocation.now();
        if let Some(lease) = &mut self.lease {
            lease.answered(now);
        }
    }

    /// The exchange has ended, and its worker is free.
    fn over(&mut self, outcome: Outcome, done: Done) {
        let now = self.invocation.now();
        if let Some(lease) = self.lease.take() {
            self.invocation.measure(&lease, now);
            lease.over(now, &done);
        }
        self.invocation.done(&done, now);
        let output = self.invocation.printed(done.output);
        self.record = Some(self.invocation.end(now, outcome, output));
    }
}

/// How long an application may send parts that nobody reads. It may work for longer after its last part.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(5);
