//! The times of a schedule: a cron expression in a time zone. The expression is read by the crate `croner`, the zone by `chrono-tz`, which
//! has the IANA database in it: an edge device may have no `/usr/share/zoneinfo`.
//!
//! When clocks are set forward, a run at a fixed time that does not exist is made up for right after the gap. When they are set back, it
//! runs once. Expressions with several times of a day follow the time that passes (both as Vixie cron does it). Times are full seconds, and
//! [`Times::next_ms`] and [`Times::last_ms`] know the same ones.
//!
//! An expression that was read takes 10 KB, and a daemon keeps several versions of each function. So a [`Calendar`] has the text
//! alone, which was checked when it was deployed.

use std::fmt;

use chrono::{DateTime, MappedLocalTime, Offset, TimeZone, Utc};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds};
use croner::{Cron, Direction, JobType};
use serde::{Deserialize, Serialize};

/// A cron expression in a time zone.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Calendar {
    text: String,
    zone: Tz,
}

/// The times of a calendar. To be dropped after use: see above.
#[derive(Debug)]
pub struct Times {
    cron: Cron,
    /// Whether it is for one time of the day.
    is_fixed: bool,
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
        let calendar = Self::unread(cron, zone)?;
        let times = Times::read(cron, calendar.zone).map_err(|problem| wrong(cron, problem))?;
        if times.next_ms(CHECKED_FROM_MS).is_none() {
            return Err(wrong(cron, "it has no time".to_owned()));
        }
        Ok(calendar)
    }

    /// The same, without a look at what the expression means.
    fn unread(cron: &str, zone: &str) -> Result<Self, InvalidCalendar> {
        if cron.len() > CRON_LEN_MAX {
            return Err(wrong(
                cron,
                format!("it has more than {CRON_LEN_MAX} bytes"),
            ));
        }
        let read = zone.parse();
        let zone = read.map_err(|_| InvalidCalendar::Zone { text: shown(zone) })?;
        Ok(Self {
            text: cron.split_whitespace().collect::<Vec<_>>().join(" "),
            zone,
        })
    }

    /// Reads the expression. `None`: it was stored and cannot be read any more.
    #[must_use]
    pub fn times(&self) -> Option<Times> {
        Times::read(&self.text, self.zone).ok()
    }
}

impl Times {
    fn read(cron: &str, zone: Tz) -> Result<Self, String> {
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(cron);
        let cron = cron.map_err(|error| error.to_string().trim_end_matches('.').to_owned())?;
        Ok(Self {
            is_fixed: cron.determine_job_type() == JobType::FixedTime,
            cron,
            zone,
        })
    }

    /// The first time after this one, Unix milliseconds. `None`: there is none.
    #[must_use]
    pub fn next_ms(&self, after_ms: i64) -> Option<i64> {
        // Times are full seconds.
        let after_s = after_ms.div_euclid(1000);
        let mut local_s = after_s + self.offset_s(after_s)?;
        let mut next_s = None;
        for _ in 0..SEARCHED_MAX {
            local_s = self.written(local_s + 1, Direction::Forward)?;
            next_s = self
                .instants_s(local_s)
                .find(|instant_s| *instant_s > after_s);
            if next_s.is_some() {
                break;
            }
        }
        let next_s = match self.first_of_repeated_s(after_s) {
            Some(repeated_s) => next_s.map_or(repeated_s, |next_s| next_s.min(repeated_s)),
            None => next_s?,
        };
        Some(next_s * 1000)
    }

    /// The last time at or before this one, Unix milliseconds. `None`: there is none.
    #[must_use]
    pub fn last_ms(&self, until_ms: i64) -> Option<i64> {
        let until_s = until_ms.div_euclid(1000);
        let mut local_s = until_s + self.offset_s(until_s)? + 1;
        let mut last_s = None;
        for _ in 0..SEARCHED_MAX {
            local_s = self.written(local_s - 1, Direction::Backward)?;
            last_s = self.last_instant_s(local_s, until_s);
            if last_s.is_some() {
                break;
            }
        }
        let repeated_s = self.last_before_repetition_s(until_s);
        last_s.max(repeated_s).map(|last_s| last_s * 1000)
    }

