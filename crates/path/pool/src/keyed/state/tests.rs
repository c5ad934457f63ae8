//! Tests of single decisions, and a property test: random requests, starts, deaths, cleanings, forecasts, limits and times. A
//! model has every handle that the state machine does not have.

mod long_run;
mod properties;

use std::time::Duration;

use pilot_model::Network;
use pilot_model::forecast::Target;
use pilot_model::runtime_key::{Base, Difference, Ipc, Limits as RuntimeLimits, RuntimeSpec};

use super::*;

/// A handle that cannot be copied, so that it has one holder.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Handle(u64);

const SECOND: Duration = Duration::from_secs(1);

fn limits(runtimes_max: usize) -> Limits {
    Limits {
        runtimes_max,
        keep: 100 * SECOND,
    }
}

fn spec(interpreter: &str, owner: &str) -> RuntimeSpec {
    RuntimeSpec {
        base: Base::Native {
            interpreter: Some(interpreter.into()),
            shown: vec![],
        },
        owner: (!owner.is_empty()).then(|| owner.to_owned()),
        network: Network::None,
        host_name: String::new(),
        ipc: Ipc::Private,
        command: vec![],
        working_dir: String::new(),
        environment: vec![],
        execution: vec![],
        mounts: vec![],
        limits: RuntimeLimits::default(),
        user: None,
    }
}

/// A key of `owner` whose variables are `variables`.
fn key(owner: &str, variables: &str) -> Arc<RuntimeKey> {
    let environment = vec![("V".to_owned(), variables.to_owned())];
    let spec = RuntimeSpec {
        environment,
        ..spec("/bin/node", owner)
    };
    Arc::new(spec.canonical())
}

fn base_key() -> Arc<RuntimeKey> {
    Arc::new(key("ann", "1").base_key())
}

/// A state machine with a clock.
struct Story {
    state: KeyedState<Handle>,
    now: Instant,
    gone: Vec<Handle>,
    made: u64,
}

impl Story {
    fn new(runtimes_max: usize) -> Self {
        Self {
            state: KeyedState::new(limits(runtimes_max)),
            now: Instant(1_000_000_000),
            gone: Vec::new(),
            made: 0,
        }
    }

    /// With a version for each of these keys.
    fn of(runtimes_max: usize, keys: &[&Arc<RuntimeKey>]) -> Self {
        let mut story = Self::new(runtimes_max);
        for key in keys {
            story.state.use_key(key);
        }
        story
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    fn acquire(&mut self, key: &Arc<RuntimeKey>) -> Acquired<Handle> {
        let acquired = self
            .state
            .acquire(self.now, key, Look::First, |_| true, &mut self.gone);
        acquired.expect("the state machine is not closed")
    }

    /// The next look of a request that waits.
    fn look_again(&mut self, key: &Arc<RuntimeKey>, on: Awaited) -> Acquired<Handle> {
        let look = Look::Waiting(on);
        let acquired = self
            .state
            .acquire(self.now, key, look, |_| true, &mut self.gone);
        acquired.expect("the state machine is not closed")
    }

    /// A handle for a runtime that is ready.
    fn handle(&mut self) -> Handle {
        self.made += 1;
        Handle(self.made)
    }

    /// The runtime of a worker of `key`: reused, adapted or started.
    fn lease(&mut self, key: &Arc<RuntimeKey>) -> (RuntimeId, Handle) {
        match self.acquire(key) {
            Acquired::Reused(id, handle) => (id, handle),
            Acquired::Near(near, handle) => {
                self.state.adapted(self.now, near.id);
                (near.id, handle)
            }
            Acquired::Start(id) => {
                self.state.started(self.now, id);
                (id, self.handle())
            }
            Acquired::Wait(_) => panic!("it is to wait"),
        }
    }

    fn give_back(&mut self, (id, handle): (RuntimeId, Handle)) {
        self.state.release(self.now, id);
        self.state.cleaned(self.now, id, handle, &mut self.gone);
    }

    fn kept(&self) -> Vec<u64> {
        self.state.kept().map(|(_, handle)| handle.0).collect()
    }

    fn apply_target(&mut self, workers: u32) {
        let target = Target {
            workers,
            idle: None,
        };
        self.state.apply_target(&base_key(), target);
    }

    fn refill(&mut self) -> Vec<RuntimeId> {
        self.state.refill(self.now, &base_key())
    }

    /// Starts ahead of demand until the state machine requires no more.
    fn fill(&mut self) -> usize {
        let mut count = 0;
        loop {
            let starts = self.refill();
            if starts.is_empty() {
                return count;
            }
            for id in starts {
                let handle = self.handle();
                self.state
                    .started_ahead(self.now, id, handle, &mut self.gone);
                count += 1;
            }
        }
    }
}

#[test]
fn the_states_of_a_key_are_those_of_figure_7() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    assert_eq!(story.state.availability(&ann), Availability::NotExisting);
    let Acquired::Start(id) = story.acquire(&ann) else {
        panic!("nothing was there to reuse");
    };
    assert_eq!(story.state.availability(&ann), Availability::NotAvailable);
    story.state.started(story.now, id);
    assert_eq!(story.state.availability(&ann), Availability::NotAvailable);
    story.state.release(story.now, id);
    assert_eq!(story.state.availability(&ann), Availability::NotAvailable);
    story
        .state
        .cleaned(story.now, id, Handle(1), &mut story.gone);
    assert_eq!(story.state.availability(&ann), Availability::Available);
    assert!(matches!(story.acquire(&ann), Acquired::Reused(..)));
    assert_eq!(story.state.availability(&ann), Availability::NotAvailable);
    story.state.end(id, End::Destroyed);
    assert_eq!(story.state.availability(&ann), Availability::NotExisting);
}

