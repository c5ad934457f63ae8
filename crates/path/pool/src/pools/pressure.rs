//! What is given back when the memory of everything below the daemon becomes short, whether or not there is a budget
//! (`limits.memory_mb`): runtimes and templates of environments that nobody uses, then templates of functions without workers, then
//! idle workers. If it is almost used up for more than a second, no worker is started until it is not; requests wait for the workers
//! that serve, or are refused.
//!
//! Leased workers are never ended here. The kernel ends some when nothing else is left.

use std::sync::{Arc, Weak};
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::ports::MemoryPressure;
use tokio::time::{MissedTickBehavior, interval};

use super::PoolsInner;
use super::memory::{Share, drop_templates, evict_idle};

/// Looks in an endless loop how short memory is.
pub(crate) async fn watch(shared: Weak<PoolsInner>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = MemoryPressure::None;
    let mut was_critical = false;
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let engine = Arc::clone(&shared.engine);
        // Where memory is short, the kernel may be slow to say so.
        let level = tokio::task::spawn_blocking(move || engine.memory_pressure()).await;
        let mut level = level.unwrap_or_default();
        // One look may have met a spike, which the kernel has dealt with.
        if level == MemoryPressure::Critical && !std::mem::replace(&mut was_critical, true) {
            level = MemoryPressure::High;
        } else if level != MemoryPressure::Critical {
            was_critical = false;
        }
        if level > before {
            tracing::warn!(
                ?level,
                "memory is short: ending what is not used (limits.total_memory_mb)"
            );
        } else if level < before && level == MemoryPressure::None {
            tracing::info!("memory is not short any more");
        }
        before = level;
        relieve(&shared, level).await;
        let is_short = level == MemoryPressure::Critical;
        shared
            .memory_is_short
            .send_if_modified(|was| std::mem::replace(was, is_short) != is_short);
    }
}

/// Gives back what is next. One kind at a time, if it is not urgent: the next look shows whether it was enough.
async fn relieve(shared: &PoolsInner, level: MemoryPressure) {
    let (bytes, share) = match level {
        MemoryPressure::None => return,
        MemoryPressure::High => (STEP_BYTES, Share::Some),
        MemoryPressure::Critical => (u64::MAX, Share::All),
    };
    let engine = Arc::clone(&shared.engine);
    let kept = tokio::task::spawn_blocking(move || engine.relieve(bytes)).await;
    let is_enough = |given: bool| given && share == Share::Some;
    if is_enough(kept.is_ok_and(|bytes| bytes > 0)) {
        return;
    }
    let pools = shared.pools();
    if is_enough(drop_templates(&pools, share) > 0) {
        return;
    }
    // A worker that is used every second is not idle.
    let unused_since = Instant(shared.clock.now().0.saturating_sub(EVERY_NS));
    if evict_idle(&pools, share, unused_since) > 0 && share == Share::All {
        drop_templates(&pools, share);
    }
}

const EVERY: Duration = Duration::from_secs(1);
const EVERY_NS: u64 = 1_000_000_000;

/// Unused runtimes that are ended at a time.
const STEP_BYTES: u64 = 64 << 20;
