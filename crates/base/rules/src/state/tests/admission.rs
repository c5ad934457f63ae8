//! Admission by deadline, and whose turn it is.

use super::*;

/// A pool with one busy worker, whose invocations take 100 ms as far as is known. Returns the state and the worker's place.
fn busy() -> (PoolState<u64, u64>, Key) {
    let settings = Settings {
        max: 1,
        ..settings()
    };
    let mut state = PoolState::new(settings);
    let mut actions = Vec::new();
    state.arrive(Instant(0), || 0, &mut actions);
    let [Action::Start(key)] = actions[..] else {
        panic!("{actions:?}");
    };
    state.ready(Instant(MS), key, 7, &mut actions);
    for number in 1..10 {
        let (since, now) = (Instant((number - 1) * 100 * MS), Instant(number * 100 * MS));
        state.release(now, key, since, Ending::Reusable, &mut actions);
        let arrival = state.arrive(now, || number, &mut actions);
        assert!(matches!(arrival, Arrival::Leased(..)), "{arrival:?}");
    }
    (state, key)
}

const NOW: Instant = Instant(900 * MS);

fn within(longest_ms: u64, left_ms: Option<u64>) -> Wait {
    Bounds {
        longest: longest_ms * MS,
        left: left_ms.map(|left| left * MS),
        class: Class::Caller,
    }
    .wait(NOW)
}

fn ask(state: &mut PoolState<u64, u64>, request: u64, wait: Wait) -> Arrival<u64> {
    state.arrive_within(NOW, wait, || request, &mut Vec::new())
}

fn given(actions: &[Action<u64, u64>]) -> Vec<u64> {
    let given = |action: &_| match action {
        Action::Give { to, .. } => Some(*to),
        _ => None,
    };
    actions.iter().filter_map(given).collect()
}

fn refused(actions: &[Action<u64, u64>]) -> Vec<u64> {
    let refused = |action: &_| match action {
        Action::Refuse(to) => Some(*to),
        _ => None,
    };
    actions.iter().filter_map(refused).collect()
}

#[test]
fn a_request_is_refused_when_the_queue_takes_longer_than_it_may_wait() {
    let (mut state, _) = busy();
    // The running one takes 100 ms more.
    assert_eq!(
        ask(&mut state, 10, within(50, None)),
        Arrival::Late(Duration::from_millis(100))
    );
    for request in 10..13 {
        let arrival = ask(&mut state, request, within(300, None));
        assert!(matches!(arrival, Arrival::Queued(_)), "{arrival:?}");
    }
    assert_eq!(
        ask(&mut state, 13, within(300, None)),
        Arrival::Late(Duration::from_millis(400))
    );
    assert_eq!(state.counts().waiting, 3, "who is refused has no place");
    assert_eq!(
        state.expected_wait(NOW),
        Some(Duration::from_millis(400)),
        "which is what a client is told to wait"
    );
}

#[test]
fn a_request_is_refused_when_it_cannot_end_before_its_deadline() {
    let (mut state, _) = busy();
    let unbounded = u64::MAX / MS;
    // 100 ms until it begins, and 100 ms until it ends.
    assert!(matches!(
        ask(&mut state, 10, within(unbounded, Some(199))),
        Arrival::Late(_)
    ));
    assert!(matches!(
        ask(&mut state, 10, within(unbounded, Some(200))),
        Arrival::Queued(_)
    ));
}

#[test]
fn while_service_times_are_unknown_nobody_is_refused_for_a_wait() {
    let mut state = PoolState::<u64, u64>::new(Settings {
        max: 1,
        ..settings()
    });
    let mut actions = Vec::new();
    for request in 0..20 {
        let arrival = state.arrive_within(Instant(0), within(0, Some(1)), || request, &mut actions);
        assert!(matches!(arrival, Arrival::Queued(_)), "{arrival:?}");
    }
}

#[test]
fn a_free_worker_serves_who_cannot_be_served_in_time_so_that_the_estimate_is_corrected() {
    let (mut state, key) = busy();
    let mut actions = Vec::new();
    state.release(NOW, key, Instant(800 * MS), Ending::Reusable, &mut actions);
    let arrival = ask(&mut state, 10, within(0, Some(1)));
    assert!(matches!(arrival, Arrival::Leased(..)), "{arrival:?}");
}

