//! Interpreters come up in turn, as many at a time as there are CPUs: coming up is computing, and eighty that share two CPUs are
//! all up when the last one is. In turn, half of the time is spared in the mean, what serves already has its share, and what
//! is asked for first, because somebody waits, is not held up by what is made ready for later.

use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::time::{Duration, timeout};

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Turns {
    places: Semaphore,
}

impl Turns {
    pub(super) fn new() -> Self {
        let cpus = available_parallelism().map_or(1, usize::from);
        Self::of(cpus)
    }

    fn of(places: usize) -> Self {
        Self {
            places: Semaphore::new(places),
        }
    }

    /// Awaits a turn, then `coming_up`. One that takes long is short of something else than a CPU of its own (its function may have a
    /// tenth of one): it goes on, and its turn to the next.
    pub(super) async fn take<T>(&self, coming_up: impl Future<Output = T>) -> T {
        let mut coming_up = Box::pin(coming_up);
        let turn = self.places.acquire().await;
        if let Ok(up) = timeout(TURN_MAX, &mut coming_up).await {
            return up;
        }
        drop(turn);
        coming_up.await
    }
}

/// Longest turn: some four times what Node.js takes to come up by itself.
const TURN_MAX: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_come_up_at_a_time_than_there_are_places() {
        let turns = Arc::new(Turns::of(2));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let (turns, now, most) = (Arc::clone(&turns), Arc::clone(&now), Arc::clone(&most));
            all.spawn(async move {
                turns
                    .take(async {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        now.fetch_sub(1, Ordering::SeqCst);
                    })
                    .await;
            });
        }
        let begun = tokio::time::Instant::now();
        all.join_all().await;
        assert_eq!(most.load(Ordering::SeqCst), 2);
        assert_eq!(begun.elapsed().as_millis(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_goes_on_and_holds_up_nobody() {
        let turns = Arc::new(Turns::of(1));
        let slow = Arc::clone(&turns);
        let slow = tokio::spawn(async move { slow.take(tokio::time::sleep(TURN_MAX * 40)).await });
        tokio::task::yield_now().await;
        let begun = tokio::time::Instant::now();
        turns.take(std::future::ready(())).await;
        assert_eq!(begun.elapsed(), TURN_MAX);
        slow.await.expect("it comes up");
        assert_eq!(begun.elapsed(), TURN_MAX * 40);
    }
}
