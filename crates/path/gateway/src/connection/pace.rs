//! How fast a client must take its responses. Its connection holds memory until then, and for a streamed response a worker. What
//! counts is the time for which writes wait for the client: a function may take as long as it likes, and so may a client that waits
//! for the function.
//!
//! There are two measures. The mild one always holds. The strict one holds as long as another response waits for the memory that the
//! responses of this function hold: a slow client may take its time, but not that of others.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::line::Usage;

/// The limits of one measure: the longest time of waiting that bytes do not pay for, and how many bytes pay for one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPace {
    /// Longest time that writes wait.
    pub patience: Duration,
    /// Bytes per second.
    pub bytes_per_s: u32,
}

/// Measures one connection.
#[derive(Debug)]
pub(super) struct Pace {
    mild: Measure,
    strict: Measure,
    /// The number of requests when it was last asked: each response begins anew.
    response: u32,
    /// Since when a write waits.
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct Measure {
    limits: ReadPace,
    /// Time of waiting that the bytes since then have not paid for.
    owed: Duration,
}

impl Measure {
    fn new(limits: ReadPace) -> Self {
        Self {
            limits,
            owed: Duration::ZERO,
        }
    }

    fn left(&self, waits: Duration) -> Duration {
        self.limits.patience.saturating_sub(self.owed + waits)
    }

    fn waited(&mut self, time: Duration) {
        self.owed += time;
    }

    fn took(&mut self, bytes: usize) {
        // f64 has 53 bits: enough for any response.
        #[expect(clippy::cast_precision_loss, reason = "bytes of one write")]
        let seconds = bytes as f64 / f64::from(self.limits.bytes_per_s.max(1));
        self.owed = self.owed.saturating_sub(Duration::from_secs_f64(seconds));
    }
}

impl Pace {
    pub(super) fn new(mild: ReadPace, strict: ReadPace) -> Self {
        Self {
            mild: Measure::new(mild),
            strict: Measure::new(strict),
            response: 0,
            since: None,
            timer: None,
        }
    }

    /// The client has taken bytes, or the connection has failed.
    pub(super) fn took(&mut self, bytes: usize) {
        if let Some(since) = self.since.take() {
            let time = since.elapsed();
            self.mild.waited(time);
            self.strict.waited(time);
            // It is created again when a write waits.
            self.timer = None;
        }
        if self.mild.owed > Duration::ZERO || self.strict.owed > Duration::ZERO {
            self.mild.took(bytes);
            self.strict.took(bytes);
        }
    }

    /// A write waits for the client. Ready if the client is too slow.
    pub(super) fn poll_too_slow(&mut self, cx: &mut Context<'_>, usage: &Usage) -> Poll<()> {
        if self.response != usage.requests() {
            self.response = usage.requests();
            self.mild.owed = Duration::ZERO;
            self.strict.owed = Duration::ZERO;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        loop {
            let waits = since.elapsed();
            let mut left = self.mild.left(waits);
            if usage.memory_is_wanted() {
                left = left.min(self.strict.left(waits));
            }
            if usage.must_read_at_once() {
                left = left.min(LAST_WAIT.saturating_sub(waits));
            }
            if left.is_zero() {
                return Poll::Ready(());
            }
            // Whether the memory is wanted may change meanwhile.
            let due = Instant::now() + left.min(LOOK_EVERY);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            timer.as_mut().reset(due);
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Longest time that one write waits for a client that is not waited for any more.
const LAST_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const MILD: ReadPace = ReadPace {
        patience: Duration::from_secs(60),
        bytes_per_s: 4 << 10,
    };
    const STRICT: ReadPace = ReadPace {
        patience: Duration::from_secs(10),
        bytes_per_s: 64 << 10,
    };

    /// How long a client holds out that takes this many bytes every this many seconds. `None`: ten minutes at least.
    async fn holds_out(bytes: usize, every: u64) -> Option<Duration> {
        let usage = Usage::default();
        let mut pace = Pace::new(MILD, STRICT);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(600) {
            let write = std::future::poll_fn(|cx| pace.poll_too_slow(cx, &usage));
            let slow = tokio::time::timeout(Duration::from_secs(every), write).await;
            if slow.is_ok() {
                return Some(begin.elapsed());
            }
            pace.took(bytes);
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_but_steadily_is_served_and_who_trickles_is_not() {
        assert_eq!(holds_out(8 << 10, 2).await, None);
        assert_eq!(holds_out(200 << 10, 45).await, None);
        let stopped = holds_out(0, 100).await.unwrap();
        assert_eq!(stopped.as_secs(), 60);
        let trickled = holds_out(1 << 10, 1).await.unwrap();
        assert!((70..90).contains(&trickled.as_secs()), "{trickled:?}");
        // Before, one byte per minute was enough.
        assert!(holds_out(1, 59).await.unwrap() < Duration::from_secs(120));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_response_begins_with_all_its_time() {
        let usage = Usage::default();
        let mut pace = Pace::new(MILD, STRICT);
        for _ in 0..3 {
            usage.request_began(http::Version::HTTP_11, false);
            let write = std::future::poll_fn(|cx| pace.poll_too_slow(cx, &usage));
            let slow = tokio::time::timeout(Duration::from_secs(59), write).await;
            assert!(slow.is_err());
            pace.took(1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_waited_for_is_cut_off_while_a_write_waits() {
        let usage = Usage::default();
        let mut pace = Pace::new(MILD, STRICT);
        let begin = Instant::now();
        let write = std::future::poll_fn(|cx| pace.poll_too_slow(cx, &usage));
        let told = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            usage.is_not_waited_for();
        };
        tokio::join!(write, told);
        let waited = begin.elapsed().as_secs();
        assert!((10..=11).contains(&waited), "{waited} s");
    }

    #[tokio::test(start_paused = true)]
    async fn whose_memory_others_wait_for_has_less_time() {
        let usage = Usage::default();
        usage.answers_hold({
            let memory = pilot_protocols::MemoryBudget::for_answers(0, 0);
            let of = memory.of(&"lab".parse().unwrap());
            let held = of.reserve(6 << 20).await;
            let wants = of.clone();
            tokio::spawn(async move {
                let _held = held;
                wants.reserve(1 << 20).await;
            });
            tokio::task::yield_now().await;
            assert!(of.is_wanted());
            of
        });
        let mut pace = Pace::new(MILD, STRICT);
        let begin = Instant::now();
        std::future::poll_fn(|cx| pace.poll_too_slow(cx, &usage)).await;
        assert_eq!(begin.elapsed().as_secs(), 10);
    }
}
