//! Wall-clock time as a date and time of day in UTC, for people and for Lambda's events. Measured times are
//! [`Instant`](crate::Instant)s.

use std::time::{SystemTime, UNIX_EPOCH};

/// A point in time, UTC, in the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc {
    /// 1970 and later.
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59.
    pub second: u64,
    /// 0 to 999.
    pub millisecond: u64,
}

impl Utc {
    /// Milliseconds since 1970-01-01 as date and time.
    #[must_use]
    pub fn of_unix_ms(unix_ms: u64) -> Self {
        let unix_s = unix_ms / 1000;
        let (year, month, day) = civil(unix_s / 86_400);
        Self {
            year,
            month,
            day,
            hour: unix_s / 3600 % 24,
            minute: unix_s / 60 % 60,
            second: unix_s % 60,
            millisecond: unix_ms % 1000,
        }
    }

    /// Seconds since 1970-01-01. `None`: before that. A day that its month does not have counts as one of the next month.
    #[must_use]
    pub fn unix_s(self) -> Option<u64> {
        if !(1..=12).contains(&self.month) || self.year < 1970 {
            return None;
        }
        // The reverse of `civil`.
        let year = self.year - u64::from(self.month <= 2);
        let (era, year_of_era) = (year / 400, year % 400);
        let month_from_march = (self.month + 9) % 12;
        let day_of_year = ((153 * month_from_march + 2) / 5 + self.day).checked_sub(1)?;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let day = (era * 146_097 + day_of_era).checked_sub(719_468)?;
        Some(day * 86_400 + self.hour * 3600 + self.minute * 60 + self.second)
    }

    /// `Jan` to `Dec`.
    #[must_use]
    pub fn month_name(self) -> &'static str {
        const NAMES: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let index = usize::try_from(self.month.saturating_sub(1)).unwrap_or(0);
        NAMES.get(index).copied().unwrap_or("")
    }
}

/// Milliseconds since 1970-01-01. A clock that is set to an earlier date gives 0.
#[must_use]
pub fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Year, month and day of a day that is counted from 1970-01-01. A year begins in March here, so that the leap day is its last
/// day. An era is 400 years of 146,097 days (<https://howardhinnant.github.io/date_algorithms.html#civil_from_days>).
fn civil(unix_day: u64) -> (u64, u64, u64) {
    let day = unix_day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dates_are_those_of_the_gregorian_calendar() {
        for (unix_s, date, month) in [
            (0, (1970, 1, 1), "Jan"),
            (951_782_400, (2000, 2, 29), "Feb"),
            (1_709_251_199, (2024, 2, 29), "Feb"),
            (4_107_542_400, (2100, 3, 1), "Mar"),
            (1_735_689_599, (2024, 12, 31), "Dec"),
        ] {
            let utc = Utc::of_unix_ms(unix_s * 1000 + 7);
            assert_eq!((utc.year, utc.month, utc.day), date, "{unix_s}");
            assert_eq!((utc.month_name(), utc.millisecond), (month, 7));
        }
        let last = Utc::of_unix_ms(1_709_251_199_000);
        assert_eq!((last.hour, last.minute, last.second), (23, 59, 59));
    }

    proptest! {
        #[test]
        fn a_time_comes_back(unix_s in 0_u64..20_000_000_000) {
            prop_assert_eq!(Utc::of_unix_ms(unix_s * 1000).unix_s(), Some(unix_s));
        }

        #[test]
        fn the_next_day_is_the_next_in_the_month_or_the_first(day in 0_u64..200_000) {
            let at = |day: u64| Utc::of_unix_ms(day * 86_400_000);
            let (today, tomorrow) = (at(day), at(day + 1));
            if tomorrow.day == 1 {
                prop_assert!((28..=31).contains(&today.day));
                prop_assert_eq!(tomorrow.month, today.month % 12 + 1);
                prop_assert_eq!(tomorrow.year, today.year + u64::from(today.month == 12));
            } else {
                prop_assert_eq!((tomorrow.month, tomorrow.day), (today.month, today.day + 1));
            }
        }
    }
}