#[test]
fn of_equal_runtimes_the_one_used_last_is_reused() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let (first, second) = (story.lease(&ann), story.lease(&ann));
    story.give_back(second);
    story.pass(SECOND);
    story.give_back(first);
    let (_, handle) = story.lease(&ann);
    assert_eq!(handle, Handle(1));
}

#[test]
fn a_dead_runtime_is_passed_over() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let (first, second) = (story.lease(&ann), story.lease(&ann));
    story.give_back(first);
    story.give_back(second);
    let alive = |handle: &Handle| handle.0 == 1;
    let acquired = story
        .state
        .acquire(story.now, &ann, Look::First, alive, &mut story.gone);
    assert!(matches!(acquired, Some(Acquired::Reused(_, Handle(1)))));
    assert_eq!(story.gone, [Handle(2)]);
    assert_eq!(story.state.of_key(&ann).1.destroyed, 1);
}

#[test]
fn on_a_miss_the_nearest_is_adapted() {
    let wanted = key("ann", "1");
    let near = key("ann", "2");
    let far = Arc::new(
        RuntimeSpec {
            limits: RuntimeLimits {
                pids: Some(7),
                ..RuntimeLimits::default()
            },
            ..spec("/bin/node", "ann")
        }
        .canonical(),
    );
    let mut story = Story::of(10, &[&wanted, &near, &far]);
    let (one, two) = (story.lease(&near), story.lease(&far));
    story.give_back(one);
    story.pass(SECOND);
    story.give_back(two);
    let Acquired::Near(found, Handle(1)) = story.acquire(&wanted) else {
        panic!("the other is farther, though it was used later");
    };
    assert_eq!(found.from, near);
    assert_eq!(found.differences, [Difference::Environment]);
    story.state.adapted(story.now, found.id);
    let (counts, totals) = story.state.of_key(&wanted);
    assert_eq!((counts.leased, totals.adapted), (1, 1));
}

#[test]
fn of_equally_near_runtimes_the_owners_own_is_taken() {
    let plain = Arc::new(spec("/bin/node", "ann").canonical());
    let wanted = key("ann", "1");
    let mut story = Story::of(10, &[&plain, &wanted]);
    let own = story.lease(&plain);
    story.apply_target(3);
    story.pass(SECOND);
    story.give_back(own);
    assert_eq!(story.fill(), 2);
    let Acquired::Near(found, Handle(1)) = story.acquire(&wanted) else {
        panic!("both differ in the variables alone");
    };
    assert_eq!(found.from, plain);
    // The next one has no owner.
    let Acquired::Near(found, _) = story.acquire(&wanted) else {
        panic!("a pre-warmed one is there");
    };
    assert_eq!(found.from, base_key());
    assert_eq!(
        found.differences,
        [Difference::Owner, Difference::Environment]
    );
}

#[test]
fn what_somebody_has_used_is_given_to_nobody_else() {
    let (ann, bob) = (key("ann", "1"), key("bob", "1"));
    let mut story = Story::of(10, &[&ann, &bob]);
    let used = story.lease(&ann);
    story.give_back(used);
    assert!(matches!(story.acquire(&bob), Acquired::Start(_)));
}

