//! The rules of starts, with slow starts and with short ones.

use super::*;

/// A pool that has seen starts of `start_ms`, and a worker for each of `busy`: the time that its invocation has run, in ms. The
/// service time is `service_ms`. It is at [`NOW`].
fn pool(
    rule: StartRule,
    start_ms: u64,
    service_ms: Option<u64>,
    busy: &[u64],
) -> PoolState<u64, u64> {
    let mut state = PoolState::new(Settings {
        start_rule: rule,
        ..settings()
    });
    let mut actions = Vec::new();
    state.scale(Instant(0), 1, &mut actions);
    state.ready(Instant(start_ms * MS), Key(0), 0, &mut actions);
    if let Some(service_ms) = service_ms {
        let since = Instant(start_ms * MS);
        state.arrive(since, || 0, &mut actions);
        let end = since.after(Duration::from_millis(service_ms));
        state.release(end, Key(0), since, Ending::Reusable, &mut actions);
    }
    // The busy workers are started in no time; the pool keeps what it knew of starts.
    let times = state.start_times;
    let up = Instant(10_000 * MS);
    actions.clear();
    state.scale(up, u32::try_from(busy.len()).unwrap(), &mut actions);
    for action in std::mem::take(&mut actions) {
        if let Action::Start(key) = action {
            state.ready(up, key, u64::from(key.0), &mut actions);
        }
    }
    state.start_times = times;
    let mut ages = busy.to_vec();
    ages.sort_unstable();
    for age_ms in ages.into_iter().rev() {
        let arrival = state.arrive(Instant(NOW.0 - age_ms * MS), || 0, &mut actions);
        assert!(matches!(arrival, Arrival::Leased(..)), "{arrival:?}");
    }
    state
}

const NOW: Instant = Instant(1_000_000 * MS);

/// How many starts are ordered for this many requests that arrive now.
fn starts_for(mut state: PoolState<u64, u64>, requests: u64) -> usize {
    let mut actions = Vec::new();
    for request in 0..requests {
        state.arrive(NOW, || request, &mut actions);
    }
    starts(&actions)
}

#[test]
fn of_slow_starts_each_waiting_request_gets_one() {
    for (rule, wanted) in [
        // Ten busy workers will have taken eighteen requests.
        (StartRule::Sooner, 0),
        (StartRule::Each, 10),
        (StartRule::Expected, 10),
    ] {
        let busy = [0, 50, 100, 150, 200, 250, 300, 350, 400, 450];
        let state = pool(rule, 900, Some(500), &busy);
        assert_eq!(starts_for(state, 10), wanted, "{rule}");
    }
}

#[test]
fn who_is_served_soon_enough_anyway_needs_no_start() {
    // Two of three workers are free within 20 ms.
    for rule in [StartRule::Each, StartRule::Expected] {
        let free_soon = || pool(rule, 900, Some(500), &[0, 485, 490]);
        assert_eq!(starts_for(free_soon(), 2), 0, "{rule}");
        assert_eq!(starts_for(free_soon(), 3), 1, "{rule}");
    }
}

#[test]
fn of_short_starts_all_rules_order_the_same() {
    for busy in [&[][..], &[0, 1, 2], &[5, 9, 40]] {
        let ordered = StartRule::ALL.map(|rule| starts_for(pool(rule, 20, Some(10), busy), 50));
        assert!(ordered.iter().all(|of| *of == ordered[0]), "{ordered:?}");
    }
}

