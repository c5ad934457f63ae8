//! Calls to file systems. One of a network (NFS, FUSE) blocks the thread of a call until its server answers, and nothing can end that.
//!
//! The calls run on tokio's blocking threads, which the whole daemon shares. A trigger has one call at a time, also when it begins anew
//! while its last call still hangs, and all triggers together have [`CALLS_MAX`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The calls of all triggers.
#[derive(Debug)]
pub(crate) struct FileCalls {
    /// One permit for each call.
    all: Arc<Semaphore>,
    /// The one permit of each trigger, by its scope. A call that hangs keeps it alive. Guarded for one look or one change.
    lanes: Mutex<HashMap<String, Weak<Semaphore>>>,
    silence_max: Duration,
}

impl Default for FileCalls {
    fn default() -> Self {
        Self::new(SILENCE_MAX)
    }
}

impl FileCalls {
    pub(crate) fn new(silence_max: Duration) -> Self {
        Self {
            all: Arc::new(Semaphore::new(CALLS_MAX)),
            lanes: Mutex::default(),
            silence_max,
        }
    }

    /// The lane of the trigger with this scope.
    pub(crate) fn lane(&self, scope: &str) -> Lane {
        let mut lanes = self.lanes.lock();
        lanes.retain(|_, lane| lane.strong_count() > 0);
        let own = lanes.get(scope).and_then(Weak::upgrade);
        let own = own.unwrap_or_else(|| Arc::new(Semaphore::new(1)));
        lanes.insert(scope.to_owned(), Arc::downgrade(&own));
        Lane {
            own,
            all: Arc::clone(&self.all),
            silence_max: self.silence_max,
        }
    }
}

/// The calls of one trigger, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    silence_max: Duration,
}

/// How far a call that consists of many has come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// The file system has answered once more.
    pub(crate) fn made(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Lane {
    /// Makes a call about `folder` on a blocking thread. It may take any time as long as it makes progress.
    ///
    /// # Errors
    /// The folder does not answer. The call goes on, and keeps its permits until it ends.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        folder: &Path,
        call: impl FnOnce(&Progress) -> T + Send + 'static,
    ) -> Result<T, String> {
        let shown = folder.display();
        let own = Arc::clone(&self.own).acquire_owned();
        let Ok(own) = tokio::time::timeout(self.silence_max, own).await else {
            return Err(format!(
                "the folder {shown} does not answer: an earlier call to its file system has not returned"
            ));
        };
        let all = Arc::clone(&self.all).acquire_owned();
        let Ok(all) = tokio::time::timeout(self.silence_max, all).await else {
            return Err(format!(
                "cannot look at the folder {shown}: {CALLS_MAX} calls to folders of triggers have not returned"
            ));
        };
        let progress = Progress::default();
        let made = progress.clone();
        // A set, because a call that has not begun when it is dropped does not begin.
        let mut calls = JoinSet::new();
        calls.spawn_blocking(move || {
            let _permits = (own, all);
            call(&made)
        });
        let mut seen = progress.so_far();
        loop {
            tokio::select! {
                Some(done) = calls.join_next() => return done.map_err(|error| error.to_string()),
                () = tokio::time::sleep(self.silence_max) => {}
            }
            let now = progress.so_far();
            if now == seen {
                let silence_s = self.silence_max.as_secs();
                return Err(format!(
                    "the folder {shown} does not answer: its file system was silent for {silence_s} seconds"
                ));
            }
            seen = now;
        }
    }
}

/// How long a file system may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Calls of all triggers at the same time: an eighth of tokio's blocking threads.
const CALLS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn a_call_that_hangs_is_the_only_one_of_its_trigger_and_disturbs_no_other() {
        let calls = FileCalls::new(Duration::from_millis(20));
        let path = Path::new("/mnt/hangs");
        let (answer, answered) = mpsc::channel::<()>();
        let lane = calls.lane("a");
        let hangs = lane.call(path, move |_| answered.recv().is_ok());
        let problem = hangs.await.unwrap_err();
        drop(lane);
        assert!(
            problem.contains("/mnt/hangs does not answer: its file"),
            "{problem}"
        );
        // The trigger begins anew.
        for _ in 0..3 {
            let lane = calls.lane("a");
            let again = lane.call(path, |_| ()).await;
            let problem = again.unwrap_err();
            assert!(problem.contains("an earlier call"), "{problem}");
        }
        assert_eq!(calls.lane("b").call(path, |_| 1).await, Ok(1));
        answer.send(()).unwrap();
        while calls.lane("a").call(path, |_| ()).await.is_err() {}
    }

    #[tokio::test]
    async fn a_call_may_take_any_time_while_the_file_system_answers() {
        let calls = FileCalls::new(Duration::from_millis(200));
        let (lane, path) = (calls.lane("a"), Path::new("/mnt/slow"));
        let (turn, turns) = mpsc::channel::<()>();
        let slow = lane.call(path, move |progress| {
            turns.iter().for_each(|()| progress.made());
            "done"
        });
        let turns = async move {
            for _ in 0..30 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                turn.send(()).unwrap();
            }
        };
        let (slow, ()) = tokio::join!(slow, turns);
        assert_eq!(slow, Ok("done"));
    }
}
