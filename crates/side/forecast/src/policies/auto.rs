//! `auto`: holding a worker that is not needed now costs its memory. Not having it when it is needed costs a wait for its start.
//! So a worker is held if the expected cost of the wait is higher:
//!
//! ```text
//!   (how often it is needed per second, given the time since its last use) × T  >  memory_weight × GB
//! ```
//!
//! T and GB are measured for this function. If a start takes 2 ms, almost nothing is held; if it takes a second, the workers that
//! the next minute will need are held. The hazard on the left comes from a life table per worker ([`gaps`], [`level`]): the k-th
//! worker is needed whenever k invocations run at once, at any rate. So regular intervals, periods and sparse traffic are handled
//! in the same way. A miss costs less than T where a busy worker is usually free before a start ends ([`overload`]). A worker is
//! ordered before the condition becomes true, and is held through an interruption if the condition soon becomes true again. The
//! history does not show a rising rate ([`trend`]). For that, `auto` holds the workers that will be needed when a worker ordered now
//! is ready; the cheaper workers are, the more it holds. If holding a worker until the next tick costs more than a start, only the
//! idle time of the pool keeps workers ([`bursts`]).
//!
//! It is not from the papers. Edge FaaS proposes a selector between its detectors (§6). Shahrad et al. keep one histogram of idle
//! times per application, which is the first worker's life table here, without costs. docs/forecasting.md says on which workloads the
//! constants were determined, and has the figures, including those of workloads that were not used for this.

mod bursts;
mod cost;
mod gaps;
mod level;
mod overload;
mod peak;
mod trend;

use std::time::Duration;

use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::AutoPolicy;
use pilot_model::{Instant, ScaleConfig};

use super::signal::exact;
use super::sizing::{whole, workers_are};
use bursts::Bursts;
use cost::Cost;
use level::{Belief, Level, Stake};
use peak::Peak;
use trend::Trend;

/// The policy, with what it has learned about one function.
#[derive(Debug)]
pub(super) struct Auto {
    memory_weight: f64,
    tick: Duration,
    /// Maximum number of workers.
    max: u32,
    /// The first request; no worker is held before it.
    born: Option<Instant>,
    /// Since when requests wait for the first start, whose time is not known yet.
    first_start: Option<Instant>,
    now: Instant,
    levels: Vec<Level>,
    /// Maximum number of workers needed at once so far.
    record: u32,
    peak: Peak,
    trend: Trend,
    bursts: Bursts,
    /// Until this time, it ticks at its full rate.
    busy_until: Instant,
    /// If no request arrives, the target does not change before this time.
    next_look: Instant,
    newest: Decision,
}

/// The last decision and its inputs.
#[derive(Debug, Clone, Copy, Default)]
struct Decision {
    target: Target,
    cost: Cost,
    interval: Duration,
    demand: u32,
    held: u32,
    rising: u32,
}

impl Auto {
    /// Used before the first measurement: a fork of a template, and the memory that it does not share.
    const START: Duration = Duration::from_millis(2);
    const WORKER_BYTES: u64 = 3 << 20;
    /// If starts are shorter than this, ticks are one second apart, because no forecast is needed. The same applies while no
    /// requests arrive.
    const START_SHORT_S: f64 = 0.02;
    const TICK_SLOW: Duration = Duration::from_secs(1);
    /// A function counts as busy for this long after a request.
    const BUSY: Duration = Duration::from_secs(5);
    /// An idle worker that is not held is reaped after its break-even time, but after at most this, or the duration of a start if
    /// that is longer.
    const IDLE_MAX_S: f64 = 0.5;
    /// The part of the break-even time after which an idle worker is reaped that is not held.
    const IDLE: f64 = 0.6;
    /// While no start has ended, its time is at most assumed to be this.
    const START_MAX: Duration = Duration::from_secs(60);
    /// A rise may continue to twice, three times, … what its slope predicts. This is the assumed share of the break-even odds of
    /// that.
    const RISE: f64 = 0.5;
    /// Levels are examined up to this multiple of the record, plus two.
    const BEYOND: u32 = 4;

