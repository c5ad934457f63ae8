//! Waiting for something without an event, such as the end of a process or a change of a counter. It polls with a time limit, and
//! never assumes that a fixed time is enough.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

static PATIENCE: LazyLock<u32> = LazyLock::new(|| {
    let given = std::env::var("PILOT_TEST_PATIENCE").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(1)
});

/// By which factor this machine is slower than usual: `PILOT_TEST_PATIENCE`, 1 without it. It may be emulated (`tests/vm`).
pub fn patience() -> u32 {
    *PATIENCE
}

/// [`eventually_within`] ten seconds.
#[track_caller]
pub fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    eventually_within(Duration::from_secs(10), what, look)
}

/// Polls until there is a value. Panics after `limit` times [`patience`] with `what` in the message.
#[track_caller]
pub fn eventually_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let limit = limit * patience();
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
