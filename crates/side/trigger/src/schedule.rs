//! Runs at the times of a calendar. The last run is stored with the invocation in one transaction, so a restart neither repeats nor
//! forgets one.

use std::time::Duration;

use pilot_model::calendar::Utc;
use pilot_model::trigger::{Missed, ScheduleConfig, Times};
use serde_json::json;
use uuid::Uuid;

use crate::context::Context;
use crate::status::now_ms;

/// Runs until the trigger is stopped.
pub(crate) async fn run(mut context: Context, schedule: ScheduleConfig) {
    let Some(mut past) = begin(&mut context).await.map(Past::new) else {
        return;
    };
    loop {
        let now_ms = now_ms();
        if let Some(ahead_ms) = past.begin_anew_if_set_back(now_ms) {
            tracing::warn!(
                function = %context.function,
                last_run_ahead_s = ahead_ms / 1000,
                "the clock was set back: a schedule begins anew"
            );
        }
        match next(&schedule, past, now_ms) {
            Next::Never => {
                context.status.next_run(None);
                context.stopped().await;
                return;
            }
            Next::At(next_ms) => {
                context.works();
                context.status.next_run(Some(next_ms));
                if !wait_until(&mut context, next_ms, past).await {
                    return;
                }
            }
            Next::Skip(at_ms) => past.last_ms = at_ms,
            Next::Run(at_ms) => {
                context.status.next_run(Some(at_ms));
                let id = Uuid::new_v4().to_string();
                let request = context.request(&id, event(&context, &id, at_ms));
                let mark = context.mark(LAST, Some(at_ms.to_string()));
                match context
                    .shared
                    .store
                    .accept_marked(request, Some(mark))
                    .await
                {
                    Ok(()) => {
                        past.add(at_ms);
                        context.status.received(1);
                        context.status.ran();
                        context.works();
                    }
                    Err(refusal) => {
                        if !context.back_off(&refusal.to_string()).await {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Waits for this time, or until the clock is set back. False: it must end.
async fn wait_until(context: &mut Context, next_ms: i64, past: Past) -> bool {
    loop {
        let now_ms = now_ms();
        let left_ms = u64::try_from(next_ms - now_ms).unwrap_or(0);
        if left_ms == 0 || past.is_set_back(now_ms) {
            return true;
        }
        // The clock can be set meanwhile.
        let wait = Duration::from_millis(left_ms).min(LOOK_AGAIN);
        if !context.pause(wait).await {
            return false;
        }
    }
}

/// When it ran last. A new schedule begins now. `None`: it must end.
async fn begin(context: &mut Context) -> Option<i64> {
    loop {
        let problem = match context.shared.store.marks(&context.scope).await {
            Ok(marks) => {
                let last = marks.into_iter().find(|(key, _)| key == LAST);
                if let Some(last_ms) = last.and_then(|(_, value)| value.parse().ok()) {
                    return Some(last_ms);
                }
                let now_ms = now_ms();
                let mark = context.mark(LAST, Some(now_ms.to_string()));
                match context.shared.store.change(vec![mark]).await {
                    Ok(()) => return Some(now_ms),
                    Err(problem) => problem,
                }
            }
            Err(problem) => problem,
        };
        if !context.back_off(&problem).await {
            return None;
        }
    }
}

/// What has run.
#[derive(Debug, Clone, Copy)]
struct Past {
    /// The time after which the schedule goes on: usually that of the last run.
    last_ms: i64,
    /// The latest time of a run. Later than `last_ms` if the clock was set back since.
    newest_ms: i64,
}

impl Past {
    fn new(last_ms: i64) -> Self {
        Self {
            last_ms,
            newest_ms: last_ms,
        }
    }

    fn add(&mut self, at_ms: i64) {
        self.last_ms = at_ms;
        self.newest_ms = self.newest_ms.max(at_ms);
    }

    /// Goes on from now if the last run is ahead of the clock, and returns by how much. Otherwise the schedule would wait for that time. A
    /// clock that is corrected by a little repeats no run.
    fn begin_anew_if_set_back(&mut self, now_ms: i64) -> Option<i64> {
        if !self.is_set_back(now_ms) {
            return None;
        }
        let ahead_ms = self.last_ms - now_ms;
        self.last_ms = now_ms;
        Some(ahead_ms)
    }

    fn is_set_back(&self, now_ms: i64) -> bool {
        self.last_ms - now_ms > CLOCK_BACK_MAX_MS
    }

    /// Whether a run that is late was made before the clock was set back. A machine without a clock of its own starts with an old time and
    /// sets it forward later: then these runs look as if they were missed.
    fn has(&self, at_ms: i64, now_ms: i64) -> bool {
        at_ms <= self.newest_ms && now_ms - at_ms > ON_TIME_MS
    }
}

/// What follows.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// The expression has no further time.
    Never,
    /// Nothing is due before this time.
    At(i64),
    /// The run of this time is due.
    Run(i64),
    /// The runs up to this time were missed, and are not made up for.
    Skip(i64),
}

fn next(schedule: &ScheduleConfig, past: Past, now_ms: i64) -> Next {
    let Some(times) = schedule.calendar.times() else {
        return Next::Never;
    };
    let Some(next_ms) = times.next_ms(past.last_ms) else {
        return Next::Never;
    };
    if next_ms > now_ms {
        return Next::At(next_ms);
    }
    let newest_ms = times.last_ms(now_ms).unwrap_or(next_ms).max(next_ms);
    let run_ms = match schedule.missed {
        Missed::Skip if now_ms - newest_ms > ON_TIME_MS => return Next::Skip(newest_ms),
        Missed::Skip | Missed::Once => newest_ms,
        Missed::All => oldest_of(&times, newest_ms, past.last_ms),
    };
    match past.has(run_ms, now_ms) {
        true => Next::Skip(run_ms),
        false => Next::Run(run_ms),
    }
}

/// The oldest missed run that is made up for.
fn oldest_of(times: &Times, newest_ms: i64, last_ms: i64) -> i64 {
    let mut oldest_ms = newest_ms;
    for _ in 1..MISSED_MAX {
        match times.last_ms(oldest_ms - 1) {
            Some(before_ms) if before_ms > last_ms => oldest_ms = before_ms,
            _ => break,
        }
    }
    oldest_ms
}

/// EventBridge's event of a schedule.
fn event(context: &Context, id: &str, at_ms: i64) -> String {
    let utc = Utc::of_unix_ms(at_ms.max(0).unsigned_abs());
    let time = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second
    );
    json!({
        "version": "0",
        "id": id,
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": "000000000000",
        "time": time,
        "region": "us-east-1",
        "resources": [format!("arn:aws:events:us-east-1:000000000000:rule/{}", context.function)],
        "detail": {},
    })
    .to_string()
}

/// The key of the mark: the time of the last run, Unix milliseconds.
const LAST: &str = "last";
/// Longest wait between two looks at the clock.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// A run that begins so late is not missed.
const ON_TIME_MS: i64 = 10_000;
/// With `missed = "all"`.
const MISSED_MAX: u32 = 100;
/// The time of a stored run may be so far ahead of the clock.
const CLOCK_BACK_MAX_MS: i64 = 120_000;

#[cfg(test)]
mod tests {
    use pilot_model::trigger::Calendar;

    use super::*;

    const MINUTE_MS: i64 = 60_000;
    const NONE: [i64; 0] = [];
    /// A full minute.
    const START_MS: i64 = 1_767_225_600_000;

    fn schedule(missed: Missed) -> ScheduleConfig {
        ScheduleConfig {
            calendar: Calendar::new("* * * * *", "UTC").unwrap(),
            missed,
        }
    }

    /// The runs that follow when the daemon comes back after this time.
    fn runs(missed: Missed, down_ms: i64) -> Vec<i64> {
        runs_at(missed, &mut Past::new(START_MS), START_MS + down_ms)
    }

    /// The minutes of the runs that are due.
    fn runs_at(missed: Missed, past: &mut Past, now_ms: i64) -> Vec<i64> {
        let (schedule, mut runs) = (schedule(missed), Vec::new());
        past.begin_anew_if_set_back(now_ms);
        loop {
            match next(&schedule, *past, now_ms) {
                Next::Run(at_ms) => {
                    runs.push((at_ms - START_MS) / MINUTE_MS);
                    past.add(at_ms);
                }
                Next::Skip(at_ms) => past.last_ms = at_ms,
                Next::At(at_ms) => {
                    assert!(at_ms > now_ms);
                    assert!(at_ms <= now_ms.max(past.last_ms) + MINUTE_MS);
                    return runs;
                }
                Next::Never => unreachable!(),
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_stop_a_schedule() {
        let two_hours_ms = 120 * MINUTE_MS;
        let mut past = Past::new(START_MS + two_hours_ms);
        assert_eq!(runs_at(Missed::Once, &mut past, START_MS + 1), NONE);
        assert!(past.last_ms <= START_MS + 1);
        for minute in 1..=121 {
            let now_ms = START_MS + minute * MINUTE_MS + 5;
            assert_eq!(runs_at(Missed::Once, &mut past, now_ms), [minute]);
        }
        // A little is waited for, so that nothing runs twice.
        let mut past = Past::new(START_MS + 2 * MINUTE_MS);
        for minute in 0..=2 {
            let now_ms = START_MS + minute * MINUTE_MS;
            assert_eq!(runs_at(Missed::All, &mut past, now_ms), NONE);
        }
        assert_eq!(
            runs_at(Missed::All, &mut past, START_MS + 3 * MINUTE_MS),
            [3]
        );
    }

    #[test]
    fn a_clock_that_is_set_back_and_forward_again_repeats_no_run() {
        let hour_ms = 60 * MINUTE_MS;
        for (missed, made_up_for) in [
            (Missed::Skip, vec![]),
            (Missed::Once, vec![62]),
            (Missed::All, vec![61, 62]),
        ] {
            let mut past = Past::new(START_MS + hour_ms);
            assert_eq!(runs_at(missed, &mut past, START_MS + 30_000), NONE);
            let now_ms = START_MS + hour_ms + MINUTE_MS / 2;
            assert_eq!(runs_at(missed, &mut past, now_ms), NONE);
            let now_ms = now_ms + 2 * MINUTE_MS;
            assert_eq!(runs_at(missed, &mut past, now_ms), made_up_for);
        }
    }

    #[test]
    fn missed_runs_are_made_up_for_as_the_policy_says() {
        let down_ms = 5 * MINUTE_MS + 30_000;
        assert_eq!(runs(Missed::Skip, down_ms), [] as [i64; 0]);
        assert_eq!(runs(Missed::Once, down_ms), [5]);
        assert_eq!(runs(Missed::All, down_ms), [1, 2, 3, 4, 5]);
        let week = runs(Missed::All, 7 * 24 * 60 * MINUTE_MS + 1);
        assert_eq!(week.len(), 100);
        assert_eq!(week.last(), Some(&(7 * 24 * 60)));
    }

    #[test]
    fn a_run_that_is_a_little_late_is_not_missed() {
        assert_eq!(runs(Missed::Skip, MINUTE_MS + 9_000), [1]);
        assert_eq!(runs(Missed::Skip, MINUTE_MS + 11_000), [] as [i64; 0]);
        assert_eq!(runs(Missed::Once, MINUTE_MS), [1]);
        assert_eq!(runs(Missed::All, MINUTE_MS - 1), [] as [i64; 0]);
    }
}
