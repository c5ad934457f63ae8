//! The times of a schedule: a cron expression in a time zone. The expression is read by the crate `croner`, the zone by `chrono-tz`, which
//! has the IANA database in it: an edge device may have no `/usr/share/zoneinfo`.
//!
//! When clocks are set forward, a run at a fixed time that does not exist is made up for right after the gap. When they are set back, it
//! runs once (as Vixie cron does it).

use std::fmt;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds};
use serde::{Deserialize, Serialize};

/// A cron expression in a time zone.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Calendar {
    text: String,
    /// Boxed: it is large, and few functions have one.
    cron: Box<Cron>,
    zone: Tz,
}

/// As it is stored.
#[derive(Serialize, Deserialize)]
struct Written {
    cron: String,
    timezone: String,
}

/// Why an expression cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCalendar {
    /// The expression.
    #[error(
        "cron is \"{text}\": {problem}; write minute, hour, day of month, month and day of week, for example \"30 2 * * MON-FRI\""
    )]
    Cron {
        /// As written, shortened.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// The time zone.
    #[error(
        "timezone is \"{text}\", must be a name of the IANA database, for example \"Europe/Berlin\" or \"UTC\""
    )]
    Zone {
        /// As written, shortened.
        text: String,
    },
}

impl Calendar {
    /// Reads both.
    ///
    /// # Errors
    /// See [`InvalidCalendar`].
    pub fn new(cron: &str, zone: &str) -> Result<Self, InvalidCalendar> {
        let shown = |text: &str| text.escape_debug().take(100).collect::<String>();
        let wrong = |problem: String| InvalidCalendar::Cron {
            text: shown(cron),
            problem,
        };
        if cron.len() > CRON_LEN_MAX {
            return Err(wrong(format!("it has more than {CRON_LEN_MAX} bytes")));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let parsed = parser
            .parse(cron)
            .map_err(|error| wrong(error.to_string()))?;
        let zone = zone
            .parse()
            .map_err(|_| InvalidCalendar::Zone { text: shown(zone) })?;
        let calendar = Self {
            text: cron.split_whitespace().collect::<Vec<_>>().join(" "),
            cron: Box::new(parsed),
            zone,
        };
        if calendar.next_ms(CHECKED_FROM_MS).is_none() {
            return Err(wrong("it has no time".to_owned()));
        }
        Ok(calendar)
    }

    /// The first time after this one, Unix milliseconds. `None`: there is none.
    #[must_use]
    pub fn next_ms(&self, after_ms: i64) -> Option<i64> {
        // Times are full seconds.
        let after: DateTime<Utc> = DateTime::from_timestamp(after_ms.div_euclid(1000), 0)?;
        let after = after.with_timezone(&self.zone);
        let next = self.cron.find_next_occurrence(&after, false).ok()?;
        Some(next.timestamp_millis()).filter(|next| *next > after_ms)
    }

    /// The last time at or before this one, Unix milliseconds. `None`: there is none.
    #[must_use]
    pub fn last_ms(&self, until_ms: i64) -> Option<i64> {
        let until: DateTime<Utc> = DateTime::from_timestamp(until_ms.div_euclid(1000), 0)?;
        let until = until.with_timezone(&self.zone);
        let last = self.cron.find_previous_occurrence(&until, true).ok()?;
        Some(last.timestamp_millis()).filter(|last| *last <= until_ms)
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.zone == other.zone
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.text, self.zone.name())
    }
}

impl TryFrom<Written> for Calendar {
    type Error = InvalidCalendar;

    fn try_from(written: Written) -> Result<Self, InvalidCalendar> {
        Self::new(&written.cron, &written.timezone)
    }
}

impl From<Calendar> for Written {
    fn from(calendar: Calendar) -> Self {
        Self {
            timezone: calendar.zone.name().to_owned(),
            cron: calendar.text,
        }
    }
}

const CRON_LEN_MAX: usize = 200;
/// 2026-01-01: whether an expression has a time must not depend on the day of the check.
const CHECKED_FROM_MS: i64 = 1_767_225_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> i64 {
        text.parse::<DateTime<Utc>>().unwrap().timestamp_millis()
    }

    fn next(calendar: &Calendar, after: &str) -> String {
        let next = calendar.next_ms(ms(after)).unwrap();
        DateTime::from_timestamp_millis(next)
            .unwrap()
            .format("%Y-%m-%dT%H:%M:%SZ")
            .to_string()
    }

    #[test]
    fn times_are_those_of_the_zone() {
        let daily = Calendar::new("30 2 * * *", "Europe/Berlin").unwrap();
        assert_eq!(next(&daily, "2026-01-10T00:00:00Z"), "2026-01-10T01:30:00Z");
        assert_eq!(next(&daily, "2026-07-10T00:00:00Z"), "2026-07-10T00:30:00Z");
        assert_eq!(
            daily.last_ms(ms("2026-01-10T01:30:00Z")),
            Some(ms("2026-01-10T01:30:00Z"))
        );
        assert_eq!(daily.to_string(), "30 2 * * * Europe/Berlin");
    }

    #[test]
    fn a_time_that_the_clock_skips_runs_after_the_gap_and_one_that_it_repeats_runs_once() {
        let daily = Calendar::new("30 2 * * *", "Europe/Berlin").unwrap();
        // 2026-03-29: 2:00 becomes 3:00, which is 1:00 UTC.
        let skipped = next(&daily, "2026-03-28T12:00:00Z");
        assert_eq!(&skipped[..11], "2026-03-29T", "{skipped}");
        assert_eq!(&next(&daily, &skipped)[..11], "2026-03-30T");
        // 2026-10-25: 3:00 becomes 2:00, so 2:30 is at 0:30 and at 1:30 UTC.
        let repeated = next(&daily, "2026-10-24T12:00:00Z");
        assert_eq!(repeated, "2026-10-25T00:30:00Z");
        assert_eq!(next(&daily, &repeated), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn seconds_are_optional_and_what_never_is_is_refused() {
        let often = Calendar::new("*/10 * * * * *", "UTC").unwrap();
        assert_eq!(next(&often, "2026-01-10T00:00:01Z"), "2026-01-10T00:00:10Z");
        let at = ms("2026-01-10T00:00:10Z");
        assert_eq!(often.next_ms(at + 999), Some(at + 10_000));
        assert_eq!(often.last_ms(at + 999), Some(at));
        assert_eq!(often.last_ms(at - 1), Some(at - 10_000));
        for (cron, zone, problem) in [
            ("61 * * * *", "UTC", "cron is \"61 * * * *\""),
            ("0 0 30 2 *", "UTC", "has no time"),
            ("* * *", "UTC", "write minute, hour"),
            ("* * * * *", "Mars/Base", "timezone is \"Mars/Base\""),
        ] {
            let error = Calendar::new(cron, zone).unwrap_err().to_string();
            assert!(error.contains(problem), "{cron}: {error}");
        }
    }
}
