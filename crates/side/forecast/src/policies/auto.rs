//! `auto`: every worker beyond those that are needed now is a bet. Holding it for a second costs its memory; not having it
//! when it is needed costs a wait as long as a start. It is held where the second is likely to cost more than the first:
//!
//! ```text
//!   (how often it is needed per second, given how long it has not been) × T  >  memory_weight × GB
//! ```
//!
//! T and GB are this function's own, measured: where a start takes 2 ms almost nothing is held, where it takes a second what
//! the next minute will need is. The hazard on the left comes from a life table per worker ([`gaps`], [`level`]): the k-th
//! worker is needed whenever k invocations run at once, whatever their rate, so that cadence, periods and sparse traffic are
//! all the same question. A worker is ordered before that holds, and held through where it soon holds again. To it comes what
//! no history knows: a rate that rises ([`trend`]) holds what it will need when a worker ordered now is up, and more of it the
//! cheaper workers are.
//!
//! It is none of the papers': Edge FaaS asks for a selector between its detectors (§6); Shahrad et al. keep one histogram
//! of idle times per application, which is the first worker's life table here, without costs. The constants were fixed on
//! the bursty ramp, the intervals of 10 and 60 s, and the day of 50 Azure functions, with its own memory and with small workers;
//! docs/forecasting.md has the figures, those of the workloads that were held out among them.

mod cost;
mod gaps;
mod level;
mod peak;
mod trend;

use std::time::Duration;

use pilot_model::forecast::{Forecaster, Target, Tick};
use pilot_model::policy::AutoPolicy;
use pilot_model::{Instant, ScaleConfig};

use super::signal::exact;
use super::sizing::whole;
use cost::Cost;
use level::{Belief, Level};
use peak::Peak;
use trend::Trend;

/// The policy, with what it has learned of one function.
#[derive(Debug)]
pub(super) struct Auto {
    memory_weight: f64,
    tick: Duration,
    /// Most workers.
    max: u32,
    /// The first request; nothing is held before it.
    born: Option<Instant>,
    now: Instant,
    levels: Vec<Level>,
    /// Most workers ever needed at once.
    record: u32,
    peak: Peak,
    trend: Trend,
    /// Until then it ticks at its full pace.
    busy_until: Instant,
    /// If nothing comes, nothing changes before.
    next_look: Instant,
    newest: Decision,
}

/// What was decided last, and why.
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
    /// Where nothing was measured yet: a fork of a template, and what it has of its own.
    const START: Duration = Duration::from_millis(2);
    const WORKER_BYTES: u64 = 3 << 20;
    /// Starts that are shorter need no look ahead: ticks are a second apart then, and where nothing comes.
    const START_SHORT_S: f64 = 0.02;
    const TICK_SLOW: Duration = Duration::from_secs(1);
    /// A function is busy for so long after a request.
    const BUSY: Duration = Duration::from_secs(5);
    /// Beyond what is held, an idle worker goes after its break-even time, but not after more than this, or than its start.
    const IDLE_MAX_S: f64 = 0.5;
    /// Of the break-even odds that a rise goes on to be twice, thrice, … what its slope says, the share that is believed.
    const RISE: f64 = 0.5;
    /// How far beyond the record levels are looked at: four times, and two.
    const BEYOND: u32 = 4;

    pub(super) fn new(constants: AutoPolicy, scale: &ScaleConfig) -> Self {
        Self {
            memory_weight: constants.memory_weight,
            tick: super::duration::interval(constants.tick_s),
            max: scale.max,
            born: None,
            now: Instant(0),
            levels: Vec::new(),
            record: 0,
            peak: Peak::new(),
            trend: Trend::default(),
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
            start_s: tick.start.unwrap_or(Self::START).as_secs_f64(),
            holding: (self.memory_weight * gigabytes / concurrency).max(1e-9),
        }
    }

    /// After the clock was set back nothing that was to happen at a time is waited for.
    fn keep_time(&mut self, now: Instant) {
        if now < self.now {
            self.peak.forget_times();
            for level in &mut self.levels {
                level.forget_times(now);
            }
            self.busy_until = now;
            self.next_look = now;
        }
        self.now = now;
    }

    /// How long until the next tick.
    fn pace(&mut self, tick: &Tick, cost: Cost) -> Duration {
        if tick.arrivals > 0 || tick.demand_max > 0 {
            self.busy_until = tick.now.after(Self::BUSY);
        }
        if cost.start_s < Self::START_SHORT_S || tick.now >= self.busy_until {
            self.tick.max(Self::TICK_SLOW)
        } else {
            self.tick
        }
    }

    /// Invocations at once that a rate which goes on rising brings by the time a worker ordered now is of use; 0: it does
    /// not rise, or no worker is worth it. The rise is taken to be exponentially distributed about what its slope says.
    fn rising(&self, cost: Cost, demand: u32, service_s: f64, lead_s: f64) -> u32 {
        // Of services longer than the lead no more can begin until then than arrive.
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

    /// Invocations at once for which holding workers pays, those that run or wait among them.
    fn held(&mut self, tick: &Tick, peak: u32, lead: Duration, cost: Cost, born: Instant) -> u32 {
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
        let mut held = 0;
        self.next_look = Instant(u64::MAX);
        for level in &mut self.levels {
            level.see(tick.now, tick.span, peak, tick.demand);
            held = held.max(level.held(tick.now, tick.demand, lead, cost, belief));
            self.next_look = self.next_look.min(level.until());
        }
        held
    }

    /// Invocations at once that `max` workers serve.
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
        let cost = self.cost(tick);
        let interval = self.pace(tick, cost);
        if tick.arrivals > 0 {
            self.born.get_or_insert(tick.now);
        }
        let idle_s = cost.break_even_s().min(Self::IDLE_MAX_S.max(cost.start_s));
        self.newest.target.idle = Some(super::duration::seconds(idle_s));
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
        self.trend
            .add(exact(tick.arrivals), tick.span.as_secs_f64());
        let lead_s = cost.start_s + interval.as_secs_f64();
        let lead = Duration::try_from_secs_f64(lead_s).unwrap_or(Duration::MAX);
        let rising = self.rising(cost, tick.demand, service_s, lead_s).min(slots);
        let held = self.held(tick, peak, lead, cost, born);
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
            return "nothing came yet".to_owned();
        }
        let break_even_s = cost.break_even_s().min(1e9);
        let mut reason = format!(
            "a start of {:.0} ms is worth holding a worker for {break_even_s:.1} s: of {held} wanted, {demand} serve or wait",
            cost.start_s * 1e3,
        );
        let likely = held.saturating_sub(demand);
        if likely > 0 {
            reason.push_str(&format!(", {likely} are likely to be needed again in time"));
        }
        if rising > held {
            reason.push_str(&format!("; the rate rises: {rising}"));
        }
        reason
    }
}
