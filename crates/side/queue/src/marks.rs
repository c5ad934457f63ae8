//! What triggers remember, in the store of the queue: so an invocation and the mark that it was accepted are one transaction, and a crash
//! can neither lose a run nor repeat it.

use std::sync::Arc;

use pilot_model::BoxFuture;
use pilot_model::ports::{AsyncRequest, Mark, NotAccepted, TriggerStore};
use rusqlite::{Connection, Result, params};

use crate::queue::{Queue, Shared};
use crate::rules::Condition;
use crate::store::{Dead, Record};
use crate::writer::Command;

/// Changes a mark.
pub(crate) fn set(connection: &Connection, mark: &Mark) -> Result<()> {
    let Mark { scope, key, value } = mark;
    match value {
        Some(value) => connection
            .prepare_cached(
                "INSERT INTO marks (scope, key, value) VALUES (?1, ?2, ?3)
                 ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value",
            )?
            .execute(params![scope, key, value])?,
        None => connection
            .prepare_cached("DELETE FROM marks WHERE scope = ?1 AND key = ?2")?
            .execute(params![scope, key])?,
    };
    Ok(())
}

/// Forgets the marks of the scopes that begin so, except those of some.
pub(crate) fn forget(connection: &Connection, beginning: &str, kept: &[String]) -> Result<()> {
    let mut scopes = connection
        .prepare_cached("SELECT DISTINCT scope FROM marks WHERE scope >= ?1 AND scope < ?2")?;
    // No character comes after it.
    let end = format!("{beginning}\u{10FFFF}");
    let scopes = scopes.query_map([beginning, end.as_str()], |row| row.get::<_, String>(0))?;
    let scopes = scopes.collect::<Result<Vec<_>>>()?;
    for scope in scopes.iter().filter(|scope| !kept.contains(scope)) {
        connection
            .prepare_cached("DELETE FROM marks WHERE scope = ?1")?
            .execute([scope])?;
    }
    Ok(())
}

fn read(connection: &Connection, scope: &str) -> Result<Vec<(String, String)>> {
    let mut statement =
        connection.prepare_cached("SELECT key, value FROM marks WHERE scope = ?1")?;
    let rows = statement.query_map([scope], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

impl TriggerStore for Queue {
    fn accept_marked(
        &self,
        request: AsyncRequest,
        mark: Option<Mark>,
    ) -> BoxFuture<'static, std::result::Result<(), NotAccepted>> {
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
    ) -> BoxFuture<'static, std::result::Result<(), NotAccepted>> {
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

    fn marks(
        &self,
        scope: &str,
    ) -> BoxFuture<'static, std::result::Result<Vec<(String, String)>, String>> {
        let (shared, scope) = (self.shared(), scope.to_owned());
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || read(&shared.lister.lock(), &scope));
            match found.await {
                Ok(found) => found.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            }
        })
    }

    fn change(&self, marks: Vec<Mark>) -> BoxFuture<'static, std::result::Result<(), String>> {
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

fn store(
    shared: Arc<Shared>,
    record: Record,
) -> BoxFuture<'static, std::result::Result<(), NotAccepted>> {
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
