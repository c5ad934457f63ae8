//! Waiting for something without an event, such as the end of a process or a change of a counter. It polls with a time limit, and
//! never assumes that a fixed time is enough.

use std::time::{Duration, Instant};

/// [`eventually_within`] ten seconds.
#[track_caller]
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(Duration::from_secs(10), what, look)
}

/// Polls until there is a value. Panics after `limit` with `what` in the message.
#[track_caller]
pub fn eventually_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(
            Instant::now() < deadline,
            "waited {limit:?} in vain for: {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
