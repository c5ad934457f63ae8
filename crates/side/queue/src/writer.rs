//! The one thread that writes the store. It takes all commands that wait and commits them in one transaction, so that the cost of a
//! synchronised write is shared by everybody who waits for it at that moment (group commit). An answer is sent after the commit.
//!
//! Invariants: the schedule changes after the commit, never before. What ends an attempt is never lost: if it cannot be written, it is
//! written later, and the attempt counts as running until then. Everything else that cannot be written is refused.

mod held;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use pilot_model::asynchronous::{DeadLetters, DeadLettersChanged};
use pilot_model::ports::{Accepted, AsyncFault, AsyncFilter, MayTouch, NotAccepted};
use pilot_model::{FunctionName, Seldom};
use rusqlite::Connection;

use crate::command::{Change, Command, How};
use crate::marks;
use crate::open;
use crate::rules::Condition;
use crate::schedule::Entry;
use crate::shared::{Limits, QueueShared};
use crate::store::{self, Record};

use held::Held;

/// What a command did in the transaction.
enum Outcome {
    Accepted(Result<Accepted, NotAccepted>, Option<(i64, Entry)>),
    Settled(Option<(i64, Entry)>),
    Cancelled(Result<i64, AsyncFault>),
    Changed(DeadLettersChanged, Vec<(i64, Entry)>),
    Nothing,
}

/// The writing side.
pub(crate) struct Writer {
    pub(crate) connection: Connection,
    shared: Arc<QueueShared>,
    limits: Limits,
    held: Held,
    /// What this transaction cancels, and has taken out of its lane.
    cancelled: Vec<i64>,
    keys_checked_ms: i64,
}

impl Writer {
    /// Reads what the store has.
    pub(crate) fn new(
        connection: Connection,
        shared: Arc<QueueShared>,
        limits: Limits,
    ) -> rusqlite::Result<Self> {
        let held = Held::read(&connection)?;
        shared.counters.holds(&held.waiting, &held.dead);
        Ok(Self {
            connection,
            shared,
            limits,
            held,
            cancelled: Vec::new(),
            keys_checked_ms: 0,
        })
    }

    /// Writes until [`Command::Stop`].
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        let mut kept: Vec<Command> = Vec::new();
        loop {
            let mut batch = std::mem::take(&mut kept);
            if batch.is_empty() {
                let Ok(first) = commands.recv() else { return };
                batch.push(first);
            } else {
                match commands.recv_timeout(AGAIN_AFTER) {
                    Ok(first) => batch.push(first),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            let mut bytes = 0;
            while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
                let Ok(next) = commands.try_recv() else { break };
                if let Command::Accept { record, .. } = &next {
                    bytes += record.request.payload.len();
                }
                batch.push(next);
            }
            let stops = batch.iter().any(|command| matches!(command, Command::Stop));
            kept = self.commit(batch);
            self.shared.wake.notify_one();
            if stops {
                if !open::merge_log(&self.connection) {
                    tracing::warn!(
                        "the log of the store of asynchronous invocations stays: the next start reads it"
                    );
                }
                return;
            }
        }
    }

    /// Runs a group of commands. Returns those to try again.
    pub(crate) fn commit(&mut self, batch: Vec<Command>) -> Vec<Command> {
        match self.transact(&batch) {
            Ok(outcomes) => {
                self.cancelled.clear();
                // Before the answers: who has one may ask for the counts.
                self.shared
                    .counters
                    .holds(&self.held.waiting, &self.held.dead);
                for (command, outcome) in batch.into_iter().zip(outcomes) {
                    self.answer(command, outcome);
                }
                Vec::new()
            }
            Err(error) => {
                if let Some(left_out) = FAILURES.admit(std::time::Instant::now()) {
                    tracing::error!(%error, left_out, "the store of asynchronous invocations cannot be written");
                }
                for seq in self.cancelled.drain(..) {
                    self.shared.schedule.lock().let_go(seq);
                }
                if let Ok(held) = Held::read(&self.connection) {
                    self.held = held;
                }
                let failed = batch
                    .into_iter()
                    .filter_map(|command| self.refuse(command, &error));
                failed.collect()
            }
        }
    }