#[test]
fn one_that_is_being_cleaned_is_waited_for_by_one_request_if_that_is_quicker_than_a_start() {
    let key = key("ann", "1");
    let mut story = Story::of(10, &[&key]);
    // A start takes one second, cleaning a tenth of that.
    let Acquired::Start(id) = story.acquire(&key) else {
        panic!("there was none");
    };
    story.pass(SECOND);
    story.state.started(story.now, id);
    let handle = story.handle();
    story.state.release(story.now, id);
    assert!(
        matches!(story.acquire(&key), Acquired::Start(_)),
        "not measured yet"
    );
    story.pass(SECOND / 10);
    let gone = &mut story.gone;
    story.state.cleaned(story.now, id, handle, gone);
    let held = story.lease(&key);
    story.state.release(story.now, held.0);
    let wait = Wait {
        on: Awaited::Cleaning,
        patience: SECOND / 2,
    };
    assert!(matches!(story.acquire(&key), Acquired::Wait(said) if said == wait));
    assert!(
        matches!(story.acquire(&key), Acquired::Start(_)),
        "somebody waits for it"
    );
    story.state.waited(&key, Awaited::Cleaning);
    assert!(
        matches!(story.acquire(&key), Acquired::Wait(_)),
        "nobody does any more"
    );
}

#[test]
fn nothing_is_started_ahead_while_a_request_waits_for_one_that_is_being_cleaned() {
    let key = key("ann", "1");
    let mut story = Story::of(10, &[&key]);
    let Acquired::Start(id) = story.acquire(&key) else {
        panic!("there was none");
    };
    story.pass(SECOND);
    story.state.started(story.now, id);
    let handle = story.handle();
    story.state.release(story.now, id);
    story.pass(SECOND / 10);
    story.state.cleaned(story.now, id, handle, &mut story.gone);
    let held = story.lease(&key);
    story.state.release(story.now, held.0);
    let base_key = Arc::new(key.base_key());
    let two = Target {
        workers: 2,
        ..Target::default()
    };
    story.state.apply_target(&base_key, two);
    assert!(matches!(story.acquire(&key), Acquired::Wait(_)));
    assert_eq!(story.state.refill(story.now, &base_key), []);
    story.state.waited(&key, Awaited::Cleaning);
    assert!(!story.state.refill(story.now, &base_key).is_empty());
}

/// With one leased runtime, whose start took a second, and one that is being started ahead of demand.
fn one_ahead(key: &Arc<RuntimeKey>) -> (Story, RuntimeId) {
    let mut story = Story::of(10, &[key]);
    let Acquired::Start(id) = story.acquire(key) else {
        panic!("there was none");
    };
    story.pass(SECOND);
    story.state.started(story.now, id);
    story.made += 1;
    story.apply_target(2);
    let ahead = story.refill();
    assert_eq!(ahead.len(), 1);
    (story, ahead[0])
}

#[test]
fn one_that_is_being_started_ahead_is_waited_for_by_one_request() {
    let key = key("ann", "1");
    let (mut story, ahead) = one_ahead(&key);
    story.pass(SECOND / 4);
    let wait = Wait {
        on: Awaited::Ahead,
        patience: SECOND,
    };
    assert!(matches!(story.acquire(&key), Acquired::Wait(said) if said == wait));
    assert!(
        matches!(story.acquire(&key), Acquired::Start(_)),
        "somebody waits for it"
    );
    assert!(
        matches!(story.look_again(&key, Awaited::Ahead), Acquired::Wait(_)),
        "it is not up yet"
    );
    story.pass(SECOND * 3 / 4);
    let handle = story.handle();
    let gone = &mut story.gone;
    story.state.started_ahead(story.now, ahead, handle, gone);
    let Acquired::Near(near, _) = story.look_again(&key, Awaited::Ahead) else {
        panic!("it is up, and nobody else has taken it");
    };
    assert_eq!(near.id, ahead);
}

#[test]
fn whoever_waited_for_a_start_that_failed_has_one_started() {
    let key = key("ann", "1");
    let (mut story, ahead) = one_ahead(&key);
    assert!(matches!(story.acquire(&key), Acquired::Wait(_)));
    story.state.start_failed(story.now, ahead);
    let again = story.look_again(&key, Awaited::Ahead);
    assert!(matches!(again, Acquired::Start(_)));
}

