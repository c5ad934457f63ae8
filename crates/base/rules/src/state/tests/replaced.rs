//! Workers that are replaced: after a renewal, after an exchange that timed out, and after a start that failed.

use super::*;

type State = PoolState<u64, u64>;
type Actions = Vec<Action<u64, u64>>;

#[test]
fn renewed_workers_serve_who_has_them_and_nobody_else() {
    let mut state: PoolState<u64, u64> = PoolState::new(settings());
    let mut actions = Vec::new();
    // One worker is idle and one is busy.
    state.scale(Instant(0), 2, &mut actions);
    let keys: Vec<Key> = actions
        .drain(..)
        .filter_map(|action| match action {
            Action::Start(key) => Some(key),
            _ => None,
        })
        .collect();
    for (worker, key) in keys.iter().enumerate() {
        state.ready(Instant(10), *key, worker as u64, &mut actions);
    }
    let leased = state.arrive(Instant(20), || 1, &mut actions);
    let Arrival::Leased(busy, busy_worker, _) = leased else {
        panic!("nothing is leased: {leased:?}");
    };
    actions.clear();
    state.renew(&mut actions);
    let retired = |actions: &[Action<u64, u64>]| -> Vec<u64> {
        let workers = actions.iter().filter_map(|action| match action {
            Action::Retire(worker, EndReason::Retired) => Some(*worker),
            _ => None,
        });
        workers.collect()
    };
    assert_eq!(retired(&actions), [1 - busy_worker], "the idle one at once");
    actions.clear();
    let asked = state.arrive(Instant(30), || 7, &mut actions);
    assert!(matches!(asked, Arrival::Queued(_)), "{asked:?}");
    let Some(Action::Start(new)) = actions.first() else {
        panic!("nothing is started: {actions:?}");
    };
    let new = *new;
    actions.clear();
    state.release(
        Instant(40),
        busy,
        Instant(20),
        Ending::Reusable,
        &mut actions,
    );
    assert_eq!(
        retired(&actions),
        [busy_worker],
        "the busy one when it is done"
    );
    actions.clear();
    state.renew(&mut actions);
    state.ready(Instant(50), new, 2, &mut actions);
    assert!(
        actions.iter().any(|action| matches!(
            action,
            Action::Give {
                to: 7,
                worker: 2,
                ..
            }
        )),
        "the starting one serves who waits for it: {actions:?}"
    );
    actions.clear();
    state.release(
        Instant(60),
        new,
        Instant(50),
        Ending::Reusable,
        &mut actions,
    );
    assert_eq!(retired(&actions), [2], "and then nobody");
    assert!(state.is_empty());
}

/// A pool with one worker that is up, and its place.
fn with_worker(settings: Settings) -> (State, Key) {
    let mut state = State::new(settings);
    let mut actions = Actions::new();
    state.scale(Instant(0), 1, &mut actions);
    let Some(Action::Start(key)) = actions.first() else {
        panic!("nothing is started: {actions:?}");
    };
    let key = *key;
    state.ready(Instant(MS), key, 1, &mut actions);
    (state, key)
}

fn several() -> Settings {
    Settings {
        concurrency: 4,
        max: 1,
        ..settings()
    }
}

fn given(actions: &[Action<u64, u64>]) -> Vec<u64> {
    let given = actions.iter().filter_map(|action| match action {
        Action::Give { to, .. } => Some(*to),
        _ => None,
    });
    given.collect()
}

#[test]
fn a_worker_that_only_ends_its_exchanges_takes_no_place() {
    for is_renewed in [true, false] {
        let (mut state, key) = with_worker(several());
        let mut actions = Actions::new();
        for request in 0..2 {
            let leased = state.arrive(Instant(2 * MS), || request, &mut actions);
            assert!(matches!(leased, Arrival::Leased(..)), "{leased:?}");
        }
        if is_renewed {
            state.renew(&mut actions);
        } else {
            let lost = Ending::Lost(EndReason::Timeout);
            state.release(Instant(9 * MS), key, Instant(2 * MS), lost, &mut actions);
        }
        assert_eq!(state.draining(), 1);
        actions.clear();
        let waits = state.arrive(Instant(10 * MS), || 2, &mut actions);
        assert!(matches!(waits, Arrival::Queued(_)), "{waits:?}");
        assert_eq!(starts(&actions), 1, "beside the one that ends");
        // But no more than `max` of them.
        let Some(Action::Start(second)) = actions.first() else {
            panic!("nothing is started: {actions:?}");
        };
        let second = *second;
        actions.clear();
        state.ready(Instant(11 * MS), second, 2, &mut actions);
        assert_eq!(given(&actions), [2]);
        state.renew(&mut actions);
        actions.clear();
        state.arrive(Instant(12 * MS), || 3, &mut actions);
        assert_eq!(starts(&actions), 0, "two end, and one may be beside them");
        state.release(
            Instant(13 * MS),
            second,
            Instant(11 * MS),
            Ending::Reusable,
            &mut actions,
        );
        assert_eq!(starts(&actions), 1, "one of them has ended");
    }
}

