//! The records in SQLite: statements and nothing else. The caller says what is one transaction.

use std::collections::HashSet;

use bytes::Bytes;
use pilot_model::FunctionName;
use pilot_model::asynchronous::{AsyncInfo, AsyncShown, Destination};
use pilot_model::ports::{AsyncFilter, AsyncRequest, Mark, MayTouch};
use pilot_model::trigger::FaasTrigger;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};
use sha2::{Digest, Sha256};

use crate::rules::{Condition, Progress};
use crate::schedule::{Entry, Work};

/// An invocation as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) request: AsyncRequest,
    /// Where the payload is delivered, see [`place`]; `None`: the function is invoked.
    pub(crate) file: Option<String>,
    /// How many destinations lie before it.
    pub(crate) hops: u32,
    pub(crate) accepted_ms: i64,
    pub(crate) due_ms: i64,
    pub(crate) dead: Option<Dead>,
    /// What its trigger remembers with it. It is stored elsewhere.
    pub(crate) mark: Option<Mark>,
}

/// Why an invocation is not tried any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) condition: Condition,
    pub(crate) error: String,
    pub(crate) attempts: u32,
}

/// What an invocation takes of the limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl Record {
    /// A request that is due at once.
    pub(crate) fn of(request: AsyncRequest, now_ms: i64) -> Self {
        Self {
            request,
            file: None,
            hops: 0,
            accepted_ms: now_ms,
            due_ms: now_ms,
            dead: None,
            mark: None,
        }
    }

    /// Its entry in the schedule.
    pub(crate) fn entry(&self) -> Entry {
        Entry {
            function: self.request.function.clone(),
            work: Work::of(self.file.is_some()),
            progress: Progress {
                accepted_ms: self.accepted_ms,
                attempts: 0,
                waits: 0,
            },
            due_ms: self.due_ms,
            bytes: self.bytes(),
            keyed: self.request.key.is_some(),
            interrupted: false,
            running: false,
        }
    }

    /// Bytes of everything that has no fixed size.
    pub(crate) fn bytes(&self) -> u64 {
        let request = &self.request;
        let texts = [
            &request.qualifier,
            &request.client_context,
            &request.trace,
            &request.key,
        ];
        let texts = texts.into_iter().flatten().map(String::len);
        (OVERHEAD + request.payload.len() + texts.sum::<usize>()) as u64
    }

    /// Where its key is unique: the function of this owner. Somebody else may use the name later.
    fn key_scope(&self) -> String {
        format!("{}/{}", self.request.owner, self.request.function)
    }

    /// What makes a request with the same key another request.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let request = &self.request;
        let mut hash = Sha256::new();
        for text in [&request.qualifier, &request.client_context] {
            let text = text.as_deref();
            hash.update([u8::from(text.is_some())]);
            hash.update((text.map_or(0, str::len) as u64).to_be_bytes());
            hash.update(text.unwrap_or_default());
        }
        hash.update(&request.payload);
        hash.finalize().into()
    }
}

/// Stores a record. Returns its number.
pub(crate) fn insert(connection: &Connection, record: &Record) -> Result<i64> {
    let request = &record.request;
    let dead = record.dead.as_ref();
    connection
        .prepare_cached(
            "INSERT INTO records (id, function, owner, qualifier, file, key, client_context, trace, hops, accepted_ms, due_ms,
                                  attempts, waits, started, condition, error, bytes, payload, faas_trigger)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 0, 0, ?13, ?14, ?15, ?16, ?17)",
        )?
        .execute(params![
            request.id.as_str(),
            request.function.as_str(),
            request.owner,
            request.qualifier,
            record.file,
            request.key,
            request.client_context,
            request.trace,
            record.hops,
            record.accepted_ms,
            record.due_ms,
            dead.map_or(0, |dead| dead.attempts),
            dead.map(|dead| dead.condition.as_str()),
            dead.map(|dead| dead.error.as_str()),
            i64::try_from(record.bytes()).unwrap_or(i64::MAX),
            &request.payload[..],
            request.trigger.as_str(),
        ])?;
    Ok(connection.last_insert_rowid())
}

