//! The memory of workers, templates and kept runtimes. It is sampled every few seconds off the path. If it exceeds the budget,
//! runtimes without a worker and templates of environments without a function's template are evicted, then idle workers, then
//! templates of functions without workers; those that were unused longest go first. Leased workers are never evicted. An evicted
//! worker's runtime is not kept.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use pilot_model::Instant;
use pilot_model::ports::TemplateMemory;
use pilot_rules::Key;

use super::PoolsInner;
use super::pool::Pool;
use super::worker::PooledWorker;
use crate::permits::WorkerPermits;

/// Samples in an endless loop.
pub(crate) async fn sample(shared: Weak<PoolsInner>, every: Duration) {
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut kept_before = 0;
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let pools = shared.pools();
        let workers: Vec<Arc<PooledWorker>> =
            pools.iter().flat_map(|pool| pool.workers()).collect();
        let served = workers
            .iter()
            .any(|pooled| pooled.stirred.load(Ordering::Relaxed));
        // A runtime may become ready long after the last use of any worker: its start took long, or began after a hold.
        let kept = shared.engine.kept_so_far();
        if !shared.was_stirred() && !served && kept == kept_before {
            continue;
        }
        kept_before = kept;
        let budget = shared.limits.memory_bytes_max;
        let engine = Arc::clone(&shared.engine);
        // Reading `/proc` of hundreds of processes takes milliseconds. Templates are measured only if there is a budget.
        let measured = tokio::task::spawn_blocking(move || {
            let bytes: u64 = workers.iter().map(|pooled| measure(pooled)).sum();
            (bytes, budget.map(|_| engine.templates()))
        });
        let Ok((bytes, templates)) = measured.await else {
            continue;
        };
        pools.iter().for_each(|pool| pool.note_memory());
        let (Some(budget), Some(templates)) = (budget, templates) else {
            continue;
        };
        let over = bytes_over(bytes, &templates, budget);
        if over == 0 {
            continue;
        }
        let engine = Arc::clone(&shared.engine);
        // Off the path, because ending and measuring runtimes takes time.
        let kept = tokio::task::spawn_blocking(move || engine.relieve(over)).await;
        relieve(&pools, over.saturating_sub(kept.unwrap_or(0)), &templates);
        // The next sample shows whether it fits now: after a worker has ended, the pages that it shared with its template belong
        // to the template alone.
        shared.stir();
    }
}

/// PSS of a worker. If it was idle since the last sample, the old value: reading PSS stops the process's page faults for a
/// moment.
fn measure(pooled: &PooledWorker) -> u64 {
    if !pooled.stirred.swap(false, Ordering::Relaxed) {
        return pooled.pss.load(Ordering::Relaxed);
    }
    let memory = pooled.worker.resources().memory();
    let peak = memory.peak.unwrap_or(memory.pss);
    pooled.pss.store(memory.pss, Ordering::Relaxed);
    pooled.peak.fetch_max(peak, Ordering::Relaxed);
    memory.pss
}

/// The excess over the budget, bytes.
fn bytes_over(workers: u64, templates: &[TemplateMemory], budget: u64) -> u64 {
    let in_templates: u64 = templates.iter().map(|template| template.memory_bytes).sum();
    let over = workers.saturating_add(in_templates).saturating_sub(budget);
    if over > 0 {
        tracing::warn!(
            bytes_over = over,
            bytes_max = budget,
            "memory is over its budget: evicting what is idle"
        );
    }
    over
}

/// Evicts the idle worker that was unused longest, of those whose permits are not reserved. Returns whether there was one.
pub(crate) fn evict_oldest(pools: &[Arc<Pool>], permits: &WorkerPermits) -> bool {
    let mut idle = by_last_use(pools).into_iter();
    idle.any(|idle| {
        permits.may_lose_one(&idle.pool.version().config.name) && idle.pool.evict(idle.key)
    })
}

/// Evicts so many workers that were idle since `before`, those first that were unused longest. Returns how many there were.
pub(crate) fn evict_idle(pools: &[Arc<Pool>], share: Share, before: Instant) -> usize {
    let mut idle = by_last_use(pools);
    idle.retain(|idle| idle.touched <= before);
    let most = match share {
        Share::Some => idle.len().div_ceil(4),
        Share::All => idle.len(),
    };
    let evicted = idle
        .iter()
        .take(most)
        .filter(|idle| idle.pool.evict(idle.key));
    evicted.count()
}

/// Drops templates of functions without workers, the coldest first. Returns how many there were.
pub(crate) fn drop_templates(pools: &[Arc<Pool>], share: Share) -> usize {
    let cold = coldest_first(pools);
    let most = match share {
        Share::Some => cold.len().div_ceil(4),
        Share::All => cold.len(),
    };
    for pool in cold.iter().take(most) {
        pool.evict_template();
    }
    most
}

/// How much is given back at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// A quarter, and at least one.
    Some,
    /// Everything.
    All,
}

/// The pools that have a template and no workers. Those that were unused longest come first.
fn coldest_first(pools: &[Arc<Pool>]) -> Vec<&Arc<Pool>> {
    let cold = pools.iter();
    let mut cold: Vec<_> = cold
        .filter_map(|pool| Some((pool.cold_since()?, pool)))
        .collect();
    cold.sort_by_key(|(since, _)| *since);
    cold.into_iter().map(|(_, pool)| pool).collect()
}

/// An idle worker.
struct Idle<'a> {
    pool: &'a Arc<Pool>,
    key: Key,
    touched: Instant,
    bytes: u64,
}

/// Those that were unused longest come first.
fn by_last_use(pools: &[Arc<Pool>]) -> Vec<Idle<'_>> {
    fn idle_of(pool: &Arc<Pool>) -> impl Iterator<Item = Idle<'_>> {
        pool.idle_workers()
            .into_iter()
            .map(move |(key, touched, bytes)| Idle {
                pool,
                key,
                touched,
                bytes,
            })
    }
    let mut idle: Vec<_> = pools.iter().flat_map(idle_of).collect();
    idle.sort_by_key(|idle| idle.touched);
    idle
}

/// Evicts idle workers, then templates, until their measured memory adds up to `over`.
fn relieve(pools: &[Arc<Pool>], mut over: u64, templates: &[TemplateMemory]) {
    for idle in by_last_use(pools) {
        if over == 0 {
            return;
        }
        if idle.pool.evict(idle.key) {
            over = over.saturating_sub(idle.bytes);
        }
    }
    for pool in coldest_first(pools) {
        if over == 0 {
            break;
        }
        pool.evict_template();
        over = over.saturating_sub(template_bytes(pool, templates));
    }
}

/// Memory that is freed by dropping this pool's template. Templates of functions are named after the function or the version.
fn template_bytes(pool: &Pool, templates: &[TemplateMemory]) -> u64 {
    let version = pool.version();
    templates
        .iter()
        .filter(|template| template.level == "function")
        .filter(|template| {
            template.name.contains(version.id.as_str())
                || template.name == version.config.name.as_str()
        })
        .map(|template| template.memory_bytes)
        .sum()
}
