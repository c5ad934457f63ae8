//! How many requests of a worker the daemon answers at once: to the Runtime API, and on the socket for calls. A request costs the daemon
//! more than the worker that sends it, and does not count as the function's CPU time, so those without end wait.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The pace of one worker's requests, on all its connections. An invocation gives more than it takes, so that a runtime and its
/// extensions do not wait, and neither does a function that calls others.
#[derive(Debug)]
pub struct Pace {
    /// From when on a worker that has been quiet since could send its next request (the generic cell rate algorithm, ITU-T I.371). Held for
    /// a sum.
    due: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            due: Mutex::new(Instant::now()),
        }
    }
}

impl Pace {
    /// Waits until a request may be answered.
    pub async fn wait(&self) {
        let now = Instant::now();
        let due = {
            let mut due = self.due.lock();
            *due = (*due).max(now) + GAP;
            *due
        };
        // A worker that has been quiet may send some at once.
        if let Some(from) = due.checked_sub(GAP * AT_ONCE)
            && from > now
        {
            sleep_until(from).await;
        }
    }

    /// The worker has got an event, or the answer to a call.
    pub fn allow_more(&self) {
        let mut due = self.due.lock();
        *due = due.checked_sub(GAP * PER_EVENT).unwrap_or(*due);
    }
}

/// Between requests without end.
const GAP: Duration = Duration::from_millis(1);

/// Requests at once.
const AT_ONCE: u32 = 200;

/// Requests per invocation: two of the runtime, and one of each extension, of which Lambda allows ten. A call has four: a buffer, its
/// seal, the call itself and the release.
const PER_EVENT: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_without_end_wait_and_those_of_invocations_do_not() {
        let pace = Pace::default();
        let began = Instant::now();
        for _ in 0..1000 {
            pace.allow_more();
            for _ in 0..12 {
                pace.wait().await;
            }
        }
        assert_eq!(began.elapsed(), Duration::ZERO);

        for _ in 12..AT_ONCE {
            pace.wait().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..1000 {
            pace.wait().await;
        }
        let waited = began.elapsed();
        assert!((990..=1010).contains(&waited.as_millis()), "{waited:?}");
    }
}
