//! Requests that are announced before they come.

use super::*;

/// Announces a request in a new pool. Returns its id, the state, and the start that was ordered.
fn announced(settings: Settings) -> (WaiterId, PoolState<u64, u64>, Key) {
    let mut state = PoolState::new(settings);
    let mut actions = Vec::new();
    let id = state
        .announce(Instant(0), Awaited::Sender, &mut actions)
        .unwrap();
    let [Action::Start(key)] = actions[..] else {
        panic!("{actions:?}");
    };
    (id, state, key)
}

#[test]
fn an_announced_request_takes_the_worker_that_came_up_meanwhile() {
    let (id, mut state, key) = announced(settings());
    let mut actions = Vec::new();
    state.ready(Instant(MS), key, 7, &mut actions);
    assert_eq!(state.counts().idle, 1, "it holds no worker");
    let arrival = state.claim(Instant(2 * MS), id, Wait::UNBOUNDED, || 0, &mut actions);
    assert_eq!(arrival, Arrival::Leased(key, 7, StartKind::Cold));
    assert!(actions.is_empty());
    assert_eq!(state.observe(Instant(3 * MS), None).arrivals, 1);
}

#[test]
fn an_announced_request_waits_on_for_the_start_that_it_caused() {
    let (id, mut state, key) = announced(settings());
    let mut actions = Vec::new();
    let arrival = state.claim(Instant(MS), id, Wait::UNBOUNDED, || 5, &mut actions);
    assert_eq!(arrival, Arrival::Queued(id));
    assert!(actions.is_empty(), "a second start is ordered: {actions:?}");
    state.ready(Instant(2 * MS), key, 7, &mut actions);
    let [
        Action::Give {
            to: 5,
            kind: StartKind::Cold,
            fresh: true,
            ..
        },
    ] = actions[..]
    else {
        panic!("{actions:?}");
    };
}

#[test]
fn who_is_here_takes_the_worker_that_was_started_for_an_announced_request() {
    let (_, mut state, key) = announced(settings());
    let mut actions = Vec::new();
    state.ready(Instant(MS), key, 7, &mut actions);
    let arrival = state.arrive(Instant(2 * MS), || 0, &mut actions);
    assert_eq!(arrival, Arrival::Leased(key, 7, StartKind::Warm));
}

#[test]
fn a_request_that_is_announced_for_ever_causes_one_start() {
    let (id, mut state, key) = announced(settings());
    let mut actions = Vec::new();
    state.ready(Instant(MS), key, 7, &mut actions);
    for second in 1..600 {
        state.tick(Instant(second * 1000 * MS), &mut actions);
    }
    assert!(matches!(actions[..], [Action::Retire(7, _)]), "{actions:?}");
    state.retract(id);
    assert!(state.is_empty());
    assert_eq!(state.observe(Instant(700_000 * MS), None).arrivals, 0);
}

/// Reports every ordered start as ready, until none is ordered. Returns how many there were.
fn start_all(state: &mut PoolState<u64, u64>, actions: &mut Vec<Action<u64, u64>>) -> u64 {
    let mut starts = 0;
    while let Some(action) = actions.pop() {
        if let Action::Start(key) = action {
            starts += 1;
            state.ready(Instant(starts * 100 * MS), key, starts, actions);
        }
    }
    starts
}

#[test]
fn requests_that_are_announced_and_not_sent_cause_a_few_starts_and_the_others_theirs() {
    let settings = Settings {
        max: 1000,
        ..settings()
    };
    let mut state = PoolState::new(settings);
    let mut actions = Vec::new();
    let announced: Vec<WaiterId> = (0..500)
        .map(|_| {
            let id = state.announce(Instant(0), Awaited::Sender, &mut actions);
            id.unwrap()
        })
        .collect();
    let few = PoolState::<u64, u64>::UNSENT_MAX as u64;
    assert_eq!(start_all(&mut state, &mut actions), few);
    // When they give up, others take their places, and the workers are there.
    for id in &announced[..200] {
        state.retract(*id);
        state.announce(Instant(5000 * MS), Awaited::Sender, &mut actions);
    }
    assert_eq!(start_all(&mut state, &mut actions), 0);
    // What has been sent is not held up by what has not.
    for id in &announced[200..300] {
        state.sent(Instant(6000 * MS), *id, &mut actions);
    }
    assert!(start_all(&mut state, &mut actions) >= 100 - few);
}
