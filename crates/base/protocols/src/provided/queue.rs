//! Calls wait in this queue until a poll takes them. A call that was taken stays open until it is answered.
//!
//! Bookkeeping only; no sockets. Invariants: an invocation is either waiting or open, under one id; it is answered once; after
//! [`InvocationQueue::close`] nothing waits, and every caller is told.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use pilot_model::Instant;
use pilot_sys::clock::monotonic_ns;
use tokio::sync::{Notify, SetOnce, oneshot};

use super::extensions::Notice;
use super::stream::{self, Posting, Streamed};
use super::times::Times;

/// The invocations of one worker.
#[derive(Debug)]
pub(super) struct InvocationQueue {
    /// Most concurrent invocations.
    concurrency: usize,
    /// Guards the waiting and open invocations; held for a look-up.
    state: Mutex<QueueState>,
    /// Wakes polls that wait for an event. A poll that takes one event and leaves others wakes the next poll.
    polls: Notify,
    /// The runtime has polled at least once.
    polled: AtomicBool,
    /// The runtime has polled since it began its last answer.
    polled_again: AtomicBool,
    /// Wakes who waits for that.
    asked: Notify,
    initialised: SetOnce<Initialisation>,
    closed: SetOnce<()>,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<Event>,
    /// Taken and not answered, by request id.
    open: HashMap<Box<str>, Open>,
    closed: bool,
}

#[derive(Debug)]
struct Open {
    caller: oneshot::Sender<Posted>,
    taken: Instant,
}

/// An invocation on its way to the runtime.
#[derive(Debug)]
pub(super) struct Event {
    /// Request id.
    pub(super) id: Box<str>,
    /// The headers of the poll's answer.
    pub(super) headers: HeaderMap,
    /// The event.
    pub(super) body: Bytes,
    /// The event for extensions, if there are any.
    pub(super) notice: Option<Notice>,
    /// Receives the answer.
    pub(super) caller: oneshot::Sender<Posted>,
}

/// An event that a poll has taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) notice: Option<Notice>,
}

/// The result of an invocation.
#[derive(Debug)]
pub(super) enum Posted {
    /// The runtime posted a response.
    Result(Bytes, Times),
    /// The runtime posted an error (Lambda's error body).
    Error(Bytes, Times),
    /// The runtime started to post a streamed response.
    Stream(Box<Streamed>),
    /// The response was incomplete.
    Truncated(Times),
    /// The worker ended before it had asked for it.
    NotTaken,
}

/// How the worker's initialisation ended.
#[derive(Debug, Clone)]
pub(super) enum Initialisation {
    /// It polled.
    Ready(Instant),
    /// It reported an error (Lambda's error body).
    Failed(Bytes),
}

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The worker has ended.
    Closed,
    /// An invocation with this id is still running.
    IdInUse,
    /// As many calls as the concurrency allows are already waiting.
    Full,
}

/// The runtime polled before it answered the invocation it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfTurn;

/// An invocation whose answer is arriving. Dropping it unsettled means that the answer is incomplete.
#[derive(Debug)]
pub(super) struct Answering {
    caller: Option<oneshot::Sender<Posted>>,
    times: Times,
}

impl InvocationQueue {
    pub(super) fn new(concurrency: u32) -> Self {
        Self {
            concurrency: concurrency as usize,
            state: Mutex::default(),
            polls: Notify::new(),
            polled: AtomicBool::new(false),
            polled_again: AtomicBool::new(false),
            asked: Notify::new(),
            initialised: SetOnce::new(),
            closed: SetOnce::new(),
        }
    }

    /// Adds an event for the next poll.
    pub(super) fn submit(&self, event: Event) -> Result<(), Refused> {
        {
            let mut state = self.state.lock();
            state.waiting.retain(|event| !event.caller.is_closed());
            let waits = state.waiting.iter().any(|other| other.id == event.id);
            if state.closed {
                return Err(Refused::Closed);
            }
            if waits || state.open.contains_key(&event.id) {
                return Err(Refused::IdInUse);
            }
            if state.waiting.len() >= self.concurrency {
                return Err(Refused::Full);
            }
            state.waiting.push_back(event);
        }
        self.polls.notify_one();
        Ok(())
    }

