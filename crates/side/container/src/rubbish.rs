//! Folders of containers that are not used any more, until nothing of them is on the disk. Functions have filled them: with so many
//! others, perhaps, that their removal takes hours. So nobody waits for it: not other removals, not the start of a container, and not the
//! daemon's end. What is left then is removed by the next daemon.
//!
//! Invariant: whoever is here for long does not keep others: the folders take turns.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pilot_sys::tree;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// The folders, and the task that removes them. It ends with this.
#[derive(Debug)]
pub(crate) struct Rubbish {
    place: PathBuf,
    // Unbounded: each container has one folder, and their number is bounded by who starts them.
    sender: mpsc::UnboundedSender<PathBuf>,
    state: Arc<State>,
    serial: AtomicU64,
    task: AbortHandle,
}

#[derive(Debug)]
struct State {
    /// How many are not removed yet.
    pending: watch::Sender<usize>,
    /// Nothing is removed any more.
    stopped: AtomicBool,
    /// How long one is removed before it is the next one's turn.
    turn: Duration,
}

impl Rubbish {
    /// For this run directory. Must be called within a tokio runtime.
    pub(crate) fn new(run: &Path) -> Self {
        Self::with_turns(run, TURN)
    }

    fn with_turns(run: &Path, turn: Duration) -> Self {
        let (sender, folders) = mpsc::unbounded_channel();
        let state = Arc::new(State {
            pending: watch::Sender::new(0),
            stopped: AtomicBool::new(false),
            turn,
        });
        Self {
            place: run.join("removed-containers"),
            sender,
            task: tokio::spawn(clear(folders, Arc::clone(&state))).abort_handle(),
            state,
            serial: AtomicU64::new(0),
        }
    }

    /// Takes a folder away from its place. Blocks, but not until it is removed. It is no error if it does not exist.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take(&self, folder: &Path) -> io::Result<()> {
        let mut place = DirBuilder::new();
        place.recursive(true).mode(0o700).create(&self.place)?;
        loop {
            let serial = self.serial.fetch_add(1, Ordering::Relaxed);
            let to = self.place.join(serial.to_string());
            match fs::rename(folder, &to) {
                Ok(()) => {
                    self.add(to);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                // One of an earlier daemon: a file system may say either (rename(2)).
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Goes on with what an earlier daemon has left. Blocks.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_left(&self) -> io::Result<()> {
        let left = match fs::read_dir(&self.place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            left => left?,
        };
        for folder in left {
            self.add(folder?.path());
        }
        Ok(())
    }

    fn add(&self, folder: PathBuf) {
        self.state.pending.send_modify(|pending| *pending += 1);
        // An error means that the task is gone: the next daemon removes the folder.
        drop(self.sender.send(folder));
    }

    /// Waits until all are removed, but not for long: most take milliseconds.
    pub(crate) async fn settled(&self) {
        // If it takes longer, there is nothing to do about it.
        let _ = tokio::time::timeout(PATIENCE, self.removed()).await;
    }

    /// Waits until all are removed.
    pub(crate) async fn removed(&self) {
        let mut pending = self.state.pending.subscribe();
        // An error means that the sender is gone, and it is here.
        drop(pending.wait_for(|pending| *pending == 0).await);
    }

    /// Removes nothing from now on.
    pub(crate) fn stop(&self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        self.task.abort();
        let left = *self.state.pending.borrow();
        if left > 0 {
            tracing::info!(
                left,
                "the next daemon removes the rest of the containers' folders"
            );
        }
    }
}

impl Drop for Rubbish {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}

async fn clear(mut folders: mpsc::UnboundedReceiver<PathBuf>, state: Arc<State>) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let Some(folder) = folders.recv().await else {
                return;
            };
            waiting.push_back(folder);
        }
        while let Ok(folder) = folders.try_recv() {
            waiting.push_back(folder);
        }
        let Some(folder) = waiting.pop_front() else {
            continue;
        };
        let (path, of_task) = (folder.clone(), Arc::clone(&state));
        let removed = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            tree::remove_while(&path, || {
                !of_task.stopped.load(Ordering::Relaxed) && begun.elapsed() < of_task.turn
            })
        });
        match removed.await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {
                waiting.push_back(folder);
                continue;
            }
            Ok(Ok(())) => {}
            Ok(Err(problem)) => {
                tracing::warn!(folder = %folder.display(), %problem, "a container's folder was not removed");
            }
            Err(problem) => tracing::warn!(%problem, "a container's folder was not removed"),
        }
        state.pending.send_modify(|pending| *pending -= 1);
    }
}

/// Long enough for all but those that somebody has filled on purpose.
const TURN: Duration = Duration::from_secs(2);

/// How long the end of a daemon, and its first container, wait for folders.
const PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use nix::fcntl::{self, OFlag};
    use nix::sys::stat::{Mode, mkdirat};

    use super::*;

    fn deep(folder: &Path, levels: u32) {
        fs::create_dir_all(folder).unwrap();
        let flags = OFlag::O_DIRECTORY;
        let mut at = fcntl::open(folder, flags, Mode::empty()).unwrap();
        for _ in 0..levels {
            mkdirat(&at, c"deeper", Mode::S_IRWXU).unwrap();
            at = fcntl::openat(&at, c"deeper", flags, Mode::empty()).unwrap();
        }
    }

    fn left(run: &Path) -> usize {
        fs::read_dir(run.join("removed-containers"))
            .unwrap()
            .count()
    }

    #[tokio::test]
    async fn a_folder_that_takes_long_delays_no_other_and_the_next_daemon_goes_on() {
        // Disks take milliseconds for each folder.
        let run = tempfile::tempdir_in("/dev/shm").unwrap();
        let rubbish = Rubbish::with_turns(run.path(), Duration::ZERO);
        let (large, small) = (run.path().join("large"), run.path().join("small"));
        deep(&large, 20_000);
        rubbish.take(&large).unwrap();
        assert!(!large.exists(), "it is out of the way at once");
        drop(rubbish);

        let rubbish = Rubbish::with_turns(run.path(), Duration::from_micros(50));
        rubbish.take_left().unwrap();
        fs::create_dir(&small).unwrap();
        fs::write(small.join("file"), "").unwrap();
        rubbish.take(&small).unwrap();
        let mut pending = rubbish.state.pending.subscribe();
        pending.wait_for(|pending| *pending == 1).await.unwrap();
        assert_eq!(left(run.path()), 1, "the small one is removed first");
        rubbish.stop();
        drop(rubbish);

        let rubbish = Rubbish::new(run.path());
        rubbish.take_left().unwrap();
        rubbish.removed().await;
        assert_eq!(left(run.path()), 0);
        rubbish.take(&small).unwrap();
        rubbish.settled().await;
    }
}