#[test]
fn a_start_that_takes_twice_as_long_as_others_is_not_waited_for() {
    let key = key("ann", "1");
    let (mut story, _) = one_ahead(&key);
    story.pass(SECOND * 7 / 4);
    let Acquired::Wait(wait) = story.acquire(&key) else {
        panic!("it is late, and likely to be up before a new one");
    };
    assert_eq!(wait.patience, SECOND / 4);
    story.state.waited(&key, Awaited::Ahead);
    story.pass(SECOND / 4);
    assert!(matches!(story.acquire(&key), Acquired::Start(_)));
}

#[test]
fn what_has_execution_options_is_started_ahead_for_its_owner_and_kept() {
    let own = Arc::new(
        RuntimeSpec {
            execution: vec![("UV_THREADPOOL_SIZE".to_owned(), "8".to_owned())],
            environment: vec![("V".to_owned(), "1".to_owned())],
            ..spec("/bin/node", "ann")
        }
        .canonical(),
    );
    let (other, base_key) = (key("ann", "1"), Arc::new(own.base_key()));
    let mut story = Story::of(10, &[&own, &other]);
    let target = Target {
        workers: 2,
        idle: None,
    };
    story.state.apply_target(&base_key, target);
    for id in story.state.refill(story.now, &base_key) {
        let handle = story.handle();
        let gone = &mut story.gone;
        story.state.started_ahead(story.now, id, handle, gone);
    }
    assert_eq!(story.kept(), [1, 2]);
    assert!(matches!(story.acquire(&other), Acquired::Start(_)));
    let Acquired::Near(near, Handle(2)) = story.acquire(&own) else {
        panic!("it has its options");
    };
    assert_eq!(near.differences, [Difference::Environment]);
    story.pass(1000 * SECOND);
    story.state.let_go(story.now, &mut story.gone);
    assert_eq!(story.kept(), [1], "one more is wanted");
}

#[test]
fn what_could_not_be_adapted_is_followed_by_a_fresh_start() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    story.apply_target(2);
    story.fill();
    let Acquired::Near(near, _) = story.acquire(&ann) else {
        panic!("pre-warmed ones are there");
    };
    story.state.end(near.id, End::Destroyed);
    let again = story
        .state
        .acquire(story.now, &ann, Look::Nowhere, |_| true, &mut story.gone);
    assert!(matches!(again, Some(Acquired::Start(_))));
    let tick = story.state.observe(story.now, &base_key()).unwrap();
    assert_eq!(tick.arrivals, 1, "the second attempt is no second request");
}

#[test]
fn a_start_beyond_the_limit_evicts_the_oldest_available() {
    let (ann, bob) = (key("ann", "1"), key("bob", "1"));
    let mut story = Story::of(3, &[&ann, &bob]);
    let used = [story.lease(&ann), story.lease(&ann), story.lease(&ann)];
    // Given back in another order: only the order of creation counts.
    for one in used.into_iter().rev() {
        story.pass(SECOND);
        story.give_back(one);
    }
    assert!(matches!(story.acquire(&bob), Acquired::Start(_)));
    assert_eq!(story.gone, [Handle(1)]);
    assert_eq!(story.kept(), [2, 3]);
    assert_eq!(story.state.of_key(&ann).1.evicted, 1);
}

#[test]
fn with_all_leased_a_request_is_served_beyond_the_limit_and_the_excess_is_not_kept() {
    let ann = key("ann", "1");
    let mut story = Story::of(1, &[&ann]);
    let (first, second) = (story.lease(&ann), story.lease(&ann));
    assert!(story.gone.is_empty());
    story.give_back(first);
    assert_eq!(story.gone, [Handle(1)]);
    story.give_back(second);
    assert_eq!(story.kept(), [2]);
}

#[test]
fn under_pressure_the_oldest_go_and_nothing_is_started_ahead_for_a_while() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let leased = story.lease(&ann);
    story.apply_target(3);
    story.fill();
    assert_eq!(story.state.evict_oldest(story.now), Some(Handle(2)));
    assert_eq!(story.state.evict_oldest(story.now), Some(Handle(3)));
    assert_eq!(story.state.evict_oldest(story.now), None);
    assert!(story.refill().is_empty());
    story.pass(30 * SECOND);
    assert_eq!(story.refill().len(), 2);
    story.give_back(leased);
}