    fn transact(&mut self, batch: &[Command]) -> rusqlite::Result<Vec<Outcome>> {
        let now_ms = self.shared.times.now_ms();
        let accepts = batch
            .iter()
            .any(|command| matches!(command, Command::Accept { .. }));
        let has_room = !accepts || (self.shared.has_room)();
        let transaction = self.connection.transaction()?;
        let mut work = Work {
            connection: &transaction,
            held: &mut self.held,
            cancelled: &mut self.cancelled,
            limits: &self.limits,
            shared: &self.shared,
            now_ms,
            has_room,
        };
        if now_ms - self.keys_checked_ms > KEYS_CHECKED_EVERY_MS {
            let never_ms = now_ms.saturating_add(2 * KEY_KEPT_MS);
            let forgotten = store::forget_keys(&transaction, now_ms, never_ms)?;
            work.held.forget_keys(forgotten);
            self.keys_checked_ms = now_ms;
        }
        let outcomes = batch.iter().map(|command| work.apply(command));
        let outcomes = outcomes.collect::<rusqlite::Result<Vec<_>>>()?;
        transaction.commit()?;
        Ok(outcomes)
    }

    /// Answers after the commit. Who does not wait any more gets no answer.
    fn answer(&self, command: Command, outcome: Outcome) {
        let counters = &self.shared.counters;
        let mut schedule = self.shared.schedule.lock();
        match (command, outcome) {
            (
                Command::Accept {
                    record,
                    place,
                    reply,
                },
                Outcome::Accepted(result, entry),
            ) => {
                match (&result, entry) {
                    (Ok(_), None) if record.dead.is_some() => counters.died(),
                    (_, Some((seq, entry))) => {
                        schedule.add(seq, entry);
                        counters.accepted();
                    }
                    // That there was no room is counted, and a mistake of the client is not.
                    (Ok(_) | Err(NotAccepted::KeyReused { .. }), None) => {}
                    (Err(_), None) => counters.refused(),
                }
                drop(place);
                let _ = reply.send(result);
            }
            (Command::Start { reply, .. }, _) => _ = reply.send(true),
            (Command::Marks { reply, .. }, _) => _ = reply.send(Ok(())),
            (
                Command::Settle {
                    seq, change, reply, ..
                },
                Outcome::Settled(then),
            ) => {
                match change {
                    Change::Again {
                        due_ms,
                        attempts,
                        waits,
                        ..
                    } => {
                        schedule.again(seq, due_ms, attempts, waits);
                        counters.retried();
                    }
                    Change::End { dead, then } => {
                        schedule.remove(seq);
                        if dead.is_some() {
                            counters.died();
                        }
                        // A record whose destination does not take it is a dead letter from the beginning.
                        if then.is_some_and(|record| record.dead.is_some()) {
                            counters.died();
                        }
                    }
                }
                if let Some((seq, entry)) = then {
                    schedule.add(seq, entry);
                }
                let _ = reply.send(());
            }
            (Command::Cancel { reply, .. }, Outcome::Cancelled(result)) => {
                let result = result.map(|seq| schedule.remove(seq));
                let _ = reply.send(result);
            }
            (Command::DeadLetters { reply, .. }, Outcome::Changed(changed, entries)) => {
                for (seq, entry) in entries {
                    schedule.add(seq, entry);
                }
                let _ = reply.send(Ok(changed));
            }
            // `Work::apply` has an outcome of its own for each command.
            _ => {}
        }
    }

    /// Refuses a command whose transaction failed. Returns it if it must be tried again.
    fn refuse(&self, command: Command, error: &rusqlite::Error) -> Option<Command> {
        let problem = error.to_string();
        match command {
            Command::Accept { reply, .. } => {
                self.shared.counters.refused();
                let _ = reply.send(Err(NotAccepted::Disk { problem }));
            }
            Command::Start { reply, .. } => _ = reply.send(false),
            Command::Settle { .. } => return Some(command),
            Command::Cancel { reply, .. } => {
                let _ = reply.send(Err(AsyncFault::Store { problem }));
            }
            Command::DeadLetters { reply, .. } => {
                let _ = reply.send(Err(AsyncFault::Store { problem }));
            }
            Command::Marks { reply, .. } => _ = reply.send(Err(problem)),
            Command::Forget { .. } | Command::ForgetKeys { .. } | Command::ForgetAllBut { .. } => {
                return Some(command);
            }
            Command::Stop => {}
        }
        None
    }
}

#[cfg(test)]
impl Writer {
    /// Whether the store has what was counted.
    pub(crate) fn counts_what_is_there(&self) -> bool {
        Held::read(&self.connection).is_ok_and(|held| held == self.held)
    }
}

