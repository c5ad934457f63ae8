//! Which workers are kept, and for how long.

use std::time::Duration;

use pilot_invoke::Limits;
use pilot_model::ports::{Engine, Platform, TemplateMemory};
use pilot_model::{EndReason, Event, Reuse, StartKind};
use pilot_testkit::{FakeWorker, Reaction};

use crate::fixture::{Fixture, ms, pass, to};

#[tokio::test(start_paused = true)]
async fn an_idle_worker_is_reaped_after_its_time() {
    let fixture = Fixture::new();
    fixture.deploy(|config| config.scale.idle = Duration::from_secs(10));
    fixture.call().await.unwrap();
    pass(Duration::from_millis(9_900)).await;
    assert_eq!(fixture.engine.alive(), 1);
    pass(ms(200)).await;
    assert_eq!(fixture.engine.alive(), 0);
    assert_eq!(fixture.sink.ended()[0], EndReason::Idle);
}

#[tokio::test(start_paused = true)]
async fn a_worker_in_use_is_not_reaped() {
    let fixture = Fixture::new();
    fixture.deploy(|config| config.scale.idle = Duration::from_secs(1));
    for _ in 0..10 {
        assert!(fixture.call().await.is_ok());
        pass(ms(900)).await;
    }
    assert_eq!(fixture.engine.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn min_workers_are_there_before_anyone_asks_and_stay() {
    let fixture = Fixture::new();
    fixture.deploy(|config| {
        config.scale.min = 2;
        config.scale.idle = Duration::from_secs(1);
    });
    pass(ms(10)).await;
    assert_eq!(fixture.workers().idle, 2);
    assert_eq!(fixture.call().await.unwrap().start, StartKind::Warm);
    pass(Duration::from_secs(100)).await;
    assert_eq!(fixture.engine.alive(), 2);
}

#[tokio::test(start_paused = true)]
async fn once_gives_every_invocation_a_fresh_worker() {
    let fixture = Fixture::new();
    fixture.deploy(|config| config.reuse = Reuse::Once);
    for count in 1..=3 {
        assert_eq!(fixture.call().await.unwrap().start, StartKind::Cold);
        pass(ms(1)).await;
        assert_eq!(fixture.engine.starts(), count);
        assert_eq!(fixture.engine.alive(), 0);
    }
    assert!(
        fixture
            .sink
            .ended()
            .iter()
            .all(|reason| *reason == EndReason::Once)
    );
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_once_gets_a_worker_each() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(2), ms(1));
    fixture.deploy(|config| config.reuse = Reuse::Once);
    assert!(fixture.burst(50).await.iter().all(Result::is_ok));
    pass(ms(100)).await;
    assert_eq!(fixture.engine.starts(), 50);
    for worker in fixture.engine.workers() {
        assert_eq!(worker.calls().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn spare_workers_stand_ready_while_the_function_is_hot() {
    let fixture = Fixture::new();
    fixture.engine.starts_take(ms(5), ms(0));
    fixture.deploy(|config| {
        config.reuse = Reuse::Once;
        config.scale.spare = 1;
        config.scale.idle = Duration::from_secs(10);
    });
    pass(Duration::from_secs(1)).await;
    assert_eq!(fixture.engine.starts(), 0, "not hot yet");
    assert_eq!(fixture.call().await.unwrap().start, StartKind::Cold);
    for _ in 0..3 {
        pass(ms(20)).await;
        assert_eq!(fixture.workers().idle, 1);
        assert_eq!(fixture.call().await.unwrap().start, StartKind::Warm);
    }
    pass(Duration::from_secs(30)).await;
    assert_eq!(fixture.engine.alive(), 0, "not hot any more");
}

#[tokio::test(start_paused = true)]
async fn a_spare_worker_is_replaced_while_the_call_that_took_it_still_runs() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(500)));
    fixture.deploy(|config| config.scale.spare = 1);
    let running = fixture.begin();
    pass(ms(20)).await;
    let workers = fixture.workers();
    assert_eq!((workers.busy, workers.idle), (1, 1));
    running.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn scaling_to_zero_retires_idle_workers_at_once_and_spares_busy_ones() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::after(ms(100)));
    fixture.deploy(|config| config.scale.min = 2);
    pass(ms(1)).await;
    let running = fixture.begin();
    pass(ms(10)).await;
    let name = "f".parse().unwrap();
    let status = fixture.invoker.scale(&name, to(0)).unwrap();
    assert_eq!((status.busy, status.idle), (1, 0));
    assert!(running.await.unwrap().is_ok());
    assert_eq!(fixture.sink.ended()[0], EndReason::Scaled);
    assert!(
        fixture
            .invoker
            .scale(&"g".parse().unwrap(), to(0))
            .is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn scaling_up_starts_workers_ahead() {
    let fixture = Fixture::new();
    fixture.deploy(|_| ());
    let status = fixture.invoker.scale(&"f".parse().unwrap(), to(3)).unwrap();
    assert_eq!(status.starting, 3);
    pass(ms(5)).await;
    assert_eq!(fixture.workers().idle, 3);
    assert_eq!(fixture.call().await.unwrap().start, StartKind::Warm);
}

#[tokio::test(start_paused = true)]
async fn over_the_memory_budget_the_coldest_idle_goes_first_and_the_leased_never() {
    let fixture = Fixture::with(Limits {
        memory_bytes_max: Some(25 << 20),
        memory_sample_every: Duration::from_secs(5),
        ..Limits::default()
    });
    fixture.engine.workers_use(10 << 20);
    fixture.engine.serve(|_| Reaction::after(ms(9_000)));
    fixture.deploy(|config| config.timeout = Duration::from_secs(20));
    let running = fixture.begin();
    pass(ms(20)).await;
    fixture.invoker.scale(&"f".parse().unwrap(), to(3)).unwrap();
    pass(Duration::from_secs(6)).await;
    let ended = fixture.sink.ended();
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(ended[0], EndReason::Pressure);
    assert_eq!(fixture.workers().memory_bytes, 20 << 20);
    let record = running.await.unwrap().unwrap();
    assert_eq!(record.outcome, pilot_model::Outcome::Ok);
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_and_has_no_worker_goes_before_idle_workers() {
    let fixture = Fixture::with(Limits {
        memory_bytes_max: Some(25 << 20),
        memory_sample_every: Duration::from_secs(5),
        ..Limits::default()
    });
    fixture.engine.workers_use(10 << 20);
    fixture.deploy(|_| ());
    fixture.engine.templates_are(vec![TemplateMemory {
        level: "prewarmed".to_owned(),
        name: "a kept runtime".to_owned(),
        memory_bytes: 10 << 20,
    }]);
    fixture.invoker.scale(&"f".parse().unwrap(), to(2)).unwrap();
    pass(Duration::from_secs(20)).await;
    assert!(fixture.engine.templates().is_empty());
    assert!(fixture.sink.ended().is_empty());
    assert_eq!(fixture.workers().idle, 2);
}

#[tokio::test(start_paused = true)]
async fn what_becomes_ready_long_after_the_last_use_is_counted_too() {
    let fixture = Fixture::with(Limits {
        memory_bytes_max: Some(25 << 20),
        memory_sample_every: Duration::from_secs(5),
        ..Limits::default()
    });
    fixture.deploy(|_| ());
    pass(Duration::from_secs(20)).await;
    fixture.engine.templates_are(vec![TemplateMemory {
        level: "prewarmed".to_owned(),
        name: "a runtime whose start took long".to_owned(),
        memory_bytes: 30 << 20,
    }]);
    pass(Duration::from_secs(6)).await;
    assert!(fixture.engine.templates().is_empty());
}

#[tokio::test(start_paused = true)]
async fn when_no_idle_worker_is_left_templates_go() {
    let fixture = Fixture::with(Limits {
        memory_bytes_max: Some(1 << 20),
        memory_sample_every: Duration::from_secs(5),
        ..Limits::default()
    });
    let version = fixture.deploy(|_| ());
    fixture.engine.templates_are(vec![TemplateMemory {
        level: "function".to_owned(),
        name: version.id.to_string(),
        memory_bytes: 30 << 20,
    }]);
    pass(Duration::from_secs(6)).await;
    assert_eq!(fixture.engine.evicted(), std::slice::from_ref(&version.id));
    // It is still deployed.
    assert!(fixture.engine.forgotten().is_empty());
    assert!(fixture.call().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn records_have_the_cpu_time_of_the_invocation_and_of_the_worker() {
    let fixture = Fixture::new();
    fixture.deploy(|config| config.scale.idle = Duration::from_secs(10));
    fixture.call().await.unwrap();
    fixture.call().await.unwrap();
    pass(Duration::from_secs(11)).await;
    let records = fixture.sink.records();
    let cpu: Vec<_> = records.iter().map(|record| record.cpu).collect();
    assert_eq!(cpu, [Some(FakeWorker::CPU_PER_CALL); 2]);
    let events = fixture.sink.events();
    let ended = events.iter().find_map(|event| match event {
        Event::WorkerEnded(record) => Some(record),
        _ => None,
    });
    let ended = ended.unwrap();
    assert_eq!(ended.cpu.unwrap().total(), ms(6));
    assert!(ended.lived >= Duration::from_secs(10), "{:?}", ended.lived);
}

#[tokio::test(start_paused = true)]
async fn what_was_computed_counts_whatever_the_worker_says() {
    let fixture = Fixture::new();
    fixture.engine.serve(|_| Reaction::denies(ms(900)));
    for concurrency in [1, 2] {
        fixture.deploy(|config| config.concurrency = concurrency);
        fixture.call().await.unwrap();
    }
    for record in fixture.sink.records() {
        let ran = record.timeline.handler().unwrap();
        // The test machine's CPUs may be many, but the function has one.
        assert!(ran > ms(600) && ran <= ms(900), "{ran:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_invocation_alone_in_a_worker_for_several_has_all_of_its_cpu_time() {
    let fixture = Fixture::new();
    fixture.deploy(|config| config.concurrency = 2);
    fixture.call().await.unwrap();
    let cpu = fixture.sink.records()[0].cpu;
    assert_eq!(cpu, Some(FakeWorker::CPU_PER_CALL));
}