#[test]
fn there_are_as_many_in_use_or_available_as_are_forecast() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let _leased = [story.lease(&ann), story.lease(&ann)];
    story.apply_target(5);
    assert_eq!(story.fill(), 3);
    story.apply_target(4);
    assert_eq!(story.fill(), 0);
}

#[test]
fn few_are_started_ahead_at_the_same_time() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    story.apply_target(5);
    let starts = story.refill();
    assert_eq!(starts.len(), 2);
    assert!(story.refill().is_empty());
    story
        .state
        .started_ahead(story.now, starts[0], Handle(1), &mut story.gone);
    assert_eq!(story.refill().len(), 1);
}

#[test]
fn one_at_least_is_nobodys_while_any_is_wanted() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let used = [story.lease(&ann), story.lease(&ann)];
    used.into_iter().for_each(|one| story.give_back(one));
    story.apply_target(0);
    assert_eq!(story.fill(), 0);
    story.apply_target(1);
    assert_eq!(story.fill(), 1, "two are there, both of them ann's");
    assert_eq!(story.fill(), 0);
}

#[test]
fn starts_ahead_evict_nothing() {
    let ann = key("ann", "1");
    let mut story = Story::of(2, &[&ann]);
    let used = [story.lease(&ann), story.lease(&ann)];
    used.into_iter().for_each(|one| story.give_back(one));
    story.apply_target(9);
    assert_eq!(story.fill(), 0);
    assert_eq!(story.kept(), [1, 2]);
}

#[test]
fn starts_ahead_that_fail_are_tried_again_later_and_later() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    story.apply_target(1);
    for pause_s in [1, 2, 4, 8] {
        let start = story.refill();
        story.state.start_failed(story.now, start[0]);
        story.pass(SECOND * pause_s - Duration::from_nanos(1));
        assert!(story.refill().is_empty());
        story.pass(Duration::from_nanos(1));
    }
    assert_eq!(story.fill(), 1);
}

#[test]
fn what_starts_ahead_is_no_demand() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    story.apply_target(4);
    assert_eq!(story.refill().len(), 2);
    let _leased = story.lease(&ann);
    let tick = story.state.observe(story.now, &base_key()).unwrap();
    assert_eq!((tick.demand, tick.demand_max, tick.workers), (1, 1, 3));
}

#[test]
fn the_forecaster_hears_of_a_peak_between_two_ticks() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    story.state.observe(story.now, &base_key());
    let used = [story.lease(&ann), story.lease(&ann)];
    story.pass(SECOND);
    used.into_iter().for_each(|one| story.give_back(one));
    story.pass(SECOND);
    let tick = story.state.observe(story.now, &base_key()).unwrap();
    assert_eq!((tick.demand, tick.demand_max, tick.busy_max), (0, 2, 2));
    assert_eq!((tick.arrivals, tick.span), (2, 2 * SECOND));
    assert_eq!(tick.service, Some(SECOND));
    let tick = story.state.observe(story.now, &base_key()).unwrap();
    assert_eq!((tick.demand_max, tick.arrivals), (0, 0));
}

#[test]
fn what_nobody_wanted_for_long_is_let_go() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let used = [story.lease(&ann), story.lease(&ann), story.lease(&ann)];
    used.into_iter().for_each(|one| story.give_back(one));
    story.pass(100 * SECOND);
    story.state.let_go(story.now, &mut story.gone);
    assert_eq!(story.kept(), [1, 2, 3]);
    let again = story.lease(&ann);
    story.give_back(again);
    story.pass(SECOND);
    story.state.let_go(story.now, &mut story.gone);
    assert_eq!(story.kept(), [3], "the one that was used again");
    assert_eq!(story.state.of_key(&ann).1.let_go, 2);
}

#[test]
fn what_is_forecast_is_kept_however_old_it_is() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    story.apply_target(2);
    story.fill();
    let own = [story.lease(&ann), story.lease(&ann)];
    own.into_iter().for_each(|one| story.give_back(one));
    story.pass(SECOND);
    // The adapted ones belong to ann now: one without owner is needed again.
    assert_eq!(story.fill(), 1);
    story.pass(1000 * SECOND);
    story.state.let_go(story.now, &mut story.gone);
    assert_eq!(story.state.of_base_key(&base_key()).available, 2);
    story.apply_target(1);
    story.state.let_go(story.now, &mut story.gone);
    assert_eq!(story.kept(), [3], "the last that is nobody's stays");
    assert_eq!(story.fill(), 0);
}