    /// The runtime asks for an event.
    ///
    /// With a concurrency of 1, a runtime that has not answered must not poll, as in Lambda. With more, polls cannot be told
    /// apart, so the poll waits.
    pub(super) fn ask(&self) -> Result<(), OutOfTurn> {
        if self.concurrency == 1 && !self.state.lock().open.is_empty() {
            return Err(OutOfTurn);
        }
        self.polled.store(true, Ordering::Relaxed);
        self.polled_again.store(true, Ordering::Release);
        self.asked.notify_waiters();
        Ok(())
    }

    /// Resolves when the runtime has polled since it began its last answer.
    pub(super) async fn asked_again(&self) {
        loop {
            let asked = self.asked.notified();
            if self.polled_again.load(Ordering::Acquire) {
                return;
            }
            asked.await;
        }
    }

    /// Whether the runtime has polled at least once.
    pub(super) fn was_asked(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    /// Waits for an event. The first poll ends the initialisation.
    pub(super) async fn poll(&self) -> Result<Taken, OutOfTurn> {
        self.ask()?;
        self.note_initialised(|| Initialisation::Ready(now()));
        loop {
            // One permit may stand for several events: `take` notifies the next poll if it leaves some.
            if let Some(taken) = self.take() {
                return Ok(taken);
            }
            self.polls.notified().await;
        }
    }

    fn take(&self) -> Option<Taken> {
        let mut state = self.state.lock();
        let event = loop {
            let event = state.waiting.pop_front()?;
            if !event.caller.is_closed() {
                break event;
            }
        };
        let open = Open {
            caller: event.caller,
            taken: now(),
        };
        state.open.insert(event.id, open);
        let more = !state.waiting.is_empty();
        drop(state);
        if more {
            self.polls.notify_one();
        }
        Some(Taken {
            headers: event.headers,
            body: event.body,
            notice: event.notice,
        })
    }

    /// The runtime starts to answer invocation `id`. `None`: the id is unknown or already answered.
    pub(super) fn begin_answer(&self, id: &str) -> Option<Answering> {
        let open = self.state.lock().open.remove(id)?;
        self.polled_again.store(false, Ordering::Release);
        Some(Answering {
            caller: Some(open.caller),
            times: Times {
                started: open.taken,
                first_byte: now(),
            },
        })
    }

    /// Resolves when the initialisation has succeeded or failed.
    pub(super) async fn initialised(&self) -> Initialisation {
        self.initialised.wait().await.clone()
    }

    /// The initialisation failed. Returns false if it was already over.
    pub(super) fn fail_init(&self, body: Bytes) -> bool {
        self.note_initialised(|| Initialisation::Failed(body))
    }

    fn note_initialised(&self, how: impl FnOnce() -> Initialisation) -> bool {
        !self.initialised.initialized() && self.initialised.set(how()).is_ok()
    }

    /// Whether the initialisation is over.
    pub(super) fn is_up(&self) -> bool {
        self.initialised.initialized()
    }

    /// The worker has ended. Closing the channels tells all callers.
    pub(super) fn close(&self) {
        let (waiting, open) = {
            let mut state = self.state.lock();
            state.closed = true;
            (
                std::mem::take(&mut state.waiting),
                std::mem::take(&mut state.open),
            )
        };
        for event in waiting {
            // An error means that its caller is gone.
            drop(event.caller.send(Posted::NotTaken));
        }
        drop(open);
        // An error means that it is already closed.
        drop(self.closed.set(()));
    }

    /// Resolves when the queue is closed.
    pub(super) async fn closed(&self) {
        self.closed.wait().await;
    }
}

impl Answering {
    /// The answer is a response in one piece.
    pub(super) fn result(self, body: Bytes) {
        let times = self.times;
        self.settle(Posted::Result(body, times));
    }

    /// The answer is an error.
    pub(super) fn error(self, body: Bytes) {
        let times = self.times;
        self.settle(Posted::Error(body, times));
    }

    /// The answer is streamed, and of this type.
    pub(super) fn stream(self, content_type: String) -> Posting {
        let (streamed, posting) = stream::streamed(self.times, content_type);
        self.settle(Posted::Stream(Box::new(streamed)));
        posting
    }

    fn settle(mut self, heard: Posted) {
        if let Some(caller) = self.caller.take() {
            // An error means that the caller is gone and needs no answer.
            drop(caller.send(heard));
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take() {
            drop(caller.send(Posted::Truncated(self.times)));
        }
    }
}

fn now() -> Instant {
    Instant(monotonic_ns())
}

#[cfg(test)]
mod tests;
