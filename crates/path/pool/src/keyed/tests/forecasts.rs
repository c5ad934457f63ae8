//! Runtimes that are started ahead of demand.

use super::*;

/// Requires a fixed number, every second.
#[derive(Debug)]
struct Fixed(u32);

impl Forecaster for Fixed {
    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn tick(&mut self, _tick: &Tick) -> Target {
        Target {
            workers: self.0,
            idle: None,
        }
    }

    fn reason(&self) -> String {
        "because".to_owned()
    }
}

/// Requires as many as were in use at once.
#[derive(Debug)]
struct Mirror;

impl Forecaster for Mirror {
    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn tick(&mut self, tick: &Tick) -> Target {
        Target {
            workers: tick.demand_max,
            idle: None,
        }
    }

    fn reason(&self) -> String {
        String::new()
    }
}

#[derive(Debug)]
struct Panics;

impl Forecaster for Panics {
    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn tick(&mut self, _tick: &Tick) -> Target {
        panic!("this forecaster panics")
    }

    fn reason(&self) -> String {
        String::new()
    }
}

fn three(_: &ScaleConfig) -> Option<Box<dyn Forecaster>> {
    Some(Box::new(Fixed(3)))
}

#[tokio::test(start_paused = true)]
async fn prewarmed_runtimes_are_started_ahead_and_serve_any_key_of_the_base_key() {
    let bench = Bench::forecasting(three, |_| ());
    let (ann, bob) = (node("ann", 1, "a"), node("bob", 1, "b"));
    let _anns = bench.start(&ann).await;
    eventually(|| bench.status(&ann).base.available == 2).await;
    let base_key = Arc::new(FakeHost::key_of(&ann).base_key());
    assert_eq!(
        bench.steps(2),
        [RuntimeStep::Started(Arc::clone(&base_key))]
    );
    let _bobs = bench.start(&bob).await;
    assert_eq!(
        bench.last_start(&bob),
        format!(
            "adapted from {}: owner, environment, limits, mounts",
            base_key.short()
        )
    );
    let forecast = bench.status(&ann).forecast.unwrap();
    assert_eq!((forecast.target, forecast.reason.as_str()), (3, "because"));
    // Three in use or available: no more are started.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.host.starts(), 3);
    let kept = bench.pool.templates();
    assert_eq!((kept.len(), kept[0].level.as_str()), (1, "prewarmed"));
    assert_eq!(bench.pool.kept_so_far(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_started_ahead_is_not_taken_for_demand() {
    let bench = Bench::forecasting(|_| Some(Box::new(Mirror)), |_| ());
    let version = node("web", 1, "a");
    let _workers = [bench.start(&version).await, bench.start(&version).await];
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(bench.host.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn requests_take_over_what_is_being_started_ahead() {
    let bench = Bench::forecasting(three, |_| ());
    let ms = Duration::from_millis;
    bench.host.starts_take(ms(500));
    let version = node("web", 1, "a");
    let _first = bench.start(&version).await;
    bench.host.starts_take(ms(400));
    eventually(|| bench.status(&version).base.starting == 2).await;
    assert_eq!(bench.host.starts(), 3);
    let begun = tokio::time::Instant::now();
    // When one request gives up, the next one may wait.
    let given_up = tokio::time::timeout(ms(50), bench.try_start(&version));
    assert!(given_up.await.is_err());
    let _both = tokio::join!(bench.start(&version), bench.start(&version));
    assert!(begun.elapsed() <= ms(400));
    assert_eq!(bench.host.starts(), 3);
    assert_eq!(bench.status(&version).totals.adapted, 2);
}

#[tokio::test(start_paused = true)]
async fn when_what_it_waits_for_fails_a_request_has_its_own_started() {
    let bench = Bench::forecasting(|_| Some(Box::new(Fixed(2))), |_| ());
    let ms = Duration::from_millis;
    bench.host.starts_take(ms(500));
    let version = node("web", 1, "a");
    let _first = bench.start(&version).await;
    bench.host.starts_take(ms(200));
    bench.host.fail_starts([no_sandbox()]);
    eventually(|| bench.status(&version).base.starting == 1).await;
    let begun = tokio::time::Instant::now();
    let _second = bench.start(&version).await;
    let took = begun.elapsed();
    assert!(
        took > ms(300) && took <= ms(450),
        "as soon as it has failed: {took:?}"
    );
    assert_eq!(bench.last_start(&version), "started");
}

#[tokio::test(start_paused = true)]
async fn what_is_started_with_execution_options_is_for_its_function_alone() {
    let bench = Bench::forecasting(three, |_| ());
    let of = |name, value: &str| {
        let value = value.to_owned();
        version_of(name, 1, |config| {
            "team".clone_into(&mut config.owner);
            let name = "UV_THREADPOOL_SIZE".to_owned();
            config.environment.insert(name, value);
        })
    };
    let (eight, nine) = (of("eight", "8"), of("nine", "9"));
    bench.use_once(&eight).await;
    eventually(|| bench.status(&eight).base.available == 3).await;
    let base_key = Arc::new(FakeHost::key_of(&eight).base_key());
    assert_eq!(
        bench.steps(2),
        [RuntimeStep::Started(Arc::clone(&base_key))]
    );
    let starts = bench.host.starts();
    let _nines = bench.start(&nine).await;
    assert_eq!(bench.last_start(&nine), "started");
    assert_eq!(bench.host.starts(), starts + 1);
    let _eights = [bench.start(&eight).await, bench.start(&eight).await];
    assert!(bench.last_start(&eight).starts_with("adapted from"));
}

#[tokio::test(start_paused = true)]
async fn starts_ahead_that_fail_are_tried_again_ever_later() {
    let bench = Bench::forecasting(three, |_| ());
    let version = node("web", 1, "a");
    let _worker = bench.start(&version).await;
    bench.host.fail_starts((0..1000).map(|_| no_sandbox()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let starts = bench.host.starts();
    assert!((6..20).contains(&starts), "{starts} starts in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_forecaster_that_panics_predicts_no_longer_and_all_else_goes_on() {
    let bench = Bench::forecasting(
        |_| Some(Box::new(Panics)),
        |settings| settings.keep = Duration::from_secs(5),
    );
    let version = node("web", 1, "a");
    bench.use_once(&version).await;
    assert!(bench.status(&version).forecast.is_some());
    eventually(|| bench.status(&version).forecast.is_none()).await;
    eventually(|| bench.host.up() == 0).await;
    bench.use_once(&version).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_for_a_version_that_is_given_up() {
    let bench = Bench::forecasting(three, |_| ());
    let version = node("web", 1, "a");
    bench.use_once(&version).await;
    eventually(|| bench.host.up() == 3).await;
    bench.pool.forget(&version);
    eventually(|| bench.host.up() == 0).await;
    eventually(|| bench.status(&version).forecast.is_none()).await;
    let starts = bench.host.starts();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.host.starts(), starts);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_what_is_being_started_ahead() {
    let bench = Bench::forecasting(three, |_| ());
    let version = node("web", 1, "a");
    let worker = bench.start(&version).await;
    bench.host.starts_take(Duration::from_secs(10));
    eventually(|| bench.status(&version).base.starting > 0).await;
    worker.retire();
    drop(worker);
    let begun = tokio::time::Instant::now();
    bench.pool.close().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.host.up(), 0);
    assert_eq!(bench.status(&version).base, RuntimeCounts::default());
}

#[tokio::test(start_paused = true)]
async fn how_many_there_are_is_told_when_it_has_changed() {
    let bench = Bench::new();
    let version = node("web", 1, "a");
    let worker = bench.start(&version).await;
    let told = || {
        let events = bench.sink.events();
        let counted = events.iter().filter_map(|event| match event {
            Event::RuntimesCounted(counts) => Some(*counts),
            _ => None,
        });
        counted.collect::<Vec<_>>()
    };
    eventually(|| told().last().is_some_and(|counts| counts.leased == 1)).await;
    let before = told().len();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(told().len(), before);
    worker.retire();
    eventually(|| told().last().is_some_and(|counts| counts.available == 1)).await;
}
