//! The requests of one connection that run: hyper's future for each one, and the progress of its response. A request whose client does
//! takes its response too slowly is cancelled ([`pace`](super::super::pace)).
//!
//! A request whose response was given to h2 keeps its permit until the client's socket has taken everything: until then, h2 has a piece of
//! it in memory.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use pilot_model::BoxFuture;

use super::super::line::Usage;
use super::super::pace::{Pace, ReadPace};
use super::RESETS_FREE;
use crate::peers::StreamPermit;

/// The requests of a connection.
pub(super) struct Streams {
    entrance: Arc<Mutex<Queue>>,
    running: FuturesUnordered<Running>,
    /// Those whose responses h2 may have in memory.
    finishing: Vec<Arc<Progress>>,
    mild: ReadPace,
    strict: ReadPace,
    answered: usize,
    cancelled: usize,
}

/// Where requests come in. hyper's futures have it, too, so it must not own them for longer than a poll.
#[derive(Debug, Clone)]
pub(super) struct Entrance(Weak<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    /// The progress of the request that hyper has just given to the service, and whose future it gives to us next.
    next: VecDeque<Arc<Progress>>,
    new: Vec<(BoxFuture<'static, ()>, Arc<Progress>)>,
    /// Those that have begun, and are not finished.
    open: usize,
}

impl Streams {
    /// `mild` and `strict`: how fast the client must take each response.
    pub(super) fn new(mild: ReadPace, strict: ReadPace) -> Self {
        Self {
            entrance: Arc::default(),
            running: FuturesUnordered::new(),
            finishing: Vec::new(),
            mild,
            strict,
            answered: 0,
            cancelled: 0,
        }
    }

    pub(super) fn entrance(&self) -> Entrance {
        Entrance(Arc::downgrade(&self.entrance))
    }

    /// Whether no request runs.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && lock(&self.entrance).new.is_empty()
    }

    /// Whether the client cancels its requests instead of waiting for answers.
    pub(super) fn has_too_many_resets(&self) -> bool {
        self.cancelled > RESETS_FREE + self.answered
    }

    /// Runs them as far as they go. `writes`: the client's socket has not taken everything that h2 had before.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, writes: bool) {
        if !writes && !self.finishing.is_empty() {
            lock(&self.entrance).open -= self.finishing.len();
            self.finishing.clear();
        }
        let new = std::mem::take(&mut lock(&self.entrance).new);
        let (mild, strict) = (self.mild, self.strict);
        self.running
            .extend(new.into_iter().map(|(stream, progress)| Running {
                stream,
                progress,
                pace: Pace::new(mild, strict),
                given: 0,
            }));
        while let Poll::Ready(Some(end)) = self.running.poll_next_unpin(cx) {
            match end {
                End::Answered(progress) => {
                    self.answered += 1;
                    self.finishing.push(progress);
                }
                End::Cancelled => {
                    self.cancelled += 1;
                    lock(&self.entrance).open -= 1;
                }
            }
        }
    }
}

impl Entrance {
    /// A request begins. Returns its progress, and whether it is the only one.
    pub(super) fn begin(&self) -> (Arc<Progress>, bool) {
        let progress = Arc::<Progress>::default();
        let Some(queue) = self.0.upgrade() else {
            // The connection is gone.
            return (progress, true);
        };
        let mut queue = lock(&queue);
        queue.next.push_back(Arc::clone(&progress));
        queue.open += 1;
        (progress, queue.open == 1)
    }
}

impl<F> Executor<F> for Entrance
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        if let Some(queue) = self.0.upgrade() {
            let mut queue = lock(&queue);
            let progress = queue.next.pop_front().unwrap_or_default();
            queue.new.push((Box::pin(stream), progress));
        }
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    // Nothing panics while the lock is held, apart from a failed allocation.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// How a request ended.
enum End {
    /// The response was given to h2, or broke off by itself, or the client did not take it.
    Answered(Arc<Progress>),
    /// The client cancelled the request, or is gone.
    Cancelled,
}

/// A request that runs.
struct Running {
    stream: BoxFuture<'static, ()>,
    progress: Arc<Progress>,
    pace: Pace,
    /// Bytes of the response that the pace knows of.
    given: u64,
}

impl Future for Running {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let this = &mut *self;
        if this.stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(match this.progress.has_ended() {
                true => End::Answered(Arc::clone(&this.progress)),
                false => End::Cancelled,
            });
        }
        let (given, waits) = this.progress.given();
        if given != this.given || !waits {
            let bytes = usize::try_from(given - this.given).unwrap_or(usize::MAX);
            this.pace.took(bytes);
            this.given = given;
        }
        if !waits {
            return Poll::Pending;
        }
        ready!(this.pace.poll_too_slow(cx, this.progress.usage()));
        this.progress.usage().was_too_slow();
        // Dropping hyper's future resets the stream.
        Poll::Ready(End::Answered(Arc::clone(&this.progress)))
    }
}

/// How far the response to a request is. Shared by its body and the request that runs. Both are in the connection's task, so the atomics
/// are never contended.
#[derive(Debug)]
pub(super) struct Progress {
    /// How many bytes of the response were given to hyper.
    given: AtomicU64,
    /// hyper has a piece, and has not asked for the next one.
    waits: AtomicBool,
    ended: AtomicBool,
    /// The place of the request among the connections.
    permit: Mutex<Option<StreamPermit>>,
    usage: Arc<Usage>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            given: AtomicU64::default(),
            waits: AtomicBool::default(),
            ended: AtomicBool::default(),
            permit: Mutex::default(),
            usage: Arc::new(Usage::of_stream()),
        }
    }
}

impl Progress {
    /// What the client does in this request.
    pub(super) fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// Keeps the permit until the request has ended.
    pub(super) fn keep(&self, permit: Option<StreamPermit>) {
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }

    /// hyper asks for the next piece.
    pub(super) fn asked(&self) {
        self.waits.store(false, Ordering::Relaxed);
    }

    /// hyper gets a piece of this many bytes.
    pub(super) fn gave(&self, bytes: usize) {
        self.given.fetch_add(bytes as u64, Ordering::Relaxed);
        self.waits.store(true, Ordering::Relaxed);
    }

    /// The response is complete, or broke off.
    pub(super) fn ended(&self) {
        self.waits.store(true, Ordering::Relaxed);
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The number of bytes so far, and whether the last of them wait for the client.
    fn given(&self) -> (u64, bool) {
        (
            self.given.load(Ordering::Relaxed),
            self.waits.load(Ordering::Relaxed),
        )
    }
}
