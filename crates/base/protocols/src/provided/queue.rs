//! Where calls and polls meet: calls wait here until a poll takes them, and what was taken is noted until it is answered.
//!
//! Pure bookkeeping; no sockets. Invariants: an invocation is either waiting or open, under one id; it is answered once;
//! after [`InvocationQueue::close`] nothing waits and nobody who asks is left hanging.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;
use pilot_model::Instant;
use pilot_sys::clock::monotonic_ns;
use tokio::sync::{Notify, SetOnce, oneshot};

use super::extensions::Notice;
use super::stream::Streamed;

/// One worker's queue.
#[derive(Debug)]
pub(super) struct InvocationQueue {
    /// Most invocations at a time.
    concurrency: usize,
    /// Guards what waits and what is open; held for a look-up.
    state: Mutex<QueueState>,
    /// Polls that wait for an event. Whoever takes one and leaves more behind wakes the next.
    polls: Notify,
    /// The runtime has asked for an event.
    polled: AtomicBool,
    came_up: SetOnce<CameUp>,
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
    caller: oneshot::Sender<Heard>,
    taken: Instant,
}

/// An invocation on its way to the runtime.
#[derive(Debug)]
pub(super) struct Event {
    /// Request id.
    pub(super) id: Box<str>,
    /// Of the answer to the poll.
    pub(super) headers: HeaderMap,
    /// The event.
    pub(super) body: Bytes,
    /// What extensions are told of it, if there are any.
    pub(super) notice: Option<Notice>,
    /// Who waits for the answer.
    pub(super) caller: oneshot::Sender<Heard>,
}

/// An event, taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) notice: Option<Notice>,
}

/// What became of an invocation.
#[derive(Debug)]
pub(super) enum Heard {
    /// The runtime posted a response.
    Result(Bytes, Times),
    /// The runtime posted an error: Lambda's error body.
    Error(Bytes, Times),
    /// The runtime began to post a response in parts.
    Stream(Box<Streamed>),
    /// The response broke off before its end.
    Truncated(Times),
}

/// Stamps of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// The runtime's poll was answered.
    pub(super) started: Instant,
    /// The runtime's answer began to arrive.
    pub(super) first_byte: Instant,
}

/// How the worker's initialisation ended.
#[derive(Debug, Clone)]
pub(super) enum CameUp {
    /// It polled.
    Ready(Instant),
    /// It said that it cannot: Lambda's error body.
    Failed(Bytes),
}

/// Why a call was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// The worker has ended.
    Closed,
    /// An invocation of this id is not over.
    IdInUse,
    /// As many as the worker may have are waiting already.
    Full,
}

/// A poll although the runtime has not answered what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutOfTurn;

/// An invocation whose answer is arriving. Dropped before it is settled, the answer has broken off.
#[derive(Debug)]
pub(super) struct Answering {
    caller: Option<oneshot::Sender<Heard>>,
    times: Times,
}

impl InvocationQueue {
    pub(super) fn new(concurrency: u32) -> Self {
        Self {
            concurrency: concurrency as usize,
            state: Mutex::default(),
            polls: Notify::new(),
            polled: AtomicBool::new(false),
            came_up: SetOnce::new(),
            closed: SetOnce::new(),
        }
    }

    /// Puts an event there for the next poll.
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
    /// With a concurrency of 1, whoever has not answered must not poll, as in Lambda. With more, a poll cannot be told from
    /// another one's, and waits.
    pub(super) fn ask(&self) -> Result<(), OutOfTurn> {
        if self.concurrency == 1 && !self.state.lock().open.is_empty() {
            return Err(OutOfTurn);
        }
        self.polled.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the runtime has ever asked for an event.
    pub(super) fn was_asked(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    /// Waits for an event. The first time of all ends the initialisation.
    pub(super) async fn poll(&self) -> Result<Taken, OutOfTurn> {
        self.ask()?;
        self.note_came_up(|| CameUp::Ready(now()));
        loop {
            // One permit may stand for several events: `take` passes on what it leaves.
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

    /// The runtime begins to answer invocation `id`. `None`: there is none of that id, or it is answered already.
    pub(super) fn begin_answer(&self, id: &str) -> Option<Answering> {
        let open = self.state.lock().open.remove(id)?;
        Some(Answering {
            caller: Some(open.caller),
            times: Times {
                started: open.taken,
                first_byte: now(),
            },
        })
    }

    /// Resolves when the initialisation is over, one way or the other.
    pub(super) async fn came_up(&self) -> CameUp {
        self.came_up.wait().await.clone()
    }

    /// The initialisation failed. False: it was over already.
    pub(super) fn fail_init(&self, body: Bytes) -> bool {
        self.note_came_up(|| CameUp::Failed(body))
    }

    fn note_came_up(&self, how: impl FnOnce() -> CameUp) -> bool {
        !self.came_up.initialized() && self.came_up.set(how()).is_ok()
    }

    /// The initialisation is over.
    pub(super) fn is_up(&self) -> bool {
        self.came_up.initialized()
    }

    /// The worker has ended: whoever waits is told by the end of their channel.
    pub(super) fn close(&self) {
        let (waiting, open) = {
            let mut state = self.state.lock();
            state.closed = true;
            (
                std::mem::take(&mut state.waiting),
                std::mem::take(&mut state.open),
            )
        };
        drop((waiting, open));
        // It may be closed twice.
        drop(self.closed.set(()));
    }

    /// Resolves when it is closed.
    pub(super) async fn closed(&self) {
        self.closed.wait().await;
    }
}

impl Answering {
    /// The answer is a response in one piece.
    pub(super) fn result(self, body: Bytes) {
        let times = self.times;
        self.settle(Heard::Result(body, times));
    }

    /// The answer is an error.
    pub(super) fn error(self, body: Bytes) {
        let times = self.times;
        self.settle(Heard::Error(body, times));
    }

    /// The answer comes in parts.
    pub(super) fn stream(self, make: impl FnOnce(Times) -> Streamed) {
        let streamed = Box::new(make(self.times));
        self.settle(Heard::Stream(streamed));
    }

    fn settle(mut self, heard: Heard) {
        if let Some(caller) = self.caller.take() {
            // A caller that has gone away needs no answer.
            drop(caller.send(heard));
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take() {
            drop(caller.send(Heard::Truncated(self.times)));
        }
    }
}

fn now() -> Instant {
    Instant(monotonic_ns())
}

#[cfg(test)]
mod tests;