#[test]
fn few_short_starts_are_in_progress_at_once_and_the_next_ones_come_if_they_still_pay() {
    // What was measured is right, or a machine with much to do has slowed it down.
    for (service_us, wanted) in [(100_000, 50..=50), (300, 4..=12)] {
        let mut state = held(4, pool(StartRule::default(), 2, Some(100), &[]));
        let mut actions = Vec::new();
        for request in 0..50 {
            state.arrive(NOW, || request, &mut actions);
        }
        let (mut now, mut last_ready) = (NOW, NOW);
        let mut starting: BTreeSet<(Instant, u32)> = BTreeSet::new();
        let mut running: BTreeSet<(Instant, u32)> = BTreeSet::new();
        let (mut started, mut served) = (0, 0);
        loop {
            for action in actions.drain(..) {
                match action {
                    Action::Start(key) => {
                        // Starts share the machine: one is ready every millisecond.
                        last_ready = last_ready.max(now).after(Duration::from_millis(1));
                        starting.insert((last_ready, key.0));
                        started += 1;
                    }
                    Action::Give { key, .. } => {
                        running.insert((now, key.0));
                        served += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(starting.len() <= 4, "{starting:?}");
            if served == 50 {
                break;
            }
            let over = |since: &Instant| since.after(Duration::from_micros(service_us));
            let ready = starting.first().copied();
            let ended = running.first().copied();
            match (ready, ended) {
                (ready, Some((since, key))) if ready.is_none_or(|(at, _)| over(&since) < at) => {
                    running.remove(&(since, key));
                    now = over(&since);
                    state.release(now, Key(key), since, Ending::Reusable, &mut actions);
                }
                (Some((at, key)), _) => {
                    starting.remove(&(at, key));
                    now = at;
                    state.ready(now, Key(key), 0, &mut actions);
                }
                (None, None) => panic!("{served} are served, and nothing goes on"),
                (None, Some(_)) => unreachable!("the first arm takes it"),
            }
        }
        assert!(
            wanted.contains(&started),
            "{started} starts for {service_us} µs"
        );
    }
}

/// With so many short starts at once.
fn held(short_starts_max: u32, mut state: PoolState<u64, u64>) -> PoolState<u64, u64> {
    state.settings.short_starts_max = short_starts_max;
    state
}

#[test]
fn slow_starts_and_those_of_workers_for_one_invocation_are_not_held() {
    for rule in [StartRule::Each, StartRule::Expected] {
        assert_eq!(
            starts_for(held(2, pool(rule, 900, Some(500), &[])), 10),
            10,
            "{rule}"
        );
    }
    let mut once = held(2, pool(StartRule::default(), 2, Some(100), &[]));
    once.settings.reuse = Reuse::Once;
    assert_eq!(starts_for(once, 10), 10);
}

#[test]
fn nobody_is_refused_whose_start_is_only_held() {
    let mut state = held(2, pool(StartRule::default(), 2, Some(10_000), &[0]));
    let mut actions = Vec::new();
    // The service time is 10 s. 63 more workers may start, each of which takes 2 ms.
    for request in 0..60 {
        let wait = Bounds {
            longest: 1_000 * MS,
            left: None,
            class: Class::Caller,
        };
        let arrival = state.arrive_within(NOW, wait.wait(NOW), || request, &mut actions);
        assert!(
            matches!(arrival, Arrival::Queued(_)),
            "{request}: {arrival:?}"
        );
    }
    assert_eq!(starts(&actions), 2);
}

#[test]
fn while_the_service_time_is_unknown_slow_starts_wait_for_the_age_of_what_runs() {
    for rule in [StartRule::Each, StartRule::Expected] {
        assert_eq!(starts_for(pool(rule, 900, None, &[0]), 50), 0, "{rule}");
        assert_eq!(starts_for(pool(rule, 900, None, &[100]), 50), 50, "{rule}");
        let mut state = pool(rule, 900, None, &[0]);
        state.arrive(NOW, || 0, &mut Vec::new());
        let looks_again = state.due().since(NOW);
        assert!(looks_again <= Duration::from_millis(10), "{looks_again:?}");
    }
}

#[test]
fn starts_that_come_too_late_for_anyone_are_not_ordered() {
    // A start takes six times as long as an invocation. Thirty requests per second arrive from now on, as in the paper's step.
    let ordered = StartRule::ALL.map(|rule| {
        let mut state = pool(rule, 3_000, Some(500), &[]);
        let mut actions = Vec::new();
        (0..90).for_each(|request| {
            let at = NOW.after(Duration::from_millis(request * 1000 / 30));
            state.arrive(at, || request, &mut actions);
        });
        starts(&actions)
    });
    let [_, each, expected] = ordered;
    assert_eq!(each, 64, "as many as there may be");
    // Fifteen workers serve thirty per second; the queue of three seconds has to be served as well.
    assert!((16..each).contains(&expected), "{ordered:?}");
}

#[test]
fn the_time_of_building_a_template_is_not_the_time_of_a_start() {
    let mut state = PoolState::<u64, u64>::new(settings());
    let mut actions = Vec::new();
    for request in 0..50 {
        state.arrive(Instant(0), || request, &mut actions);
    }
    assert_eq!(starts(&actions), 1);
    state.began_late(Key(0), Instant(600 * MS));
    state.ready(Instant(602 * MS), Key(0), 1, &mut actions);
    assert_eq!(state.start_times.measured(), Some(2 * MS));
    assert!(starts(&actions) <= 2, "{}", starts(&actions));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_start_is_ordered_for_waiting_requests_beyond_their_number(
        settings in any_settings(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let slots = settings.concurrency;
        let mut world = World::new(Settings { min: 0, spare: 0, ..settings });
        for step in &steps {
            if matches!(step, Step::Scale(_) | Step::ApplyTarget(..)) {
                continue;
            }
            let before: BTreeSet<u32> = world.starting.clone();
            world.take(step);
            if world.starting.difference(&before).next().is_some() {
                let others = world.state.starting - 1;
                prop_assert!(((others * slots) as usize) < world.state.queue.len());
            }
        }
    }
}

#[test]
fn a_burst_of_long_calls_gets_its_workers_within_a_few_reviews() {
    // A start takes 1.5 ms, each further one 0.7 ms. The handler takes 100 ms, which is not known before.
    let mut state = PoolState::<u64, u64>::new(settings());
    let mut actions = Vec::new();
    for request in 0..50 {
        state.arrive(Instant(0), || request, &mut actions);
    }
    assert_eq!(starts(&actions), 1);
    let mut now = 0;
    let mut ready_at: Vec<(u64, Key)> = Vec::new();
    let mut last_ready = 0;
    let mut worker = 0;
    let mut given = 0;
    while given < 50 {
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Start(key) => {
                    last_ready = (now + 1_500_000).max(last_ready + 700_000);
                    ready_at.push((last_ready, key));
                }
                Action::Give { .. } => given += 1,
                other => panic!("{other:?}"),
            }
        }
        ready_at.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        let next_ready = ready_at.last().map_or(u64::MAX, |(at, _)| *at);
        // The timer wheel has a resolution of one millisecond.
        let next_tick = state.due().0.max(now).div_ceil(MS) * MS + MS;
        if next_ready <= next_tick {
            now = next_ready;
            if let Some((_, key)) = ready_at.pop() {
                worker += 1;
                state.ready(Instant(now), key, worker, &mut actions);
            }
        } else {
            now = next_tick;
            state.tick(Instant(now), &mut actions);
        }
    }
    assert!(
        now < 60 * MS,
        "the last worker is there after {} ms",
        now / MS
    );
}
