//! Property tests of the state machine: random arrivals, starts, deaths, releases and times. A model records which worker serves
//! which request.

mod admission;
mod announced;
mod answered;
mod keeping;
mod long_run;
mod replaced;
mod start_rules;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use pilot_model::StartRule;
use pilot_model::forecast::Target;

use super::*;

const MS: u64 = 1_000_000;

fn settings() -> Settings {
    Settings {
        min: 0,
        max: 64,
        spare: 0,
        reap_after: Duration::from_secs(60),
        hot_for: Duration::from_secs(60),
        concurrency: 1,
        reuse: Reuse::Always,
        queue_max: 1000,
        rest: None,
        start_rule: StartRule::default(),
        short_starts_max: u32::MAX,
    }
}

#[derive(Debug, Clone)]
enum Step {
    Arrive,
    ArriveWithin(Bounds),
    Announce(Awaited),
    Sent(usize),
    Claim(usize, Bounds),
    Retract(usize),
    Ready(usize),
    StartFailed(usize, StartFault),
    Answer(usize),
    Release(usize, Ending),
    FoundDead,
    Abandon(usize),
    Pass(u64),
    Scale(u32),
    ApplyTarget(u32, Option<u64>),
    Observe,
    Retire,
    Revive,
    Renew,
    Evict(usize),
    GiveUp,
    Close,
}

/// How long a request may wait, how long its caller has, and whether there is one.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    longest: u64,
    left: Option<u64>,
    class: Class,
}

impl Bounds {
    fn wait(self, now: Instant) -> Wait {
        Wait {
            longest: Duration::from_nanos(self.longest),
            urgency: Urgency {
                class: self.class,
                finish_by: self.left.map(|left| Instant(now.0 + left)),
            },
        }
    }
}

