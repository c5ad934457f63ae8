//! `CLOCK_MONOTONIC` in nanoseconds: the clock of the daemon and its workers.

/// Nanoseconds since some point before the machine's start (clock_gettime(2)).
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec that lives across the call, which writes nothing else.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    // It cannot fail: the clock exists on every supported kernel, and the pointer is valid.
    debug_assert_eq!(failed, 0);
    #[expect(clippy::cast_sign_loss, reason = "CLOCK_MONOTONIC is never negative")]
    let (seconds, nanos) = (now.tv_sec as u64, now.tv_nsec as u64);
    seconds * 1_000_000_000 + nanos
}
