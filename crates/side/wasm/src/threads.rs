//! The threads of scripts: one that runs them all, and one that advances the epoch, at which each script gives way to the others.
//!
//! A script begins where its invocation is, up to the first place where it waits: waking another thread takes longer than what a
//! script does before its first requests. So it has at most one epoch there. One that computes for this long is not begun there
//! again for a while.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pilot_model::BoxFuture;
use tokio::runtime::{Builder, Runtime};
use tokio::task;
use wasmtime::Engine;

/// Between two epochs. A script runs at most this long before another one does.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// A script that computed for an epoch where its invocation is begins on the thread of scripts this many times.
const STARTS_ELSEWHERE: u32 = 64;

/// Whether the scripts of one module begin where their invocations are.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    /// Starts until one begins there again.
    elsewhere: AtomicU32,
}

impl Beginning {
    /// Counts a start.
    pub(crate) fn is_here(&self) -> bool {
        let count = |left: u32| left.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.elsewhere.fetch_update(set, fetch, count).is_err()
    }

    /// `time`: CPU time. On a busy machine, time passes without the script.
    pub(crate) fn took(&self, time: Duration) {
        if time >= TICK {
            self.begin_elsewhere(STARTS_ELSEWHERE);
        }
    }

    pub(crate) fn begin_elsewhere(&self, starts: u32) {
        self.elsewhere.store(starts, Ordering::Relaxed);
    }
}

/// A script that has begun.
#[derive(Debug)]
pub(crate) enum Begun<T> {
    /// It never waited. `None`: it panicked.
    Ended(Option<T>),
    /// It goes on, on the thread of scripts.
    Running(Running<T>),
}

impl<T> Begun<T> {
    /// Waits for its end. `None`: it panicked, or the daemon stops. Dropping the future ends it.
    pub(crate) async fn end(self) -> Option<T> {
        match self {
            Self::Ended(end) => end,
            Self::Running(running) => running.await,
        }
    }
}

/// Runs scripts.
#[derive(Debug)]
pub(crate) struct Threads {
    /// `None` only while it is dropped.
    scripts: Option<Runtime>,
    epochs: Arc<Epochs>,
    ticker: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Epochs {
    /// Scripts that run. Without any, there are no epochs.
    running: AtomicUsize,
    is_closed: AtomicBool,
}

impl Threads {
    /// # Errors
    /// The kernel gives no thread.
    pub(crate) fn start(engine: &Engine) -> io::Result<Self> {
        let scripts = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .thread_name("pilot-scripts")
            .enable_time()
            .build()?;
        let epochs = Arc::new(Epochs::default());
        let (engine, of_ticker) = (engine.clone(), Arc::clone(&epochs));
        let ticker = thread::Builder::new()
            .name("pilot-epochs".to_owned())
            .spawn(move || of_ticker.tick(&engine))?;
        Ok(Self {
            scripts: Some(scripts),
            epochs,
            ticker,
        })
    }

    /// Runs a script. `here`: it begins on the thread of the caller, unless it has shown that it computes for long. Dropping the
    /// result ends it. `None`: the thread of scripts is gone.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        script: impl Future<Output = T> + Send + 'static,
        here: Option<&Beginning>,
    ) -> Option<Begun<T>> {
        let scripts = self.scripts.as_ref()?;
        let counted = Counted::new(&self.epochs);
        if counted.is_first {
            self.ticker.thread().unpark();
        }
        let mut script: BoxFuture<'static, T> = Box::pin(async move {
            let _counted = counted;
            script.await
        });
        if let Some(here) = here.filter(|here| here.is_here()) {
            let began = computed();
            // What it waits for learns who waits when it is polled by the thread of scripts.
            let poll = || {
                script
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
            };
            let polled = catch_unwind(AssertUnwindSafe(poll));
            here.took(computed().saturating_sub(began));
            match polled {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(end)) => return Some(Begun::Ended(Some(end))),
                Err(_) => return Some(Begun::Ended(None)),
            }
        }
        Some(Begun::Running(Running(scripts.spawn(script))))
    }
}

/// For how long this thread has computed (clock_gettime(2)).
fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.epochs.is_closed.store(true, Ordering::SeqCst);
        self.ticker.thread().unpark();
        if let Some(scripts) = self.scripts.take() {
            // Waiting is not allowed in a task. A script that computes ends with the process.
            scripts.shutdown_background();
        }
    }
}

impl Epochs {
    fn tick(&self, engine: &Engine) {
        while !self.is_closed.load(Ordering::SeqCst) {
            if self.running.load(Ordering::SeqCst) == 0 {
                thread::park();
            } else {
                thread::sleep(TICK);
                engine.increment_epoch();
            }
        }
    }
}

/// One script that runs.
struct Counted {
    epochs: Arc<Epochs>,
    is_first: bool,
}

impl Counted {
    fn new(epochs: &Arc<Epochs>) -> Self {
        Self {
            is_first: epochs.running.fetch_add(1, Ordering::SeqCst) == 0,
            epochs: Arc::clone(epochs),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.epochs.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A script that runs, or a request of one. Dropping it ends it. `None`: it panicked, or the daemon stops.
#[derive(Debug)]
pub(crate) struct Running<T>(task::JoinHandle<T>);

impl<T> Running<T> {
    pub(crate) fn new(task: task::JoinHandle<T>) -> Self {
        Self(task)
    }
}

impl<T> Future for Running<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.0).poll(cx).map(Result::ok)
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
