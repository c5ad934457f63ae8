//! Which runtime a worker gets.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_used_runtime_is_cleaned_and_reused() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    assert_eq!(
        bench.status(&version).availability,
        Availability::NotExisting
    );
    bench.use_once(&version).await;
    assert_eq!(bench.status(&version).availability, Availability::Available);
    let worker = bench.start(&version).await;
    assert_eq!(bench.host.starts(), 1);
    let key = Arc::new(FakeHost::key_of(&version));
    assert_eq!(
        bench.steps(1),
        [
            RuntimeStep::Started(key),
            specialised(&version),
            RuntimeStep::Cleaned,
            specialised(&version),
        ]
    );
    let status = bench.status(&version);
    assert_eq!(status.availability, Availability::NotAvailable);
    let totals = status.totals;
    assert_eq!((totals.started, totals.reused, totals.cleaned), (1, 1, 1));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_reuse_says_what_it_saved() {
    let bench = Bench::new();
    bench.host.starts_take(Duration::from_millis(40));
    let version = node("web", 1, "a");
    bench.use_once(&version).await;
    let first = bench.status(&version).last.unwrap();
    assert_eq!((first.how.as_str(), first.saved_ms), ("started", None));
    assert!((first.took_ms - 40.0).abs() < 1.5, "{}", first.took_ms);
    let _worker = bench.start(&version).await;
    let second = bench.status(&version).last.unwrap();
    assert_eq!(second.how, "reused");
    assert!((second.saved_ms.unwrap() - 40.0).abs() < 1.5);
    let given: Vec<_> = bench
        .sink
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::RuntimeGiven { origin, .. } => Some(*origin),
            _ => None,
        })
        .collect();
    assert_eq!(given, [RuntimeOrigin::Started, RuntimeOrigin::Reused]);
}

#[tokio::test(start_paused = true)]
async fn the_next_versions_worker_gets_the_old_ones_runtime_adapted() {
    let bench = Bench::new();
    let (old, new) = (node("web", 1, "a"), node("web", 2, "b"));
    bench.use_once(&old).await;
    let _worker = bench.start(&new).await;
    assert_eq!(bench.host.starts(), 1);
    let key = FakeHost::key_of(&old).short();
    assert_eq!(
        bench.last_start(&new),
        format!("adapted from {key}: environment")
    );
    let adapted = RuntimeStep::Adapted(Arc::new(FakeHost::key_of(&new)));
    assert!(bench.steps(1).contains(&adapted));
    assert_eq!(bench.status(&new).totals.adapted, 1);
    assert_eq!(bench.status(&old).availability, Availability::NotExisting);
}

#[tokio::test(start_paused = true)]
async fn two_workers_at_once_have_a_runtime_each() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let (one, two) = tokio::join!(bench.start(&version), bench.start(&version));
    assert_eq!((bench.host.starts(), bench.host.up()), (2, 2));
    assert_eq!(bench.counts(&version).leased, 2);
    drop((one, two));
}

#[tokio::test(start_paused = true)]
async fn functions_of_one_owner_share_their_runtimes() {
    let bench = Bench::new();
    let of = |name| version_of(name, 1, |config| "team".clone_into(&mut config.owner));
    let (one, two) = (of("a"), of("b"));
    bench.use_once(&one).await;
    let _worker = bench.start(&two).await;
    assert_eq!(
        (bench.host.starts(), bench.last_start(&two)),
        (1, "reused".to_owned())
    );
}

