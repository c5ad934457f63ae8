//! The periodic work, on a thread for blocking work, so that no request waits for it: checks the memory, ticks the forecasters
//! (Algorithm 3), and ends runtimes that are not needed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::runtime_key::RuntimeKey;
use pilot_model::status::{ForecastStatus, RuntimeCounts};
use pilot_model::{Event, Instant, ScaleConfig};

use super::Driver;
use crate::forecasting::Forecast;

/// The forecasters, one per base key that a version uses.
#[derive(Debug, Default)]
pub(in crate::keyed) struct Forecasts {
    /// `None`: the policy has no forecast, or its forecaster panicked.
    by_base_key: HashMap<Arc<RuntimeKey>, Option<Forecast>>,
}

impl Forecasts {
    /// The forecast of a base key.
    pub(super) fn status(&self, base_key: &RuntimeKey) -> Option<ForecastStatus> {
        self.by_base_key
            .get(base_key)?
            .as_ref()
            .map(Forecast::status)
    }
}

/// What was evicted because memory was short.
#[derive(Debug, Default)]
pub(in crate::keyed) struct Evicted {
    pub(in crate::keyed) runtimes: u32,
    pub(in crate::keyed) bytes: u64,
}

impl Driver {
    /// Returns the time until the next tick.
    pub(in crate::keyed) fn tick(self: &Arc<Self>) -> Duration {
        let now = self.now();
        self.relieve(now);
        let next = self.forecast(now);
        let mut gone = Vec::new();
        let (counts, is_used) = {
            let runtimes = &mut self.state.lock().runtimes;
            runtimes.let_go(now, &mut gone);
            (
                runtimes.counts(),
                runtimes.base_keys_in_use().next().is_some(),
            )
        };
        drop(gone);
        let changed = {
            let mut told = self.told.lock();
            let changed = *told != counts;
            *told = counts;
            changed
        };
        if changed {
            self.parts.sink.publish(Event::RuntimesCounted(counts));
        }
        // No runtime is kept for base keys that no version uses.
        let is_quiet = !is_used && counts == RuntimeCounts::default();
        let pause = if is_quiet { Duration::MAX } else { LOOK_EVERY };
        next.since(self.now()).min(pause)
    }

    /// Evicts the oldest available runtimes until the rest should fit the limit, according to their reported memory.
    fn relieve(&self, now: Instant) {
        let Some(memory) = (self.parts.memory)() else {
            return;
        };
        let over = memory.over(self.settings.memory_percent_max);
        if over == 0 {
            return;
        }
        let Evicted { runtimes, .. } = self.evict(now, over);
        if runtimes > 0 {
            tracing::warn!(
                evicted = runtimes,
                percent_max = self.settings.memory_percent_max,
                "the machine's memory is short: kept runtimes were ended"
            );
        }
    }

    /// Evicts the oldest available runtimes until their reported memory adds up to `bytes`. Reads `/proc`.
    pub(in crate::keyed) fn evict(&self, now: Instant, bytes: u64) -> Evicted {
        let mut evicted = Evicted::default();
        while evicted.bytes < bytes {
            let oldest = self.state.lock().runtimes.evict_oldest(now);
            let Some(runtime) = oldest else { break };
            evicted.bytes += runtime.memory_bytes().max(FREED_BYTES_MIN);
            evicted.runtimes += 1;
        }
        evicted
    }

    /// Ticks the forecasters that are due and starts the runtimes they require. Returns when the next one is due.
    fn forecast(self: &Arc<Self>, now: Instant) -> Instant {
        let base_keys: Vec<Arc<RuntimeKey>> = {
            let state = self.state.lock();
            state.runtimes.base_keys_in_use().map(Arc::clone).collect()
        };
        let mut next = Instant(u64::MAX);
        {
            let mut forecasts = self.forecasts.lock();
            let by_base_key = &mut forecasts.by_base_key;
            by_base_key.retain(|base_key, _| base_keys.contains(base_key));
            for base_key in &base_keys {
                let forecast = by_base_key
                    .entry(Arc::clone(base_key))
                    .or_insert_with(|| self.make_forecast(now));
                if !self.tick_one(now, base_key, forecast.as_mut()) {
                    *forecast = None;
                }
                if let Some(forecast) = forecast {
                    next = next.min(forecast.due);
                }
            }
        }
        for base_key in &base_keys {
            self.refill(base_key);
        }
        next
    }

    /// The forecaster of a new base key. It observes one interval before its first tick.
    fn make_forecast(&self, now: Instant) -> Option<Forecast> {
        let settings = &self.settings;
        let scale = ScaleConfig {
            min: 0,
            max: u32::try_from(settings.runtimes_max).unwrap_or(u32::MAX),
            spare: 0,
            idle: settings.keep,
            policy: settings.policy,
            max_wait: None,
            reserved: 0,
        };
        let forecaster = (self.parts.forecaster)(&scale)?;
        Some(Forecast::new(scale, forecaster).after_an_interval(now))
    }

    /// False: it panicked.
    fn tick_one(
        &self,
        now: Instant,
        base_key: &Arc<RuntimeKey>,
        forecast: Option<&mut Forecast>,
    ) -> bool {
        let Some(forecast) = forecast.filter(|forecast| forecast.due <= now) else {
            return true;
        };
        let seen = self.state.lock().runtimes.observe(now, base_key);
        let Some(seen) = seen else { return true };
        let target = forecast.tick(now, &seen, base_key);
        let runtimes = &mut self.state.lock().runtimes;
        runtimes.apply_target(base_key, target.unwrap_or_default());
        target.is_some()
    }
}

/// Interval of the checks of memory and age, while there is any runtime.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The minimum that counts as freed by ending a runtime, even if it reports less.
const FREED_BYTES_MIN: u64 = 1 << 20;
