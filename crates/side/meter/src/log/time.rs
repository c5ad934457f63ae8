//! The time of a log: where its records lie on clocks that nobody sets.
//!
//! The dates of records are of the wall clock, which can be set: they are labels. Before the records that were written together,
//! the log has what the wall clock and the kernel's monotonic clock showed at the same moment ([`Clock`]), so each date has its
//! place on the monotonic clock. That clock begins with the machine. The records of another start of the machine follow those
//! before them without a gap, because nothing says how long the gap was.
//!
//! Records of older versions have dates alone. Their places are their dates.

use crate::record::{Clock, Daemon};

/// A moment of a log, milliseconds. Only differences mean something.
pub(crate) type LogMillis = i64;

/// The time of the entries of a log, as they are read.
#[derive(Debug, Default)]
pub(crate) struct LogTime {
    /// Who writes.
    daemon: Option<Daemon>,
    /// The last that was read of the present daemon. `None`: there is none, so the date is the place.
    clock: Option<Clock>,
    /// The place of the clock's zero.
    zero: LogMillis,
    /// The next clock is another one: it goes on where the last ended.
    is_new: bool,
    newest: Option<LogMillis>,
}

impl LogTime {
    /// The entries that come are of this daemon. Returns whether it is another one than before.
    pub(crate) fn daemon(&mut self, daemon: Daemon) -> bool {
        let before = self.daemon.replace(daemon);
        self.is_new |= before.is_none_or(|before| before.boot != daemon.boot);
        before != Some(daemon)
    }

    /// A daemon of an older version began.
    pub(crate) fn began(&mut self, unix_ms: u64) {
        if self.clock.take().is_some() {
            self.zero = self.newest.unwrap_or(0).saturating_sub(signed(unix_ms));
        }
        self.daemon = None;
        self.newest = Some(self.place(unix_ms));
    }

    /// What the clocks show.
    pub(crate) fn clock(&mut self, clock: Clock) {
        let at = signed(clock.at_ms);
        let newest = self.newest.unwrap_or(LogMillis::MIN);
        if std::mem::take(&mut self.is_new) {
            self.zero = self.newest.map_or(0, |newest| newest.saturating_sub(at));
        } else if at.saturating_add(self.zero) < newest {
            // It cannot go back. A daemon in another time namespace begins at another zero.
            self.zero = newest.saturating_sub(at);
        }
        self.clock = Some(clock);
        self.seen(at.saturating_add(self.zero));
    }

    /// The place of a date, which a record of the present daemon has.
    pub(crate) fn place(&self, unix_ms: u64) -> LogMillis {
        let at = match self.clock {
            None => signed(unix_ms),
            Some(clock) => {
                let ago = signed(clock.unix_ms).saturating_sub(signed(unix_ms));
                signed(clock.at_ms).saturating_sub(ago)
            }
        };
        at.saturating_add(self.zero)
    }

    /// Something took place then.
    pub(crate) fn seen(&mut self, place: LogMillis) {
        self.newest = Some(self.newest.map_or(place, |newest| newest.max(place)));
    }

    /// The end of what was seen.
    pub(crate) fn newest(&self) -> LogMillis {
        self.newest.unwrap_or(0)
    }
}

/// From one place to another, milliseconds; 0 if that is earlier.
pub(crate) fn between(from: LogMillis, to: LogMillis) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}

fn signed(ms: u64) -> LogMillis {
    LogMillis::try_from(ms).unwrap_or(LogMillis::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(boot: u64, began_ms: u64) -> Daemon {
        Daemon {
            began_unix_ms: 5,
            boot,
            began_ms,
        }
    }

    fn clock(at_ms: u64, unix_ms: u64) -> Clock {
        Clock { at_ms, unix_ms }
    }

    #[test]
    fn dates_have_their_place_on_the_monotonic_clock() {
        let mut time = LogTime::default();
        assert!(time.daemon(daemon(1, 100)));
        time.clock(clock(1_000, 50_000));
        assert_eq!(time.place(49_900), 900);
        // The wall clock was set back by a day, and on.
        time.clock(clock(2_000, 3));
        assert_eq!((time.place(3), time.newest()), (2_000, 2_000));
        time.clock(clock(3_000, 99_000_000));
        assert_eq!(time.place(99_000_000 - 500), 2_500);
    }

    #[test]
    fn a_daemon_of_the_same_start_of_the_machine_keeps_the_gap_and_another_has_none() {
        let mut time = LogTime::default();
        assert!(time.daemon(daemon(1, 100)));
        time.clock(clock(1_000, 50_000));
        assert!(!time.daemon(daemon(1, 100)), "the next segment");
        assert!(time.daemon(daemon(1, 7_000)));
        assert_eq!(time.newest(), 1_000, "the end of the first");
        time.clock(clock(8_000, 50_000));
        assert_eq!(time.newest(), 8_000);
        assert!(time.daemon(daemon(2, 10)));
        time.clock(clock(20, 400_000_000_000));
        assert_eq!(time.newest(), 8_000);
        time.clock(clock(70, 400_000_000_050));
        assert_eq!(time.newest(), 8_050);
    }

    #[test]
    fn a_clock_that_went_back_goes_on() {
        let mut time = LogTime::default();
        time.daemon(daemon(1, 100));
        time.clock(clock(1_000, 1_000));
        time.daemon(daemon(1, 3));
        time.clock(clock(5, 2_000));
        time.clock(clock(8, 2_003));
        assert_eq!(time.newest(), 1_003);
    }

    #[test]
    fn records_of_older_versions_lie_at_their_dates() {
        let mut time = LogTime::default();
        time.began(1_000);
        time.seen(time.place(4_000));
        assert_eq!((time.place(2_000), time.newest()), (2_000, 4_000));
        time.daemon(daemon(1, 100));
        time.clock(clock(100, 9_000_000));
        time.clock(clock(600, 9_000_500));
        assert_eq!(time.newest(), 4_500);
        assert_eq!(between(time.place(9_000_100), time.newest()), 400);
        assert_eq!(between(5, 3), 0);
    }
}
