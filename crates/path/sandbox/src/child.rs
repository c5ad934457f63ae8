//! A process in a sandbox, and how it ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SetOnce;
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// Longest wait for the end of a process that has closed its channel. Reaping it takes its parent a moment.
pub(crate) const END_TIME_MAX: Duration = Duration::from_secs(2);

/// How a forked child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    /// It exited.
    Exited(i32),
    /// Killed by a signal.
    Signalled(i32),
    /// The fork failed.
    ForkFailed(String),
    /// Its template ended first, so the status is unknown.
    Unknown,
}

/// A process in a sandbox; used to learn of its end.
#[derive(Debug)]
pub(crate) struct Child {
    end: Arc<SetOnce<ChildEnd>>,
    /// The task that waits for the end, if there is one.
    watcher: Option<AbortHandle>,
}

impl Child {
    /// A process whose end its template reports in `end`.
    pub(crate) fn ended_by(end: Arc<SetOnce<ChildEnd>>) -> Self {
        Self { end, watcher: None }
    }

    /// A process whose end `watch` reports.
    pub(crate) fn watched(watch: impl Future<Output = ChildEnd> + Send + 'static) -> Self {
        let end = Arc::new(SetOnce::new());
        let told = Arc::clone(&end);
        let watcher = tokio::spawn(async move {
            // Only this task sets it.
            let _ = told.set(watch.await);
        });
        Self {
            end,
            watcher: Some(watcher.abort_handle()),
        }
    }

    /// Waits for its end.
    pub(crate) async fn end(&self) -> ChildEnd {
        self.end.wait().await.clone()
    }

    /// Whether it is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.initialized()
    }

    pub(crate) fn end_watch(&self) -> Arc<SetOnce<ChildEnd>> {
        Arc::clone(&self.end)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(watcher) = &self.watcher {
            watcher.abort();
        }
    }
}

impl ChildEnd {
    /// "the worker …"
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Exited(code) => format!("exited with status {code}"),
            Self::Signalled(signal) => format!("was ended by signal {signal}"),
            Self::ForkFailed(error) if is_again(error) => {
                format!("could not be forked: {NO_PROCESS_LEFT} ({error})")
            }
            Self::ForkFailed(error) => format!("could not be forked: {error}"),
            Self::Unknown => "ended".to_owned(),
        }
    }
}

/// What [`ChildEnd::in_words`] says of a fork beyond the limit of processes (fork(2), EAGAIN).
pub(crate) const NO_PROCESS_LEFT: &str = "what was started at import, and still runs, leaves room for no other process \
    within limits.pids or limits.total_pids of pilotd.toml; start processes and threads in the handler";

/// Whether a template names EAGAIN: in the words of the fork server, or of Python.
fn is_again(error: &str) -> bool {
    error.ends_with(&format!("errno {}", libc::EAGAIN))
        || error.contains(&format!("[Errno {}]", libc::EAGAIN))
}

/// Runs `work`, but fails when the process that it waits for ends first. A closed socket does not show that, because a child of
/// the process may hold it open. What the process sent before its end still counts.
pub(crate) async fn or_end<T>(
    work: impl Future<Output = T>,
    end: impl Future<Output = ChildEnd>,
) -> Result<T, ChildEnd> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => Ok(done),
        end = end => timeout(LAST_WORDS, work).await.map_err(|_| end),
    }
}

/// Everything sent is already in the socket; this is the time for tokio to notice.
const LAST_WORDS: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_beyond_the_limit_says_what_to_do() {
        for error in [
            "fork: errno 11",
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        ] {
            let said = ChildEnd::ForkFailed(error.to_owned()).in_words();
            assert!(
                said.contains("limits.pids") && said.contains(error),
                "{said}"
            );
        }
        let other = ChildEnd::ForkFailed("fork: errno 12".to_owned()).in_words();
        assert_eq!(other, "could not be forked: fork: errno 12");
    }
}
