//! How many requests of a worker the daemon answers at once: to the Runtime API, and on the socket for calls. A request costs the daemon
//! more than the worker that sends it, and does not count as the function's CPU time, so those without end wait. The same is true of
//! the pieces of an answer, above all of those that have no byte, or few.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The pace of one worker's requests, on all its connections. An invocation gives more than it takes, so that a runtime and its
/// extensions do not wait, and neither does a function that calls others.
#[derive(Debug, Default)]
pub struct Pace(CellRate);

impl Pace {
    /// Waits until a request may be answered.
    pub async fn wait(&self) {
        if let Some(from) = from(self.0.take(GAP)) {
            sleep_until(from).await;
        }
    }

    /// The worker has got an event, or the answer to a call.
    pub fn allow_more(&self) {
        self.0.give(GAP * PER_EVENT);
    }
}

/// The pace of the pieces of the answers that one worker streams. A worker that writes one piece after the other does not reach it.
#[derive(Debug, Default)]
pub struct PiecePace(CellRate);

impl PiecePace {
    /// What a piece of `len` bytes takes of the pace.
    #[must_use]
    pub fn cost(len: usize) -> Duration {
        match len {
            0 => GAP,
            1..SHORT_LEN => SHORT_GAP,
            _ => PIECE_GAP,
        }
    }

    /// What a piece takes that has arrived together with the one before it and is passed on with it, where that costs the daemon little.
    #[must_use]
    pub fn cost_of_more(len: usize) -> Duration {
        match len {
            0 => GAP,
            _ => PIECE_GAP,
        }
    }

    /// Pieces have come that cost so much together.
    pub fn came(&self, cost: Duration) {
        if !cost.is_zero() {
            self.0.take(cost);
        }
    }

    /// Waits until more may be read.
    pub async fn rest(&self) {
        if let Some(from) = self.next() {
            sleep_until(from).await;
        }
    }

    /// When more may be read; `None`: now.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.0.next()
    }
}

/// The generic cell rate algorithm (ITU-T I.371): what somebody sends takes some time of a pace. Whoever has been quiet may send what takes
/// a fifth of a second at once.
#[derive(Debug)]
pub struct CellRate {
    /// From when on a sender that has been quiet since could send again. Held for a sum.
    due: Mutex<Instant>,
}

impl Default for CellRate {
    fn default() -> Self {
        Self {
            due: Mutex::new(Instant::now()),
        }
    }
}

impl CellRate {
    /// Something has come that takes so long. Returns from when on a sender that has been quiet since could send it.
    pub fn take(&self, time: Duration) -> Instant {
        let now = Instant::now();
        let mut due = self.due.lock();
        *due = (*due).max(now) + time;
        *due
    }

    /// The sender may send so much more.
    pub fn give(&self, time: Duration) {
        let mut due = self.due.lock();
        *due = due.checked_sub(time).unwrap_or(*due);
    }

    /// When more may be read; `None`: now.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        from(*self.due.lock())
    }
}

/// When it goes on for a worker that may send some at once after it has been quiet; `None`: now.
fn from(due: Instant) -> Option<Instant> {
    let from = due.checked_sub(GAP * AT_ONCE)?;
    (from > Instant::now()).then_some(from)
}

/// Between requests without end.
const GAP: Duration = Duration::from_millis(1);

/// Between short pieces without end.
const SHORT_GAP: Duration = Duration::from_micros(50);

/// Between pieces of any length, and between short ones that are passed on together: what a program writes without a pause comes like
/// this. Programs put many pieces into one write(2), so longer ones cost the daemon more than the worker, too.
const PIECE_GAP: Duration = Duration::from_micros(10);

const SHORT_LEN: usize = 64;

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

    #[tokio::test(start_paused = true)]
    async fn the_pace_of_pieces_is_that_of_their_length() {
        for (cost, per_second) in [
            (PiecePace::cost(0), 1_000),
            (PiecePace::cost(1), 20_000),
            (PiecePace::cost(SHORT_LEN - 1), 20_000),
            (PiecePace::cost(SHORT_LEN), 100_000),
            (PiecePace::cost(1 << 20), 100_000),
            (PiecePace::cost_of_more(0), 1_000),
            (PiecePace::cost_of_more(1), 100_000),
            (PiecePace::cost_of_more(SHORT_LEN), 100_000),
        ] {
            let pace = PiecePace::default();
            let began = Instant::now();
            // As many as a fast server writes one by one in a fifth of a second.
            for _ in 0..per_second / 5 {
                pace.came(cost);
            }
            pace.rest().await;
            assert_eq!(began.elapsed(), Duration::ZERO, "{cost:?}");
            for _ in 0..2 * per_second {
                pace.came(cost);
            }
            pace.rest().await;
            let waited = began.elapsed();
            assert!(
                (1990..=2010).contains(&waited.as_millis()),
                "{cost:?}: {waited:?}"
            );
        }
    }
}
