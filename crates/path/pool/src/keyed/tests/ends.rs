//! The end of a use: the runtime is cleaned and kept, or ended.

use super::*;

#[tokio::test(start_paused = true)]
async fn what_cannot_be_cleaned_is_ended() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    bench.host.fail_cleanings([no_sandbox()]);
    bench.start(&version).await.retire();
    eventually(|| bench.host.up() == 0).await;
    assert_eq!(bench.counts(&version), RuntimeCounts::default());
    assert_eq!(bench.status(&version).totals.destroyed, 1);
    let _worker = bench.start(&version).await;
    assert_eq!(bench.host.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cleaning_that_hangs_is_given_up_at_its_bound() {
    let bench = Bench::with(|settings| settings.clean_max = Duration::from_secs(7));
    let version = node("web", 1, "a");
    bench.host.cleanings_take(Duration::from_secs(3600));
    bench.start(&version).await.retire();
    let begun = tokio::time::Instant::now();
    assert_eq!(bench.counts(&version).cleaning, 1);
    eventually(|| bench.host.up() == 0).await;
    let took = begun.elapsed();
    assert!((7.0..7.1).contains(&took.as_secs_f64()), "{took:?}");
    assert_eq!(bench.status(&version).totals.destroyed, 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_being_cleaned_is_given_to_nobody() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    bench.host.cleanings_take(Duration::from_secs(1));
    bench.start(&version).await.retire();
    let _worker = bench.start(&version).await;
    assert_eq!(bench.host.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_crashed_or_was_killed_leaves_a_runtime_that_is_cleaned() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let worker = bench.start(&version).await;
    bench.host.runtimes()[0].worker().unwrap().die();
    worker.kill();
    worker.kill();
    worker.retire();
    drop(worker);
    eventually(|| bench.counts(&version).available == 1).await;
    assert_eq!(bench.host.runtimes()[0].cleanings(), 1, "given back once");
    assert_eq!(bench.status(&version).totals.cleaned, 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_dropped_is_killed_and_its_runtime_cleaned() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    drop(bench.start(&version).await);
    let inner = bench.host.runtimes()[0].worker().unwrap();
    assert!(!inner.is_alive());
    eventually(|| bench.counts(&version).available == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_died_with_its_worker_is_not_cleaned() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let worker = bench.start(&version).await;
    bench.host.runtimes()[0].die();
    worker.kill();
    assert_eq!(bench.counts(&version), RuntimeCounts::default());
    assert_eq!(bench.host.runtimes()[0].cleanings(), 0);
}

#[tokio::test(start_paused = true)]
async fn code_that_cannot_be_imported_leaves_its_runtime_to_the_next() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let import = StartError::Import {
        body: "{}".to_owned(),
        output: String::new(),
    };
    bench.host.fail_specialisations([import.clone()]);
    assert_eq!(bench.try_start(&version).await.unwrap_err(), import);
    eventually(|| bench.counts(&version).available == 1).await;
    let _worker = bench.start(&version).await;
    assert_eq!(bench.host.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_any_other_failure_nobody_gets_the_runtime() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let runtime = StartError::Runtime {
        problem: "it never said ready".to_owned(),
        output: String::new(),
    };
    for error in [no_sandbox(), runtime] {
        bench.host.fail_specialisations([error.clone()]);
        assert_eq!(bench.try_start(&version).await.unwrap_err(), error);
        assert_eq!(bench.host.up(), 0);
    }
    assert_eq!(bench.status(&version).totals.destroyed, 2);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_given_up_leaves_nothing_wherever_it_was() {
    let bench = Bench::new();
    let (old, new) = (node("web", 1, "a"), node("web", 2, "b"));
    let second = Duration::from_secs(1);
    let give_up = |version| {
        let start = bench.pool.start(version, WorkerId(2));
        tokio::time::timeout(second / 2, start)
    };
    bench.host.starts_take(second);
    assert!(give_up(&old).await.is_err());
    assert_eq!(bench.status(&old).base, RuntimeCounts::default());
    bench.host.starts_take(Duration::ZERO);
    bench.host.specialisations_take(second);
    assert!(give_up(&old).await.is_err());
    assert_eq!(bench.status(&old).base, RuntimeCounts::default());
    bench.host.specialisations_take(Duration::ZERO);
    bench.use_once(&old).await;
    bench.host.adaptations_take(second);
    assert!(give_up(&new).await.is_err());
    assert_eq!(bench.status(&new).base, RuntimeCounts::default());
    assert_eq!(bench.host.up(), 0);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_limit_the_oldest_available_goes() {
    let bench = Bench::with(|settings| settings.runtimes_max = 2);
    let (ann, bob) = (node("ann", 1, "a"), node("bob", 1, "a"));
    let (first, second) = (bench.start(&ann).await, bench.start(&ann).await);
    second.retire();
    eventually(|| bench.counts(&ann).available == 1).await;
    first.retire();
    eventually(|| bench.counts(&ann).available == 2).await;
    let _bobs = bench.start(&bob).await;
    eventually(|| bench.host.up() == 2).await;
    assert!(
        !bench.host.runtimes()[0].is_up(),
        "the first was the oldest"
    );
    assert_eq!(bench.status(&ann).totals.evicted, 1);
}

#[tokio::test(start_paused = true)]
async fn with_a_limit_of_none_every_worker_gets_a_new_runtime() {
    let bench = Bench::with(|settings| settings.runtimes_max = 0);
    let version = node("web", 1, "a");
    for _ in 0..3 {
        bench.start(&version).await.retire();
    }
    eventually(|| bench.host.up() == 0).await;
    assert_eq!(bench.host.starts(), 3);
    let cleanings = bench.host.runtimes();
    assert!(cleanings.iter().all(|runtime| runtime.cleanings() == 0));
}

#[tokio::test(start_paused = true)]
async fn when_memory_is_short_the_oldest_go_but_none_that_a_worker_has() {
    let bench = Bench::new();
    bench.host.runtimes_use(60 << 20);
    let version = node("web", 1, "a");
    let leased = bench.start(&version).await;
    let others = [
        bench.start(&version).await,
        bench.start(&version).await,
        bench.start(&version).await,
    ];
    others.iter().for_each(|worker| worker.retire());
    eventually(|| bench.counts(&version).available == 3).await;
    // 100 MB over the limit: evicts two of 60 MB.
    bench.memory_used.store(900 << 20, Ordering::SeqCst);
    eventually(|| bench.counts(&version).available == 1).await;
    bench.memory_used.store(800 << 20, Ordering::SeqCst);
    // They are dropped on another thread.
    eventually(|| bench.host.up() == 2).await;
    let runtimes = bench.host.runtimes();
    let up: Vec<_> = runtimes
        .iter()
        .filter(|runtime| runtime.is_up())
        .map(|runtime| runtime.number())
        .collect();
    assert_eq!(up, [1, 4]);
    bench.memory_used.store(1000 << 20, Ordering::SeqCst);
    eventually(|| bench.counts(&version).available == 0).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(leased.is_alive());
    assert_eq!(bench.status(&version).totals.evicted, 3);
}

#[tokio::test(start_paused = true)]
async fn what_a_discarded_worker_leaves_is_ended_and_not_kept() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let worker = bench.start(&version).await;
    worker.discard();
    worker.retire();
    drop(worker);
    assert_eq!(bench.counts(&version), RuntimeCounts::default());
    eventually(|| bench.host.up() == 0).await;
    assert_eq!(bench.host.runtimes()[0].cleanings(), 0);
    assert_eq!(bench.status(&version).totals.evicted, 1);
}

#[tokio::test(start_paused = true)]
async fn memory_that_is_wanted_is_had_from_what_is_kept_the_oldest_first() {
    let bench = Bench::new();
    bench.host.runtimes_use(60 << 20);
    let version = node("web", 1, "a");
    let leased = bench.start(&version).await;
    let others = [bench.start(&version).await, bench.start(&version).await];
    others.iter().for_each(|worker| worker.retire());
    eventually(|| bench.counts(&version).available == 2).await;
    assert_eq!(bench.pool.relieve(1), 60 << 20);
    let runtimes = bench.host.runtimes();
    let up: Vec<_> = runtimes.iter().map(|runtime| runtime.is_up()).collect();
    assert_eq!(up, [true, false, true]);
    assert_eq!(bench.pool.relieve(u64::MAX), 60 << 20, "there is one left");
    assert!(leased.is_alive());
    assert_eq!(bench.status(&version).totals.evicted, 2);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wanted_for_long_is_let_go() {
    let bench = Bench::with(|settings| settings.keep = Duration::from_secs(5));
    let version = node("web", 1, "a");
    bench.use_once(&version).await;
    let begun = tokio::time::Instant::now();
    eventually(|| bench.host.up() == 0).await;
    let took = begun.elapsed().as_secs_f64();
    assert!((4.9..7.1).contains(&took), "{took} s");
    assert_eq!(bench.status(&version).totals.let_go, 1);
}

#[tokio::test(start_paused = true)]
async fn a_removed_functions_runtimes_go() {
    let bench = Bench::new();
    let (ann, bob) = (node("ann", 1, "a"), node("bob", 1, "a"));
    bench.use_once(&ann).await;
    bench.use_once(&bob).await;
    bench.pool.forget(&ann);
    eventually(|| bench.host.up() == 1).await;
    assert_eq!(bench.counts(&bob).available, 1);
}

#[tokio::test(start_paused = true)]
async fn an_old_versions_runtimes_outlive_it_for_the_next() {
    let bench = Bench::new();
    let (old, new) = (node("web", 1, "a"), node("web", 2, "b"));
    let news = bench.start(&new).await;
    bench.use_once(&old).await;
    bench.pool.forget(&old);
    drop(news);
    eventually(|| bench.counts(&new).available == 1).await;
    assert_eq!(bench.host.up(), 2);
    let workers = [bench.start(&new).await, bench.start(&new).await];
    assert_eq!(bench.host.starts(), 2);
    drop(workers);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_what_is_kept_and_what_is_being_cleaned() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let (kept, cleaned) = (bench.start(&version).await, bench.start(&version).await);
    let leased = bench.start(&version).await;
    kept.retire();
    eventually(|| bench.counts(&version).available == 1).await;
    bench.host.cleanings_take(Duration::from_secs(10));
    cleaned.retire();
    drop((kept, cleaned));
    let begun = tokio::time::Instant::now();
    bench.pool.close().await;
    assert_eq!(bench.host.up(), 1, "what a worker has is the worker's");
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(bench.try_start(&version).await.is_err());
    leased.retire();
    drop(leased);
    assert_eq!(bench.host.up(), 0);
    assert_eq!(bench.status(&version).base, RuntimeCounts::default());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_pool_ends_what_it_kept() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    bench.use_once(&version).await;
    let host = Arc::clone(&bench.host);
    drop(bench);
    eventually(|| host.up() == 0).await;
}
