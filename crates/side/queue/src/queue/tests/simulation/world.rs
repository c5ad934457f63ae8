//! The simulated daemon, and the oracle: what the store had before a transaction and has after it, and what each invocation may be.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::asynchronous::{DeadLetters, DeadLettersChanged};
use pilot_model::ports::{
    Accepted, AsyncFault, AsyncRequest, AsyncRunner, AttemptEnd, NotAccepted,
};
use pilot_testkit::{ManualClock, Random};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::command::{Command, How};
use crate::dispatch;
use crate::queue::{Parts, QueueConfig};
use crate::shared::QueueShared;
use crate::store::Record;
use crate::writer::Writer;

use super::super::{anything, request};
use outside::{Functions, Outside, config_of, done};
use planned::Planned;

mod oracle;
mod outside;
mod planned;

const RECORDS_MAX: usize = 16;
const DEAD_MAX: usize = RECORDS_MAX.div_ceil(4);
const RUNNING_MAX: usize = 6;
const CONCURRENCY: usize = 2;
const FUNCTIONS: usize = 4;
const DELIVERIES: usize = 8;
const DAY_MS: i64 = 86_400_000;

/// A row of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    id: String,
    function: String,
    key: Option<String>,
    is_dead: bool,
    delivers: bool,
    accepted_ms: i64,
    due_ms: i64,
    attempts: u32,
    waits: u32,
    started: bool,
}

type Rows = BTreeMap<i64, Row>;

/// What is known of an invocation that was accepted.
#[derive(Debug, Default)]
struct Known {
    function: String,
    keyed: bool,
    /// How its last attempt ended.
    last: Option<AttemptEnd>,
    /// An attempt has begun, and its end is not stored.
    runs: bool,
    /// The daemon ended meanwhile.
    cut: bool,
}

/// Callers that wait for an answer.
struct Waiting {
    accepts: Vec<(
        AsyncRequest,
        oneshot::Receiver<Result<Accepted, NotAccepted>>,
    )>,
    cancels: Vec<oneshot::Receiver<Result<(), AsyncFault>>>,
    letters: Vec<oneshot::Receiver<Result<DeadLettersChanged, AsyncFault>>>,
}

type Going = Pin<Box<dyn Future<Output = ()>>>;

pub(super) struct World {
    random: Random,
    runtime: Runtime,
    folder: tempfile::TempDir,
    functions: Arc<Functions>,
    runner: Arc<dyn AsyncRunner>,
    clock: Arc<ManualClock>,
    /// What the machine's clock showed at the start of the daemon.
    shown_ms: i64,
    is_full: Arc<AtomicBool>,
    shared: Arc<QueueShared>,
    writer: Writer,
    commands: mpsc::Receiver<Command>,
    /// What could not be written.
    kept: Vec<Command>,
    /// What the writer has not taken yet.
    told: Vec<Command>,
    attempts: Vec<Going>,
    callers: Waiting,
    rows: Rows,
    known: BTreeMap<String, Known>,
    /// Ids that are in the store no more, for a reason.
    over: BTreeSet<String>,
    /// By function and key: the id, and when it was accepted.
    keys: BTreeMap<(String, String), (String, i64)>,
    /// Ids of invocations whose keys were given up, because they never ran.
    freed: BTreeSet<String>,
    requests: u64,
    /// The latest time that a transaction has seen. A later daemon's clock may show less.
    latest_ms: i64,
    log: Vec<String>,
}

fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let folder = folder();
        let functions = Arc::new(Functions::default());
        let clock = Arc::new(ManualClock::at(1));
        let is_full = Arc::new(AtomicBool::new(false));
        let shown_ms = 1_700_000_000_000;
        let config = config(folder.path(), &functions, &clock, &is_full);
        let parts = Parts::open(&config, shown_ms).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        Self {
            random: Random::new(seed),
            runtime: runtime.unwrap(),
            folder,
            runner: Arc::clone(&functions) as _,
            functions,
            clock,
            shown_ms,
            is_full,
            shared: parts.shared,
            writer: parts.writer,
            commands: parts.commands,
            kept: Vec::new(),
            told: Vec::new(),
            attempts: Vec::new(),
            callers: Waiting {
                accepts: Vec::new(),
                cancels: Vec::new(),
                letters: Vec::new(),
            },
            rows: Rows::new(),
            known: BTreeMap::new(),
            over: BTreeSet::new(),
            keys: BTreeMap::new(),
            freed: BTreeSet::new(),
            requests: 0,
            latest_ms: shown_ms,
            log: vec![format!("world {seed}")],
        }
    }

    /// Something happens.
    pub(super) fn step(&mut self) {
        match self.random.below(100) {
            0..18 => self.ask(),
            18..42 => self.commit(Fault::None),
            42..56 => self.begin(),
            56..72 => self.advance(),
            72..84 => self.answer(),
            84..88 => self.pass(),
            88..90 => self.cancel(),
            90..92 => self.dead_letters(),
            92 => self.disk(),
            93 => self.functions_change(),
            94 => drop(self.callers.accepts.pop()),
            95 => self.stop(),
            96..98 => self.commit(Fault::Power),
            98 => self.commit(Fault::Kill),
            _ => {
                self.note("killed");
                self.restart();
            }
        }
    }

    fn note(&mut self, what: &str) {
        if self.log.len() > 400 {
            self.log.drain(1..200);
        }
        self.log.push(what.to_owned());
    }

    fn fail(&self, problem: &str) -> ! {
        let log = self.log.join("\n");
        panic!("{log}\n{problem}\nrows: {:#?}", self.rows);
    }

    fn holds(&self, condition: bool, problem: impl FnOnce() -> String) {
        if !condition {
            self.fail(&problem());
        }
    }

    fn now_ms(&self) -> i64 {
        self.shared.times.now_ms()
    }

    /// Somebody invokes a function.
    fn ask(&mut self) {
        self.requests += 1;
        let function = format!("f{}", self.random.below(FUNCTIONS));
        let key = (self.random.below(3) == 0).then(|| format!("k{}", self.random.below(4)));
        let mut asked = request(&function, &format!("id{}", self.requests), key.as_deref());
        asked.payload = Bytes::from_static(b"{}");
        self.note(&format!("ask {function} {} {key:?}", asked.id));
        let record = Box::new(Record::of(asked.clone(), self.now_ms()));
        let places = Arc::clone(&self.shared.places);
        let place = places.try_acquire_owned().unwrap();
        let (reply, answer) = oneshot::channel();
        self.callers.accepts.push((asked, answer));
        self.told.push(Command::Accept {
            record,
            place,
            reply,
        });
    }

    fn cancel(&mut self) {
        let ids: Vec<&String> = self.rows.values().map(|row| &row.id).collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.random.below(ids.len())].clone();
        self.note(&format!("cancel {id}"));
        let (reply, answer) = oneshot::channel();
        self.callers.cancels.push(answer);
        let may = anything();
        self.told.push(Command::Cancel { id, may, reply });
    }

    fn dead_letters(&mut self) {
        let how = match self.random.below(3) {
            0 => How::Purge,
            _ => How::Redrive,
        };
        let dead: Vec<&Row> = self.rows.values().filter(|row| row.is_dead).collect();
        let one = (!dead.is_empty()).then(|| dead[self.random.below(dead.len())].clone());
        let which = match (self.random.below(3), one) {
            (0, Some(row)) => DeadLetters {
                id: Some(row.id),
                function: None,
            },
            (1, Some(row)) => DeadLetters {
                id: None,
                function: Some(row.function.parse().unwrap()),
            },
            _ => DeadLetters::default(),
        };
        self.note(&format!("{how:?} {which:?}"));
        let (reply, answer) = oneshot::channel();
        self.callers.letters.push(answer);
        self.told.push(Command::DeadLetters {
            which,
            how,
            may: anything(),
            reply,
        });
    }

    fn pass(&mut self) {
        let ms = match self.random.below(12) {
            0..6 => 1 + self.random.below(2000),
            6..10 => self.random.below(300_000),
            10 => self.random.below(20_000_000),
            _ => self.random.below(100_000_000),
        };
        self.note(&format!("{ms} ms"));
        self.clock.advance(Duration::from_millis(ms as u64));
    }

    /// The disk takes nothing, or takes something again.
    fn disk(&mut self) {
        match self.random.below(3) {
            0 => {
                self.note("the disk is full, as the daemon sees it");
                self.is_full.store(true, Ordering::Relaxed);
            }
            1 => {
                self.note("the disk is full, as SQLite sees it");
                let pages = "SELECT page_count FROM pragma_page_count";
                let pages: i64 = self
                    .writer
                    .connection
                    .query_row(pages, [], |row| row.get(0))
                    .unwrap();
                self.limit_pages(pages);
            }
            _ => self.heal(),
        }
    }

    fn heal(&mut self) {
        self.note("the disk has room");
        self.is_full.store(false, Ordering::Relaxed);
        self.limit_pages(1 << 30);
    }

    fn limit_pages(&self, pages: i64) {
        let sql = format!("PRAGMA max_page_count = {pages}");
        let connection = &self.writer.connection;
        connection.query_row(&sql, [], |_| Ok(())).unwrap();
    }

    fn functions_change(&mut self) {
        let number = self.random.below(FUNCTIONS);
        let mut outside = self.functions.0.lock();
        outside.gone[number] ^= true;
        let text = format!("f{number} is gone: {}", outside.gone[number]);
        drop(outside);
        self.note(&text);
    }

    /// The dispatcher begins an attempt.
    fn begin(&mut self) {
        if self.shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        if let Some(attempt) = dispatch::next(&self.shared, &self.runner) {
            self.attempts.push(Box::pin(attempt.run()));
            // It reads its record on another thread.
            self.advance_one(self.attempts.len() - 1, Until::Something);
        }
    }

    fn advance(&mut self) {
        if !self.attempts.is_empty() {
            let which = self.random.below(self.attempts.len());
            self.advance_one(which, Until::Nothing);
        }
    }

    /// An attempt goes on until it waits for the writer, for a function or for a destination, or has ended.
    fn advance_one(&mut self, which: usize, until: Until) {
        let attempt = &mut self.attempts[which];
        let (commands, functions) = (&self.commands, &self.functions);
        let mut told = Vec::new();
        let is_over = self.runtime.block_on(poll_fn(|context| {
            let polled = attempt.as_mut().poll(context);
            told.extend(commands.try_iter());
            let is_idle = told.is_empty() && functions.0.lock().begun.is_empty();
            match (polled, until) {
                (Poll::Ready(()), _) => Poll::Ready(true),
                (Poll::Pending, Until::Something) if is_idle => Poll::Pending,
                (Poll::Pending, _) => Poll::Ready(false),
            }
        }));
        self.told.extend(told);
        if is_over {
            drop(self.attempts.swap_remove(which));
        }
        let begun = std::mem::take(&mut self.functions.0.lock().begun);
        for (id, delivers) in begun {
            self.has_begun(&id, delivers);
        }
    }

    /// A function or a destination was asked.
    fn has_begun(&mut self, id: &str, delivers: bool) {
        self.note(&format!("begins {id}"));
        let now_ms = self.now_ms();
        let row = self.rows.values().find(|row| row.id == id);
        let Some(row) = row.cloned() else {
            self.fail(&format!("{id} runs, and is not in the store"));
        };
        self.holds(!row.is_dead, || format!("{id} runs, and is a dead letter"));
        self.holds(row.due_ms <= now_ms, || {
            format!("{id} runs before it is due")
        });
        let age = i64::try_from(config_of(&row.function).max_age.as_millis()).unwrap();
        // Storing that one with a key begins takes time.
        let is_old = !delivers && row.key.is_none() && now_ms - row.accepted_ms > age;
        self.holds(!is_old, || format!("{id} runs, and is too old"));
        self.holds(row.key.is_none() || row.started, || {
            format!("{id} has a key, and runs before it is stored that it does")
        });
        let outside = self.functions.0.lock();
        let of_function = |id: &String| {
            let known = self.known.get(id);
            known.is_some_and(|known| known.function == row.function)
        };
        let running = outside
            .waiting
            .iter()
            .filter(|(id, _)| of_function(id))
            .count();
        drop(outside);
        self.holds(delivers || running <= CONCURRENCY + DELIVERIES, || {
            format!("{running} of {} run", row.function)
        });
        let known = self.known.get_mut(id).unwrap();
        let was_cut = known.cut;
        known.runs = true;
        self.holds(!was_cut, || format!("{id} has a key, and runs again"));
    }

    /// A function or a destination answers.
    fn answer(&mut self) {
        let mut outside = self.functions.0.lock();
        if outside.waiting.is_empty() {
            return;
        }
        let which = self.random.below(outside.waiting.len());
        let (id, end) = outside.waiting.swap_remove(which);
        drop(outside);
        let ended = match self.random.below(10) {
            0..5 => done(),
            5..8 => AttemptEnd::Failed {
                version: 1,
                body: Bytes::from_static(b"{}"),
            },
            8 => AttemptEnd::NotRun {
                problem: "no worker".to_owned(),
            },
            _ => AttemptEnd::Gone {
                problem: "it was removed".to_owned(),
            },
        };
        self.note(&format!("{id} ends: {ended:?}"));
        self.known.get_mut(&id).unwrap().last = Some(ended.clone());
        let _ = end.send(ended);
    }

    /// The writer takes some of the commands that wait.
    fn commit(&mut self, fault: Fault) {
        let mut batch = std::mem::take(&mut self.kept);
        let most = 1 + self.random.below(6);
        batch.extend(self.told.drain(..most.min(self.told.len())));
        if batch.is_empty() {
            return;
        }
        let plan: Vec<Planned> = batch
            .iter()
            .map(|command| Planned::of(command, &self.rows))
            .collect();
        self.note(&format!("commit {plan:?} {fault:?}"));
        self.latest_ms = self.latest_ms.max(self.now_ms());
        let before = self.files();
        self.kept = self.writer.commit(batch);
        let rows = self.read();
        if fault == Fault::None {
            self.took(&plan, rows);
            return;
        }
        // Nobody hears of the commit.
        let after = self.files();
        if fault == Fault::Power && before[0] == after[0] {
            let end = self.random.below(after[1].len() + 1);
            let rest = before[1].get(end..).unwrap_or_default();
            let torn = [&after[1][..end], rest].concat();
            self.note(&format!("the power fails after {end} bytes of the log"));
            self.restart_with(&after[0], &torn, Some((&plan, &rows)));
        } else {
            self.restart_with(&after[0], &after[1], Some((&plan, &rows)));
        }
    }

    /// A transaction is on the disk, and everybody has an answer.
    fn took(&mut self, plan: &[Planned], rows: Rows) {
        self.is_explained(plan, &rows);
        let counted = self.writer.counts_what_is_there();
        self.holds(counted, || {
            "what is counted is not what is there".to_owned()
        });
        self.schedule_fits();
        let mut accepts = std::mem::take(&mut self.callers.accepts);
        accepts.retain_mut(|(asked, answer)| match answer.try_recv() {
            Ok(result) => {
                self.accepted(asked, result);
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => true,
            Err(oneshot::error::TryRecvError::Closed) => {
                self.fail(&format!("nobody answers {}", asked.id))
            }
        });
        self.callers.accepts = accepts;
        self.callers
            .cancels
            .retain_mut(|answer| answer.try_recv().is_err());
        self.callers
            .letters
            .retain_mut(|answer| answer.try_recv().is_err());
    }

    /// The bytes of the database and of its log.
    fn files(&self) -> [Vec<u8>; 2] {
        ["async.sqlite", "async.sqlite-wal"]
            .map(|name| std::fs::read(self.folder.path().join(name)).unwrap_or_default())
    }

    fn read(&self) -> Rows {
        let sql = "SELECT seq, id, function, key, condition IS NOT NULL, file IS NOT NULL, accepted_ms, due_ms, attempts, waits, \
                   started FROM records";
        let mut statement = self.writer.connection.prepare_cached(sql).unwrap();
        let rows = statement.query_map([], |row| {
            let one = Row {
                id: row.get(1)?,
                function: row.get(2)?,
                key: row.get(3)?,
                is_dead: row.get(4)?,
                delivers: row.get(5)?,
                accepted_ms: row.get(6)?,
                due_ms: row.get(7)?,
                attempts: row.get(8)?,
                waits: row.get(9)?,
                started: row.get(10)?,
            };
            Ok((row.get(0)?, one))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// An orderly stop: attempts end, and their ends are stored.
    fn stop(&mut self) {
        self.note("stop");
        self.shared.stopping.store(true, Ordering::Relaxed);
        for _ in 0..300 {
            if self.attempts.is_empty() {
                break;
            }
            let waiting = std::mem::take(&mut self.functions.0.lock().waiting);
            for (id, end) in waiting {
                let known = self.known.get_mut(&id).unwrap();
                known.runs = false;
                let _ = end.send(AttemptEnd::Stopping);
            }
            self.advance();
            self.commit(Fault::None);
        }
        if self.attempts.is_empty() {
            while !self.told.is_empty() {
                self.commit(Fault::None);
            }
        }
        self.restart();
    }

    /// The daemon is killed, and the next one starts.
    fn restart(&mut self) {
        let [database, log] = self.files();
        self.restart_with(&database, &log, None);
    }

    /// The next daemon starts with such files. `under_way` is the transaction that nobody has heard of, and what the store has after it.
    fn restart_with(
        &mut self,
        database: &[u8],
        log: &[u8],
        under_way: Option<(&[Planned], &Rows)>,
    ) {
        let now_ms = self.now_ms();
        self.attempts.clear();
        self.told.clear();
        self.kept.clear();
        self.callers.accepts.clear();
        self.callers.cancels.clear();
        self.callers.letters.clear();
        let gone = self.functions.0.lock().gone;
        *self.functions.0.lock() = Outside {
            gone,
            ..Outside::default()
        };
        let folder = folder();
        std::fs::write(folder.path().join("async.sqlite"), database).unwrap();
        std::fs::write(folder.path().join("async.sqlite-wal"), log).unwrap();
        // The clock may have been set, also to the past.
        self.shown_ms = match self.random.below(4) {
            0 => now_ms - i64::try_from(self.random.below(100_000_000)).unwrap(),
            1 => now_ms + i64::try_from(self.random.below(1_000_000)).unwrap(),
            _ => now_ms,
        };
        self.clock = Arc::new(ManualClock::at(1));
        let config = config(folder.path(), &self.functions, &self.clock, &self.is_full);
        let parts = match Parts::open(&config, self.shown_ms) {
            Ok(parts) => parts,
            Err(error) => self.fail(&error.to_string()),
        };
        self.shared = parts.shared;
        self.writer = parts.writer;
        self.commands = parts.commands;
        self.folder = folder;
        let found = self.read();
        match under_way {
            Some((plan, after)) if found == *after => self.is_explained(plan, &found),
            _ => self.holds(found == self.rows, || {
                format!("the next daemon finds {found:#?}")
            }),
        }
        for known in self.known.values_mut() {
            if std::mem::take(&mut known.runs) && known.keyed {
                known.cut = true;
            }
            known.last = None;
        }
        let counted = self.writer.counts_what_is_there();
        self.holds(counted, || {
            "what is counted is not what is there".to_owned()
        });
        self.schedule_fits();
        self.note("the next daemon");
    }

    /// Nothing fails any more: everything ends.
    pub(super) fn wind_up(&mut self) {
        self.heal();
        self.functions.0.lock().gone = [false; FUNCTIONS];
        for redrives in [false, true] {
            self.note("wind up");
            if redrives {
                let (reply, answer) = oneshot::channel();
                self.callers.letters.push(answer);
                self.told.push(Command::DeadLetters {
                    which: DeadLetters::default(),
                    how: How::Redrive,
                    may: anything(),
                    reply,
                });
            }
            for round in 0.. {
                let waiting = std::mem::take(&mut self.functions.0.lock().waiting);
                for (id, end) in waiting {
                    self.known.get_mut(&id).unwrap().last = Some(done());
                    let _ = end.send(done());
                }
                for which in (0..self.attempts.len()).rev() {
                    self.advance_one(which, Until::Nothing);
                }
                self.commit(Fault::None);
                self.begin();
                let is_over = self.told.is_empty()
                    && self.kept.is_empty()
                    && self.attempts.is_empty()
                    && self.shared.schedule.lock().len() == 0;
                if is_over {
                    break;
                }
                self.holds(round < 5000, || "it does not end".to_owned());
                let next = self.shared.schedule.lock().next_due_ms(self.now_ms());
                if let Some(due_ms) = next {
                    let ms = (due_ms - self.now_ms()).unsigned_abs();
                    self.clock.advance(Duration::from_millis(ms));
                }
            }
            self.holds(self.callers.accepts.is_empty(), || {
                "somebody waits for an answer".to_owned()
            });
        }
        for id in self.known.keys() {
            let is_there = self.rows.values().any(|row| row.id == *id);
            self.holds(is_there || self.over.contains(id), || {
                format!("{id} is lost")
            });
        }
    }
}

/// How long an attempt goes on.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// Until it asks somebody for something.
    Something,
    /// As far as it can at once.
    Nothing,
}

/// What fails when a transaction is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The daemon is killed after it.
    Kill,
    /// The power fails during it.
    Power,
}

fn config(
    folder: &Path,
    functions: &Arc<Functions>,
    clock: &Arc<ManualClock>,
    is_full: &Arc<AtomicBool>,
) -> QueueConfig {
    let is_full = Arc::clone(is_full);
    QueueConfig {
        file: folder.join("async.sqlite"),
        files: PathBuf::new(),
        delivery: Arc::clone(functions) as _,
        records_max: RECORDS_MAX as u64,
        bytes_max: 1 << 20,
        running_max: RUNNING_MAX,
        has_room: Arc::new(move || !is_full.load(Ordering::Relaxed)),
        clock: Arc::clone(clock) as _,
    }
}