    /// In the hour before clocks are set back: the first time of the repeated hour. Its local times were there already.
    fn first_of_repeated_s(&self, after_s: i64) -> Option<i64> {
        if self.is_fixed {
            return None;
        }
        let set_back_s = self.set_back_s(after_s, after_s + REPEATED_MAX_S)?;
        let offset_s = self.offset_s(set_back_s)?;
        let local_s = self.written(set_back_s + offset_s, Direction::Forward)?;
        let instant_s = local_s - offset_s;
        // It may be after another change of the clocks: then it is no repeated time.
        (self.offset_s(instant_s) == Some(offset_s)).then_some(instant_s)
    }

    /// After clocks were set back: the last time before that. Its local time can be later than the present one.
    fn last_before_repetition_s(&self, until_s: i64) -> Option<i64> {
        let set_back_s = self.set_back_s(until_s - REPEATED_MAX_S, until_s)?;
        let offset_s = self.offset_s(set_back_s - 1)?;
        let local_s = self.written(set_back_s - 1 + offset_s, Direction::Backward)?;
        self.last_instant_s(local_s, until_s)
    }

    /// When clocks are set back after `from_s`, until `to_s`.
    fn set_back_s(&self, from_s: i64, to_s: i64) -> Option<i64> {
        let is_set_back = self.offset_s(to_s)? < self.offset_s(from_s)?;
        is_set_back.then(|| self.change_s(from_s, to_s))
    }

    fn last_instant_s(&self, local_s: i64, until_s: i64) -> Option<i64> {
        let instants = self.instants_s(local_s);
        instants.filter(|instant_s| *instant_s <= until_s).max()
    }

    /// When this local time is, earliest first: twice where clocks repeat it, and right after the gap where they skip it. Expressions that
    /// are not for one time of the day follow the time that passes: they run in both hours, and do not make up for a skipped one.
    fn instants_s(&self, local_s: i64) -> impl Iterator<Item = i64> {
        let local = DateTime::from_timestamp(local_s, 0).map(|local| local.naive_utc());
        let found = local.map(|local| self.zone.from_local_datetime(&local));
        let instants = match found {
            Some(MappedLocalTime::Single(at)) => [Some(at.timestamp()), None],
            Some(MappedLocalTime::Ambiguous(first, second)) => {
                let second = (!self.is_fixed).then(|| second.timestamp());
                [Some(first.timestamp()), second]
            }
            Some(MappedLocalTime::None) if self.is_fixed => {
                // Between the least and the largest offset from UTC.
                let after_gap_s = self.change_s(local_s - 15 * HOUR_S, local_s + 13 * HOUR_S);
                [Some(after_gap_s), None]
            }
            Some(MappedLocalTime::None) | None => [None, None],
        };
        instants.into_iter().flatten()
    }

    /// The first second with another offset than at `from_s`, if `to_s` has one. There is one change between them at most.
    fn change_s(&self, mut from_s: i64, mut to_s: i64) -> i64 {
        let before = self.offset_s(from_s);
        while to_s - from_s > 1 {
            let middle_s = from_s + (to_s - from_s) / 2;
            if self.offset_s(middle_s) == before {
                from_s = middle_s;
            } else {
                to_s = middle_s;
            }
        }
        to_s
    }

    /// How far local clocks are ahead of UTC.
    fn offset_s(&self, instant_s: i64) -> Option<i64> {
        let instant = DateTime::from_timestamp(instant_s, 0)?.naive_utc();
        let offset = self.zone.offset_from_utc_datetime(&instant).fix();
        Some(offset.local_minus_utc().into())
    }

    /// The first local time of the expression at or after this one, or the last one at or before it. The crate `croner` does not see
    /// zones: in the repeated hour, it would answer with a time that has passed, and after a gap with one of its two ends.
    fn written(&self, local_s: i64, direction: Direction) -> Option<i64> {
        let local: DateTime<Utc> = DateTime::from_timestamp(local_s, 0)?;
        let found = match direction {
            Direction::Forward => self.cron.find_next_occurrence(&local, true),
            Direction::Backward => self.cron.find_previous_occurrence(&local, true),
        };
        found.ok().map(|found| found.timestamp())
    }
}