prop_compose! {
    fn bounds()(
        longest in prop_oneof![Just(u64::MAX), 0_u64..500 * MS],
        left in prop::option::of(0_u64..800 * MS),
        background in any::<bool>(),
    ) -> Bounds {
        let class = if background { Class::Background } else { Class::Caller };
        Bounds { longest, left, class }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![
        6 => Just(Ending::Reusable),
        1 => Just(Ending::Unused),
        2 => Just(Ending::Lost(EndReason::Crash)),
    ];
    let fault = prop_oneof![
        1 => Just(StartFault::Import),
        1 => Just(StartFault::Full),
        4 => Just(StartFault::Transient),
    ];
    prop_oneof![
        20 => Just(Step::Arrive),
        15 => bounds().prop_map(Step::ArriveWithin),
        8 => prop_oneof![Just(Awaited::Sender), Just(Awaited::Inputs)].prop_map(Step::Announce),
        2 => any::<usize>().prop_map(Step::Sent),
        6 => (any::<usize>(), bounds()).prop_map(|(at, bounds)| Step::Claim(at, bounds)),
        2 => any::<usize>().prop_map(Step::Retract),
        20 => any::<usize>().prop_map(Step::Ready),
        4 => (any::<usize>(), fault).prop_map(|(at, fault)| Step::StartFailed(at, fault)),
        25 => (any::<usize>(), ending).prop_map(|(at, ending)| Step::Release(at, ending)),
        10 => any::<usize>().prop_map(Step::Answer),
        2 => Just(Step::FoundDead),
        4 => any::<usize>().prop_map(Step::Abandon),
        15 => (0_u64..300 * MS).prop_map(Step::Pass),
        2 => (0_u32..8).prop_map(Step::Scale),
        4 => (0_u32..9, prop::option::of(0_u64..900 * MS)).prop_map(|(workers, idle)| Step::ApplyTarget(workers, idle)),
        2 => Just(Step::Observe),
        1 => Just(Step::Retire),
        2 => Just(Step::Revive),
        2 => Just(Step::Renew),
        3 => any::<usize>().prop_map(Step::Evict),
        2 => Just(Step::GiveUp),
        1 => prop_oneof![99 => Just(Step::Pass(1)), 1 => Just(Step::Close)],
    ]
}

prop_compose! {
    fn any_settings()(
        max in 1_u32..7,
        min in 0_u32..4,
        spare in 0_u32..4,
        concurrency in 1_u32..4,
        once in any::<bool>(),
        queue_max in 0_usize..12,
        rests in any::<bool>(),
        rule in 0_usize..StartRule::ALL.len(),
        short_starts_max in 1_u32..5,
    ) -> Settings {
        Settings {
            min: min.min(max),
            max,
            spare: spare.min(max),
            reap_after: Duration::from_millis(500),
            hot_for: Duration::from_millis(500),
            concurrency: if once { 1 } else { concurrency },
            reuse: if once { Reuse::Once } else { Reuse::Always },
            queue_max,
            rest: rests.then_some(RestTimes {
                after: Duration::from_millis(100),
                reclaim_after: Some(Duration::from_millis(300)),
            }),
            start_rule: StartRule::ALL[rule],
            short_starts_max,
        }
    }
}

/// A lease: on which place, since when, and when its answer was complete.
type Leased = (Key, Instant, Option<Instant>);

/// The environment of the state machine.
struct World {
    state: PoolState<u64, u64>,
    settings: Settings,
    now: Instant,
    starting: BTreeSet<u32>,
    /// Workers that are up and not retired, with the leases of each.
    workers: BTreeMap<u64, Vec<Leased>>,
    /// Those that were told to rest since their last lease, and whether it was the second time.
    rested: BTreeSet<(u64, bool)>,
    waiting: Vec<(WaiterId, u64)>,
    /// Requests for which no caller waits.
    background: BTreeSet<u64>,
    /// By when requests must have ended.
    deadlines: BTreeMap<u64, Instant>,
    /// Includes requests that lost their place because their start failed.
    announced: Vec<WaiterId>,
    requests: u64,
    /// Since the newest [`Step::Observe`].
    arrivals: u64,
    next_worker: u64,
    closed: bool,
}

impl World {
    fn new(settings: Settings) -> Self {
        Self {
            state: PoolState::new(settings.clone()),
            settings,
            now: Instant(1_000 * MS),
            starting: BTreeSet::new(),
            workers: BTreeMap::new(),
            rested: BTreeSet::new(),
            waiting: Vec::new(),
            background: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            announced: Vec::new(),
            requests: 0,
            arrivals: 0,
            next_worker: 0,
            closed: false,
        }
    }

    fn lease(&mut self, key: Key, worker: u64) {
        let leases = self.workers.get_mut(&worker).expect("the worker is up");
        self.rested.retain(|(other, _)| *other != worker);
        leases.push((key, self.now, None));
        assert!(
            leases.len() <= self.settings.concurrency as usize,
            "too many leases"
        );
    }

    fn leases(&self) -> Vec<(u64, usize)> {
        let workers = self.workers.iter();
        workers
            .flat_map(|(worker, leases)| (0..leases.len()).map(|at| (*worker, at)))
            .collect()
    }

    fn act(&mut self, actions: Vec<Action<u64, u64>>) {
        for action in actions {
            match action {
                Action::Start(key) => {
                    assert!(!self.closed, "a closed pool starts a worker");
                    assert!(self.starting.insert(key.0), "a place is taken twice");
                }
                Action::Give {
                    to, key, worker, ..
                } => {
                    let id = self.end_wait(to);
                    let comes_first = |(other, request): &(WaiterId, u64)| {
                        let of_caller = !self.background.contains(&to);
                        match (of_caller, !self.background.contains(request)) {
                            (true, false) => true,
                            (false, true) => false,
                            _ => id < *other,
                        }
                    };
                    assert!(self.waiting.iter().all(comes_first), "out of order");
                    let end = self.deadlines.get(&to);
                    assert!(end.is_none_or(|end| self.now <= *end), "served too late");
                    self.lease(key, worker);
                }
                Action::Fail(to) => {
                    self.end_wait(to);
                }
                Action::Refuse(to) => {
                    self.end_wait(to);
                    let may_be = self.background.contains(&to) || self.deadlines.contains_key(&to);
                    assert!(may_be, "refused without a reason");
                }
                Action::Rest(worker, stage) => {
                    assert!(self.workers[&worker].is_empty(), "a leased worker rests");
                    let second = stage == RestStage::Reclaim;
                    assert!(self.rested.insert((worker, second)), "it rests twice");
                    assert!(!second || self.rested.contains(&(worker, false)));
                }
                Action::Retire(worker, reason) => {
                    let leases = self.workers.remove(&worker).expect("retired twice");
                    assert!(leases.is_empty(), "a leased worker is retired");
                    let left = self.workers.len() + self.starting.len();
                    assert!(reason != EndReason::Idle || left >= self.state.floor as usize);
                }
            }
        }
    }

    fn end_wait(&mut self, request: u64) -> WaiterId {
        let at = self
            .waiting
            .iter()
            .position(|(_, waiting)| *waiting == request);
        self.waiting.remove(at.expect("answered twice")).0
    }

    fn arrived(&mut self, arrival: Arrival<u64>, request: u64) {
        match arrival {
            Arrival::Leased(key, worker, _) => self.lease(key, worker),
            Arrival::Queued(id) => self.waiting.push((id, request)),
            Arrival::Late(_) => {
                assert!(
                    !self.workers.is_empty(),
                    "refused for a wait that is not known"
                );
                assert!(self.state.free.is_empty(), "refused beside a free slot");
            }
            Arrival::Full(_) => {
                assert_eq!(self.waiting.len(), self.settings.queue_max);
                let waiting = self.waiting.iter();
                let displaced = waiting.filter(|(_, other)| self.background.contains(other));
                assert!(displaced.count() == 0 || self.background.contains(&request));
            }
            Arrival::Closed => assert!(self.closed),
        }
    }

    /// The number of a request that arrives with these bounds.
    fn bounded(&mut self, bounds: Bounds) -> u64 {
        let request = self.requests;
        self.requests += 1;
        if let Some(end) = bounds.wait(self.now).urgency.finish_by {
            self.deadlines.insert(request, end);
        }
        if bounds.class == Class::Background {
            self.background.insert(request);
        }
        request
    }

    /// A request arrives or is announced.
    fn take_request(&mut self, step: &Step, actions: &mut Vec<Action<u64, u64>>) {
        match *step {
            Step::Arrive | Step::FoundDead => {
                let request = self.requests;
                self.requests += 1;
                self.arrivals += u64::from(!self.closed);
                let arrival = self.state.arrive(self.now, || request, actions);
                match arrival {
                    Arrival::Leased(key, ..) if matches!(step, Step::FoundDead) => {
                        self.state.found_dead(self.now, key, actions);
                    }
                    arrival => self.arrived(arrival, request),
                }
            }
            Step::Announce(awaited) => {
                let announced = self.state.announce(self.now, awaited, actions);
                self.arrivals += announced.iter().count() as u64;
                self.announced.extend(announced);
            }
            Step::ArriveWithin(bounds) => {
                let request = self.bounded(bounds);
                self.arrivals += u64::from(!self.closed);
                let wait = bounds.wait(self.now);
                let arrival = self
                    .state
                    .arrive_within(self.now, wait, || request, actions);
                self.arrived(arrival, request);
            }
            Step::Sent(at) if !self.announced.is_empty() => {
                let id = self.announced[at % self.announced.len()];
                self.state.sent(self.now, id, actions);
            }
            Step::Sent(_) => {}
            Step::Claim(at, bounds) => {
                if self.announced.is_empty() {
                    return;
                }
                let id = self.announced.remove(at % self.announced.len());
                let request = self.bounded(bounds);
                let wait = bounds.wait(self.now);
                let arrival = self.state.claim(self.now, id, wait, || request, actions);
                self.arrived(arrival, request);
            }
            Step::Retract(at) => {
                if self.announced.is_empty() {
                    return;
                }
                let id = self.announced.remove(at % self.announced.len());
                self.state.retract(id);
                self.arrivals = self.arrivals.saturating_sub(1);
            }
            _ => unreachable!("not a request"),
        }
    }

    fn take(&mut self, step: &Step) {
        let mut actions = Vec::new();
        match *step {
            Step::Arrive
            | Step::ArriveWithin(_)
            | Step::FoundDead
            | Step::Announce(_)
            | Step::Sent(_)
            | Step::Claim(..)
            | Step::Retract(_) => self.take_request(step, &mut actions),
            Step::Ready(at) => {
                let Some(key) = nth(&self.starting, at) else {
                    return;
                };
                self.starting.remove(&key);
                self.next_worker += 1;
                self.workers.insert(self.next_worker, Vec::new());
                self.state
                    .ready(self.now, Key(key), self.next_worker, &mut actions);
            }
            Step::StartFailed(at, fault) => {
                let Some(key) = nth(&self.starting, at) else {
                    return;
                };
                self.starting.remove(&key);
                let has_started = self.state.has_started;
                self.state
                    .start_failed(self.now, Key(key), fault, &mut actions);
                if fault == StartFault::Import {
                    let failed = actions.iter().filter(|a| matches!(a, Action::Fail(_)));
                    let failed = failed.count();
                    assert!(failed == self.waiting.len() || has_started && failed <= 1);
                }
            }
            Step::Answer(at) => self.answer(at),
            Step::Release(at, ending) => self.release(at, ending, &mut actions),
            Step::Abandon(at) => {
                if self.waiting.is_empty() {
                    return;
                }
                let (id, request) = self.waiting.remove(at % self.waiting.len());
                assert_eq!(self.state.abandon(id), Some(request));
                assert_eq!(self.state.abandon(id), None);
            }
            Step::Pass(nanos) => {
                self.now = Instant(self.now.0 + nanos);
                if self.state.due() <= self.now {
                    self.state.tick(self.now, &mut actions);
                    assert!(self.state.due() > self.now, "due again at once");
                }
            }
            Step::Scale(workers) => self.state.scale(self.now, workers, &mut actions),
            Step::ApplyTarget(workers, idle) => {
                let idle = idle.map(Duration::from_nanos);
                let target = Target { workers, idle };
                self.state.apply_target(self.now, target, &mut actions);
            }
            Step::Observe => self.observe(),
            Step::Retire => self.state.retire_all(&mut actions),
            Step::Revive => self.state.revive(),
            Step::Renew => self.state.renew(&mut actions),
            Step::Evict(at) => {
                let idle: Vec<Key> = self.state.idle_workers().map(|(key, ..)| key).collect();
                let Some(key) = idle.get(at % idle.len().max(1)) else {
                    return;
                };
                assert!(self.state.evict(self.now, *key, &mut actions));
            }
            Step::GiveUp => {
                let draining = self.state.draining();
                let had = self.workers.len();
                let gave = self.state.give_up(self.now, &mut actions);
                assert_eq!(
                    gave,
                    had > draining,
                    "a worker that could be given up is kept"
                );
            }
            Step::Close => {
                self.closed = true;
                self.state.close(&mut actions);
            }
        }
        self.act(actions);
    }

    fn observe(&mut self) {
        let tick = self.state.observe(self.now, None);
        let demand = self.leases().len() + self.waiting.len();
        assert_eq!(tick.demand as usize, demand);
        assert!(tick.demand_max >= tick.demand);
        assert_eq!(tick.arrivals, std::mem::take(&mut self.arrivals));
    }

    fn check(&self) {
        let counts = self.state.counts();
        let busy = self
            .workers
            .values()
            .filter(|leases| !leases.is_empty())
            .count();
        assert_eq!(counts.starting as usize, self.starting.len());
        assert_eq!(counts.busy as usize, busy);
        assert_eq!(counts.idle as usize, self.workers.len() - busy);
        assert_eq!(counts.waiting as usize, self.waiting.len());
        let draining = match self.settings.concurrency {
            1 => 0,
            _ => self.state.draining().min(self.settings.max as usize),
        };
        let lasting = self.starting.len() + self.workers.len() - draining;
        assert!(lasting <= self.settings.max as usize);
        assert!(self.waiting.len() <= self.settings.queue_max);
        let announced = self
            .state
            .queue
            .iter()
            .filter(|waiter| waiter.handle.is_none());
        assert_eq!(announced.count(), self.state.announced);
        let waiting = self.waiting.iter();
        let background = waiting.filter(|(_, request)| self.background.contains(request));
        assert_eq!(background.count(), self.state.background);
        if !self.waiting.is_empty() {
            assert!(
                counts.starting + counts.busy > 0,
                "nobody will serve who waits"
            );
            assert_eq!(counts.idle, 0, "someone waits beside an idle worker");
            assert!(
                self.state.free.is_empty(),
                "someone waits beside a free slot"
            );
            if lasting < self.settings.max as usize {
                assert!(self.state.due() < Instant(u64::MAX), "nobody looks again");
            }
        }
        if !self.state.is_live() {
            assert_eq!(counts.idle, 0, "a retired pool keeps a worker");
        }
        let mut last = Instant(0);
        for (key, touched, worker) in self.state.idle_workers() {
            assert!(self.workers[worker].is_empty(), "a leased worker is idle");
            assert!(last <= touched, "idle workers are out of order");
            assert!(self.state.place(key).is_some());
            last = touched;
        }
        let free: BTreeSet<u32> = self.state.free.iter().map(|key| key.0).collect();
        assert_eq!(free.len(), self.state.free.len(), "free twice");
        for (at, place) in (0_u32..).zip(&self.state.places) {
            let open = matches!(place, Some(WorkerState::Up { leases, draining: None, .. })
                if *leases < self.settings.concurrency);
            assert_eq!(free.contains(&at), open);
            if let Some(WorkerState::Up {
                worker,
                since_sum,
                answered,
                ..
            }) = place
            {
                let leases = self.workers[worker].iter();
                let answers = leases.clone().filter_map(|lease| lease.2);
                let answers: u128 = answers.map(|at| u128::from(at.0)).sum();
                let sum: u128 = leases.map(|lease| u128::from(lease.1.0)).sum();
                assert_eq!((*since_sum, answered.at_sum), (sum, answers));
            }
        }
    }
}

fn nth(set: &BTreeSet<u32>, at: usize) -> Option<u32> {
    set.iter().nth(at % set.len().max(1)).copied()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_nobody_is_lost_and_no_bound_is_passed(
        settings in any_settings(),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(settings);
        for step in &steps {
            world.take(step);
            world.check();
        }
    }

    #[test]
    fn once_requests_stop_everyone_is_answered_and_only_what_is_to_be_kept_stays(
        settings in any_settings(),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let min = settings.min as usize;
        let mut world = World::new(settings);
        for step in &steps {
            world.take(step);
        }
        world.take(&Step::ApplyTarget(0, None));
        // Starts succeed, invocations end, time passes.
        for _ in 0..400 {
            world.take(&Step::Ready(0));
            world.take(&Step::Release(0, Ending::Reusable));
            world.take(&Step::Pass(5 * MS));
        }
        world.take(&Step::Pass(200_000 * MS));
        for _ in 0..10 {
            world.take(&Step::Ready(0));
            world.take(&Step::Pass(2_000 * MS));
        }
        prop_assert!(world.waiting.is_empty());
        prop_assert!(world.leases().is_empty());
        prop_assert!(world.workers.len() <= min, "{} workers stay", world.workers.len());
    }
}

/// The starts among these actions.
fn starts(actions: &[Action<u64, u64>]) -> usize {
    actions
        .iter()
        .filter(|action| matches!(action, Action::Start(_)))
        .count()
}

fn kinds(actions: &[Action<u64, u64>]) -> Vec<StartKind> {
    let kind = |action: &_| match action {
        Action::Give { kind, .. } => Some(*kind),
        _ => None,
    };
    actions.iter().filter_map(kind).collect()
}

#[test]
fn a_target_is_started_at_once_kept_for_as_long_as_it_stands_and_reaped_by_its_own_idle_time() {
    let mut world = World::new(settings());
    let target =
        |workers, idle_ms: Option<u64>| Step::ApplyTarget(workers, idle_ms.map(|ms| ms * MS));
    world.take(&target(3, None));
    assert_eq!(world.starting.len(), 3);
    (0..3).for_each(|_| world.take(&Step::Ready(0)));
    world.take(&Step::Pass(3_600_000 * MS));
    assert_eq!(world.workers.len(), 3, "no idle one is reaped below it");
    world.take(&target(1, Some(50)));
    assert_eq!(world.workers.len(), 1, "idle for an hour already");
    world.take(&Step::Arrive);
    world.take(&target(0, Some(50)));
    world.take(&Step::Release(0, Ending::Reusable));
    world.take(&Step::Pass(49 * MS));
    assert_eq!(world.workers.len(), 1);
    world.take(&Step::Pass(MS));
    assert_eq!(world.workers.len(), 0);
}

#[test]
fn after_scaling_down_a_forecast_is_not_followed_until_the_next_request() {
    let mut world = World::new(settings());
    world.take(&Step::ApplyTarget(2, None));
    (0..2).for_each(|_| world.take(&Step::Ready(0)));
    world.take(&Step::Scale(0));
    world.take(&Step::ApplyTarget(2, None));
    assert_eq!(world.workers.len() + world.starting.len(), 0);
    world.take(&Step::Arrive);
    world.take(&Step::ApplyTarget(2, None));
    assert_eq!(world.starting.len(), 2);
}

#[test]
fn the_worker_used_last_is_leased_first() {
    let mut world = World::new(Settings {
        min: 3,
        ..settings()
    });
    world.take(&Step::Pass(0));
    for _ in 0..3 {
        world.take(&Step::Ready(0));
    }
    world.take(&Step::Arrive);
    let first = world.leases()[0].0;
    world.take(&Step::Release(0, Ending::Reusable));
    for _ in 0..5 {
        world.take(&Step::Pass(MS));
        world.take(&Step::Arrive);
        assert_eq!(world.leases()[0].0, first);
        world.take(&Step::Release(0, Ending::Reusable));
    }
}

#[test]
fn cold_is_who_caused_the_start_shared_who_waited_beside_it_warm_who_waited_for_a_release() {
    let mut state = PoolState::<u64, u64>::new(Settings {
        max: 1,
        ..settings()
    });
    let mut actions = Vec::new();
    for request in 0..2 {
        state.arrive(Instant(0), || request, &mut actions);
    }
    assert_eq!(starts(&actions), 1);
    state.ready(Instant(2 * MS), Key(0), 7, &mut actions);
    assert_eq!(kinds(&actions), [StartKind::Cold]);
    // Arrives while the worker is busy and nothing starts.
    state.arrive(Instant(3 * MS), || 2, &mut actions);
    actions.clear();
    for at in 4..6 {
        let since = Instant((at - 2) * MS);
        state.release(
            Instant(at * MS),
            Key(0),
            since,
            Ending::Reusable,
            &mut actions,
        );
    }
    assert_eq!(kinds(&actions), [StartKind::ColdShared, StartKind::Warm]);
}

#[test]
fn a_transient_failure_is_tried_three_times() {
    let mut state = PoolState::<u64, u64>::new(settings());
    let mut actions = Vec::new();
    state.arrive(Instant(0), || 0, &mut actions);
    for attempt in 0..3 {
        assert_eq!(starts(&actions), 1, "attempt {attempt}");
        actions.clear();
        state.start_failed(Instant(0), Key(0), StartFault::Transient, &mut actions);
    }
    assert_eq!(actions, [Action::Fail(0)]);
}

#[test]
fn a_spare_worker_is_replaced_off_the_path() {
    let settings = Settings {
        spare: 1,
        ..settings()
    };
    let mut state = PoolState::<u64, u64>::new(settings);
    let mut actions = Vec::new();
    state.arrive(Instant(0), || 0, &mut actions);
    state.ready(Instant(MS), Key(0), 1, &mut actions);
    assert_eq!(starts(&actions), 2, "one for the request, one spare");
    state.ready(Instant(2 * MS), Key(1), 2, &mut actions);
    actions.clear();
    let arrival = state.arrive(Instant(3 * MS), || 1, &mut actions);
    assert_eq!(arrival, Arrival::Leased(Key(1), 2, StartKind::Warm));
    assert_eq!(starts(&actions), 0, "not while the request is on its way");
    let due = state.due();
    assert!(due <= Instant(6 * MS));
    state.tick(due, &mut actions);
    assert_eq!(starts(&actions), 1);
}
