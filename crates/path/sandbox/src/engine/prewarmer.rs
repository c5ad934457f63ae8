//! Keeps sandboxes ready for functions that are in use, off the path: makes new ones, and cleans those that workers leave.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use super::TemplateTree;
use super::nodes::Function;
use crate::worker::{Body, Home};

/// Sandboxes made ahead for a function that has just started a worker.
const SPARES: usize = 2;

/// Sandboxes kept when workers come and go: as many as were in use at once, up to this.
const SPARES_MAX: usize = 32;

/// How long after a start sandboxes are made for the next.
const REFILL_AFTER: Duration = Duration::from_millis(4);

/// Of the sandboxes kept beyond [`SPARES`], those that nobody needed for this long are given up.
const TRIM_AFTER: Duration = Duration::from_secs(10);

/// Work waiting; beyond it a function is not refilled, a sandbox is not cleaned but dropped.
const WAITING_MAX: usize = 1024;

/// The task that does it.
#[derive(Debug)]
pub(super) struct SandboxPrewarmer {
    work: mpsc::Sender<Work>,
    task: JoinHandle<()>,
}

enum Work {
    Refill(Weak<TemplateTree>, Weak<Function>),
    Recycle(Weak<Function>, Box<Body>),
}

impl SandboxPrewarmer {
    pub(super) fn start() -> Self {
        let (sender, work) = mpsc::channel(WAITING_MAX);
        Self {
            work: sender,
            task: tokio::spawn(keep(work)),
        }
    }

    /// A function's worker has started: have sandboxes ready for the next.
    pub(super) fn refill(&self, tree: &Arc<TemplateTree>, function: &Arc<Function>) {
        if function.spare_count() < SPARES && function.begin_refill() {
            let work = Work::Refill(Arc::downgrade(tree), Arc::downgrade(function));
            if self.work.try_send(work).is_err() {
                // Full: the next start makes its own.
                function.end_refill();
            }
        }
    }

    /// Where a worker's sandbox goes.
    pub(super) fn home(&self, function: &Arc<Function>) -> Arc<dyn Home> {
        Arc::new(FunctionHome {
            work: self.work.clone(),
            function: Arc::clone(function),
        })
    }
}

impl Drop for SandboxPrewarmer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct FunctionHome {
    work: mpsc::Sender<Work>,
    /// A worker keeps its function's node, and so its template, alive.
    function: Arc<Function>,
}

impl Home for FunctionHome {
    fn take_back(&self, body: Body) {
        if self.function.spare_count() < SPARES_MAX {
            // Full: dropped, which ends it.
            let _ = self.work.try_send(Work::Recycle(
                Arc::downgrade(&self.function),
                Box::new(body),
            ));
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
                Some(Work::Recycle(function, body)) => {
                    jobs.spawn(recycle(function, body));
                }
            },
            Some(_) = jobs.join_next() => {}
        }
    }
}

async fn refill(tree: Weak<TemplateTree>, function: Weak<Function>) {
    // The invocation that the worker was started for is under way: not beside it, on a machine of few CPUs.
    tokio::time::sleep(REFILL_AFTER).await;
    let (Some(tree), Some(function)) = (tree.upgrade(), function.upgrade()) else {
        return;
    };
    while function.spare_count() < SPARES {
        match tree.worker_sandbox(&function).await {
            Ok(sandbox) => function.keep_spare(sandbox, SPARES_MAX),
            Err(error) => {
                tracing::warn!(%error, function = %function.version().config.name, "no sandbox could be made ahead");
                break;
            }
        }
    }
    function.end_refill();
}

/// The process is ending: its channel is closed. What cannot be cleaned is dropped, which ends it.
async fn recycle(function: Weak<Function>, body: Box<Body>) {
    let Some(sandbox) = body.vacated().await else {
        return;
    };
    if sandbox.clean().await.is_err() {
        return;
    }
    if let Some(function) = function.upgrade() {
        function.keep_spare(sandbox, SPARES_MAX);
        if function.spare_count() <= SPARES || !function.begin_trim() {
            return;
        }
    }
    trim(function).await;
}

/// Gives up, little by little, what is kept beyond [`SPARES`] and not needed. The function may go meanwhile.
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
