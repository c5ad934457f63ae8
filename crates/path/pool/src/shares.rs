//! The CPU time of a worker that serves several invocations at once, divided among them: what it uses counts in equal parts for those that
//! run in it at that time. What it uses while none runs counts for the next one. So the parts add up to what the worker used, but for
//! remainders of nanoseconds, and none is negative.

use std::time::Duration;

use pilot_model::{CpuTime, Instant};

/// So old a reading divides CPU time well enough among invocations that run at the same time: the kernel itself adds up what a process uses
/// when it stops running and at its ticks, which are at least 1 ms apart.
const AGE_MAX: Duration = Duration::from_micros(200);

/// What was last read of a worker's CPU time. It is asked for several times per invocation, and each reading takes 1.3 µs.
#[derive(Debug, Default)]
pub(crate) struct Reading(Option<(Instant, Option<CpuTime>)>);

impl Reading {
    /// CPU time of the worker `now`: read again for an invocation that is the only one, so that it has all that it used; otherwise if what
    /// was read is old.
    pub(crate) fn at(
        &mut self,
        now: Instant,
        is_only: bool,
        read: impl FnOnce() -> Option<CpuTime>,
    ) -> Option<CpuTime> {
        match self.0 {
            Some((at, cpu)) if !is_only && now.since(at) < AGE_MAX => cpu,
            _ => {
                let cpu = read();
                self.0 = Some((now, cpu));
                cpu
            }
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// What has been divided, or is unclaimed.
    counted: CpuTime,
    /// What an invocation would have that ran all the time.
    each: CpuTime,
    /// Used while none ran.
    unclaimed: CpuTime,
    running: u32,
}

/// Where the part of an invocation begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareStart {
    each: CpuTime,
    /// What it has beyond its part from here on.
    more: CpuTime,
}

impl Shares {
    /// An invocation begins. `now`: CPU time of the worker since its start; `None`: it was not read.
    pub(crate) fn begin(&mut self, now: Option<CpuTime>) -> ShareStart {
        self.advance(now);
        self.running += 1;
        ShareStart {
            each: self.each,
            more: std::mem::take(&mut self.unclaimed),
        }
    }

    /// What the invocation has used since it began, or since this was called last.
    pub(crate) fn read(&mut self, now: Option<CpuTime>, start: &mut ShareStart) -> Option<CpuTime> {
        now?;
        self.advance(now);
        let mut used = self.each.since(start.each);
        used += start.more;
        *start = ShareStart {
            each: self.each,
            more: CpuTime::default(),
        };
        Some(used)
    }

    /// An invocation that began has ended.
    pub(crate) fn end(&mut self, now: Option<CpuTime>) {
        self.advance(now);
        self.running = self.running.saturating_sub(1);
    }

    fn advance(&mut self, now: Option<CpuTime>) {
        let Some(now) = now else { return };
        let spent = now.since(self.counted);
        self.counted += spent;
        match self.running {
            0 => self.unclaimed += spent,
            running => {
                self.each += CpuTime {
                    user: spent.user / running,
                    system: spent.system / running,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(user_ms: u64) -> Option<CpuTime> {
        Some(CpuTime {
            user: Duration::from_millis(user_ms),
            system: Duration::from_millis(user_ms / 10),
        })
    }

    fn user_ms(cpu: Option<CpuTime>) -> u128 {
        cpu.unwrap().user.as_millis()
    }

    #[test]
    fn those_that_run_at_the_same_time_have_equal_parts() {
        let mut shares = Shares::default();
        // 10 ms of its start.
        let mut first = shares.begin(at(10));
        let mut second = shares.begin(at(30));
        assert_eq!(user_ms(shares.read(at(70), &mut first)), 10 + 20 + 20);
        shares.end(at(70));
        assert_eq!(user_ms(shares.read(at(75), &mut second)), 20 + 5);
        assert_eq!(user_ms(shares.read(at(76), &mut second)), 1, "read again");
        shares.end(at(76));
        // Between invocations.
        let mut third = shares.begin(at(80));
        assert_eq!(user_ms(shares.read(at(81), &mut third)), 4 + 1);
        assert_eq!(shares.read(None, &mut third), None);
    }

    #[test]
    fn cpu_time_is_read_again_for_the_only_one_and_when_it_is_old() {
        let begin = Instant(1_000_000);
        let after = |micros| begin.after(Duration::from_micros(micros));
        let mut reading = Reading::default();
        assert_eq!(reading.at(begin, false, || at(1)), at(1));
        let read_again = |reading: &mut Reading, micros, is_only| {
            reading.at(after(micros), is_only, || at(micros)) == at(micros)
        };
        assert!(!read_again(&mut reading, 199, false));
        assert!(read_again(&mut reading, 199, true));
        assert!(!read_again(&mut reading, 398, false));
        assert!(read_again(&mut reading, 399, false));
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_whole(events in prop::collection::vec((0..3_usize, 0..5_000_u64), 1..80)) {
            let mut shares = Shares::default();
            let (mut clock, mut running, mut sum) = (0, Vec::new(), Duration::ZERO);
            let mut reads = 0_u64;
            let now = |ns: u64| Some(CpuTime { user: Duration::from_nanos(ns), system: Duration::ZERO });
            for (what, passed) in events {
                clock += passed;
                if what < 2 || running.is_empty() {
                    running.push(shares.begin(now(clock)));
                } else {
                    let mut one = running.swap_remove(0);
                    sum += shares.read(now(clock), &mut one).unwrap().total();
                    shares.end(now(clock));
                }
                reads += 1;
            }
            for mut one in running {
                sum += shares.read(now(clock), &mut one).unwrap().total();
                shares.end(now(clock));
            }
            // The others' parts of a remainder are lost, at most one nanosecond of each per event.
            let whole = Duration::from_nanos(clock);
            prop_assert!(sum <= whole);
            prop_assert!(whole - sum <= Duration::from_nanos(reads * 80), "{sum:?} of {whole:?}");
        }
    }
}
