//! Polls a future again at once if it woke itself while it was polled.
//!
//! hyper reads a body in the task of its connection, and so the service and the connection wake each other: "I want the body", "here it
//! is". To tokio, a task that is woken while it runs has yielded: the task goes to the end of the queue, and a parked thread is woken to
//! help with the queue (futex(2)). That thread finds nothing to do, and takes the processor from the worker that has just got its
//! invocation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// See the module.
#[derive(Debug)]
pub struct OwnWakes<F> {
    future: F,
    polls_max: usize,
    shared: Arc<TaskWake>,
    waker: Waker,
}

impl<F> OwnWakes<F> {
    /// The future, which is polled so often in a row at most.
    pub fn new(future: F, polls_max: usize) -> Self {
        let shared = Arc::new(TaskWake::default());
        Self {
            future,
            polls_max,
            waker: Waker::from(Arc::clone(&shared)),
            shared,
        }
    }

    /// The future.
    pub fn inner(self: Pin<&mut Self>) -> Pin<&mut F>
    where
        F: Unpin,
    {
        Pin::new(&mut self.get_mut().future)
    }
}

impl<F: Future + Unpin> Future for OwnWakes<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        this.shared.task.register(task.waker());
        let mut own = Context::from_waker(&this.waker);
        for _ in 0..this.polls_max {
            this.shared.polling.store(POLLED, Ordering::Release);
            let result = Pin::new(&mut this.future).poll(&mut own);
            let was_woken = this.shared.polling.swap(IDLE, Ordering::AcqRel) == WOKEN;
            if result.is_ready() || !was_woken {
                return result;
            }
        }
        // Others have their turn, too.
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

#[derive(Debug, Default)]
struct TaskWake {
    polling: AtomicU8,
    task: AtomicWaker,
}

/// It is not polled: who wakes it, wakes the task.
const IDLE: u8 = 0;
/// It is polled.
const POLLED: u8 = 1;
/// It is polled, and was woken meanwhile.
const WOKEN: u8 = 2;

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let woken =
            self.polling
                .compare_exchange(POLLED, WOKEN, Ordering::AcqRel, Ordering::Acquire);
        if woken == Err(IDLE) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls once a future that wakes itself in each of its first `wakes` polls, and is ready in the one after.
    fn polled(wakes: usize) -> (Poll<usize>, usize) {
        let outer = Arc::new(Wakes::default());
        let mut polls = 0;
        let mut future = OwnWakes::new(
            Box::pin(poll_fn(move |task| {
                polls += 1;
                if polls > wakes {
                    return Poll::Ready(polls);
                }
                task.waker().wake_by_ref();
                Poll::Pending
            })),
            4,
        );
        let waker = Waker::from(Arc::clone(&outer));
        let result = Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
        (result, outer.0.load(Ordering::SeqCst))
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again_without_waking_its_task() {
        assert_eq!(polled(0), (Poll::Ready(1), 0));
        assert_eq!(polled(2), (Poll::Ready(3), 0));
    }

    #[test]
    fn a_future_that_always_wakes_itself_yields() {
        assert_eq!(polled(100), (Poll::Pending, 1));
    }

    #[test]
    fn a_wake_from_elsewhere_wakes_the_task() {
        let outer = Arc::new(Wakes::default());
        let mut kept: Option<Waker> = None;
        let waker = Waker::from(Arc::clone(&outer));
        let mut future = OwnWakes::new(
            Box::pin(poll_fn(|task| {
                kept = Some(task.waker().clone());
                Poll::<()>::Pending
            })),
            4,
        );
        assert!(
            Pin::new(&mut future)
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        drop(future);
        kept.unwrap().wake();
        assert_eq!(outer.0.load(Ordering::SeqCst), 1);
    }
}
