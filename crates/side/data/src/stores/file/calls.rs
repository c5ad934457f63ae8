//! Calls to the file system of a folder. One of a network (NFS, FUSE) blocks the thread of a call until its server answers, and nothing
//! can end that.
//!
//! The calls run on tokio's blocking threads, which the whole daemon shares, so a store has [`CALLS_MAX`] of them at most. A call that
//! nobody waits for any more keeps its place until it returns.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pilot_model::ports::InputFaultKind as Kind;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::stores::StoreError;

/// The calls of one store.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    /// One permit for each call.
    places: Arc<Semaphore>,
    /// How many calls have returned.
    returned: Arc<AtomicU64>,
    silence_max: Duration,
}

impl Default for Calls {
    fn default() -> Self {
        Self::new(SILENCE_MAX)
    }
}

impl Calls {
    pub(super) fn new(silence_max: Duration) -> Self {
        Self {
            places: Arc::new(Semaphore::new(CALLS_MAX)),
            returned: Arc::default(),
            silence_max,
        }
    }

    /// Makes a call on a blocking thread.
    ///
    /// # Errors
    /// Those of the call; or all places are taken, and none of their calls returns.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = self.place().await?;
        let returned = Arc::clone(&self.returned);
        // A set, because a call that has not begun when it is dropped does not begin.
        let mut calls = JoinSet::new();
        calls.spawn_blocking(move || {
            let done = call();
            returned.fetch_add(1, Ordering::Relaxed);
            drop(place);
            done
        });
        match calls.join_next().await {
            Some(Ok(done)) => done,
            _ => Err(stopping()),
        }
    }

    /// Waits for a place as long as others become free.
    async fn place(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        let mut place = pin!(Arc::clone(&self.places).acquire_owned());
        let mut seen = self.returned.load(Ordering::Relaxed);
        loop {
            tokio::select! {
                place = &mut place => return place.map_err(|_| stopping()),
                () = tokio::time::sleep(self.silence_max) => {}
            }
            let now = self.returned.load(Ordering::Relaxed);
            if now == seen {
                let problem = format!(
                    "the folder does not answer: {CALLS_MAX} calls to its file system have not returned"
                );
                return Err(StoreError::new(Kind::Unavailable, &problem));
            }
            seen = now;
        }
    }

    /// A file that was opened by a call.
    pub(super) fn opened(&self, file: File) -> OpenFile {
        OpenFile {
            file: Some(file),
            places: Arc::clone(&self.places),
        }
    }
}

/// An open file of a store. Wherever it is dropped, a call of its own closes it: some file systems are asked about that, too (FUSE_FLUSH).
#[derive(Debug)]
pub(super) struct OpenFile {
    /// `None`: it is closed.
    file: Option<File>,
    places: Arc<Semaphore>,
}

impl OpenFile {
    /// Reads into `part`, in a call. 0: the end.
    pub(super) fn read(&mut self, part: &mut [u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(0), |file| file.read(part))
    }

    /// What is known of it, in a call.
    pub(super) fn metadata(&self) -> io::Result<Metadata> {
        let closed = || io::Error::other("it is closed");
        self.file.as_ref().ok_or_else(closed)?.metadata()
    }

    /// Closes it, in a call.
    pub(super) fn close(mut self) {
        self.file = None;
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let (Some(file), Ok(runtime)) = (self.file.take(), Handle::try_current()) else {
            return;
        };
        let place = Arc::clone(&self.places).acquire_owned();
        // Nobody waits for it.
        runtime.spawn(async move {
            let place = place.await;
            tokio::task::spawn_blocking(move || drop((file, place)));
        });
    }
}

fn stopping() -> StoreError {
    StoreError::new(Kind::Unavailable, "the daemon is stopping")
}

/// Concurrent calls to one folder: enough for disks, and few of tokio's 512 blocking threads.
pub(super) const CALLS_MAX: usize = 16;
/// How long no call may return while all places are taken.
const SILENCE_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Calls that hang until the test waits at the barrier, too. All of them have begun.
    async fn hang(calls: &Calls, count: usize) -> (Arc<Barrier>, JoinSet<Result<(), StoreError>>) {
        let barrier = Arc::new(Barrier::new(count + 1));
        let begun = Arc::new(AtomicU64::new(0));
        let mut hanging = JoinSet::new();
        for _ in 0..count {
            let (calls, barrier) = (calls.clone(), Arc::clone(&barrier));
            let begun = Arc::clone(&begun);
            hanging.spawn(async move {
                let wait = move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    barrier.wait();
                    Ok(())
                };
                calls.call(wait).await
            });
        }
        while begun.load(Ordering::SeqCst) < count as u64 {
            tokio::task::yield_now().await;
        }
        (barrier, hanging)
    }

    /// The file system answers.
    async fn answer(barrier: Arc<Barrier>) {
        let waiting = tokio::task::spawn_blocking(move || barrier.wait());
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn calls_that_nobody_waits_for_keep_their_places_and_others_are_told() {
        let calls = Calls::new(Duration::from_millis(30));
        let (barrier, hanging) = hang(&calls, CALLS_MAX).await;
        // The timeouts of their functions.
        drop(hanging);
        for _ in 0..3 {
            let error = calls.call(|| Ok(())).await.unwrap_err();
            assert_eq!(error.kind, Kind::Unavailable);
            assert!(
                error.problem.contains("does not answer"),
                "{}",
                error.problem
            );
        }
        assert_eq!(calls.places.available_permits(), 0);
        answer(barrier).await;
        while calls.call(|| Ok(())).await.is_err() {}
    }

    #[tokio::test]
    async fn others_wait_while_some_of_the_calls_return() {
        let calls = Calls::new(Duration::from_millis(200));
        let (barrier, hanging) = hang(&calls, CALLS_MAX - 1).await;
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        // The last of them waits for longer than calls may be silent.
        let all = (0..20).map(|_| calls.call(slow));
        let ends = futures_util::future::join_all(all).await;
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        answer(barrier).await;
        assert!(hanging.join_all().await.iter().all(Result::is_ok));
    }

    #[test]
    fn a_call_that_has_not_begun_does_not_begin_for_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let calls = Calls::default();
            let (barrier, hanging) = hang(&calls, 1).await;
            let begun = Arc::new(AtomicBool::new(false));
            let begins = Arc::clone(&begun);
            let call = calls.call(move || {
                begins.store(true, Ordering::SeqCst);
                Ok(())
            });
            let late = tokio::time::timeout(Duration::from_millis(50), call).await;
            assert!(late.is_err());
            // The only blocking thread is that of the call that hangs.
            std::thread::spawn(move || barrier.wait());
            assert!(hanging.join_all().await.iter().all(Result::is_ok));
            calls.call(|| Ok(())).await.unwrap();
            assert!(!begun.load(Ordering::SeqCst));
            assert_eq!(calls.places.available_permits(), CALLS_MAX);
        });
    }

    #[tokio::test]
    async fn a_file_that_nobody_reads_on_is_closed_by_a_call() {
        let calls = Calls::default();
        let (end, theirs) = std::io::pipe().unwrap();
        let opened = calls.opened(File::from(std::os::fd::OwnedFd::from(theirs)));
        let (barrier, hanging) = hang(&calls, CALLS_MAX).await;
        drop(opened);
        drop(hanging);
        let closed = tokio::task::spawn_blocking(move || {
            barrier.wait();
            std::io::read_to_string(end)
        });
        assert_eq!(closed.await.unwrap().unwrap(), "");
    }
}