/// The request that a key was accepted with: its id and digest.
pub(crate) fn key(
    connection: &Connection,
    record: &Record,
    key: &str,
) -> Result<Option<(String, Vec<u8>)>> {
    connection
        .prepare_cached("SELECT id, digest FROM keys WHERE scope = ?1 AND key = ?2")?
        .query_row(params![record.key_scope(), key], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()
}

/// Stores a key.
pub(crate) fn insert_key(
    connection: &Connection,
    record: &Record,
    key: &str,
    expires_ms: i64,
) -> Result<()> {
    let request = &record.request;
    connection
        .prepare_cached(
            "INSERT INTO keys (scope, key, id, digest, expires_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            record.key_scope(),
            key,
            request.id.as_str(),
            &record.digest()[..],
            expires_ms
        ])?;
    Ok(())
}

/// Removes keys that expired before `now_ms`, and those that expire after `never_ms`, which are from a time when the machine's clock
/// was ahead. Returns how many there were. A key stays as long as its invocation.
pub(crate) fn forget_keys(connection: &Connection, now_ms: i64, never_ms: i64) -> Result<usize> {
    connection
        .prepare_cached(
            "DELETE FROM keys WHERE (scope, key) IN
               (SELECT scope, key FROM keys WHERE (expires_ms < ?1 OR expires_ms > ?2)
                AND NOT EXISTS (SELECT 1 FROM records WHERE records.id = keys.id) LIMIT 10000)",
        )?
        .execute([now_ms, never_ms])
}

/// Removes the key of an invocation that has not run and will not run. Returns how many there were. The record must still be there.
pub(crate) fn forget_key(connection: &Connection, seq: i64) -> Result<usize> {
    connection
        .prepare_cached(
            "DELETE FROM keys WHERE scope = (SELECT owner || '/' || function FROM records WHERE seq = ?1)
             AND key = (SELECT key FROM records WHERE seq = ?1) AND id = (SELECT id FROM records WHERE seq = ?1)",
        )?
        .execute([seq])
}

/// Removes the keys of a function, of all owners, and returns how many there were. Those of invocations that wait or run stay: they end
/// later.
pub(crate) fn forget_keys_of(connection: &Connection, function: &FunctionName) -> Result<usize> {
    // The name of a function has no slash.
    connection
        .prepare_cached(
            "DELETE FROM keys WHERE substr(scope, -length(?1)) = ?1
             AND NOT EXISTS (SELECT 1 FROM records WHERE records.id = keys.id AND condition IS NULL)",
        )?
        .execute([format!("/{function}")])
}

/// The same of all functions that are gone.
pub(crate) fn forget_keys_of_functions(
    connection: &Connection,
    is_gone: impl Fn(&str) -> bool,
) -> Result<usize> {
    let mut scopes = connection.prepare_cached("SELECT DISTINCT scope FROM keys")?;
    let scopes = scopes.query_map([], |row| row.get::<_, String>(0))?;
    let scopes = scopes.collect::<Result<Vec<_>>>()?;
    let names: HashSet<&str> = scopes
        .iter()
        .filter_map(|scope| Some(scope.rsplit_once('/')?.1))
        .filter(|name| is_gone(name))
        .collect();
    let forgotten = names.into_iter().filter_map(|name| name.parse().ok());
    forgotten
        .map(|function| forget_keys_of(connection, &function))
        .sum()
}

