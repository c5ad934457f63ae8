//! What follows an attempt, and how many a function may have at once: pure arithmetic, time comes in as an argument. The waits are those
//! that AWS Lambda documents for asynchronous invocation: one minute and two minutes after errors of the function, and from one second to
//! five minutes, doubling, after throttles and errors of the system, up to the greatest age.

use std::time::Duration;

use pilot_model::AsyncConfig;
use pilot_model::ports::AttemptEnd;

/// How an invocation ended, in the words of Lambda's records where it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Success,
    RetriesExhausted,
    EventAgeExceeded,
    FunctionNotFound,
    Interrupted,
    RecursiveLoop,
    Forbidden,
}

impl Condition {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::RetriesExhausted => "RetriesExhausted",
            Self::EventAgeExceeded => "EventAgeExceeded",
            Self::FunctionNotFound => "FunctionNotFound",
            Self::Interrupted => "Interrupted",
            Self::RecursiveLoop => "RecursiveLoop",
            Self::Forbidden => "Forbidden",
        }
    }
}

/// How far an invocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) accepted_ms: i64,
    /// Ended attempts of the function.
    pub(crate) attempts: u32,
    /// Throttles and errors of the system since the last of them.
    pub(crate) waits: u32,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    End(Condition),
    Again {
        due_ms: i64,
        attempts: u32,
        waits: u32,
    },
    /// Nothing has changed: the daemon stops, and the next one begins the attempt anew.
    Unchanged,
}

/// What follows an attempt that ended at `now_ms`. `seed` spreads the waits of invocations that were throttled together.
pub(crate) fn after(
    end: &AttemptEnd,
    progress: Progress,
    config: &AsyncConfig,
    now_ms: i64,
    seed: i64,
) -> Next {
    let again = |wait_ms: i64, attempts, waits| {
        let due_ms = now_ms.saturating_add(wait_ms);
        if is_too_old(progress.accepted_ms, config, due_ms) {
            return Next::End(Condition::EventAgeExceeded);
        }
        Next::Again {
            due_ms,
            attempts,
            waits,
        }
    };
    match end {
        AttemptEnd::Done { .. } => Next::End(Condition::Success),
        AttemptEnd::Gone { .. } => Next::End(Condition::FunctionNotFound),
        AttemptEnd::Stopping => Next::Unchanged,
        AttemptEnd::Failed { .. } => {
            if progress.attempts >= config.retries {
                return Next::End(Condition::RetriesExhausted);
            }
            let doubled = config.retry_wait * 2_u32.saturating_pow(progress.attempts);
            again(ms(doubled), progress.attempts + 1, 0)
        }
        AttemptEnd::NotRun { .. } => {
            let doubled = WAIT_MIN_MS.saturating_mul(1 << progress.waits.min(16));
            let wait = doubled.min(WAIT_MAX_MS);
            let spread = seed.rem_euclid(16) * wait / 64;
            again(wait + spread, progress.attempts, progress.waits + 1)
        }
    }
}

/// Whether an invocation is not begun any more.
pub(crate) fn is_too_old(accepted_ms: i64, config: &AsyncConfig, now_ms: i64) -> bool {
    now_ms.saturating_sub(accepted_ms) > ms(config.max_age)
}

/// While `free` places are free, a function gets another one only if it has fewer than this: than the free ones, and than `most`. So it has
/// at most half of the places that the others leave, and a function that has none gets one as long as one is free. These are the dynamic
/// thresholds of Choudhury and Hahne (1998), with the factor 1.
pub(crate) fn places(free: usize, most: usize) -> usize {
    free.min(most.max(1))
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

const WAIT_MIN_MS: i64 = 1000;
const WAIT_MAX_MS: i64 = 300_000;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const START: Progress = Progress {
        accepted_ms: 0,
        attempts: 0,
        waits: 0,
    };

    fn failed() -> AttemptEnd {
        AttemptEnd::Failed {
            version: 1,
            body: Bytes::new(),
        }
    }

    fn not_run() -> AttemptEnd {
        AttemptEnd::NotRun {
            problem: String::new(),
        }
    }

    #[test]
    fn an_error_of_the_function_is_repeated_after_one_minute_and_after_two() {
        let config = AsyncConfig::default();
        let mut progress = START;
        let mut waits = Vec::new();
        let mut now = 0;
        while let Next::Again {
            due_ms, attempts, ..
        } = after(&failed(), progress, &config, now, 0)
        {
            waits.push(due_ms - now);
            now = due_ms;
            progress.attempts = attempts;
        }
        assert_eq!(waits, [60_000, 120_000]);
        let end = after(&failed(), progress, &config, now, 0);
        assert_eq!(end, Next::End(Condition::RetriesExhausted));
        let once = AsyncConfig {
            retries: 0,
            ..config
        };
        let end = after(&failed(), START, &once, 0, 0);
        assert_eq!(end, Next::End(Condition::RetriesExhausted));
    }

    #[test]
    fn a_throttle_is_repeated_until_the_event_is_too_old_and_takes_no_retry() {
        let config = AsyncConfig::default();
        let (mut progress, mut now, mut tries) = (START, 0, 0);
        let end = loop {
            match after(&not_run(), progress, &config, now, 7) {
                Next::Again {
                    due_ms,
                    attempts,
                    waits,
                } => {
                    assert_eq!(attempts, 0);
                    assert!((1000..=400_000).contains(&(due_ms - now)), "{due_ms} {now}");
                    (now, progress.waits, tries) = (due_ms, waits, tries + 1);
                }
                end => break end,
            }
        };
        assert_eq!(end, Next::End(Condition::EventAgeExceeded));
        assert!((50..100).contains(&tries), "{tries}");
        assert!(now <= 21_600_000 && now > 21_000_000, "{now}");
    }

    #[test]
    fn a_stop_changes_nothing_and_a_removed_function_ends_it() {
        let config = AsyncConfig::default();
        let end = after(&AttemptEnd::Stopping, START, &config, 5, 0);
        assert_eq!(end, Next::Unchanged);
        let gone = AttemptEnd::Gone {
            problem: String::new(),
        };
        let end = after(&gone, START, &config, 5, 0);
        assert_eq!(end, Next::End(Condition::FunctionNotFound));
    }
}
