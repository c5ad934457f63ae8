//! Waiting for something that no event announces to an outsider: a process that goes away, a counter that moves.
//! Looks again and again, with a bound; never assumes that a time has been enough.

use std::time::{Duration, Instant};

/// [`eventually_within`] ten seconds.
#[track_caller]
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(Duration::from_secs(10), what, look)
}

/// Looks until there is something to see. Panics, naming `what`, after `limit`.
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
