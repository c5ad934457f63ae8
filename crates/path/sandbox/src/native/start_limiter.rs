//! Limits how many interpreters start at a time to the number of CPUs.
//!
//! Starting an interpreter is CPU-bound. Eighty that share two CPUs would all be ready only when the last one is; one after the
//! other, they are ready after half of that time on average. Busy workers keep their share of the CPUs. Starts run in the order
//! of their requests: one that an invocation waits for is not slowed down by later ones that are made ahead of demand.

use std::thread::available_parallelism;

use tokio::sync::Semaphore;
use tokio::time::{Duration, timeout};

/// See the module.
#[derive(Debug)]
pub(super) struct StartLimiter {
    permits: Semaphore,
}

impl StartLimiter {
    pub(super) fn new() -> Self {
        let cpus = available_parallelism().map_or(1, usize::from);
        Self::of(cpus)
    }

    fn of(permits: usize) -> Self {
        Self {
            permits: Semaphore::new(permits),
        }
    }

    /// Waits for a permit, then for `start`. A start that exceeds [`PERMIT_TIME_MAX`] is short of something else than a CPU (its
    /// cgroup may allow a tenth of one): it continues without its permit, and the next start gets the permit.
    pub(super) async fn run<T>(&self, start: impl Future<Output = T>) -> T {
        let mut start = Box::pin(start);
        let permit = self.permits.acquire().await;
        if let Ok(started) = timeout(PERMIT_TIME_MAX, &mut start).await {
            return started;
        }
        drop(permit);
        start.await
    }
}

/// Longest that a start may hold its permit: about four times what Node.js needs to start.
const PERMIT_TIME_MAX: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_start_at_a_time_than_there_are_permits() {
        let limiter = Arc::new(StartLimiter::of(2));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let (limiter, now, most) = (Arc::clone(&limiter), Arc::clone(&now), Arc::clone(&most));
            all.spawn(async move {
                limiter
                    .run(async {
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
    async fn a_slow_start_continues_and_delays_no_other() {
        let limiter = Arc::new(StartLimiter::of(1));
        let slow = Arc::clone(&limiter);
        let sleep = tokio::time::sleep(PERMIT_TIME_MAX * 40);
        let slow = tokio::spawn(async move { slow.run(sleep).await });
        tokio::task::yield_now().await;
        let begun = tokio::time::Instant::now();
        limiter.run(std::future::ready(())).await;
        assert_eq!(begun.elapsed(), PERMIT_TIME_MAX);
        slow.await.expect("it starts");
        assert_eq!(begun.elapsed(), PERMIT_TIME_MAX * 40);
    }
}
