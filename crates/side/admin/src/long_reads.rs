//! Reads that take long, and that a client may repeat without end: logs, records, lists of invocations. There is one at a time, and
//! those of all clients together have a pace, so that invocations have the CPU. Everybody who waits has a turn, one after the
//! other.

use std::sync::Arc;

use pilot_protocols::CellRate;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use crate::blocking;

/// See the module. Whoever has the lock reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongReads(Arc<Mutex<CellRate>>);

impl LongReads {
    /// Runs a part of a read on a blocking thread when it is its turn.
    pub(crate) async fn part<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let pace = Arc::clone(&self.0).lock_owned().await;
        if let Some(next) = pace.next() {
            sleep_until(next).await;
        }
        // The lock goes along, so that it is kept until the end, also if the client hangs up.
        blocking(move || {
            let begun = Instant::now();
            let read = read();
            pace.take(begun.elapsed() * PACE_PER_READ);
            read
        })
        .await
    }
}

/// What a read takes of the pace per time that it runs: reads without end have half of one CPU.
const PACE_PER_READ: u32 = 2;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn reads_run_one_at_a_time_and_those_without_end_have_a_pace() {
        let reads = LongReads::default();
        let running = Arc::new(AtomicUsize::new(0));
        let read = || {
            let running = Arc::clone(&running);
            reads.part(move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                thread::sleep(Duration::from_millis(10));
                running.fetch_sub(1, Ordering::SeqCst);
            })
        };
        let begun = Instant::now();
        join_all((0..60).map(|_| read())).await;
        // A fifth of a second is free, and the last one takes its time from those that do not come.
        let least = Duration::from_millis(60 * 20 - 200 - 20);
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    }
}
