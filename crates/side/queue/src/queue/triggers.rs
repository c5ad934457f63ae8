//! The queue as triggers see it: events that are accepted together with what a trigger remembers.

use std::sync::Arc;

use pilot_model::BoxFuture;
use pilot_model::ports::{AsyncRequest, Mark, NotAccepted, TriggerStore};

use super::Queue;
use crate::command::Command;
use crate::marks;
use crate::rules::Condition;
use crate::shared::QueueShared;
use crate::store::{Dead, Record};

impl TriggerStore for Queue {
    fn accept_marked(
        &self,
        request: AsyncRequest,
        mark: Option<Mark>,
    ) -> BoxFuture<'static, Result<(), NotAccepted>> {
        let shared = self.shared();
        let now_ms = shared.times.now_ms();
        let record = Record {
            mark,
            ..Record::of(request, now_ms)
        };
        store(shared, record)
    }

    fn bury(
        &self,
        request: AsyncRequest,
        attempts: u32,
        problem: String,
    ) -> BoxFuture<'static, Result<(), NotAccepted>> {
        let shared = self.shared();
        let now_ms = shared.times.now_ms();
        let record = Record {
            dead: Some(Dead {
                condition: Condition::RetriesExhausted,
                error: problem,
                attempts,
            }),
            ..Record::of(request, now_ms)
        };
        store(shared, record)
    }

    fn marks(&self, scope: &str) -> BoxFuture<'static, Result<Vec<(String, String)>, String>> {
        let (shared, scope) = (self.shared(), scope.to_owned());
        Box::pin(async move {
            let found =
                tokio::task::spawn_blocking(move || marks::read(&shared.lister.lock(), &scope));
            match found.await {
                Ok(found) => found.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn change(&self, marks: Vec<Mark>) -> BoxFuture<'static, Result<(), String>> {
        let shared = self.shared();
        Box::pin(async move {
            let changed = shared.tell(|reply| Command::Marks { marks, reply }).await;
            changed.unwrap_or_else(|| Err(NotAccepted::Stopping.to_string()))
        })
    }

    fn forget(&self, beginning: &str, kept: Vec<String>) {
        let beginning = beginning.to_owned();
        // The writer has ended only while the daemon stops; the next one begins with the functions that there are.
        let _ = self
            .shared()
            .commands
            .send(Command::Forget { beginning, kept });
    }
}

fn store(shared: Arc<QueueShared>, record: Record) -> BoxFuture<'static, Result<(), NotAccepted>> {
    Box::pin(async move {
        let place = Arc::clone(&shared.places).acquire_owned().await;
        let place = place.map_err(|_| NotAccepted::Stopping)?;
        let record = Box::new(record);
        let accepted = shared.tell(|reply| Command::Accept {
            record,
            place,
            reply,
        });
        let accepted = accepted.await.unwrap_or(Err(NotAccepted::Stopping));
        accepted.map(drop)
    })
}