/// How many keys there are.
pub(crate) fn keys(connection: &Connection) -> Result<u64> {
    let count: i64 = connection.query_row("SELECT count(*) FROM keys", [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// The attempt of an invocation with a key begins.
pub(crate) fn start(connection: &Connection, seq: i64) -> Result<()> {
    connection
        .prepare_cached("UPDATE records SET started = 1 WHERE seq = ?1")?
        .execute([seq])?;
    Ok(())
}

/// An invocation waits again.
pub(crate) fn again(
    connection: &Connection,
    seq: i64,
    due_ms: i64,
    (attempts, waits): (u32, u32),
    error: &str,
) -> Result<()> {
    connection
        .prepare_cached(
            "UPDATE records SET due_ms = ?2, attempts = ?3, waits = ?4, error = ?5, started = 0 WHERE seq = ?1",
        )?
        .execute(params![seq, due_ms, attempts, waits, error])?;
    Ok(())
}

/// Removes a record.
pub(crate) fn remove(connection: &Connection, seq: i64) -> Result<()> {
    connection
        .prepare_cached("DELETE FROM records WHERE seq = ?1")?
        .execute([seq])?;
    Ok(())
}

/// A record becomes a dead letter.
pub(crate) fn bury(connection: &Connection, seq: i64, dead: &Dead) -> Result<()> {
    connection
        .prepare_cached(
            "UPDATE records SET condition = ?2, error = ?3, attempts = ?4, started = 0 WHERE seq = ?1",
        )?
        .execute(params![
            seq,
            dead.condition.as_str(),
            dead.error,
            dead.attempts
        ])?;
    Ok(())
}

/// A dead letter waits, as if it were accepted now.
pub(crate) fn revive(connection: &Connection, seq: i64, now_ms: i64) -> Result<()> {
    connection
        .prepare_cached(
            "UPDATE records SET condition = NULL, error = NULL, attempts = 0, waits = 0, started = 0, hops = 0,
                                accepted_ms = ?2, due_ms = ?2
             WHERE seq = ?1",
        )?
        .execute([seq, now_ms])?;
    Ok(())
}

/// One record, which is not a dead letter. `None`: it is not there, or cannot be a record.
pub(crate) fn load(connection: &Connection, seq: i64) -> Result<Option<Record>> {
    connection
        .prepare_cached(
            "SELECT id, function, owner, qualifier, file, key, client_context, trace, hops, accepted_ms, due_ms, payload,
                    faas_trigger
             FROM records WHERE seq = ?1 AND condition IS NULL",
        )?
        .query_row([seq], |row| {
            let Some(function) = name(row, 1)? else {
                return Ok(None);
            };
            Ok(Some(Record {
                request: AsyncRequest {
                    id: pilot_model::InvocationId::new(&row.get::<_, String>(0)?),
                    function,
                    owner: row.get(2)?,
                    qualifier: row.get(3)?,
                    key: row.get(5)?,
                    client_context: row.get(6)?,
                    trace: row.get(7)?,
                    payload: Bytes::from(row.get::<_, Vec<u8>>(11)?),
                    trigger: trigger(row, 12)?,
                },
                file: row.get(4)?,
                hops: row.get(8)?,
                accepted_ms: row.get(9)?,
                due_ms: row.get(10)?,
                dead: None,
                mark: None,
            }))
        })
        .optional()
        .map(Option::flatten)
}

/// Calls `each` with every record that waits, and its number.
pub(crate) fn waiting(connection: &Connection, mut each: impl FnMut(i64, Entry)) -> Result<()> {
    let mut statement = connection.prepare(
        "SELECT seq, function, accepted_ms, due_ms, attempts, waits, key IS NOT NULL, started, bytes,
                file IS NOT NULL
         FROM records WHERE condition IS NULL ORDER BY seq",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let Some(function) = name(row, 1)? else {
            continue;
        };
        let entry = Entry {
            function,
            work: Work::of(row.get(9)?),
            progress: Progress {
                accepted_ms: row.get(2)?,
                attempts: row.get(4)?,
                waits: row.get(5)?,
            },
            due_ms: row.get(3)?,
            bytes: row.get::<_, i64>(8)?.unsigned_abs(),
            keyed: row.get(6)?,
            interrupted: row.get(7)?,
            running: false,
        };
        each(row.get(0)?, entry);
    }
    Ok(())
}

/// What dead letters take.
pub(crate) fn dead_size(connection: &Connection) -> Result<Size> {
    connection.query_row(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM records WHERE condition IS NOT NULL",
        [],
        |row| {
            Ok(Size {
                records: row.get::<_, i64>(0)?.unsigned_abs(),
                bytes: row.get::<_, i64>(1)?.unsigned_abs(),
            })
        },
    )
}

/// The newest time of acceptance of those that wait. Dead letters do not count, because they stay for long: one from a time when the
/// machine's clock was ahead would keep the queue's time ahead.
pub(crate) fn newest_ms(connection: &Connection) -> Result<i64> {
    connection.query_row(
        "SELECT coalesce(max(accepted_ms), 0) FROM records WHERE condition IS NULL",
        [],
        |row| row.get(0),
    )
}

/// The oldest dead letter, and its bytes.
pub(crate) fn oldest_dead(connection: &Connection) -> Result<Option<(i64, u64)>> {
    connection
        .prepare_cached(
            "SELECT seq, bytes FROM records WHERE condition IS NOT NULL ORDER BY seq LIMIT 1",
        )?
        .query_row([], |row| {
            Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()))
        })
        .optional()
}

/// A record as somebody asks for it.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) seq: i64,
    pub(crate) info: AsyncInfo,
    pub(crate) owner: String,
    pub(crate) bytes: u64,
}

