//! A worker in a kept runtime. It adds nothing to an exchange: the futures are the inner worker's own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{
    Answer, Call, Input, Part, PassedRequest, PassedResponse, Resources, ShownInputs, StartStamps,
    Unpassed, Worker, WorkerFault,
};
use pilot_model::{BoxFuture, WorkerId};
use tokio::time::timeout;

use super::hold::Hold;

/// A worker, and its runtime until it is given back.
#[derive(Debug)]
pub(in crate::keyed) struct KeyedWorker {
    inner: Arc<dyn Worker>,
    /// Guards the runtime, which is given back only once: by the first call that ends the worker.
    hold: Mutex<Option<Hold>>,
}

impl KeyedWorker {
    pub(super) fn new(inner: Arc<dyn Worker>, hold: Hold) -> Self {
        Self {
            inner,
            hold: Mutex::new(Some(hold)),
        }
    }

    /// Releases it, and waits at most `patience` until its runtime is clean and kept, or ended.
    pub(in crate::keyed) async fn end(self, patience: Duration) {
        self.inner.retire();
        let hold = self.hold.lock().take();
        if let Some(hold) = hold {
            let _ = timeout(patience, hold.give_back()).await;
        }
    }

    /// After a crash or a kill, the runtime may be used again, too: cleaning verifies it.
    fn give_back(&self) {
        let hold = self.hold.lock().take();
        if let Some(hold) = hold {
            drop(hold.give_back());
        }
    }
}

impl Worker for KeyedWorker {
    fn id(&self) -> WorkerId {
        self.inner.id()
    }

    fn stamps(&self) -> StartStamps {
        self.inner.stamps()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>> {
        self.inner.call(call)
    }

    fn show(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<ShownInputs, String>> {
        self.inner.show(inputs)
    }

    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
        self.inner.next(stream)
    }

    fn pass(&self, request: PassedRequest) -> BoxFuture<'_, Result<PassedResponse, Unpassed>> {
        self.inner.pass(request)
    }

    fn take_output(&self) -> Bytes {
        self.inner.take_output()
    }

    fn printed(&self) -> BoxFuture<'static, bool> {
        self.inner.printed()
    }

    fn last_output(&self) -> BoxFuture<'static, Bytes> {
        self.inner.last_output()
    }

    fn cancel(&self, stream: u32) -> Option<BoxFuture<'static, bool>> {
        self.inner.cancel(stream)
    }

    fn is_alive(&self) -> bool {
        self.inner.is_alive()
    }

    fn kill(&self) {
        self.inner.kill();
        self.give_back();
    }

    fn retire(&self) {
        self.inner.retire();
        self.give_back();
    }

    fn discard(&self) {
        self.inner.retire();
        let hold = self.hold.lock().take();
        if let Some(hold) = hold {
            hold.give_up();
        }
    }

    fn resources(&self) -> &dyn Resources {
        self.inner.resources()
    }
}

impl Drop for KeyedWorker {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.get_mut().take() {
            // It was dropped without being released, perhaps in the middle of an exchange.
            self.inner.kill();
            drop(hold.give_back());
        }
    }
}
