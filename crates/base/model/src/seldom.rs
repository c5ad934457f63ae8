//! A limit for messages of the daemon's log that a function can cause as often as it likes: some per interval, and the number of those
//! that were left out.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often one kind of message is logged.
#[derive(Debug)]
pub struct Seldom {
    per_interval: u32,
    /// Held for a comparison and an addition.
    window: Mutex<Window>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    begun: Option<Instant>,
    admitted: u32,
    left_out: u64,
}

impl Seldom {
    /// The length of an interval.
    pub const INTERVAL: Duration = Duration::from_secs(10);

    /// At most this many messages per interval.
    #[must_use]
    pub const fn new(per_interval: u32) -> Self {
        Self {
            per_interval,
            window: Mutex::new(Window {
                begun: None,
                admitted: 0,
                left_out: 0,
            }),
        }
    }

    /// Whether a message is logged now. If so: the number of messages that were left out before it. Otherwise, it is counted.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.lock();
        let is_over = window
            .begun
            .is_none_or(|begun| now.saturating_duration_since(begun) >= Self::INTERVAL);
        if is_over {
            window.begun = Some(now);
            window.admitted = 0;
        }
        if window.admitted == self.per_interval {
            window.left_out += 1;
            return None;
        }
        window.admitted += 1;
        Some(std::mem::take(&mut window.left_out))
    }

    /// Counts a message that is left out for another reason.
    pub fn leave_out(&self) {
        self.lock().left_out += 1;
    }

    /// The number of messages that were left out and not counted in a message, if the interval is over.
    pub fn over(&self, now: Instant) -> Option<u64> {
        let mut window = self.lock();
        let begun = window.begun?;
        (now.saturating_duration_since(begun) >= Self::INTERVAL)
            .then(|| std::mem::take(&mut window.left_out))
    }

    /// The number of messages that were left out and not counted in a message.
    pub fn left_out(&self) -> u64 {
        std::mem::take(&mut self.lock().left_out)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Window> {
        // Nothing panics while it is held.
        self.window
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_an_interval_is_counted_and_told_in_the_next() {
        let seldom = Seldom::new(2);
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        assert_eq!(seldom.admit(at(0)), Some(0));
        assert_eq!(seldom.admit(at(1)), Some(0));
        for ms in 2..1000 {
            assert_eq!(seldom.admit(at(ms)), None);
        }
        assert_eq!(seldom.over(at(9_999)), None);
        assert_eq!(seldom.admit(at(10_000)), Some(998));
        assert_eq!(seldom.admit(at(10_001)), Some(0));
        seldom.leave_out();
        assert_eq!(seldom.over(at(20_000)), Some(1));
        assert_eq!(seldom.left_out(), 0);
    }
}
