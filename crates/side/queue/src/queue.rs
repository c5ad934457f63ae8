//! `Queue`: the queue as the gateway and the control API see it. It opens the store, starts the writer and the dispatcher, and ends
//! them.

mod triggers;

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use pilot_model::asynchronous::{
    AsyncCounts, AsyncInfo, AsyncShown, DeadLetters, DeadLettersChanged,
};
use pilot_model::calendar::unix_ms;
use pilot_model::ports::{
    Accepted, AsyncControl, AsyncFault, AsyncFilter, AsyncQueue, AsyncRequest, AsyncRunner, Clock,
    Deliver, MayTouch, NotAccepted,
};
use pilot_model::{BoxFuture, FunctionName};
use tokio::sync::{Notify, Semaphore};

use crate::command::{Command, How};
use crate::dispatch;
use crate::open::{self, OpenError, Opened};
use crate::schedule::Schedule;
use crate::shared::{Counters, HasRoom, Limits, QueueShared};
use crate::store::{self, Record};
use crate::times::Times;
use crate::writer::Writer;

/// Where the queue is stored, and its limits.
pub struct QueueConfig {
    /// The store's file.
    pub file: PathBuf,
    /// The folder of the destinations `file:NAME`: a folder per function is made in it.
    pub files: PathBuf,
    /// Delivers records to destinations outside of the daemon.
    pub delivery: Arc<dyn Deliver>,
    /// Most invocations that wait or run; dead letters may be a quarter as many.
    pub records_max: u64,
    /// Most bytes of those; the same for dead letters.
    pub bytes_max: u64,
    /// Most attempts that run at the same time, of all functions together.
    pub running_max: usize,
    /// Whether the disk has room for more.
    pub has_room: HasRoom,
    /// What the queue's time follows from its start.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for QueueConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueConfig")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<QueueShared>,
    /// The thread that writes; `None` after the end.
    writer: Mutex<Option<JoinHandle<()>>>,
    /// The task that dispatches; `None` before the beginning and after the end.
    dispatcher: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Queue {
    /// Opens the store. Accepts from now on; nothing runs before [`Queue::dispatch`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(config: QueueConfig) -> Result<Arc<Self>, OpenError> {
        // A machine without a battery for its clock starts in the past. The store was not written later than now.
        let now = SystemTime::now().max(last_written(&config.file));
        let shown_ms = i64::try_from(unix_ms(now)).unwrap_or(i64::MAX);
        let Parts {
            shared,
            writer,
            commands,
        } = Parts::open(&config, shown_ms)?;
        let thread = std::thread::Builder::new()
            .name("pilot-queue".to_owned())
            .spawn(move || writer.run(&commands))
            .map_err(|error| config.fail(error.to_string()))?;
        Ok(Arc::new(Self {
            shared,
            writer: Mutex::new(Some(thread)),
            dispatcher: Mutex::default(),
        }))
    }

    /// Begins to run what is due. Must be called within a tokio runtime, when the functions are known.
    pub fn dispatch(&self, runner: Arc<dyn AsyncRunner>) {
        let task = tokio::spawn(dispatch::run(Arc::clone(&self.shared), runner));
        *self.dispatcher.lock() = Some(task);
    }

    fn shared(&self) -> Arc<QueueShared> {
        Arc::clone(&self.shared)
    }

    /// Begins no attempt any more. Those that run continue, and events are still accepted.
    pub fn hold(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake.notify_one();
    }

    /// A function was removed: the next one of its name accepts the idempotency keys that this one had, except those of events that wait.
    pub fn forget_keys(&self, function: &FunctionName) {
        let function = function.clone();
        // After the end of the writer, nothing is accepted either.
        let _ = self.shared.commands.send(Command::ForgetKeys { function });
    }

    /// The idempotency keys and marks of all other functions are forgotten, as if these had just been removed. For a start: a removal that
    /// the daemon did not survive may have left some. Call it before [`Queue::dispatch`].
    pub fn forget_all_but(&self, functions: HashSet<FunctionName>) {
        let _ = self
            .shared
            .commands
            .send(Command::ForgetAllBut { functions });
    }

    /// [`Queue::hold`]s, waits at most `grace` for the attempts that run, and ends the writer. What was cut runs again after the next
    /// start, except invocations with an idempotency key.
    pub async fn stop(&self, grace: Duration) {
        self.hold();
        let dispatcher = self.dispatcher.lock().take();
        if let Some(mut task) = dispatcher
            && tokio::time::timeout(grace, &mut task).await.is_err()
        {
            let running = self.shared.schedule.lock().running();
            tracing::warn!(running, "asynchronous invocations still run: they are cut");
            task.abort();
            let _ = task.await;
        }
        let _ = self.shared.commands.send(Command::Stop);
        let writer = self.writer.lock().take();
        if let Some(thread) = writer {
            let _ = tokio::task::spawn_blocking(|| thread.join()).await;
        }
    }
}

/// A queue in which nothing runs yet.
struct Parts {
    shared: Arc<QueueShared>,
    writer: Writer,
    /// What the writer is told to do.
    commands: mpsc::Receiver<Command>,
}

