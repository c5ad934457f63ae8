//! Gives memory back to the kernel that the daemon has used for a while: for many connections, for large bodies. The allocator would keep
//! it for ever, and it would be missing for functions.
//!
//! Not here: limits of memory. They are where the memory is taken.

use std::time::Duration;

use pilot_sys::heap;
use tokio::time::sleep;

/// Looks now and then whether the daemon has more memory than at its quietest, and then gives back what is free of it. Does not end.
pub(crate) async fn keep_small() {
    let mut pauses = Pauses::default();
    loop {
        sleep(pauses.next).await;
        let Ok(bytes) = heap::resident() else {
            continue;
        };
        if !pauses.is_worth_it(bytes) {
            continue;
        }
        // It waits for other threads that use the heap.
        let given = tokio::task::spawn_blocking(|| {
            heap::give_back();
            heap::resident().ok()
        });
        if let Ok(Some(left)) = given.await {
            pauses.gave_back(bytes, left);
            tracing::debug!(bytes, left, "gave memory back");
        }
    }
}

/// When to look next.
#[derive(Debug)]
struct Pauses {
    next: Duration,
    /// The least memory so far, bytes.
    least: Option<usize>,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            next: SHORTEST,
            least: None,
        }
    }
}

impl Pauses {
    fn is_worth_it(&mut self, bytes: usize) -> bool {
        let least = self.least.map_or(bytes, |least| least.min(bytes));
        self.least = Some(least);
        let is_worth_it = bytes >= least + WORTH;
        if !is_worth_it {
            self.next = SHORTEST;
        }
        is_worth_it
    }

    /// While the memory is in use, or grows for good, trying often would only cost time.
    fn gave_back(&mut self, before: usize, left: usize) {
        self.next = match before.saturating_sub(left) >= WORTH {
            true => SHORTEST,
            false => (self.next * 2).min(LONGEST),
        };
    }
}

const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);
/// So much more memory is worth the work, bytes.
const WORTH: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;

    #[test]
    fn it_tries_when_there_is_more_than_at_the_quietest_and_less_often_while_it_is_in_use() {
        let mut pauses = Pauses::default();
        assert!(!pauses.is_worth_it(60 * MB));
        assert!(!pauses.is_worth_it(50 * MB));
        assert!(!pauses.is_worth_it(65 * MB));
        for next_s in [10, 20, 40, 60, 60] {
            assert!(pauses.is_worth_it(300 * MB));
            pauses.gave_back(300 * MB, 298 * MB);
            assert_eq!(pauses.next, Duration::from_secs(next_s));
        }
        assert!(pauses.is_worth_it(300 * MB));
        pauses.gave_back(300 * MB, 60 * MB);
        assert_eq!(pauses.next, SHORTEST);
        assert!(!pauses.is_worth_it(60 * MB));
    }
}