#[test]
fn a_worker_of_one_exchange_keeps_its_place_until_it_has_ended() {
    let (mut state, key) = with_worker(Settings {
        max: 1,
        ..settings()
    });
    let mut actions = Actions::new();
    state.arrive(Instant(2 * MS), || 0, &mut actions);
    state.renew(&mut actions);
    state.arrive(Instant(3 * MS), || 1, &mut actions);
    assert_eq!(starts(&actions), 0, "never two at the same time");
    let (since, ending) = (Instant(2 * MS), Ending::Reusable);
    state.release(Instant(4 * MS), key, since, ending, &mut actions);
    assert_eq!(starts(&actions), 1);
}

#[test]
fn a_start_that_began_before_a_renewal_serves_nobody_who_came_after_it() {
    let mut state = State::new(Settings {
        max: 2,
        ..settings()
    });
    let mut actions = Actions::new();
    state.scale(Instant(0), 1, &mut actions);
    let Some(Action::Start(old)) = actions.first() else {
        panic!("nothing is started: {actions:?}");
    };
    let old = *old;
    state.renew(&mut actions);
    state.renew(&mut actions);
    actions.clear();
    let waits = state.arrive(Instant(MS), || 5, &mut actions);
    assert!(matches!(waits, Arrival::Queued(_)), "{waits:?}");
    state.ready(Instant(2 * MS), old, 1, &mut actions);
    assert_eq!(given(&actions), [0; 0], "it has the old values");
    assert!(actions.contains(&Action::Retire(1, EndReason::Retired)));
    let new = actions.iter().find_map(|action| match action {
        Action::Start(key) => Some(*key),
        _ => None,
    });
    let new = new.expect("another one is started");
    actions.clear();
    state.ready(Instant(3 * MS), new, 2, &mut actions);
    assert_eq!(given(&actions), [5]);
}

#[test]
fn after_a_start_has_succeeded_an_import_that_fails_fails_one_request() {
    let once = Settings {
        max: 4,
        reuse: pilot_model::Reuse::Once,
        ..settings()
    };
    let (mut state, key) = with_worker(once);
    let mut actions = Actions::new();
    state.arrive(Instant(2 * MS), || 0, &mut actions);
    let mut asked = Vec::new();
    for request in 1..4 {
        actions.clear();
        state.arrive(Instant(2 * MS), || request, &mut actions);
        asked.extend(actions.iter().filter_map(|action| match action {
            Action::Start(key) => Some(*key),
            _ => None,
        }));
    }
    assert_eq!(asked.len(), 3, "each has a start of its own");
    actions.clear();
    state.start_failed(Instant(3 * MS), asked[1], StartFault::Import, &mut actions);
    assert_eq!(actions, [Action::Fail(2)]);
    actions.clear();
    state.ready(Instant(4 * MS), asked[0], 2, &mut actions);
    assert_eq!(given(&actions), [1]);
    // The last worker is gone, and so are two more starts: there is no hope for those who wait.
    for (key, since) in [(key, 2 * MS), (asked[0], 4 * MS)] {
        let lost = Ending::Lost(EndReason::Crash);
        state.release(Instant(5 * MS), key, Instant(since), lost, &mut actions);
    }
    state.arrive(Instant(6 * MS), || 8, &mut actions);
    state.arrive(Instant(6 * MS), || 9, &mut actions);
    let mut failed = Vec::new();
    for _ in 0..8 {
        let next = state
            .places
            .iter()
            .position(|place| matches!(place, Some(WorkerState::Starting { .. })));
        let Some(at) = next else { break };
        actions.clear();
        let key = Key(u32::try_from(at).unwrap());
        state.start_failed(Instant(7 * MS), key, StartFault::Import, &mut actions);
        failed.extend(actions.iter().filter_map(|action| match action {
            Action::Fail(request) => Some(*request),
            _ => None,
        }));
    }
    failed.sort_unstable();
    assert_eq!(failed, [3, 8, 9], "each exactly once");
    assert!(state.is_empty());
}

#[test]
fn without_patience_a_request_gets_a_start_of_its_own() {
    let (mut state, _) = with_worker(Settings {
        max: 64,
        ..settings()
    });
    let mut actions = Actions::new();
    let at_once = Wait {
        longest: Duration::ZERO,
        urgency: Urgency::CALLER,
    };
    // The service time is known: a start would take longer than a call.
    for _ in 0..3 {
        let Arrival::Leased(key, ..) = state.arrive(Instant(2 * MS), || 0, &mut actions) else {
            panic!("the worker is busy");
        };
        let (since, ending) = (Instant(2 * MS), Ending::Reusable);
        state.release(Instant(2 * MS + 100), key, since, ending, &mut actions);
    }
    state.arrive(Instant(3 * MS), || 0, &mut actions);
    actions.clear();
    let mut ids = Vec::new();
    for request in 1..20 {
        let now = Instant(3 * MS + 10);
        match state.arrive_within(now, at_once, || request, &mut actions) {
            Arrival::Queued(id) => ids.push(id),
            other => panic!("request {request} is not queued: {other:?}"),
        }
    }
    assert!(starts(&actions) > 0);
    assert!(
        ids.iter().all(|id| state.awaits_start(*id)),
        "no busy worker is waited for"
    );
}
