//! `histogram`: the hybrid policy of Shahrad et al., "Serverless in the Wild", USENIX ATC 2020, §4.2. The observed idle times
//! (from the end of an execution to the next invocation) determine two windows: how long nothing is held (pre-warming), and how
//! long after that something is held (keep-alive).
//!
//! | idle times | windows |
//! |---|---|
//! | a usable histogram | from the head percentile, rounded down, minus a margin; to the tail percentile, rounded up, plus a
//! margin |
//! | too few, or evenly spread (coefficient of variation of the bins' counts) | no pre-warming, and the standard keep-alive,
//! which is the range |
//! | mostly beyond the range | ARIMA's next idle time, with a margin on either side |
//!
//! These rules are ours, because the paper has one container per application:
//! - Without a pre-warming window, the pool's own reaping is the keep-alive: each worker is kept that long after its last use.
//! - After a pre-warming window, as many workers are held as the previous burst needed at once.
//! - If several requests arrive in one tick, all but the first have an idle time of zero and count in the first bin.
//! - "Too few" is fewer than 5, so that head and tail are the smallest and the largest of them; ARIMA needs 10, as in `arima.rs`.

mod idle_times;

use std::time::Duration;

use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::HistogramPolicy;
use pilot_model::{Instant, ScaleConfig};

use super::arima::forecast_next;
use crate::policies::signal::{Window, exact};
use crate::policies::sizing::{Sized, Sizing};
use idle_times::IdleTimes;

/// The policy. A tick is O(1), except if an idle time beyond the range ends in it, which is hours after the previous one.
#[derive(Debug)]
pub(crate) struct Histogram {
    interval: Duration,
    constants: HistogramPolicy,
    sizing: Sizing,
    idle_times: IdleTimes,
    /// The newest idle times, from the first one out of bounds on.
    newest: Option<Window>,
    /// When the function became idle; `None` while it runs, and before the first invocation.
    idle_since: Option<Instant>,
    seen_any: bool,
    /// Maximum demand since the last pause.
    burst: u32,
    windows: Windows,
    held: Sized,
    phase: WindowPhase,
}

/// When a worker is held, seconds after the last execution.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Windows {
    /// No worker is held before this.
    from_s: f64,
    /// No worker is held after this.
    to_s: f64,
    origin: Origin,
}

/// The source of the windows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Origin {
    /// The histogram is not usable.
    Standard,
    Percentiles,
    Arima,
}

/// The function's position in its windows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum WindowPhase {
    /// There is no pre-warming window: the pool reaps workers.
    KeepAlive,
    Unloaded,
    Held,
}

impl Histogram {
    pub(crate) fn new(constants: HistogramPolicy, scale: &ScaleConfig) -> Self {
        let idle_times = IdleTimes::new(&constants);
        Self {
            interval: crate::policies::duration::interval(constants.tick_s),
            constants,
            sizing: Sizing::new(0, scale),
            idle_times,
            newest: None,
            idle_since: None,
            seen_any: false,
            burst: 0,
            windows: Windows {
                from_s: 0.0,
                to_s: constants.keep_alive_s,
                origin: Origin::Standard,
            },
            held: Sized::default(),
            phase: WindowPhase::KeepAlive,
        }
    }

    /// Records the idle times that ended in this tick.
    fn learn(&mut self, tick: &Tick) {
        if tick.arrivals == 0 {
            return;
        }
        let beginning = Instant(tick.now.0.saturating_sub(nanos(tick.span)));
        let first = match tick.last_arrival {
            Some(only) if tick.arrivals == 1 => only.max(beginning).min(tick.now),
            _ => beginning,
        };
        let mut without_pause = tick.arrivals;
        if !self.seen_any {
            without_pause -= 1;
        } else if let Some(since) = self.idle_since {
            without_pause -= 1;
            self.end_of_pause(first.since(since).as_secs_f64());
        }
        self.idle_times.add(0.0, without_pause);
        self.seen_any = true;
        self.windows = self.windows();
    }

    fn end_of_pause(&mut self, idle_s: f64) {
        self.burst = 0;
        self.idle_times.add(idle_s, 1);
        if idle_s > self.constants.range_s && self.newest.is_none() {
            self.newest = Some(Window::new(ARIMA_WINDOW));
        }
        if let Some(newest) = &mut self.newest {
            newest.push(idle_s);
        }
    }