#[test]
fn one_long_invocation_does_not_refuse_those_after_it() {
    let (mut state, key) = busy();
    let mut actions = Vec::new();
    let later = Instant(5_900 * MS);
    state.release(later, key, NOW, Ending::Reusable, &mut actions);
    state.arrive(later, || 10, &mut actions);
    let wait = Bounds {
        longest: 400 * MS,
        left: None,
        class: Class::Caller,
    };
    let arrival = state.arrive_within(later, wait.wait(later), || 11, &mut actions);
    assert!(matches!(arrival, Arrival::Queued(_)), "{arrival:?}");
}

#[test]
fn who_can_no_longer_be_served_in_time_holds_up_nobody() {
    let (mut state, key) = busy();
    let unbounded = u64::MAX / MS;
    for (request, left) in [(10, 250), (11, 350), (12, 2_000)] {
        let arrival = ask(&mut state, request, within(unbounded, Some(left)));
        assert!(matches!(arrival, Arrival::Queued(_)), "{arrival:?}");
    }
    // The running one took 300 ms instead of 100.
    let mut actions = Vec::new();
    let now = Instant(1_200 * MS);
    state.release(now, key, NOW, Ending::Reusable, &mut actions);
    assert_eq!(refused(&actions), [10, 11]);
    assert_eq!(given(&actions), [12]);
}

#[test]
fn who_has_a_caller_is_served_before_who_has_none() {
    let (mut state, key) = busy();
    let background = Wait {
        urgency: Urgency::BACKGROUND,
        ..Wait::UNBOUNDED
    };
    ask(&mut state, 10, background);
    ask(&mut state, 11, background);
    ask(&mut state, 12, Wait::UNBOUNDED);
    ask(&mut state, 13, Wait::UNBOUNDED);
    let mut actions = Vec::new();
    for at in 10..14 {
        let (since, now) = (Instant((at - 1) * 100 * MS), Instant(at * 100 * MS));
        state.release(now, key, since, Ending::Reusable, &mut actions);
    }
    assert_eq!(given(&actions), [12, 13, 10, 11]);
}

#[test]
fn the_wait_of_a_caller_does_not_count_those_without_one() {
    let (mut state, _) = busy();
    let background = Wait {
        urgency: Urgency::BACKGROUND,
        ..Wait::UNBOUNDED
    };
    for request in 10..40 {
        ask(&mut state, request, background);
    }
    let arrival = ask(&mut state, 40, within(150, None));
    assert!(matches!(arrival, Arrival::Queued(_)), "{arrival:?}");
}

#[test]
fn in_a_full_queue_a_caller_takes_the_place_of_the_youngest_without_one() {
    let settings = Settings {
        max: 1,
        queue_max: 3,
        ..settings()
    };
    let mut state = PoolState::<u64, u64>::new(settings);
    let mut actions = Vec::new();
    let background = Wait {
        urgency: Urgency::BACKGROUND,
        ..Wait::UNBOUNDED
    };
    let mut ask = |request, wait| state.arrive_within(Instant(0), wait, || request, &mut actions);
    ask(0, Wait::UNBOUNDED);
    ask(1, background);
    ask(2, background);
    assert!(matches!(ask(3, background), Arrival::Full(_)));
    assert!(matches!(ask(4, Wait::UNBOUNDED), Arrival::Queued(_)));
    assert!(matches!(ask(5, Wait::UNBOUNDED), Arrival::Queued(_)));
    assert!(matches!(ask(6, Wait::UNBOUNDED), Arrival::Full(_)));
    assert_eq!(refused(&actions), [2, 1]);
}

#[test]
fn a_worker_that_is_given_up_serves_what_it_has_and_nobody_else() {
    let (mut state, key) = busy();
    ask(&mut state, 10, Wait::UNBOUNDED);
    let mut actions = Vec::new();
    assert!(state.give_up(NOW, &mut actions));
    assert!(actions.is_empty(), "it is busy: {actions:?}");
    assert!(!state.give_up(NOW, &mut actions), "there is no other");
    assert_eq!(state.draining(), 1);
    let now = Instant(1_000 * MS);
    state.release(now, key, NOW, Ending::Reusable, &mut actions);
    assert_eq!(given(&actions), [0; 0]);
    assert!(
        matches!(
            actions[..],
            [Action::Retire(7, EndReason::Scaled), Action::Start(_)]
        ),
        "{actions:?}"
    );
}