#[test]
fn the_last_prewarmed_one_outlives_used_ones_that_are_younger() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let own = story.lease(&ann);
    story.apply_target(2);
    assert_eq!(story.fill(), 1);
    story.pass(SECOND);
    story.give_back(own);
    story.apply_target(1);
    story.pass(101 * SECOND);
    story.state.let_go(story.now, &mut story.gone);
    assert_eq!(story.kept(), [2]);
    assert_eq!(story.fill(), 0);
}

#[test]
fn the_forecast_may_say_how_long_the_rest_is_kept() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let used = story.lease(&ann);
    story.give_back(used);
    let target = Target {
        workers: 0,
        idle: Some(SECOND),
    };
    story.state.apply_target(&base_key(), target);
    story.pass(SECOND);
    story.state.let_go(story.now, &mut story.gone);
    assert_eq!(story.kept(), [1]);
    story.pass(SECOND);
    story.state.let_go(story.now, &mut story.gone);
    assert!(story.kept().is_empty());
}

#[test]
fn an_old_versions_runtimes_are_kept_for_the_next_one() {
    let (old, new, bob) = (key("ann", "1"), key("ann", "2"), key("bob", "1"));
    let mut story = Story::of(10, &[&old, &new, &bob]);
    let used = story.lease(&old);
    story.give_back(used);
    story.state.disuse_key(&old, &mut story.gone);
    assert_eq!(story.kept(), [1]);
    let (_, handle) = story.lease(&new);
    assert_eq!(handle, Handle(1));
}

#[test]
fn with_an_owners_last_version_go_its_runtimes_and_with_the_base_keys_last_the_prewarmed_ones() {
    let (ann, bob) = (key("ann", "1"), key("bob", "1"));
    let mut story = Story::of(10, &[&ann, &bob]);
    let (ones, others) = (story.lease(&ann), story.lease(&bob));
    story.give_back(ones);
    story.apply_target(2);
    assert_eq!(story.fill(), 1);
    story.state.disuse_key(&ann, &mut story.gone);
    assert_eq!(story.gone, [Handle(1)]);
    story.state.disuse_key(&bob, &mut story.gone);
    assert_eq!(story.gone, [Handle(1), Handle(3)]);
    assert!(story.refill().is_empty());
    // A runtime that is given back later is not kept either.
    story.give_back(others);
    assert_eq!(story.gone.len(), 3);
    assert_eq!(story.state.counts(), RuntimeCounts::default());
    assert!(story.state.keys.is_empty() && story.state.base_keys.is_empty());
}

#[test]
fn a_key_that_two_versions_have_is_in_use_until_both_are_given_up() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann, &ann]);
    let used = story.lease(&ann);
    story.give_back(used);
    story.state.disuse_key(&ann, &mut story.gone);
    assert_eq!(story.kept(), [1]);
    story.state.disuse_key(&ann, &mut story.gone);
    assert!(story.kept().is_empty());
}

#[test]
fn a_closed_pool_gives_nothing_and_keeps_nothing() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let (kept, used) = (story.lease(&ann), story.lease(&ann));
    story.give_back(kept);
    story.state.close(&mut story.gone);
    assert_eq!(story.gone, [Handle(1)]);
    let acquired = story
        .state
        .acquire(story.now, &ann, Look::First, |_| true, &mut story.gone);
    assert!(acquired.is_none());
    story.apply_target(5);
    assert!(story.refill().is_empty());
    story.give_back(used);
    assert_eq!(story.gone, [Handle(1), Handle(2)]);
}

#[test]
fn a_fresh_start_is_timed_by_its_base_key() {
    let ann = key("ann", "1");
    let mut story = Story::of(10, &[&ann]);
    let Acquired::Start(id) = story.acquire(&ann) else {
        panic!("nothing was there to reuse");
    };
    story.pass(2 * SECOND);
    story.state.started(story.now, id);
    assert_eq!(story.state.fresh_start(&base_key()), Some(2 * SECOND));
    story.apply_target(2);
    let ahead = story.refill();
    story.pass(6 * SECOND);
    story
        .state
        .started_ahead(story.now, ahead[0], Handle(2), &mut story.gone);
    assert_eq!(story.state.fresh_start(&base_key()), Some(3 * SECOND));
}
