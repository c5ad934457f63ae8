//! Durations from the constants of policies, which are in seconds.

use std::time::Duration;

/// The time between two ticks from a constant in seconds. An invalid constant gives two seconds.
pub(super) fn interval(tick_s: f64) -> Duration {
    Duration::try_from_secs_f64(tick_s)
        .ok()
        .filter(|interval| !interval.is_zero())
        .unwrap_or(Duration::from_secs(2))
}

/// A duration from a constant in seconds. A value that is too large gives the longest duration.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