impl Parts {
    /// Opens the store. The machine's clock shows `shown_ms`.
    fn open(config: &QueueConfig, shown_ms: i64) -> Result<Self, OpenError> {
        let of_sqlite = |error: rusqlite::Error| config.fail(error.to_string());
        let Opened { connection, index } = open::open(&config.file)?;
        let reader = open::reader(&config.file, index).map_err(of_sqlite)?;
        let lister = open::reader(&config.file, index).map_err(of_sqlite)?;
        let newest_ms = store::newest_ms(&connection).map_err(of_sqlite)?;
        let mut schedule = Schedule::default();
        store::waiting(&connection, |seq, entry| schedule.add(seq, entry)).map_err(of_sqlite)?;
        let (sender, commands) = mpsc::channel();
        let shared = Arc::new(QueueShared {
            schedule: Mutex::new(schedule),
            reader: Mutex::new(reader),
            lister: Mutex::new(lister),
            lines: Mutex::new(()),
            commands: sender,
            places: Arc::new(Semaphore::new(PLACES)),
            wake: Notify::new(),
            stopping: AtomicBool::new(false),
            times: Times::start(shown_ms, newest_ms, Arc::clone(&config.clock)),
            counters: Counters::default(),
            files: config.files.clone(),
            delivery: Arc::clone(&config.delivery),
            has_room: Arc::clone(&config.has_room),
            running_max: config.running_max.max(1),
        });
        let limits = Limits {
            records_max: config.records_max,
            bytes_max: config.bytes_max,
        };
        let writer = Writer::new(connection, Arc::clone(&shared), limits);
        Ok(Self {
            shared,
            writer: writer.map_err(of_sqlite)?,
            commands,
        })
    }
}

impl QueueConfig {
    fn fail(&self, problem: String) -> OpenError {
        OpenError::Open {
            path: self.file.clone(),
            problem,
        }
    }
}

/// When the store was written last: its file, or its log, which has what is not in the file yet.
fn last_written(file: &Path) -> SystemTime {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    let times = [file, Path::new(&log)]
        .map(|path| path.metadata().and_then(|metadata| metadata.modified()));
    // A new store was never written.
    let written = times.into_iter().flatten().max();
    written.unwrap_or(SystemTime::UNIX_EPOCH)
}

impl AsyncQueue for Queue {
    fn accept(&self, request: AsyncRequest) -> BoxFuture<'static, Result<Accepted, NotAccepted>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let place = Arc::clone(&shared.places).acquire_owned().await;
            let place = place.map_err(|_| NotAccepted::Stopping)?;
            let now_ms = shared.times.now_ms();
            let record = Box::new(Record::of(request, now_ms));
            let accepted = shared.tell(|reply| Command::Accept {
                record,
                place,
                reply,
            });
            accepted.await.unwrap_or(Err(NotAccepted::Stopping))
        })
    }
}

impl AsyncControl for Queue {
    fn list(&self, filter: &AsyncFilter, may: &MayTouch) -> Result<Vec<AsyncInfo>, AsyncFault> {
        let found = store::list(&self.shared.lister.lock(), filter, may).map_err(of_store)?;
        let schedule = self.shared.schedule.lock();
        let infos = found.into_iter().map(|found| {
            let mut info = found.info;
            if schedule.is_running(found.seq) {
                "running".clone_into(&mut info.state);
            }
            info
        });
        Ok(infos.collect())
    }

    fn show(&self, id: &str, may: &MayTouch) -> Result<AsyncShown, AsyncFault> {
        let found = store::show(&self.shared.lister.lock(), id).map_err(of_store)?;
        let found = found.filter(|(found, _)| may(&found.info.function, &found.owner));
        let (found, mut shown) = found.ok_or_else(|| AsyncFault::Unknown {
            id: id.escape_debug().take(100).collect(),
        })?;
        if self.shared.schedule.lock().is_running(found.seq) {
            "running".clone_into(&mut shown.info.state);
        }
        Ok(shown)
    }

    fn cancel(&self, id: &str, may: MayTouch) -> Result<(), AsyncFault> {
        let id = id.to_owned();
        self.shared.ask(|reply| Command::Cancel { id, may, reply })
    }

    fn redrive(&self, which: DeadLetters, may: MayTouch) -> Result<DeadLettersChanged, AsyncFault> {
        self.shared.ask(|reply| Command::DeadLetters {
            which,
            how: How::Redrive,
            may,
            reply,
        })
    }

    fn purge(&self, which: DeadLetters, may: MayTouch) -> Result<DeadLettersChanged, AsyncFault> {
        self.shared.ask(|reply| Command::DeadLetters {
            which,
            how: How::Purge,
            may,
            reply,
        })
    }

    fn counts(&self) -> AsyncCounts {
        let now_ms = self.shared.times.now_ms();
        let schedule = self.shared.schedule.lock();
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let age_ms = schedule.oldest_ms().map_or(0, |oldest| now_ms - oldest);
        AsyncCounts {
            waiting: (schedule.len() - schedule.running()) as u64,
            running: schedule.running() as u64,
            dead: read(&counters.dead),
            bytes: read(&counters.bytes),
            oldest_age_s: age_ms.max(0).unsigned_abs() / 1000,
            accepted: read(&counters.accepted),
            refused: read(&counters.refused),
            retries: read(&counters.retries),
            dead_total: read(&counters.dead_total),
            dropped: read(&counters.dropped),
        }
    }
}

fn of_store(error: rusqlite::Error) -> AsyncFault {
    AsyncFault::Store {
        problem: error.to_string(),
    }
}

/// Requests that may wait for the writer at the same time; further ones wait for a place.
const PLACES: usize = 4096;

#[cfg(test)]
mod tests;
