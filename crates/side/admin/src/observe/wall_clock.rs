//! The time of day of a stamp. Stamps are on `CLOCK_MONOTONIC`, which says nothing about the date.

use std::time::SystemTime;

use pilot_model::Instant;
use pilot_model::calendar::unix_ms;
use pilot_model::ports::Clock;

/// Both clocks at one instant.
#[derive(Debug)]
pub(super) struct WallClock {
    monotonic: Instant,
    /// Unix milliseconds.
    unix_ms: u64,
}

impl WallClock {
    pub(super) fn read(clock: &dyn Clock) -> Self {
        Self {
            monotonic: clock.now(),
            unix_ms: unix_ms(SystemTime::now()),
        }
    }

    /// The time of day of a stamp of the past, Unix milliseconds.
    pub(super) fn of(&self, at: Instant) -> u64 {
        let ago = self.monotonic.since(at).as_millis();
        self.unix_ms
            .saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
    }
}