impl Found {
    /// The entry of a dead letter that waits again.
    pub(crate) fn revived(&self, now_ms: i64) -> Entry {
        Entry {
            function: self.info.function.clone(),
            work: Work::of(self.info.destination.is_some()),
            progress: Progress {
                accepted_ms: now_ms,
                attempts: 0,
                waits: 0,
            },
            due_ms: now_ms,
            bytes: self.bytes,
            keyed: self.info.key.is_some(),
            interrupted: false,
            running: false,
        }
    }
}

/// One record by its id.
pub(crate) fn find(connection: &Connection, id: &str) -> Result<Option<Found>> {
    let sql = format!("{FOUND} WHERE id = ?1");
    connection
        .prepare_cached(&sql)?
        .query_row([id], found)
        .optional()
        .map(Option::flatten)
}

/// One record with its payload.
pub(crate) fn show(connection: &Connection, id: &str) -> Result<Option<(Found, AsyncShown)>> {
    let Some(found) = find(connection, id)? else {
        return Ok(None);
    };
    let payload: Vec<u8> = connection.query_row(
        "SELECT payload FROM records WHERE seq = ?1",
        [found.seq],
        |row| row.get(0),
    )?;
    let shown = AsyncShown {
        info: found.info.clone(),
        payload: serde_json::from_slice(&payload).unwrap_or(serde_json::Value::Null),
    };
    Ok(Some((found, shown)))
}

/// Records in the order of their acceptance, as far as `may` permits.
pub(crate) fn list(
    connection: &Connection,
    filter: &AsyncFilter,
    may: &MayTouch,
) -> Result<Vec<Found>> {
    let condition = if filter.dead { "IS NOT" } else { "IS" };
    let sql = format!(
        "{FOUND} WHERE condition {condition} NULL AND (?1 IS NULL OR function = ?1) ORDER BY seq"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([filter.function.as_ref().map(FunctionName::as_str)])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        if list.len() >= filter.limit {
            break;
        }
        if let Some(found) = found(row)?
            && may(&found.info.function, &found.owner)
        {
            list.push(found);
        }
    }
    Ok(list)
}

fn found(row: &Row<'_>) -> Result<Option<Found>> {
    let Some(function) = name(row, 2)? else {
        return Ok(None);
    };
    let condition: Option<String> = row.get(9)?;
    let key: Option<String> = row.get(5)?;
    let ms = |column| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)?.unsigned_abs());
    Ok(Some(Found {
        seq: row.get(0)?,
        owner: row.get(11)?,
        bytes: ms(12)?,
        info: AsyncInfo {
            id: row.get(1)?,
            function,
            qualifier: row.get(3)?,
            destination: row.get::<_, Option<String>>(4)?.map(|place| shown(&place)),
            state: if condition.is_some() {
                "dead"
            } else {
                "waiting"
            }
            .to_owned(),
            key,
            accepted_unix_ms: ms(6)?,
            due_unix_ms: ms(7)?,
            attempts: row.get(8)?,
            payload_bytes: ms(13)?,
            condition,
            error: row.get(10)?,
        },
    }))
}

/// How a destination that is no function is stored: the name of a file alone, as always; anything else as it is written.
pub(crate) fn place(destination: &Destination) -> String {
    match destination {
        Destination::File(name) => name.clone(),
        other => other.to_string(),
    }
}

/// A destination from its [`place`], as it is written. The name of a file has no colon.
pub(crate) fn shown(place: &str) -> String {
    if place.contains(':') {
        place.to_owned()
    } else {
        format!("file:{place}")
    }
}

/// `None`: the text is no name. Only a damaged file has one.
fn name(row: &Row<'_>, column: usize) -> Result<Option<FunctionName>> {
    Ok(row.get::<_, String>(column)?.parse().ok())
}

/// An older Pilotlight did not store it, and a newer one may know more of them.
fn trigger(row: &Row<'_>, column: usize) -> Result<FaasTrigger> {
    let word: Option<String> = row.get(column)?;
    let known = word.as_deref().and_then(FaasTrigger::of_word);
    Ok(known.unwrap_or(FaasTrigger::Other))
}

const FOUND: &str = "SELECT seq, id, function, qualifier, file, key, accepted_ms, due_ms, attempts, condition, error, owner, bytes,
                            length(payload) FROM records";
/// About what a record takes besides its payload and texts.
const OVERHEAD: usize = 256;
