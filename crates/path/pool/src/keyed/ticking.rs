//! What happens every few seconds, on a thread for blocking work, so that no request ever waits behind it: memory is looked at,
//! forecasters tick (Algorithm 3), and what nobody wants is let go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::runtime_key::RuntimeKey;
use pilot_model::status::{ForecastStatus, RuntimeCounts};
use pilot_model::{Event, Instant, ScaleConfig};

use super::driver::Driver;
use crate::forecasting::Forecast;

/// The forecasters, one per base key that a version uses.
#[derive(Debug, Default)]
pub(super) struct Forecasts {
    /// `None`: the policy predicts nothing, or its forecaster panicked.
    by_base_key: HashMap<Arc<RuntimeKey>, Option<Forecast>>,
}

impl Forecasts {
    /// What is predicted of a base key.
    pub(super) fn status(&self, base_key: &RuntimeKey) -> Option<ForecastStatus> {
        self.by_base_key
            .get(base_key)?
            .as_ref()
            .map(Forecast::status)
    }
}

/// What was ended for want of memory.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    pub(super) runtimes: u32,
    pub(super) bytes: u64,
}

impl Driver {
    /// How long until the next.
    pub(super) fn tick(self: &Arc<Self>) -> Duration {
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
        // Nothing is kept of base keys that no version uses.
        let is_quiet = !is_used && counts == RuntimeCounts::default();
        let pause = if is_quiet { Duration::MAX } else { LOOK_EVERY };
        next.since(self.now()).min(pause)
    }

    /// Evicts the oldest available runtimes until what is left should fit the limit, by what they say they use.
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

    /// Evicts the oldest available runtimes until they had so many bytes, by what they say. Reads `/proc`.
    pub(super) fn evict(&self, now: Instant, bytes: u64) -> Evicted {
        let mut evicted = Evicted::default();
        while evicted.bytes < bytes {
            let oldest = self.state.lock().runtimes.evict_oldest(now);
            let Some(runtime) = oldest else { break };
            evicted.bytes += runtime.memory_bytes().max(FREED_BYTES_MIN);
            evicted.runtimes += 1;
        }
        evicted
    }

    /// Ticks the forecasters that are due and starts what they want. When the next one is due.
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

    /// A new base key's; it has an interval to see something.
    fn make_forecast(&self, now: Instant) -> Option<Forecast> {
        let settings = &self.settings;
        let scale = ScaleConfig {
            min: 0,
            max: u32::try_from(settings.runtimes_max).unwrap_or(u32::MAX),
            spare: 0,
            idle: settings.keep,
            policy: settings.policy,
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

/// Memory and age are looked at this often while there is anything.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What ending a runtime is taken to free at least, whatever it says.
const FREED_BYTES_MIN: u64 = 1 << 20;
