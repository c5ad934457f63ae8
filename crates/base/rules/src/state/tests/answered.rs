//! Requests that come when an answer is complete and its exchange has not ended.

use super::*;

impl World {
    /// The answer of a lease is complete.
    pub(super) fn answer(&mut self, at: usize) {
        let leases = self.leases();
        let Some((worker, at)) = leases.get(at % leases.len().max(1)).copied() else {
            return;
        };
        let (key, _, answered) = &mut self.workers.get_mut(&worker).expect("up")[at];
        if answered.is_none() {
            *answered = Some(self.now);
            self.state.answered(self.now, *key);
        }
    }

    /// A lease ends.
    pub(super) fn release(
        &mut self,
        at: usize,
        ending: Ending,
        actions: &mut Vec<Action<u64, u64>>,
    ) {
        let leases = self.leases();
        let Some((worker, at)) = leases.get(at % leases.len().max(1)).copied() else {
            return;
        };
        let (key, since, answered) = self.workers.get_mut(&worker).expect("up").remove(at);
        if let Some(answered) = answered {
            self.state.answered_lease_ends(answered, key);
        }
        self.state.release(self.now, key, since, ending, actions);
    }
}

/// A pool whose first request began at 0 and has a worker since [`UP`]. Nothing is known of how long invocations take.
fn serving(settings: Settings) -> (PoolState<u64, u64>, Key) {
    let mut state = PoolState::new(settings);
    let mut actions = Vec::new();
    state.arrive(Instant(0), || 0, &mut actions);
    let [Action::Start(key)] = actions[..] else {
        panic!("{actions:?}");
    };
    state.ready(UP, key, 7, &mut actions);
    (state, key)
}

const UP: Instant = Instant(3 * MS);

/// The first answer took longer than a start.
const ANSWERED: Instant = Instant(30 * MS);

#[test]
fn the_next_request_waits_for_the_worker_that_has_just_answered() {
    for start_rule in StartRule::ALL {
        let (mut state, key) = serving(Settings {
            start_rule,
            ..settings()
        });
        let mut actions = Vec::new();
        state.answered(ANSWERED, key);
        let next = Instant(ANSWERED.0 + MS / 10);
        state.arrive(next, || 1, &mut actions);
        assert_eq!(starts(&actions), 0, "{start_rule:?}");
        state.answered_lease_ends(ANSWERED, key);
        let end = Instant(next.0 + MS / 10);
        state.release(end, key, UP, Ending::Reusable, &mut actions);
        assert_eq!(kinds(&actions), [StartKind::Warm], "{start_rule:?}");
        assert_eq!(starts(&actions), 0, "{start_rule:?}");
    }
}

#[test]
fn without_an_answer_the_next_request_gets_a_worker_of_its_own() {
    let (mut state, _) = serving(settings());
    let mut actions = Vec::new();
    state.arrive(ANSWERED, || 1, &mut actions);
    assert_eq!(starts(&actions), 1);
}

#[test]
fn one_slot_that_is_about_to_be_free_is_enough_for_one_request() {
    let (mut state, key) = serving(Settings {
        concurrency: 2,
        ..settings()
    });
    let mut actions = Vec::new();
    state.arrive(UP, || 1, &mut actions);
    state.answered(ANSWERED, key);
    let next = Instant(ANSWERED.0 + MS / 10);
    state.arrive(next, || 2, &mut actions);
    assert_eq!(starts(&actions), 0);
    state.arrive(next, || 3, &mut actions);
    assert_eq!(starts(&actions), 1);
}

#[test]
fn an_exchange_that_goes_on_after_its_answer_is_not_waited_for() {
    let (mut state, key) = serving(settings());
    let mut actions = Vec::new();
    state.answered(ANSWERED, key);
    let next = Instant(ANSWERED.0 + MS / 10);
    state.arrive(next, || 1, &mut actions);
    while starts(&actions) == 0 {
        let due = state.due();
        assert!(due < Instant(next.0 + 100 * MS), "it waits for too long");
        state.tick(due, &mut actions);
    }
}