    pub(super) fn new(constants: AutoPolicy, scale: &ScaleConfig) -> Self {
        Self {
            memory_weight: constants.memory_weight,
            tick: super::duration::interval(constants.tick_s),
            max: scale.max,
            born: None,
            first_start: None,
            now: Instant(0),
            levels: Vec::new(),
            record: 0,
            peak: Peak::new(),
            trend: Trend::default(),
            bursts: Bursts::new(),
            busy_until: Instant(0),
            next_look: Instant(0),
            newest: Decision::default(),
        }
    }

    fn cost(&self, tick: &Tick) -> Cost {
        let bytes = exact(tick.worker_bytes.unwrap_or(Self::WORKER_BYTES));
        let concurrency = f64::from(tick.concurrency.max(1));
        let gigabytes = bytes / f64::from(1 << 30);
        Cost {
            start_s: self.start(tick).as_secs_f64(),
            holding: (self.memory_weight * gigabytes / concurrency).max(1e-9),
        }
    }

    /// T. Before the first measurement: the first start takes at least as long as requests have waited for it until now.
    fn start(&self, tick: &Tick) -> Duration {
        let so_far = || {
            self.first_start
                .map_or(Duration::ZERO, |since| tick.now.since(since))
        };
        tick.start
            .unwrap_or_else(|| so_far().clamp(Self::START, Self::START_MAX))
    }

    /// How long a worker beyond the target may be idle. It is worth its memory for this time only if requests follow each other
    /// closely enough.
    fn idle(&self, cost: Cost) -> Duration {
        if !cost.pays(self.bursts.rate) {
            return Duration::ZERO;
        }
        let idle_s = Self::IDLE * cost.break_even_s();
        super::duration::seconds(idle_s.min(Self::IDLE_MAX_S.max(cost.start_s)))
    }

    /// If the clock was set back, stored times are no longer valid.
    fn keep_time(&mut self, now: Instant) {
        if now < self.now {
            self.peak.forget_times();
            self.first_start = None;
            for level in &mut self.levels {
                level.forget_times(now);
            }
            self.busy_until = now;
            self.next_look = now;
        }
        self.now = now;
    }

    /// The time until the next tick.
    fn pace(&mut self, tick: &Tick, cost: Cost) -> Duration {
        if tick.arrivals > 0 || tick.demand_max > 0 {
            self.busy_until = tick.now.after(Self::BUSY);
        }
        let unknown = tick.start.is_none() && tick.demand > 0;
        let short = cost.start_s < Self::START_SHORT_S && !unknown;
        if short || tick.now >= self.busy_until {
            self.tick.max(Self::TICK_SLOW)
        } else {
            self.tick
        }
    }

    /// The number of concurrent invocations that a rising rate causes by the time a worker ordered now is ready. 0: the rate does
    /// not rise, or no worker is worth its cost. The rise is assumed to be exponentially distributed around the value from its
    /// slope.
    fn rising(&self, cost: Cost, demand: u32, service_s: f64, lead_s: f64) -> u32 {
        // If services are longer than the lead, at most the invocations that arrive until then can begin.
        let soon_s = service_s.min(lead_s);
        let rise = self.trend.rise() * lead_s * soon_s;
        let odds = cost.break_even_s() / (cost.start_s + service_s + 1e-3);
        if rise <= 0.05 || odds <= 1.0 {
            return 0;
        }
        let steady = self.trend.rate * service_s;
        let reached = f64::from(demand) + self.trend.rate * soon_s;
        whole(steady.min(reached) + rise * odds.ln() * Self::RISE)
    }