/// One transaction.
struct Work<'a> {
    connection: &'a Connection,
    held: &'a mut Held,
    cancelled: &'a mut Vec<i64>,
    limits: &'a Limits,
    shared: &'a QueueShared,
    now_ms: i64,
    has_room: bool,
}

impl Work<'_> {
    fn apply(&mut self, command: &Command) -> rusqlite::Result<Outcome> {
        match command {
            Command::Accept { record, .. } => self.accept(record),
            Command::Start { seq, .. } => {
                store::start(self.connection, *seq).map(|()| Outcome::Nothing)
            }
            Command::Settle {
                seq, entry, change, ..
            } => self.settle(*seq, entry, change),
            Command::Cancel { id, may, .. } => self.cancel(id, may),
            Command::DeadLetters {
                which, how, may, ..
            } => self.dead_letters(which, *how, may),
            Command::Marks { marks, .. } => {
                for mark in marks {
                    marks::set(self.connection, mark)?;
                }
                Ok(Outcome::Nothing)
            }
            Command::Forget { beginning, kept } => {
                marks::forget(self.connection, beginning, kept).map(|()| Outcome::Nothing)
            }
            Command::ForgetKeys { function } => {
                let forgotten = store::forget_keys_of(self.connection, function)?;
                self.held.forget_keys(forgotten);
                Ok(Outcome::Nothing)
            }
            Command::ForgetAllBut { functions } => {
                let is_gone = |name: &str| {
                    let name = name.parse::<FunctionName>();
                    name.is_ok_and(|name| !functions.contains(&name))
                };
                marks::forget_functions(self.connection, is_gone)?;
                let forgotten = store::forget_keys_of_functions(self.connection, is_gone)?;
                self.held.forget_keys(forgotten);
                Ok(Outcome::Nothing)
            }
            Command::Stop => Ok(Outcome::Nothing),
        }
    }

    fn accept(&mut self, record: &Record) -> rusqlite::Result<Outcome> {
        let refused = |error| Ok(Outcome::Accepted(Err(error), None));
        let request = &record.request;
        if let Some(key) = &request.key
            && let Some((id, digest)) = store::key(self.connection, record, key)?
        {
            if digest != record.digest() {
                return refused(NotAccepted::KeyReused { id });
            }
            let accepted = Accepted {
                id: pilot_model::InvocationId::new(&id),
                repeated: true,
            };
            return Ok(Outcome::Accepted(Ok(accepted), None));
        }
        if !self.has_room {
            return refused(NotAccepted::Disk {
                problem: "the disk is full: free some space, then try again".to_owned(),
            });
        }
        if let Err(problem) = self.held.room_for(record, self.limits) {
            return refused(NotAccepted::Full { problem });
        }
        if let Some(key) = &request.key {
            self.insert_key(record, key)?;
        }
        if let Some(mark) = &record.mark {
            marks::set(self.connection, mark)?;
        }
        let seq = store::insert(self.connection, record)?;
        let accepted = Accepted {
            id: request.id.clone(),
            repeated: false,
        };
        if record.dead.is_some() {
            self.held.bury(record.bytes());
            self.trim()?;
            return Ok(Outcome::Accepted(Ok(accepted), None));
        }
        self.held.add(&request.function, record.bytes());
        Ok(Outcome::Accepted(Ok(accepted), Some((seq, record.entry()))))
    }

    fn insert_key(&mut self, record: &Record, key: &str) -> rusqlite::Result<()> {
        let expires_ms = self.now_ms.saturating_add(KEY_KEPT_MS);
        store::insert_key(self.connection, record, key, expires_ms)?;
        self.held.keys += 1;
        Ok(())
    }

    fn forget_key(&mut self, seq: i64) -> rusqlite::Result<()> {
        let forgotten = store::forget_key(self.connection, seq)?;
        self.held.forget_keys(forgotten);
        Ok(())
    }

    fn settle(&mut self, seq: i64, entry: &Entry, change: &Change) -> rusqlite::Result<Outcome> {
        let (dead, then) = match change {
            Change::Again {
                due_ms,
                attempts,
                waits,
                error,
            } => {
                store::again(self.connection, seq, *due_ms, (*attempts, *waits), error)?;
                return Ok(Outcome::Settled(None));
            }
            Change::End { dead, then } => (dead, then),
        };
        self.held.remove(&entry.function, entry.bytes);
        match dead {
            Some(dead) => {
                // The event is for a function that is gone. The next one of this name may accept it.
                if entry.keyed && dead.condition == Condition::FunctionNotFound {
                    self.forget_key(seq)?;
                }
                store::bury(self.connection, seq, dead)?;
                self.held.bury(entry.bytes);
            }
            None => store::remove(self.connection, seq)?,
        }
        let mut added = None;
        if let Some(record) = then {
            let seq = store::insert(self.connection, record)?;
            if record.dead.is_some() {
                self.held.bury(record.bytes());
            } else {
                self.held.add(&record.request.function, record.bytes());
                added = Some((seq, record.entry()));
            }
        }
        self.trim()?;
        Ok(Outcome::Settled(added))
    }

    /// Removes the oldest dead letters beyond their limit.
    fn trim(&mut self) -> rusqlite::Result<()> {
        while self.held.has_too_many_dead(self.limits) {
            let Some((seq, bytes)) = store::oldest_dead(self.connection)? else {
                break;
            };
            store::remove(self.connection, seq)?;
            self.held.unbury(bytes);
            self.shared.counters.dropped();
            if let Some(left_out) = DROPPED.admit(std::time::Instant::now()) {
                tracing::warn!(
                    left_out,
                    "there are too many dead letters: the oldest was removed"
                );
            }
        }
        Ok(())
    }

    fn cancel(&mut self, id: &str, may: &MayTouch) -> rusqlite::Result<Outcome> {
        let unknown = || AsyncFault::Unknown {
            id: id.escape_debug().take(100).collect(),
        };
        let found = store::find(self.connection, id)?;
        let Some(found) = found.filter(|found| may(&found.info.function, &found.owner)) else {
            return Ok(Outcome::Cancelled(Err(unknown())));
        };
        let id = found.info.id;
        if found.info.condition.is_some() {
            return Ok(Outcome::Cancelled(Err(AsyncFault::Dead { id })));
        }
        if !self.shared.schedule.lock().hold(found.seq) {
            return Ok(Outcome::Cancelled(Err(AsyncFault::Running { id })));
        }
        self.cancelled.push(found.seq);
        self.forget_key(found.seq)?;
        store::remove(self.connection, found.seq)?;
        self.held.remove(&found.info.function, found.bytes);
        Ok(Outcome::Cancelled(Ok(found.seq)))
    }

    /// The key of a dead letter that waits again, if it was forgotten and nobody has used it since: whoever sends its event again
    /// learns of it.
    fn remember_key(&mut self, seq: i64) -> rusqlite::Result<()> {
        if let Some(record) = store::load(self.connection, seq)?
            && let Some(key) = &record.request.key
            && store::key(self.connection, &record, key)?.is_none()
        {
            self.insert_key(&record, key)?;
        }
        Ok(())
    }

    fn dead_letters(
        &mut self,
        which: &DeadLetters,
        how: How,
        may: &MayTouch,
    ) -> rusqlite::Result<Outcome> {
        let found = match &which.id {
            Some(id) => store::find(self.connection, id)?
                .filter(|found| {
                    found.info.condition.is_some() && may(&found.info.function, &found.owner)
                })
                .into_iter()
                .collect(),
            None => {
                let filter = AsyncFilter {
                    dead: true,
                    function: which.function.clone(),
                    limit: usize::MAX,
                };
                store::list(self.connection, &filter, may)?
            }
        };
        let is_of = |function: &FunctionName| {
            which
                .function
                .as_ref()
                .is_none_or(|wanted| wanted == function)
        };
        let (mut done, mut entries) = (DeadLettersChanged::default(), Vec::new());
        for found in found
            .into_iter()
            .filter(|found| is_of(&found.info.function))
        {
            match how {
                How::Purge => store::remove(self.connection, found.seq)?,
                How::Redrive => {
                    let function = &found.info.function;
                    if !self.held.has_room(function, found.bytes, self.limits) {
                        // Those of other functions may have room.
                        done.left += 1;
                        continue;
                    }
                    store::revive(self.connection, found.seq, self.now_ms)?;
                    self.remember_key(found.seq)?;
                    self.held.add(function, found.bytes);
                    entries.push((found.seq, found.revived(self.now_ms)));
                }
            }
            self.held.unbury(found.bytes);
            done.changed += 1;
        }
        Ok(Outcome::Changed(done, entries))
    }
}

static FAILURES: Seldom = Seldom::new(5);
static DROPPED: Seldom = Seldom::new(5);
/// When what could not be written is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Most commands of one commit.
const BATCH_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 16 << 20;
const KEYS_CHECKED_EVERY_MS: i64 = 60_000;
/// A key is known for a day.
const KEY_KEPT_MS: i64 = 86_400_000;