    fn windows(&self) -> Windows {
        let HistogramPolicy {
            margin_share,
            arima_margin_share,
            out_of_bounds_share,
            keep_alive_s,
            ..
        } = self.constants;
        let standard = Windows {
            from_s: 0.0,
            to_s: keep_alive_s,
            origin: Origin::Standard,
        };
        let out = exact(self.idle_times.out_of_bounds());
        let all = out + exact(self.idle_times.within());
        if out > 0.0 && out >= out_of_bounds_share * all {
            let next_s = self
                .newest
                .as_ref()
                .filter(|newest| newest.values().len() >= ARIMA_SAMPLES_MIN)
                .and_then(|newest| forecast_next(newest.values()));
            return next_s.map_or(standard, |next_s| Windows {
                from_s: next_s * (1.0 - arima_margin_share),
                to_s: next_s * (1.0 + arima_margin_share),
                origin: Origin::Arima,
            });
        }
        if self.idle_times.within() < u64::from(self.constants.samples_min)
            || self.idle_times.variation() < self.constants.cv_min
        {
            return standard;
        }
        Windows {
            from_s: self.idle_times.head_s() * (1.0 - margin_share),
            to_s: self.idle_times.tail_s() * (1.0 + margin_share),
            origin: Origin::Percentiles,
        }
    }

    /// Tracks whether the function runs.
    fn follow(&mut self, tick: &Tick) {
        self.burst = self.burst.max(tick.demand_max);
        if tick.demand > 0 {
            self.idle_since = None;
            self.seen_any = true;
        } else if tick.arrivals > 0 || (self.idle_since.is_none() && self.seen_any) {
            // It ended within the tick: about one service time after the newest arrival.
            let end = match (tick.last_arrival, tick.service) {
                (Some(arrival), Some(service)) if tick.arrivals > 0 => arrival.after(service),
                _ => tick.now,
            };
            self.idle_since = Some(end.min(tick.now));
        }
    }
}

impl Forecaster for Histogram {
    fn interval(&self) -> Duration {
        self.interval
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        self.learn(tick);
        self.follow(tick);
        self.held = self.sizing.by_count(f64::from(self.burst), tick);
        if self.windows.from_s <= 0.0 {
            self.phase = WindowPhase::KeepAlive;
            return Target {
                workers: 0,
                idle: Some(crate::policies::duration::seconds(self.windows.to_s)),
            };
        }
        let idle_s = self
            .idle_since
            .map_or(0.0, |since| tick.now.since(since).as_secs_f64());
        let in_window = idle_s >= self.windows.from_s && idle_s <= self.windows.to_s;
        self.phase = if in_window {
            WindowPhase::Held
        } else {
            WindowPhase::Unloaded
        };
        Target {
            workers: if in_window {
                self.held.target().workers
            } else {
                0
            },
            idle: Some(Duration::ZERO),
        }
    }

    fn reason(&self) -> String {
        let Windows {
            from_s,
            to_s,
            origin,
        } = self.windows;
        let within = self.idle_times.within();
        let out = self.idle_times.out_of_bounds();
        let because = match origin {
            Origin::Standard => format!(
                "{within} pauses between requests ({out} more were too long to count) are too few to learn from"
            ),
            Origin::Percentiles => format!(
                "most of {within} pauses between requests ({} % to {} %) ended within that time",
                self.constants.head_percentile, self.constants.tail_percentile
            ),
            Origin::Arima => format!(
                "{out} of {} pauses between requests were too long to count, and the next one is forecast from them",
                within + out
            ),
        };
        match self.phase {
            WindowPhase::KeepAlive => {
                format!("each worker is kept for {to_s:.0} s after a request; {because}")
            }
            WindowPhase::Unloaded => format!(
                "no worker is kept now, but from {from_s:.0} s to {to_s:.0} s after a request; {because}"
            ),
            WindowPhase::Held => format!(
                "{}, from {from_s:.0} s to {to_s:.0} s after a request; {because}",
                self.held
            ),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const ARIMA_WINDOW: u32 = 30;
const ARIMA_SAMPLES_MIN: usize = 10;

#[cfg(test)]
mod tests;
