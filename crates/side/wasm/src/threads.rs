//! The threads of scripts: one that runs them all, and one that advances the epoch, at which each script gives way to the others.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task;
use wasmtime::Engine;

/// Between two epochs. A script runs at most so long before another one does.
pub(crate) const TICK: Duration = Duration::from_millis(1);

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

    /// Runs a script. Dropping the result ends it. `None`: the task is gone.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        script: impl Future<Output = T> + Send + 'static,
    ) -> Option<Running<T>> {
        let scripts = self.scripts.as_ref()?;
        let counted = Counted::new(&self.epochs);
        if counted.is_first {
            self.ticker.thread().unpark();
        }
        let task = scripts.spawn(async move {
            let _counted = counted;
            script.await
        });
        Some(Running(task))
    }
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
