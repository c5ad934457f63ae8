//! How long a handler ran at least, whatever its worker says.
//!
//! When a handler started and returned, only its worker knows exactly, and the worker is the function's own process: it may say that
//! handlers take no time. A duration by the daemon's clock would not be fair, because it has the time for which a call waits for a busy
//! machine. But the kernel counts CPU time, and nobody computes for longer than the time that passes on all CPUs together, or, with a
//! limit, much longer than that. The daemon's clock only says what it cannot have been longer than.

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::Duration;

use pilot_model::{FunctionConfig, Instant};

/// From when to when a handler ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) started: Instant,
    pub(crate) returned: Instant,
}

impl Ran {
    pub(crate) fn lasted(self) -> Duration {
        self.returned.since(self.started)
    }

    /// The same of a handler that ran for longer: at least so long. It was called and seen to be over at these times, and can have taken no
    /// longer.
    pub(crate) fn for_at_least(self, least: Duration, called: Instant, over: Instant) -> Self {
        let least_ns = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
        let earliest_end = Instant(called.0.saturating_add(least_ns));
        let returned = self.returned.max(earliest_end.min(over));
        let started = Instant(returned.0.saturating_sub(least_ns)).max(called);
        Self {
            started: self.started.min(started),
            returned,
        }
    }
}

/// How long it takes at least to use this CPU time.
pub(crate) fn least(cpu: Duration, config: &FunctionConfig) -> Duration {
    least_on(cpus(), cpu, config)
}

fn least_on(cpus: u32, cpu: Duration, config: &FunctionConfig) -> Duration {
    let cpu = cpu.saturating_sub(OUTSIDE_CPU);
    if cpu.is_zero() {
        return Duration::ZERO;
    }
    let by_limit = cpu.mul_f64(1e3 / (f64::from(config.cpu_milli.max(1)) * LIMIT_EXCESS));
    // A period's quota may be used up at its end, and the next one's at its beginning.
    let by_limit = by_limit.saturating_sub(config.cpu_limit.period() * 2);
    by_limit.max(cpu / cpus)
}

fn cpus() -> u32 {
    static CPUS: OnceLock<u32> = OnceLock::new();
    let count = || available_parallelism().map_or(1, NonZero::get);
    *CPUS.get_or_init(|| u32::try_from(count()).unwrap_or(u32::MAX))
}

/// What a worker computes outside its handler, from one answer to the next: it reads, writes and cleans up.
const OUTSIDE_CPU: Duration = Duration::from_millis(5);

/// By how much the kernel's quota may exceed the function's limit (`cpu_limit.enforcement = "precise"`).
const LIMIT_EXCESS: f64 = 1.1;

#[cfg(test)]
mod tests {
    use pilot_testkit::config;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn limited(cpu_milli: u32) -> FunctionConfig {
        FunctionConfig {
            cpu_milli,
            ..config("f")
        }
    }

    #[test]
    fn what_was_computed_took_its_time_on_all_cpus() {
        assert_eq!(least_on(2, ms(2005), &limited(2000)), ms(1000));
        assert_eq!(least_on(8, ms(85), &limited(8000)), ms(10));
        // Of a short call, the handler may be any part.
        assert_eq!(least_on(1, ms(5), &limited(1000)), ms(0));
    }

    #[test]
    fn what_was_computed_took_its_time_under_the_limit() {
        let least = least_on(64, ms(2205), &limited(1000));
        assert_eq!(least.as_millis(), 1800);
        let least = least_on(64, ms(225), &limited(200));
        assert_eq!(least.as_millis(), 800);
    }

    #[test]
    fn a_handler_that_says_it_took_no_time_ran_when_it_can_have_run() {
        let said = |started, returned| Ran {
            started: at(started),
            returned: at(returned),
        };
        let ran = |said: Ran| {
            assert!(said.lasted() < ms(900));
            said.for_at_least(ms(900), at(1000), at(2100))
        };
        // Called at 1000, and over at 2100.
        assert_eq!(ran(said(1000, 1000)), said(1000, 1900));
        assert_eq!(ran(said(2100, 2100)), said(1200, 2100));
        assert_eq!(ran(said(1500, 1600)), said(1000, 1900));
        // Honest.
        assert!(said(1001, 2099).lasted() >= ms(900));
        // More CPU time than there was: it belongs to what the worker did before.
        let ran = said(1400, 1500).for_at_least(ms(5000), at(1000), at(2100));
        assert_eq!(ran, said(1000, 2100));
    }
}
