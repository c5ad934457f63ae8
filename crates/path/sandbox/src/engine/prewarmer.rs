//! The sandbox pre-warmer: makes spare sandboxes for active functions in the background, and cleans those that workers release.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pilot_model::Seldom;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::TemplateTree;
use super::nodes::Function;
use crate::cgroup::Cgroup;
use crate::descriptors;
use crate::worker::{Released, SandboxOwner};

/// Spare sandboxes that could not be made and are logged, per interval.
static NOT_MADE: Seldom = Seldom::new(20);

/// Spare sandboxes of a function that has just started a worker.
const SPARES: usize = 2;

/// Most spare sandboxes of a function. Released sandboxes are kept up to this number.
const SPARES_MAX: usize = 32;

/// Pause between a start and making spares.
const REFILL_AFTER: Duration = Duration::from_millis(4);

/// Of the sandboxes beyond [`SPARES`], those that were not needed for this long are dropped.
const TRIM_AFTER: Duration = Duration::from_secs(10);

/// Longest time until the last worker that was told to end has ended: its grace period, and what the kernel needs.
const SETTLED_TIME_MAX: Duration = Duration::from_secs(13);

/// Most queued jobs. Beyond this, spares are not made, and released sandboxes are dropped.
const WAITING_MAX: usize = 1024;

/// Handle of the background task.
#[derive(Debug)]
pub(super) struct SandboxPrewarmer {
    work: mpsc::Sender<Work>,
    task: JoinHandle<()>,
    /// How many workers were told to end, and have not.
    lingering: watch::Sender<usize>,
}

enum Work {
    Refill(Weak<TemplateTree>, Weak<Function>),
    Recycle(Box<Released>, Lingering),
}

/// A worker that was told to end. Its function's node, and so its template and the sandbox around its own, stays until it has: user
/// code may run in it (`atexit` functions, the shutdown of an application), also if its version was replaced or removed meanwhile.
struct Lingering {
    function: Arc<Function>,
    /// Of a worker with a grace period.
    _place: Option<OwnedSemaphorePermit>,
    count: watch::Sender<usize>,
}

impl Drop for Lingering {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count -= 1);
    }
}

impl SandboxPrewarmer {
    pub(super) fn start() -> Self {
        let (sender, work) = mpsc::channel(WAITING_MAX);
        Self {
            work: sender,
            task: tokio::spawn(keep(work)),
            lingering: watch::Sender::new(0),
        }
    }

    /// Waits until all workers that were told to end have ended, or have had their time for it.
    pub(super) async fn settled(&self) {
        let mut lingering = self.lingering.subscribe();
        // An error means that the sender is gone, and it is here.
        let _ = timeout(SETTLED_TIME_MAX, lingering.wait_for(|count| *count == 0)).await;
    }

    /// Called when a function has started a worker: makes spare sandboxes for the next ones.
    pub(super) fn refill(&self, tree: &Arc<TemplateTree>, function: &Arc<Function>) {
        if function.spare_count() < SPARES && function.begin_refill() {
            let work = Work::Refill(Arc::downgrade(tree), Arc::downgrade(function));
            if self.work.try_send(work).is_err() {
                // The queue is full: the next start makes its own sandbox.
                function.end_refill();
            }
        }
    }

    /// Takes back the sandboxes of a function's workers.
    pub(super) fn owner_of(&self, function: &Arc<Function>) -> Arc<dyn SandboxOwner> {
        Arc::new(FunctionSandboxes {
            work: self.work.clone(),
            lingering: self.lingering.clone(),
            function: Arc::clone(function),
        })
    }
}

impl Drop for SandboxPrewarmer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct FunctionSandboxes {
    work: mpsc::Sender<Work>,
    lingering: watch::Sender<usize>,
    /// A worker keeps its function's node, and so its template, alive.
    function: Arc<Function>,
}

impl SandboxOwner for FunctionSandboxes {
    fn take_back(&self, released: Released) {
        let place = match released.grace {
            Some(_) => match self.function.linger() {
                Some(place) => Some(place),
                // Too many of its workers linger already: the sandbox is dropped, which ends it.
                None => return,
            },
            None => None,
        };
        let lingering = self.lingers(place);
        // If the queue is full, the sandbox is dropped, which ends it.
        let _ = (self.work).try_send(Work::Recycle(Box::new(released), lingering));
    }
}

impl FunctionSandboxes {
    fn lingers(&self, place: Option<OwnedSemaphorePermit>) -> Lingering {
        self.lingering.send_modify(|count| *count += 1);
        Lingering {
            function: Arc::clone(&self.function),
            _place: place,
            count: self.lingering.clone(),
        }
    }
}

async fn keep(mut work: mpsc::Receiver<Work>) {
    let mut jobs = JoinSet::new();
    loop {
        tokio::select! {
            next = work.recv() => match next {
                None => return,
                Some(Work::Refill(tree, function)) => {
                    jobs.spawn(refill(tree, function));
                }
                Some(Work::Recycle(released, lingering)) => {
                    jobs.spawn(recycle(released, lingering));
                }
            },
            Some(_) = jobs.join_next() => {}
        }
    }
}

async fn refill(tree: Weak<TemplateTree>, function: Weak<Function>) {
    // The invocation that caused the start is running; do not compete with it for the CPU.
    tokio::time::sleep(REFILL_AFTER).await;
    let (Some(tree), Some(function)) = (tree.upgrade(), function.upgrade()) else {
        return;
    };
    while function.spare_count() < SPARES && descriptors::has_spare() {
        match tree.worker_sandbox(&function).await {
            Ok(sandbox) => function.keep_spare(sandbox, SPARES_MAX),
            Err(error) => {
                if let Some(left_out) = NOT_MADE.admit(Instant::now()) {
                    let function = &function.version().config.name;
                    tracing::warn!(%error, %function, left_out, "a spare sandbox could not be made");
                }
                break;
            }
        }
    }
    function.end_refill();
}

/// The worker's process is ending, because its channel is closed, or because it was told to. A sandbox that cannot be cleaned is dropped,
/// which ends it.
async fn recycle(released: Box<Released>, lingering: Lingering) {
    let vacated = released.after_grace().await.vacated().await;
    let function = Arc::downgrade(&lingering.function);
    let has_room = lingering.function.spare_count() < SPARES_MAX;
    drop(lingering);
    let Some(mut sandbox) = vacated.filter(|_| has_room && function.strong_count() > 0) else {
        return;
    };
    if !descriptors::has_spare() || sandbox.clean().await.is_err() {
        return;
    }
    if sandbox.cgroup().is_some_and(Cgroup::is_charged) {
        // The next worker would have less memory than its limit.
        return;
    }
    let is_beyond = match function.upgrade() {
        None => return,
        Some(function) => {
            function.keep_spare(sandbox, SPARES_MAX);
            function.spare_count() > SPARES && function.begin_trim()
        }
    };
    if is_beyond {
        trim(function).await;
    }
}

/// Gradually drops unused spares beyond [`SPARES`]. The function may be dropped meanwhile.
async fn trim(function: Weak<Function>) {
    loop {
        tokio::time::sleep(TRIM_AFTER).await;
        let Some(function) = function.upgrade() else {
            return;
        };
        function.trim_spares(SPARES);
        if function.spare_count() <= SPARES {
            function.end_trim();
            return;
        }
    }
}
