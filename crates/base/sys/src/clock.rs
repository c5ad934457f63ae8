//! Clocks in nanoseconds: `CLOCK_MONOTONIC`, which the daemon and its workers share, and the CPU time of a process.

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

/// CPU time of a process with all its threads, nanoseconds: in user mode, and in all (clock_getcpuclockid(3)). The sum is exact;
/// the part in user mode is what the kernel counted at its ticks, 1 to 10 ms apart. `None`: there is no such process.
#[must_use]
pub fn process_cpu_ns(pid: u32) -> Option<(u64, u64)> {
    // The kernel's encoding of a process's clock: ~PID << 3 | WHICH (linux/posix-timers_types.h); 1: user mode, 2: all.
    let clock = |which: libc::clockid_t| -> Option<u64> {
        let id = (!libc::clockid_t::try_from(pid).ok()?) << 3 | which;
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a timespec that lives across the call, which writes nothing else. An id of no clock is an error.
        if unsafe { libc::clock_gettime(id, &raw mut time) } != 0 {
            return None;
        }
        let seconds = u64::try_from(time.tv_sec).ok()?;
        Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
    };
    let all = clock(2)?;
    Some((clock(1)?.min(all), all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_uses_cpu_time_and_one_that_is_not_there_has_none() {
        let own = std::process::id();
        let (_, before) = process_cpu_ns(own).unwrap();
        let until = before + 5_000_000;
        while process_cpu_ns(own).unwrap().1 < until {}
        let (user, all) = process_cpu_ns(own).unwrap();
        assert!(user <= all && all >= until);
        // Larger than any number of a process (PID_MAX_LIMIT is 2^22).
        assert_eq!(process_cpu_ns(1 << 23), None);
    }
}
