//! Names period, quota and tick rate of CPU bandwidth control from a log of throttles (Algorithm 1 and Table 3 of the paper): what a
//! loop that only reads the clock saw from inside the sandbox.
//!
//! - A throttled task resumes when the period's timer refills the quota, so the times between two resumptions are multiples of the
//!   *period*. The largest period that fits is taken, unless a part of it fits clearly more of them: where a task overruns its quota by
//!   nearly the same time again and again, nearly all intervals are several periods.
//! - Over many periods a task gets its quota, because what it takes too much is subtracted later. So the *quota* is the share of time
//!   that it ran. A throttle itself costs some time that counts as the task's. Platforms give CPU in hundredths of a vCPU, or, where it
//!   follows memory, in 1/1769 per MB; a quota that is near such a value is that value.
//! - Usage is accounted at the ticks of the timer, so throttles begin at them: at the same phase of the *tick*. A tick whose multiple is
//!   also one is told from it by its rate: if clearly fewer throttles are at one phase of the multiple, they begin at the ticks between,
//!   too. If a log fits several rates, 250 Hz, the most usual one, is assumed, and the answer says so.

use serde::{Deserialize, Serialize};

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inferred {
    /// The period, microseconds.
    pub period_us: u64,
    /// The quota, microseconds.
    pub quota_us: u64,
    /// The quota as it was measured, microseconds.
    pub quota_measured_us: u64,
    /// The rate of the timer, Hz.
    pub tick_hz: u64,
    /// Other rates that the log fits as well.
    pub tick_hz_possible: Vec<u64>,
    /// Throttles in the log.
    pub throttles: u64,
    /// Share of the intervals between them that fit the period, thousandths.
    pub fitting_thousandths: u64,
}

/// One throttle, nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// When the task noticed that it runs again.
    pub noticed_ns: u64,
    /// How long it did not run.
    pub lasted_ns: u64,
}

/// The throttles of each run of the profiler.
pub type Runs = Vec<Vec<Throttle>>;

#[derive(Deserialize)]
#[serde(untagged)]
enum Log {
    Pairs(Vec<(u64, u64)>),
    One(Pairs),
    Invocations(Vec<Invocation>),
}

