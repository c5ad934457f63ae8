//! The sweep: removes code, layers and environments that nothing needs.
//!
//! A backup of a running daemon holds the sweep, with a shared lock of `sweep.lock` (flock(1), flock(2)): what its copy of the
//! registry names stays until it is copied, too. The kernel ends the lock with the process that has it. What was left then is
//! removed within a minute.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::Inner;
use crate::blocking::blocking;

/// What is known of the sweeps.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// One was left out, because a backup is being made.
    due: AtomicBool,
    /// One after another: they would take each other's lock for that of a backup.
    running: Mutex<()>,
}

/// The right to sweep. Keeps new backups and other sweeps waiting.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    lock: Option<File>,
    _running: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Closing it is not enough: a process that is just being started has a copy of the descriptor until its exec, and so the
        // lock.
        if let Some(lock) = &self.lock {
            let _ = lock.unlock();
        }
    }
}

impl Sweeps {
    /// Whether a sweep was left out.
    pub(super) fn is_due(&self) -> bool {
        self.due.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// `None`: a backup is being made. Waits for a sweep that runs.
    pub(super) fn turn_to_sweep(&self) -> io::Result<Option<Turn<'_>>> {
        let running = self.sweeps.running.lock();
        let lock = self.data_dir.lock_for_sweep()?;
        let was_due = self.sweeps.due.swap(lock.is_none(), Ordering::Relaxed);
        if lock.is_none() && !was_due {
            tracing::info!("a backup holds sweep.lock: files that nothing needs are kept");
        }
        Ok(lock.map(|lock| Turn {
            lock,
            _running: running,
        }))
    }

    /// Removes code, layers and environments that no version uses, unless a backup is being made.
    pub(super) fn sweep(&self) -> io::Result<()> {
        let Some(turn) = self.turn_to_sweep()? else {
            return Ok(());
        };
        self.reserve.make_room();
        let swept = self.sweep_in_room(turn);
        self.reserve.refill();
        swept
    }

    fn sweep_in_room(&self, turn: Turn<'_>) -> io::Result<()> {
        let rubbish = self.data_dir.stage()?;
        let named = self.registry.folders(&HashSet::new());
        let named = named.map_err(io::Error::other)?;
        self.state
            .sweep(&self.kept_folders(), &named, rubbish.path())?;
        drop(turn);
        rubbish.close()
    }

    pub(super) async fn sweep_aside(self: &Arc<Self>) {
        let inner = Arc::clone(self);
        if let Err(error) = blocking(move || inner.sweep()).await {
            tracing::warn!(%error, "files that nothing needs are left until the next start");
        }
    }
}
