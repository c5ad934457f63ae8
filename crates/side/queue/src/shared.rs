//! What the gateway's requests, the writer and the attempts share.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use pilot_model::ports::{AsyncFault, Deliver};
use rusqlite::Connection;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::command::Command;
use crate::schedule::Schedule;
use crate::store::{self, Record, Size};
use crate::times::Times;

/// Whether the disk has room.
pub(crate) type HasRoom = Arc<dyn Fn() -> bool + Send + Sync>;

/// The limits of the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) records_max: u64,
    pub(crate) bytes_max: u64,
}

/// See the module.
pub(crate) struct QueueShared {
    /// Guards the schedule, for one look or one change.
    pub(crate) schedule: Mutex<Schedule>,
    /// Guards the connection that reads for attempts, for one look-up, on a blocking thread.
    pub(crate) reader: Mutex<Connection>,
    /// Guards the connection that reads for the control API, for one query, on a blocking thread.
    pub(crate) lister: Mutex<Connection>,
    /// Guards the files of destinations, so that lines do not mix; held for one line, on a blocking thread.
    pub(crate) lines: Mutex<()>,
    pub(crate) commands: mpsc::Sender<Command>,
    /// One for each request that waits for the writer.
    pub(crate) places: Arc<Semaphore>,
    /// Something has become due, or an attempt has ended.
    pub(crate) wake: Notify,
    pub(crate) stopping: AtomicBool,
    pub(crate) times: Times,
    pub(crate) counters: Counters,
    pub(crate) files: PathBuf,
    pub(crate) delivery: Arc<dyn Deliver>,
    pub(crate) has_room: HasRoom,
    pub(crate) running_max: usize,
}

impl fmt::Debug for QueueShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueShared").finish_non_exhaustive()
    }
}

impl QueueShared {
    /// Sends a command and waits for its answer. `None`: the writer has ended.
    pub(crate) async fn tell<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(make(reply)).ok()?;
        answer.await.ok()
    }

    /// The same, on a blocking thread.
    pub(crate) fn ask<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<T, AsyncFault>>) -> Command,
    ) -> Result<T, AsyncFault> {
        let (reply, answer) = oneshot::channel();
        let stopping = || AsyncFault::Store {
            problem: "the daemon is shutting down".to_owned(),
        };
        self.commands.send(make(reply)).map_err(|_| stopping())?;
        answer.blocking_recv().map_err(|_| stopping())?
    }

    /// Reads one record. Reads the disk.
    pub(crate) fn load(&self, seq: i64) -> rusqlite::Result<Option<Record>> {
        store::load(&self.reader.lock(), seq)
    }
}

/// What happened since the start, and what the store has.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) dead_total: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn died(&self) {
        self.dead_total.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn holds(&self, waiting: &Size, dead: &Size) {
        self.dead.store(dead.records, Ordering::Relaxed);
        self.bytes
            .store(waiting.bytes + dead.bytes, Ordering::Relaxed);
    }
}
