//! What the tests of triggers have in place of the queue.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::FunctionName;
use pilot_model::asynchronous::AsyncConfig;
use pilot_model::ports::{
    AsyncRequest, AsyncRunner, AsyncTarget, AttemptEnd, BoxFuture, Mark, NoTarget, NotAccepted,
    TriggerStore,
};

/// A store that accepts everything.
#[derive(Debug, Default)]
pub(crate) struct FakeStore {
    /// The keys of the marks that came with what was accepted.
    pub(crate) accepted: Mutex<BTreeSet<String>>,
    /// All marks, of one trigger.
    pub(crate) marks: Mutex<BTreeMap<String, String>>,
    /// So many looks at marks panic.
    pub(crate) panics_left: AtomicU32,
    /// So many became dead letters.
    pub(crate) buried: AtomicU32,
}

impl TriggerStore for FakeStore {
    fn accept_marked(
        &self,
        _: AsyncRequest,
        mark: Option<Mark>,
    ) -> BoxFuture<'static, Result<(), NotAccepted>> {
        self.accepted
            .lock()
            .extend(mark.as_ref().map(|mark| mark.key.clone()));
        self.set(mark);
        Box::pin(async { Ok(()) })
    }

    fn bury(
        &self,
        _: AsyncRequest,
        _: u32,
        _: String,
    ) -> BoxFuture<'static, Result<(), NotAccepted>> {
        self.buried.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(()) })
    }

    fn marks(&self, _: &str) -> BoxFuture<'static, Result<Vec<(String, String)>, String>> {
        let left = &self.panics_left;
        let took = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        assert!(took.is_err(), "the store's {} is broken", "index");
        let marks = self.marks.lock().clone();
        Box::pin(async { Ok(marks.into_iter().collect()) })
    }

    fn change(&self, marks: Vec<Mark>) -> BoxFuture<'static, Result<(), String>> {
        self.set(marks);
        Box::pin(async { Ok(()) })
    }

    fn forget(&self, _: &str, _: Vec<String>) {}
}

impl FakeStore {
    /// Whether a file of this name was accepted.
    pub(crate) fn has_accepted(&self, name: &str) -> bool {
        let accepted = self.accepted.lock();
        let mut names = accepted.iter().filter_map(|key| key.rsplit('/').next());
        names.any(|accepted| accepted == name)
    }

    fn set(&self, changes: impl IntoIterator<Item = Mark>) {
        let mut marks = self.marks.lock();
        for Mark { key, value, .. } in changes {
            match value {
                Some(value) => _ = marks.insert(key, value),
                None => _ = marks.remove(&key),
            }
        }
    }
}

/// Runs nothing.
#[derive(Debug)]
pub(crate) struct Nobody;

impl AsyncRunner for Nobody {
    fn target(&self, _: &FunctionName, _: Option<&str>) -> Result<AsyncTarget, NoTarget> {
        Err(NoTarget::Gone)
    }

    fn run(&self, _: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        Box::pin(async { AttemptEnd::Stopping })
    }
}

/// Runs everything, and takes as long each time.
#[derive(Debug)]
pub(crate) struct Slow {
    takes: Duration,
    end: AttemptEnd,
    /// The events of what was begun.
    pub(crate) begun: Mutex<Vec<Bytes>>,
}

impl Slow {
    pub(crate) fn new(takes: Duration, end: AttemptEnd) -> Arc<Self> {
        Arc::new(Self {
            takes,
            end,
            begun: Mutex::default(),
        })
    }
}

impl AsyncRunner for Slow {
    fn target(&self, _: &FunctionName, _: Option<&str>) -> Result<AsyncTarget, NoTarget> {
        Ok(AsyncTarget {
            config: AsyncConfig::default(),
            owner: "me".to_owned(),
            concurrency: 10,
            arn: String::new(),
        })
    }

    fn run(&self, request: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        self.begun.lock().push(request.payload);
        let (takes, end) = (self.takes, self.end.clone());
        Box::pin(async move {
            tokio::time::sleep(takes).await;
            end
        })
    }
}