fn wrong(cron: &str, problem: String) -> InvalidCalendar {
    let text = shown(cron);
    InvalidCalendar::Cron { text, problem }
}

fn shown(text: &str) -> String {
    text.escape_debug().take(100).collect()
}

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
        Self::unread(&written.cron, &written.timezone)
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
const HOUR_S: i64 = 3600;
/// More than any zone sets its clocks back.
const REPEATED_MAX_S: i64 = 3 * HOUR_S;
/// Local times that are looked at: the seconds of a skipped day.
const SEARCHED_MAX: u32 = 90_000;
/// 2026-01-01: whether an expression has a time must not depend on the day of the check.
const CHECKED_FROM_MS: i64 = 1_767_225_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> i64 {
        text.parse::<DateTime<Utc>>().unwrap().timestamp_millis()
    }

    fn read(cron: &str, zone: &str) -> Times {
        Calendar::new(cron, zone).unwrap().times().unwrap()
    }

    fn next(times: &Times, after: &str) -> String {
        let next = times.next_ms(ms(after)).unwrap();
        DateTime::from_timestamp_millis(next)
            .unwrap()
            .format("%Y-%m-%dT%H:%M:%SZ")
            .to_string()
    }

    #[test]
    fn times_are_those_of_the_zone() {
        let daily = read("30 2 * * *", "Europe/Berlin");
        assert_eq!(next(&daily, "2026-01-10T00:00:00Z"), "2026-01-10T01:30:00Z");
        assert_eq!(next(&daily, "2026-07-10T00:00:00Z"), "2026-07-10T00:30:00Z");
        assert_eq!(
            daily.last_ms(ms("2026-01-10T01:30:00Z")),
            Some(ms("2026-01-10T01:30:00Z"))
        );
        let calendar = Calendar::new("30  2 * * *", "Europe/Berlin").unwrap();
        assert_eq!(calendar.to_string(), "30 2 * * * Europe/Berlin");
    }

    #[test]
    fn a_time_that_the_clock_skips_runs_after_the_gap_and_one_that_it_repeats_runs_once() {
        let daily = read("30 2 * * *", "Europe/Berlin");
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
        let often = read("*/10 * * * * *", "UTC");
        assert_eq!(next(&often, "2026-01-10T00:00:01Z"), "2026-01-10T00:00:10Z");
        let at = ms("2026-01-10T00:00:10Z");
        assert_eq!(often.next_ms(at + 999), Some(at + 10_000));
        assert_eq!(often.last_ms(at + 999), Some(at));
        assert_eq!(often.last_ms(at - 1), Some(at - 10_000));
        for (cron, zone, problem) in [
            ("61 * * * *", "UTC", "cron is \"61 * * * *\""),
            ("0 0 30 2 *", "UTC", "has no time"),
            ("* * *", "UTC", "5 and 7 fields; write minute, hour"),
            ("* * * * *", "Mars/Base", "timezone is \"Mars/Base\""),
        ] {
            let error = Calendar::new(cron, zone).unwrap_err().to_string();
            assert!(error.contains(problem), "{cron}: {error}");
        }
    }

    /// The times of a calendar, found by a look at each minute.
    fn looked_at(calendar: &Times, from_s: i64, to_s: i64) -> Vec<i64> {
        let local = |instant_s: i64| {
            let local_s = instant_s + calendar.offset_s(instant_s).unwrap();
            DateTime::from_timestamp(local_s, 0).unwrap()
        };
        let is_time = |at: &DateTime<Utc>| calendar.cron.is_time_matching(at).unwrap();
        let mut seen = Vec::new();
        let mut times = Vec::new();
        for instant_s in (from_s..to_s).step_by(60) {
            let (before, now) = (local(instant_s - 60), local(instant_s));
            let mut is_due = is_time(&now);
            if calendar.is_fixed {
                is_due &= !seen.contains(&now);
                // What was skipped.
                let mut skipped = before + chrono::Duration::minutes(1);
                while skipped < now {
                    is_due |= is_time(&skipped);
                    skipped += chrono::Duration::minutes(1);
                }
                seen.push(now);
            }
            if is_due {
                times.push(instant_s);
            }
        }
        times
    }

    #[test]
    fn both_directions_know_the_same_times_around_every_change_of_the_clocks() {
        for (zone, around) in [
            ("Europe/Berlin", "2026-03-29T01:00:00Z"),
            ("Europe/Berlin", "2026-10-25T01:00:00Z"),
            ("America/New_York", "2026-03-08T07:00:00Z"),
            ("America/New_York", "2026-11-01T06:00:00Z"),
            // Half an hour.
            ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
            ("Asia/Kolkata", "2026-01-01T00:00:00Z"),
        ] {
            for cron in [
                "* * * * *",
                "*/7 * * * *",
                "30 2 * * *",
                "0 2 * * *",
                "59 1 * * *",
                "15,45 1-2 * * *",
                "0 3 * * *",
                "40 2 * * SUN",
            ] {
                let calendar = read(cron, zone);
                let around_s = ms(around) / 1000;
                let (from_s, to_s) = (around_s - 30 * HOUR_S, around_s + 30 * HOUR_S);
                let times = looked_at(&calendar, from_s, to_s);
                let Some(first_s) = times.first().copied() else {
                    // A day of the week that is not near.
                    continue;
                };
                for at_s in (first_s..to_s).step_by(40) {
                    let known = times.partition_point(|time_s| *time_s <= at_s);
                    let last_ms = calendar.last_ms(at_s * 1000 + 999);
                    assert_eq!(
                        last_ms,
                        Some(times[known - 1] * 1000),
                        "{cron} {zone} until {at_s}"
                    );
                    let Some(next_s) = times.get(known) else {
                        break;
                    };
                    let next_ms = calendar.next_ms(at_s * 1000 + 999);
                    assert_eq!(next_ms, Some(next_s * 1000), "{cron} {zone} after {at_s}");
                }
            }
        }
    }

    #[test]
    fn a_schedule_that_begins_in_the_repeated_hour_goes_on() {
        let often = read("* * * * *", "Europe/Berlin");
        assert_eq!(next(&often, "2026-10-25T01:10:30Z"), "2026-10-25T01:11:00Z");
        let daily = read("30 2 * * *", "Europe/Berlin");
        assert_eq!(next(&daily, "2026-10-25T01:10:00Z"), "2026-10-26T01:30:00Z");
    }

    /// `croner` keeps the fraction of a second that it is asked from. Milliseconds in, so that each look at the clock found another
    /// "last time" in the same second, is how a schedule once accepted a second twice.
    #[test]
    fn times_have_no_fraction_of_a_second_whatever_the_clock_says() {
        let often = read("* * * * * *", "UTC");
        let at = DateTime::from_timestamp_millis(1_767_225_600_130).unwrap();
        let kept = often.cron.find_previous_occurrence(&at, true).unwrap();
        assert_eq!(kept.timestamp_subsec_millis(), 130);
        for ms in 0..1000 {
            assert_eq!(
                often.last_ms(1_767_225_600_000 + ms),
                Some(1_767_225_600_000)
            );
            assert_eq!(
                often.next_ms(1_767_225_600_000 + ms),
                Some(1_767_225_601_000)
            );
        }
    }

    #[test]
    fn a_stored_calendar_is_not_read_before_its_times_are_asked_for() {
        let calendar = Calendar::new("*/5 * * * *", "Europe/Berlin").unwrap();
        let stored = serde_json::to_string(&calendar).unwrap();
        assert_eq!(serde_json::from_str::<Calendar>(&stored).unwrap(), calendar);
        assert!(size_of::<Calendar>() <= 32, "{}", size_of::<Calendar>());
        // What a later release would refuse does not keep a daemon from starting.
        let stored = stored.replace("*/5", "*/x");
        let calendar: Calendar = serde_json::from_str(&stored).unwrap();
        assert!(calendar.times().is_none());
    }
}
