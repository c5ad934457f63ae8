//! Whether a node can be reached. Once it could not, calls avoid it, and one task at a time tries to reach it: calls that have another
//! node do not find out at their own cost. The pauses between its attempts grow to a limit.
//!
//! Not here: what an attempt is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::ports::BoxFuture;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// The pause after the first attempt of a probe that failed, and the longest one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Tries to reach the node for a limited time, and returns whether it could.
pub(crate) type Attempt = Box<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// When the first attempt of a probe is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    AtOnce,
    /// An attempt has just failed.
    AfterPause,
}

/// What is known about reaching a node.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// Held for a look or a change.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The node could not be reached if there is one.
    probe: Option<Probe>,
    /// When an attempt failed last that had all the time of one, and why.
    failed: Option<(Instant, String)>,
}

/// The task that tries to reach a node. It ends when this is dropped.
struct Probe {
    task: JoinHandle<()>,
    at_once: Arc<Notify>,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reach {
    /// Whether it could not be reached, and has not been since.
    pub(crate) fn is_lost(&self) -> bool {
        self.state.lock().probe.is_some()
    }

    /// It could not be reached: from now on, a probe tries, if none does. `attempt` must not keep the node alive between two attempts.
    pub(crate) fn lose(&self, first: First, attempt: Attempt) {
        let mut state = self.state.lock();
        if state.probe.is_none() {
            let at_once = Arc::<Notify>::default();
            let task = tokio::spawn(probe(first, Arc::clone(&at_once), attempt));
            state.probe = Some(Probe { task, at_once });
        }
    }

    /// It has been reached.
    pub(crate) fn find(&self) {
        let probe = self.state.lock().probe.take();
        drop(probe);
    }

    /// It has shown itself: a probe does not wait for its next attempt.
    pub(crate) fn hear(&self) {
        if let Some(probe) = &self.state.lock().probe {
            probe.at_once.notify_one();
        }
    }

    /// Notes that an attempt failed that had all the time of one, and why.
    pub(crate) fn note_failure(&self, problem: &str) {
        self.state.lock().failed = Some((Instant::now(), problem.to_owned()));
    }

    /// Why such an attempt has failed since then, if one has.
    pub(crate) fn failure_since(&self, then: Instant) -> Option<String> {
        let state = self.state.lock();
        let (failed, problem) = state.failed.as_ref()?;
        (*failed > then).then(|| problem.clone())
    }
}

async fn probe(first: First, at_once: Arc<Notify>, attempt: Attempt) {
    let mut pause = match first {
        First::AtOnce => Duration::ZERO,
        First::AfterPause => PAUSE_FIRST,
    };
    loop {
        let _ = timeout(pause, at_once.notified()).await;
        if attempt().await {
            return;
        }
        pause = (pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use tokio::time::sleep;

    use super::*;

    /// How long an attempt takes.
    const TAKES: Duration = Duration::from_secs(10);

    struct Bench {
        reach: Arc<Reach>,
        is_back: Arc<AtomicBool>,
        /// When each attempt began.
        attempts: UnboundedReceiver<Instant>,
        attempt: Box<dyn Fn() -> Attempt>,
    }

    impl Bench {
        fn new() -> Self {
            let (reach, is_back) = (Arc::<Reach>::default(), Arc::<AtomicBool>::default());
            let (begun, attempts) = unbounded_channel();
            let (found, back) = (Arc::clone(&reach), Arc::clone(&is_back));
            let attempt = move || -> Attempt {
                let (begun, found, back) = (begun.clone(), Arc::clone(&found), Arc::clone(&back));
                Box::new(move || {
                    let _ = begun.send(Instant::now());
                    let (found, back) = (Arc::clone(&found), Arc::clone(&back));
                    Box::pin(async move {
                        sleep(TAKES).await;
                        let is_back = back.load(Ordering::Relaxed);
                        if is_back {
                            found.find();
                        }
                        is_back
                    })
                })
            };
            Self {
                reach,
                is_back,
                attempts,
                attempt: Box::new(attempt),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_tries_again_and_again_until_the_node_is_back() {
        let mut bench = Bench::new();
        let mut before = Instant::now();
        for first in [First::AtOnce, First::AfterPause, First::AtOnce] {
            bench.reach.lose(first, (bench.attempt)());
        }
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(bench.reach.is_lost());
            let begun = bench.attempts.recv().await.unwrap();
            pauses.push((begun - before).as_millis());
            before = begun + TAKES;
        }
        assert_eq!(
            pauses,
            [0, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
        );
        bench.is_back.store(true, Ordering::Relaxed);
        sleep(TAKES * 10).await;
        assert!(!bench.reach.is_lost());
        assert!(bench.attempts.is_empty());
        bench.reach.lose(First::AfterPause, (bench.attempt)());
        let lost = Instant::now();
        assert!(bench.reach.is_lost());
        let begun = bench.attempts.recv().await.unwrap();
        assert_eq!(begun - lost, PAUSE_FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_shows_itself_is_tried_at_once() {
        let mut bench = Bench::new();
        bench.reach.hear();
        bench.reach.lose(First::AtOnce, (bench.attempt)());
        for _ in 0..6 {
            bench.attempts.recv().await.unwrap();
        }
        sleep(TAKES + Duration::from_secs(1)).await;
        assert!(bench.attempts.is_empty(), "it pauses");
        bench.is_back.store(true, Ordering::Relaxed);
        let heard = Instant::now();
        bench.reach.hear();
        let begun = bench.attempts.recv().await.unwrap();
        assert_eq!(begun, heard);
        sleep(TAKES * 2).await;
        assert!(!bench.reach.is_lost());
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_ends_when_the_node_is_reached_in_another_way() {
        let mut bench = Bench::new();
        bench.reach.lose(First::AtOnce, (bench.attempt)());
        bench.attempts.recv().await.unwrap();
        bench.reach.find();
        sleep(TAKES * 10).await;
        assert!(bench.attempts.is_empty() && !bench.reach.is_lost());
    }
}
