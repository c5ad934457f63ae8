//! Interim responses (status 1xx, RFC 9110 §15.2), which hyper's server does not send. They are put between hyper's writes, at
//! moments when hyper has nothing of its own left to write. So they are never inside of another response.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use http::{HeaderMap, StatusCode};
use tokio::io::AsyncWrite;

use crate::headers;
use crate::list_headers;

/// The interim responses that wait to be written to one connection.
#[derive(Debug, Default)]
pub(crate) struct Interim {
    /// hyper has written something that it has not flushed yet, so its next write may be the rest of it.
    hyper_writes: AtomicBool,
    /// `waiting` is not empty.
    waits: AtomicBool,
    /// Whole heads. The lock is held for a copy.
    waiting: Mutex<Vec<u8>>,
}

impl Interim {
    /// Queues a head with its hop-by-hop headers removed. It is left out if a slow client has not yet read an earlier response or
    /// earlier interim responses: they are hints, and a server may send any number of them.
    pub(crate) fn push(&self, status: StatusCode, headers: &HeaderMap) {
        let mut headers = headers.clone();
        list_headers::strip_response(&mut headers);
        // An interim response has no body (RFC 9110, section 8.6).
        headers.remove(headers::CONTENT_LENGTH);
        let reason = status.canonical_reason().unwrap_or("Interim");
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
        for (name, value) in &headers {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let mut waiting = self.waiting();
        if !self.hyper_writes.load(Ordering::Relaxed) && waiting.len() + head.len() <= BYTES_MAX {
            waiting.extend_from_slice(&head);
            self.waits.store(true, Ordering::Relaxed);
        }
    }

    /// hyper writes, or has flushed all that it wrote.
    pub(super) fn hyper_writes(&self, writes: bool) {
        self.hyper_writes.store(writes, Ordering::Relaxed);
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.waits.load(Ordering::Relaxed)
    }

    /// Writes what waits.
    pub(super) fn poll_write_to(
        &self,
        cx: &mut Context<'_>,
        client: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        let mut waiting = self.waiting();
        while !waiting.is_empty() {
            match ready!(Pin::new(&mut *client).poll_write(cx, &waiting))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(waiting.drain(..written)),
            }
        }
        self.waits.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<u8>> {
        // Nothing panics while the lock is held, apart from a failed allocation.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most that waits for one client, bytes.
const BYTES_MAX: usize = 16 * 1024;