#[tokio::test(start_paused = true)]
async fn what_one_owner_has_used_never_reaches_another() {
    let bench = Bench::new();
    let (ann, bob) = (node("ann", 1, "a"), node("bob", 1, "a"));
    bench.use_once(&ann).await;
    bench.use_once(&bob).await;
    assert_eq!(bench.host.starts(), 2);
    for runtime in bench.host.runtimes() {
        let functions: Vec<_> = runtime
            .steps()
            .into_iter()
            .filter(|step| matches!(step, RuntimeStep::Specialised(_)))
            .collect();
        assert_eq!(functions.len(), 1, "{functions:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_died_is_passed_over() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    bench.use_once(&version).await;
    bench.host.runtimes()[0].die();
    let _worker = bench.start(&version).await;
    assert_eq!(bench.host.starts(), 2);
    assert_eq!(bench.status(&version).totals.destroyed, 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_adapted_is_ended_and_after_two_attempts_a_fresh_one_is_started() {
    let bench = Bench::new();
    let (old, new) = (node("web", 1, "a"), node("web", 2, "b"));
    let workers = [
        bench.start(&old).await,
        bench.start(&old).await,
        bench.start(&old).await,
    ];
    workers.iter().for_each(|worker| worker.retire());
    eventually(|| bench.counts(&old).available == 3).await;
    bench.host.fail_adaptations([no_sandbox(), no_sandbox()]);
    let _worker = bench.start(&new).await;
    assert_eq!(bench.last_start(&new), "started");
    assert_eq!((bench.host.starts(), bench.host.up()), (4, 2));
    assert_eq!(bench.status(&new).totals.destroyed, 2);
}

#[tokio::test(start_paused = true)]
async fn adapting_is_bounded() {
    let bench = Bench::with(|settings| settings.adapt_max = Duration::from_secs(3));
    let (old, new) = (node("web", 1, "a"), node("web", 2, "b"));
    bench.use_once(&old).await;
    bench.host.adaptations_take(Duration::from_secs(3600));
    let begun = tokio::time::Instant::now();
    let _worker = bench.start(&new).await;
    assert_eq!(bench.last_start(&new), "started");
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_eq!(bench.host.up(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_may_start_base_keys_alone() {
    let bench = Bench::new();
    bench.host.start_base_keys_only();
    let version = node("web", 1, "a");
    let _worker = bench.start(&version).await;
    let key = FakeHost::key_of(&version);
    assert_eq!(
        bench.steps(1)[..2],
        [
            RuntimeStep::Started(Arc::new(key.base_key())),
            RuntimeStep::Adapted(Arc::new(key))
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_workers_exchanges_are_its_own() {
    let bench = Bench::new();
    let worker = bench.start(&node("web", 1, "a")).await;
    let call = pilot_testkit::event_call("1", "{}");
    worker.call(call).await.expect("it answers");
    let inner = bench.host.runtimes()[0].worker().unwrap();
    assert_eq!(inner.calls().len(), 1);
    assert_eq!((worker.id(), worker.is_alive()), (WorkerId(1), true));
    inner.die();
    assert!(!worker.is_alive());
}

#[tokio::test(start_paused = true)]
async fn a_deployment_tries_a_worker_and_keeps_its_runtime_clean() {
    let bench = Bench::new();
    bench.host.starts_take(Duration::from_millis(40));
    bench.host.cleanings_take(Duration::from_millis(10));
    let version = node("web", 1, "a");
    let report = bench.pool.prepare(&version).await.unwrap();
    assert!(report.took >= Duration::from_millis(40) && report.took < Duration::from_millis(45));
    assert_eq!(bench.counts(&version).available, 1);
    let _worker = bench.start(&version).await;
    assert_eq!(bench.last_start(&version), "reused");
}

#[tokio::test(start_paused = true)]
async fn a_deployment_does_not_wait_long_for_a_server_that_takes_its_time_to_end() {
    let bench = Bench::new();
    bench.host.cleanings_take(Duration::from_secs(10));
    let version = node("web", 1, "a");
    let begun = tokio::time::Instant::now();
    bench.pool.prepare(&version).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert_eq!(bench.counts(&version).cleaning, 1);
    eventually(|| bench.counts(&version).available == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_fails_leaves_nothing() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let import = StartError::Import {
        body: "{}".to_owned(),
        output: String::new(),
    };
    bench.host.fail_specialisations([import.clone()]);
    assert_eq!(bench.pool.prepare(&version).await, Err(import));
    eventually(|| bench.host.up() == 0).await;
    assert_eq!(bench.status(&version).base, RuntimeCounts::default());
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_never_comes_up_ends() {
    let bench = Bench::new();
    bench
        .host
        .specialisations_take(Duration::from_secs(1_000_000));
    let error = bench.pool.prepare(&node("web", 1, "a")).await.unwrap_err();
    assert!(error.to_string().contains("within 120 s"), "{error}");
    assert_eq!(bench.host.up(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_version_whose_runtime_no_host_makes_is_refused() {
    let bench = Bench::new();
    let version = version_of("qr", 1, |config| {
        config.runtime = Runtime::Container(pilot_model::runtime::container::ContainerRuntime {
            image: "qr:1".to_owned(),
            contract: pilot_model::Contract::Http,
            command: None,
            ready: None,
            ..Default::default()
        });
    });
    let error = bench.try_start(&version).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no host for runtime = \"container qr:1\""),
        "{error}"
    );
    assert_eq!(bench.pool.status(&version), None);
}

#[tokio::test(start_paused = true)]
async fn what_the_host_refuses_is_the_starts_error() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    bench.host.fail_starts([no_sandbox()]);
    assert_eq!(bench.try_start(&version).await.unwrap_err(), no_sandbox());
    assert_eq!(bench.counts(&version), RuntimeCounts::default());
    bench.host.fail_keys(no_sandbox());
    let other = node("other", 1, "a");
    assert_eq!(bench.try_start(&other).await.unwrap_err(), no_sandbox());
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_workers_serve_once_runs_on_one_runtime() {
    let bench = Bench::new();
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::new());
    let pools = crate::Pools::new(
        Arc::clone(&bench.pool) as Arc<dyn Engine>,
        Arc::clone(&bench.sink) as Arc<dyn EventSink>,
        Arc::clone(&clock),
        |_| None,
        crate::PoolLimits {
            queue_max: 10,
            start_wait_max: Duration::from_secs(10),
            wait_max: None,
            memory_bytes_max: None,
            workers_max: 1_000,
            memory_sample_every: Duration::from_secs(3600),
            start_rule: pilot_model::StartRule::default(),
            cpus: 2,
        },
    );
    let version = version_of("web", 1, |config| config.reuse = pilot_model::Reuse::Once);
    let pool = pools.open(Arc::clone(&version));
    for round in 1..=5 {
        let lease = match pool
            .lease(clock.now(), crate::Urgency::CALLER, None)
            .unwrap()
        {
            crate::Leased::Now(lease) => lease,
            crate::Leased::Later(waiting) => waiting.lease().await.unwrap(),
        };
        let mut lease = lease;
        lease.begin();
        lease.finish(clock.now());
        eventually(|| bench.status(&version).totals.cleaned == round).await;
    }
    assert_eq!(bench.host.starts(), 1);
    assert_eq!(bench.status(&version).totals.reused, 4);
    pools.close().await;
    bench.pool.close().await;
    assert_eq!(bench.host.up(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_takes_what_is_given_back_while_its_own_comes_up_and_its_own_is_kept() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let first = bench.start(&version).await;
    bench.host.starts_take(Duration::from_secs(1));
    let asked = tokio::time::Instant::now();
    let (second, ()) = tokio::join!(bench.start(&version), async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        first.retire();
        drop(first);
    });
    assert!(asked.elapsed() < Duration::from_millis(20));
    assert_eq!(bench.last_start(&version), "reused");
    eventually(|| bench.counts(&version).available == 1).await;
    assert_eq!((bench.host.starts(), bench.host.up()), (2, 2));
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_comes_up_when_nobody_waits_for_it_any_more_is_kept_as_what_was_asked_for() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let first = bench.start(&version).await;
    bench.host.start_base_keys_only();
    bench.host.starts_take(Duration::from_secs(1));
    let (_second, ()) = tokio::join!(bench.start(&version), async {
        first.retire();
        drop(first);
    });
    eventually(|| bench.counts(&version).available == 1).await;
    bench.start(&version).await;
    assert_eq!(
        (bench.host.starts(), bench.last_start(&version)),
        (2, "reused".to_owned())
    );
    let adapted = RuntimeStep::Adapted(Arc::new(FakeHost::key_of(&version)));
    assert!(bench.steps(2).contains(&adapted));
}