#[derive(Deserialize)]
struct Pairs {
    data: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct Invocation {
    data: Body,
}

#[derive(Deserialize)]
struct Body {
    body: String,
}

/// Reads a log: `[[NOTICED_NS, LASTED_NS], …]`, `{"data": [[…], …]}`, or the published form, a list of invocations with `data.body`.
///
/// # Errors
/// It is something else, or its times go back.
pub fn read(json: &[u8]) -> Result<Runs, String> {
    const FORMS: &str = "a throttle log is [[NOTICED_NS, LASTED_NS], ...], or {\"data\": [...]}, or a list of invocations with that as \
                         data.body";
    let log: Log = serde_json::from_slice(json).map_err(|error| format!("{FORMS}; {error}"))?;
    let runs = match log {
        Log::Pairs(pairs) | Log::One(Pairs { data: pairs }) => vec![pairs],
        Log::Invocations(invocations) => {
            let bodies = invocations.iter().map(|invocation| {
                let body: Result<Pairs, _> = serde_json::from_str(&invocation.data.body);
                body.map(|body| body.data)
            });
            let bodies: Result<_, serde_json::Error> = bodies.collect();
            bodies.map_err(|error| format!("{FORMS}; data.body: {error}"))?
        }
    };
    let runs = runs.into_iter().map(|pairs| {
        let throttles: Vec<Throttle> = pairs
            .into_iter()
            .map(|(noticed_ns, lasted_ns)| Throttle {
                noticed_ns,
                lasted_ns,
            })
            .collect();
        let apart = |pair: &[Throttle]| {
            matches!(pair, [one, next] if next.noticed_ns.checked_sub(next.lasted_ns).is_some_and(|began| began >= one.noticed_ns))
        };
        if throttles.iter().any(|one| one.lasted_ns > one.noticed_ns) || !throttles.windows(2).all(apart) {
            return Err("the throttles of a run overlap, or their times go back".to_owned());
        }
        Ok(throttles)
    });
    runs.collect()
}

/// Names the parameters.
///
/// # Errors
/// There are too few throttles, or they do not come from one period.
pub fn infer(runs: &Runs) -> Result<Inferred, String> {
    let pairs = || {
        runs.iter()
            .flat_map(|run| run.windows(2))
            .filter_map(|pair| match pair {
                [one, next] => Some((one, next)),
                _ => None,
            })
    };
    let intervals: Vec<u64> = pairs()
        .map(|(one, next)| next.noticed_ns - one.noticed_ns)
        .collect();
    if intervals.len() < INTERVALS_MIN {
        return Err(format!(
            "{} intervals between throttles are too few to say anything: {INTERVALS_MIN} are needed",
            intervals.len()
        ));
    }
    let (period_ns, fitting) = period(&intervals).ok_or(
        "the times between throttles are multiples of no period from 1 ms to 1 s: they are not those of CPU bandwidth control",
    )?;
    let total: u64 = intervals.iter().sum();
    let throttled: u64 = pairs().map(|(_, next)| next.lasted_ns).sum();
    let ran = total - throttled + THROTTLE_COST_NS * intervals.len() as u64;
    let quota_ns = scaled(ran, period_ns, total);
    let began: Vec<u64> = runs
        .iter()
        .flatten()
        .map(|throttle| throttle.noticed_ns - throttle.lasted_ns)
        .collect();
    let ticks = ticks(&began);
    let Some(tick_hz) = ticks.first().copied() else {
        return Err(
            "the throttles begin at ticks of no usual rate (100, 250, 300, 1000 Hz)".to_owned(),
        );
    };
    Ok(Inferred {
        period_us: period_ns / 1000,
        quota_us: usual_quota_ns(quota_ns, period_ns) / 1000,
        quota_measured_us: quota_ns / 1000,
        tick_hz,
        tick_hz_possible: ticks.into_iter().skip(1).collect(),
        throttles: began.len() as u64,
        fitting_thousandths: fitting,
    })
}

/// The largest period of which nearly all intervals are multiples, and clearly more of none of its parts; and how many are, thousandths.
fn period(intervals: &[u64]) -> Option<(u64, u64)> {
    let longest = intervals.iter().copied().max()?;
    let candidates = (2..=2000).map(|half_ms: u64| half_ms * 500_000);
    let fits = candidates
        .take_while(|period| *period <= longest + NOISE_NS)
        .filter_map(|period| {
            let is_multiple = |interval: &&u64| {
                let count = (*interval + period / 2) / period;
                count >= 1 && interval.abs_diff(count * period) < NOISE_NS
            };
            let fitting = intervals.iter().filter(is_multiple).count() as u64;
            let share = fitting * 1000 / intervals.len().max(1) as u64;
            (share >= FITTING_MIN).then_some((period, share))
        });
    let fits: Vec<(u64, u64)> = fits.collect();
    let is_whole = |(period, share): &&(u64, u64)| {
        !fits.iter().any(|(part, more)| {
            // Of the intervals that do not fit the period, some fit a part of it by chance.
            let by_chance = (1000 - share) * 2 * NOISE_NS / part;
            part < period && period % part == 0 && *more > share + 2 * by_chance + FITTING_MORE
        })
    };
    fits.iter().rev().find(is_whole).copied()
}

/// The rates whose ticks the throttles begin at, the most likely first.
fn ticks(began: &[u64]) -> Vec<u64> {
    let mut fits: Vec<u64> = TICKS_HZ
        .into_iter()
        .filter(|hz| concentration(began, *hz) >= CONCENTRATION_MIN)
        .collect();
    // A slow tick has a wide circle, on which the neighbours among faster ticks look like one direction.
    let shares: Vec<u64> = fits.iter().map(|hz| at_one_phase(began, *hz)).collect();
    let most = shares.iter().copied().max().unwrap_or(0);
    let mut shares = shares.into_iter();
    fits.retain(|_| {
        shares
            .next()
            .is_some_and(|share| share + AT_PHASE_LESS >= most)
    });
    // Every tick of 250 Hz and of 100 Hz is one of 1000 Hz, too.
    if fits.len() > 1 {
        fits.retain(|hz| *hz != 1000);
    }
    fits
}

/// How much the times agree in their phase of a tick: the length of the mean of their directions on a circle, 0 to 1.
fn concentration(times: &[u64], hz: u64) -> f64 {
    // The phase in billionths of a tick, exact.
    let phases = times
        .iter()
        .map(|time| u128::from(*time) * u128::from(hz) % 1_000_000_000);
    let phases = phases.map(|phase| u64::try_from(phase).unwrap_or(0));
    direction(phases, 1_000_000_000).1
}

/// How many of the times are near the phase of a tick that most are near, thousandths.
fn at_one_phase(times: &[u64], hz: u64) -> u64 {
    let tick = 1_000_000_000 / hz.max(1);
    let mut phases: Vec<u64> = times
        .iter()
        .map(|time| {
            let phase = u128::from(*time) * u128::from(hz) % 1_000_000_000;
            u64::try_from(phase / u128::from(hz.max(1))).unwrap_or(0)
        })
        .collect();
    phases.sort_unstable();
    // Once more around, so that a phase is near to those on both sides of it.
    let around = phases.iter().map(|phase| phase + tick);
    let circle: Vec<u64> = phases.iter().copied().chain(around).collect();
    let (mut from, mut most) = (0, 0);
    for (at, phase) in circle.iter().enumerate() {
        while circle
            .get(from)
            .is_some_and(|first| phase - first > 2 * NOISE_NS)
        {
            from += 1;
        }
        most = most.max(at + 1 - from);
    }
    most.min(times.len()) as u64 * 1000 / times.len().max(1) as u64
}

/// The mean of times on a circle of `around` nanoseconds, and how much they agree in it, 0 to 1.
pub(crate) fn direction(times: impl Iterator<Item = u64>, around: u64) -> (u64, f64) {
    let around = u32::try_from(around.max(1)).unwrap_or(u32::MAX);
    let (mut x, mut y, mut count) = (0.0, 0.0, 0_u32);
    for time in times {
        let phase = u32::try_from(time % u64::from(around)).unwrap_or(0);
        let angle = f64::from(phase) / f64::from(around) * std::f64::consts::TAU;
        x += angle.cos();
        y += angle.sin();
        count = count.saturating_add(1);
    }
    let turns = y.atan2(x).rem_euclid(std::f64::consts::TAU) / std::f64::consts::TAU;
    let mean = std::time::Duration::from_secs(1).mul_f64(turns * f64::from(around) / 1e9);
    let mean = u64::try_from(mean.as_nanos()).unwrap_or(0) % u64::from(around);
    (mean, x.hypot(y) / f64::from(count.max(1)))
}

/// The usual quota near a measured one: hundredths of the period, or else a share that follows memory.
fn usual_quota_ns(measured: u64, period: u64) -> u64 {
    let hundredths = scaled(measured, 100, period);
    let rounded = hundredths * period / 100;
    if hundredths > 0 && rounded.abs_diff(measured) * QUOTA_NEAR <= rounded {
        return rounded;
    }
    let mb = scaled(measured, MB_PER_VCPU, period).max(1);
    // The kernel takes whole microseconds.
    mb * period / MB_PER_VCPU / 1000 * 1000
}

/// `value * factor / divisor`, rounded to the nearest.
fn scaled(value: u64, factor: u64, divisor: u64) -> u64 {
    let divisor = u128::from(divisor.max(1));
    let product = u128::from(value) * u128::from(factor);
    u64::try_from((product + divisor / 2) / divisor).unwrap_or(u64::MAX)
}

/// Fewest intervals.
const INTERVALS_MIN: usize = 20;
/// How far a resumption may be from the period's timer.
const NOISE_NS: u64 = 150_000;
/// Share of the intervals that must fit a period, thousandths.
const FITTING_MIN: u64 = 900;
/// So many more intervals must fit a part of a period, thousandths, for the part to be the period.
const FITTING_MORE: u64 = 20;
/// Time of a throttle, for switching and interrupts, that counts as the task's and that it does not see.
const THROTTLE_COST_NS: u64 = 15_000;
/// The usual rates, the most usual first.
const TICKS_HZ: [u64; 4] = [250, 1000, 100, 300];
const CONCENTRATION_MIN: f64 = 0.9;
/// A rate is none if so many fewer throttles, thousandths, are at one phase of its tick than at one of another rate that fits.
const AT_PHASE_LESS: u64 = 50;
/// A usual quota is near within one part of so many.
const QUOTA_NEAR: u64 = 200;
/// Memory of a vCPU where CPU follows memory.
const MB_PER_VCPU: u64 = 1769;

#[cfg(test)]
mod tests;