    /// The number of concurrent invocations for which holding workers pays, including those that run or wait.
    fn held(&mut self, tick: &Tick, peak: u32, stake: Stake, born: Instant) -> u32 {
        let slots = self.slots(tick.concurrency);
        let beyond = self.record.saturating_mul(Self::BEYOND).saturating_add(2);
        while self.levels.last().map_or(0, |level| level.to) < beyond.min(slots) {
            let top = self.levels.last().map_or(0, |level| level.to);
            self.levels.push(Level::after(top, born));
        }
        let half = self.record.div_ceil(2).max(1);
        let chances = self.levels.iter().rfind(|level| level.from <= half);
        let belief = Belief {
            record: self.record,
            chances: chances.map_or(0, Level::gaps),
        };
        let start = super::duration::seconds(stake.cost.start_s);
        let mut held = 0;
        self.next_look = Instant(u64::MAX);
        for level in &mut self.levels {
            level.see(tick.now, tick.span, peak, tick.demand, start);
            held = held.max(level.held(tick.now, tick.demand.min(peak), stake, belief));
            self.next_look = self.next_look.min(level.until());
        }
        held
    }

    /// The number of concurrent invocations that `max` workers serve.
    fn slots(&self, concurrency: u32) -> u32 {
        self.max.saturating_mul(concurrency.max(1))
    }
}

impl Forecaster for Auto {
    fn interval(&self) -> Duration {
        if self.newest.interval.is_zero() {
            self.tick
        } else {
            self.newest.interval
        }
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        self.keep_time(tick.now);
        if tick.arrivals > 0 {
            self.born.get_or_insert(tick.now);
        }
        if tick.start.is_none() && tick.demand > 0 {
            let span = tick.span.min(self.tick);
            let before = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            let began = Instant(tick.now.0.saturating_sub(before));
            self.first_start.get_or_insert(began);
        } else {
            self.first_start = None;
        }
        let cost = self.cost(tick);
        let interval = self.pace(tick, cost);
        self.bursts.add(tick);
        self.newest.target.idle = Some(self.idle(cost));
        let Some(born) = self.born else {
            return self.newest.target;
        };
        self.newest.interval = interval;
        if tick.now >= self.busy_until && tick.now < self.next_look {
            return self.newest.target;
        }
        let service_s = tick.service.unwrap_or_default().as_secs_f64();
        let slots = self.slots(tick.concurrency);
        let peak = self.peak.of(tick, service_s, interval).min(slots);
        self.record = self.record.max(peak);
        let lead_s = cost.start_s + interval.as_secs_f64();
        self.trend
            .add(exact(tick.arrivals), tick.span.as_secs_f64(), lead_s);
        let stake = Stake {
            cost,
            lead_s,
            service_s,
        };
        let mut rising = self.rising(cost, tick.demand, service_s, lead_s).min(slots);
        let mut held = self.held(tick, peak, stake, born);
        if tick.service.is_none() && cost.start_s > Self::START_SHORT_S {
            // Nothing but their number says how many workers these requests need.
            held = held.max(tick.demand.min(slots));
        } else if cost.break_even_s() < interval.as_secs_f64() {
            // To hold a worker until the next tick costs more than to start it again. The time after which idle ones are reaped
            // decides alone.
            (held, rising) = (0, 0);
        }
        self.newest = Decision {
            target: Target {
                workers: held
                    .max(rising)
                    .div_ceil(tick.concurrency.max(1))
                    .min(self.max),
                idle: self.newest.target.idle,
            },
            cost,
            interval,
            demand: tick.demand,
            held,
            rising,
        };
        self.newest.target
    }

    fn reason(&self) -> String {
        let Decision {
            cost,
            demand,
            held,
            rising,
            ..
        } = self.newest;
        if self.born.is_none() {
            return "no worker is kept: no request has come yet".to_owned();
        }
        let break_even_s = cost.break_even_s().min(1e9);
        let mut reason = format!(
            "{} kept: {demand} for requests that run or wait",
            workers_are(self.newest.target.workers)
        );
        let likely = held.saturating_sub(demand);
        if likely > 0 {
            reason.push_str(&format!(
                ", {likely} that will probably be needed again soon enough"
            ));
        }
        if rising > held {
            reason.push_str(&format!(", up to {rising} because the rate rises"));
        }
        reason.push_str(&format!(
            "; a start takes {:.0} ms, so a worker that is needed again within {break_even_s:.1} s is worth its memory",
            cost.start_s * 1e3,
        ));
        reason
    }
}
