//! The state machine against a model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
pub(super) enum Step {
    Acquire(usize, Look),
    LookAgain(usize),
    GiveUp(usize),
    Started(usize),
    Overtake(usize),
    StartFailed(usize),
    Adapted(usize),
    AdaptFailed(usize),
    Release(usize),
    Lose(usize),
    Cleaned(usize),
    CleaningFailed(usize),
    Die(usize),
    Use(usize),
    Disuse(usize),
    ApplyTarget(usize, u32, Option<u64>),
    Refill(usize),
    Observe(usize),
    LetGo,
    EvictOldest,
    Pass(u64),
    Close,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let at = any::<usize>;
    let look = prop_oneof![
        8 => Just(Look::First),
        1 => Just(Look::Again),
        1 => Just(Look::Nowhere),
    ];
    prop_oneof![
        30 => (at(), look).prop_map(|(at, look)| Step::Acquire(at, look)),
        15 => at().prop_map(Step::LookAgain),
        2 => at().prop_map(Step::GiveUp),
        20 => at().prop_map(Step::Started),
        6 => at().prop_map(Step::Overtake),
        3 => at().prop_map(Step::StartFailed),
        10 => at().prop_map(Step::Adapted),
        2 => at().prop_map(Step::AdaptFailed),
        20 => at().prop_map(Step::Release),
        2 => at().prop_map(Step::Lose),
        20 => at().prop_map(Step::Cleaned),
        2 => at().prop_map(Step::CleaningFailed),
        4 => at().prop_map(Step::Die),
        4 => at().prop_map(Step::Use),
        3 => at().prop_map(Step::Disuse),
        6 => (at(), 0..6_u32, prop::option::of(0..20_u64))
            .prop_map(|(at, workers, idle_s)| Step::ApplyTarget(at, workers, idle_s)),
        10 => at().prop_map(Step::Refill),
        3 => at().prop_map(Step::Observe),
        5 => Just(Step::LetGo),
        3 => Just(Step::EvictOldest),
        10 => (0..60_u64).prop_map(Step::Pass),
        1 => prop_oneof![29 => Just(Step::Pass(1)), 1 => Just(Step::Close)],
    ]
}

/// Two base keys, two owners, and settings of which some can be applied only in one direction.
fn keys() -> Vec<Arc<RuntimeKey>> {
    let mut keys = Vec::new();
    for interpreter in ["/bin/node", "/bin/deno"] {
        for owner in ["ann", "bob"] {
            for (variable, network) in [
                ("1", Network::None),
                ("2", Network::None),
                ("1", Network::Outbound),
            ] {
                let spec = RuntimeSpec {
                    environment: vec![("V".to_owned(), variable.to_owned())],
                    network,
                    ..spec(interpreter, owner)
                };
                keys.push(Arc::new(spec.canonical()));
            }
        }
    }
    keys
}

/// A runtime outside of the state machine, with its key.
type Held = (RuntimeId, Handle, Arc<RuntimeKey>);

/// The environment of the state machine.
pub(super) struct World {
    state: KeyedState<Handle>,
    runtimes_max: usize,
    keys: Vec<Arc<RuntimeKey>>,
    users: BTreeMap<usize, u32>,
    now: Instant,
    made: u64,
    dropped: u64,
    waiting: Vec<(Arc<RuntimeKey>, Awaited)>,
    starting: Vec<(RuntimeId, Arc<RuntimeKey>, Cause)>,
    /// Runtimes whose request got another one.
    overtaken: BTreeSet<RuntimeId>,
    adapting: Vec<Held>,
    leased: Vec<Held>,
    cleaning: Vec<Held>,
    /// The handles that the state machine has, by age, with their keys.
    kept: BTreeMap<RuntimeId, (u64, Arc<RuntimeKey>)>,
    dead: BTreeSet<u64>,
    /// The owner that has used it.
    used_by: BTreeMap<u64, String>,
    closed: bool,
}

impl World {
    pub(super) fn new(runtimes_max: usize) -> Self {
        let keys = keys();
        let mut state = KeyedState::new(Limits {
            runtimes_max,
            keep: 30 * SECOND,
        });
        // Half of the keys belong to versions from the beginning.
        let users: BTreeMap<usize, u32> = (0..keys.len()).step_by(2).map(|at| (at, 1)).collect();
        for at in users.keys() {
            state.use_key(&keys[*at]);
        }
        Self {
            state,
            runtimes_max,
            keys,
            users,
            now: Instant(1_000_000_000),
            made: 0,
            dropped: 0,
            waiting: Vec::new(),
            starting: Vec::new(),
            overtaken: BTreeSet::new(),
            adapting: Vec::new(),
            leased: Vec::new(),
            cleaning: Vec::new(),
            kept: BTreeMap::new(),
            dead: BTreeSet::new(),
            used_by: BTreeMap::new(),
            closed: false,
        }
    }

    fn handle(&mut self) -> Handle {
        self.made += 1;
        Handle(self.made)
    }

    fn live(&self) -> usize {
        self.starting.len()
            + self.adapting.len()
            + self.leased.len()
            + self.cleaning.len()
            + self.kept.len()
    }

    /// A runtime in `gone` is not leased: otherwise the state machine would not have its handle.
    fn bury(&mut self, gone: Vec<Handle>) {
        for Handle(handle) in gone {
            self.kept.retain(|_, (kept, _)| *kept != handle);
            self.dropped += 1;
        }
    }

    fn lease(&mut self, id: RuntimeId, handle: Handle, key: Arc<RuntimeKey>) {
        let owner = key.owner().expect("a version has an owner").to_owned();
        if let Some(before) = self.used_by.insert(handle.0, owner.clone()) {
            assert_eq!(before, owner, "another owner's runtime is given");
        }
        self.leased.push((id, handle, key));
    }

    fn acquire(&mut self, key: &Arc<RuntimeKey>, look: Look) {
        let fits = |world: &Self| {
            let mut kept = world.kept.values();
            kept.any(|(handle, from)| {
                !world.dead.contains(handle) && from.adaptation(key).is_some()
            })
        };
        let (was_there, dead) = (fits(self), self.dead.clone());
        let mut gone = Vec::new();
        let is_alive = |handle: &Handle| !dead.contains(&handle.0);
        let acquired = self.state.acquire(self.now, key, look, is_alive, &mut gone);
        let before = self.kept.clone();
        self.bury(gone);
        match acquired {
            None => assert!(self.closed),
            Some(Acquired::Reused(id, handle)) => {
                let (known, from) = self.kept.remove(&id).expect("it was available");
                assert_eq!((known, &from), (handle.0, key));
                self.lease(id, handle, from);
            }
            Some(Acquired::Near(near, handle)) => {
                let (known, from) = self.kept.remove(&near.id).expect("it was available");
                assert_eq!((known, &from), (handle.0, &near.from));
                assert_eq!(from.adaptation(key), Some(near.differences));
                let equal = self.kept.values().find(|(_, kept)| kept == key);
                assert_eq!(equal, None, "an equal one was there");
                self.adapting.push((near.id, handle, Arc::clone(key)));
            }
            Some(Acquired::Wait(wait)) => {
                match look {
                    Look::First => {}
                    Look::Waiting(on) => assert_eq!(wait.on, on),
                    Look::Again | Look::Nowhere => panic!("it was not to wait"),
                }
                assert!(!was_there, "one was there");
                self.waiting.push((Arc::clone(key), wait.on));
                let under_way = match wait.on {
                    Awaited::Cleaning => {
                        let of_key = |(_, _, other): &&Held| other == key;
                        self.cleaning.iter().filter(of_key).count()
                    }
                    Awaited::Ahead => {
                        let base_key = key.base_key();
                        let ahead = self.starting.iter();
                        let ahead = ahead.filter(|(_, other, cause)| {
                            **other == base_key && *cause == Cause::Ahead
                        });
                        ahead.count()
                    }
                };
                assert!(self.waits(key, wait.on) <= under_way);
            }
            Some(Acquired::Start(id)) => {
                assert!(look == Look::Nowhere || !was_there, "one was there");
                for (other, (handle, _)) in &before {
                    let oldest = self.kept.keys().next().is_none_or(|kept| other < kept);
                    let gone = !self.kept.contains_key(other);
                    let died = dead.contains(handle);
                    assert!(!gone || died || oldest, "not the oldest was evicted");
                }
                self.starting.push((id, Arc::clone(key), Cause::Request));
            }
        }
    }

    pub(super) fn perform(&mut self, step: Step) {
        let mut gone = Vec::new();
        match step {
            Step::Acquire(at, look) => {
                let key = Arc::clone(&self.keys[at % self.keys.len()]);
                self.acquire(&key, look);
            }
            Step::LookAgain(at) if !self.waiting.is_empty() => {
                let (key, on) = self.waiting.swap_remove(at % self.waiting.len());
                self.acquire(&key, Look::Waiting(on));
            }
            Step::GiveUp(at) if !self.waiting.is_empty() => {
                let (key, on) = self.waiting.swap_remove(at % self.waiting.len());
                self.state.waited(&key, on);
            }
            Step::Started(at) if !self.starting.is_empty() => {
                let (id, key, cause) = self.starting.swap_remove(at % self.starting.len());
                let handle = self.handle();
                match cause {
                    Cause::Request if !self.overtaken.remove(&id) => {
                        self.state.started(self.now, id);
                        self.lease(id, handle, key);
                    }
                    Cause::Request | Cause::Ahead => {
                        self.kept.insert(id, (handle.0, key));
                        self.state.started_ahead(self.now, id, handle, &mut gone);
                    }
                }
            }
            Step::Overtake(at) if !self.starting.is_empty() => {
                let (id, key, cause) = self.starting[at % self.starting.len()].clone();
                if cause == Cause::Request && !self.overtaken.contains(&id) {
                    let dead = self.dead.clone();
                    let is_alive = |handle: &Handle| !dead.contains(&handle.0);
                    let found = self.state.reuse(self.now, &key, is_alive, &mut gone);
                    if let Some((other, handle)) = found {
                        let (known, from) = self.kept.remove(&other).expect("it was available");
                        assert_eq!((known, &from), (handle.0, &key));
                        self.lease(other, handle, from);
                        self.overtaken.insert(id);
                    }
                }
            }
            Step::StartFailed(at) if !self.starting.is_empty() => {
                let (id, ..) = self.starting.swap_remove(at % self.starting.len());
                self.state.start_failed(self.now, id);
            }
            Step::Adapted(at) if !self.adapting.is_empty() => {
                let (id, handle, key) = self.adapting.swap_remove(at % self.adapting.len());
                self.state.adapted(self.now, id);
                self.lease(id, handle, key);
            }
            Step::AdaptFailed(at) if !self.adapting.is_empty() => {
                let (id, ..) = self.adapting.swap_remove(at % self.adapting.len());
                self.lose(id);
            }
            Step::Release(at) if !self.leased.is_empty() => {
                let held = self.leased.swap_remove(at % self.leased.len());
                self.state.release(self.now, held.0);
                self.cleaning.push(held);
            }
            Step::Lose(at) if !self.leased.is_empty() => {
                let (id, ..) = self.leased.swap_remove(at % self.leased.len());
                self.lose(id);
            }
            Step::Cleaned(at) if !self.cleaning.is_empty() => {
                let (id, handle, key) = self.cleaning.swap_remove(at % self.cleaning.len());
                self.kept.insert(id, (handle.0, key));
                self.state.cleaned(self.now, id, handle, &mut gone);
            }
            Step::CleaningFailed(at) if !self.cleaning.is_empty() => {
                let (id, ..) = self.cleaning.swap_remove(at % self.cleaning.len());
                self.lose(id);
            }
            Step::Die(at) if !self.kept.is_empty() => {
                let which = at % self.kept.len();
                let (handle, _) = self.kept.values().nth(which).unwrap();
                self.dead.insert(*handle);
            }
            other => self.govern(other, &mut gone),
        }
        self.bury(gone);
    }

    /// Steps without a waiting request.
    fn govern(&mut self, step: Step, gone: &mut Vec<Handle>) {
        match step {
            Step::Use(at) => {
                let at = at % self.keys.len();
                *self.users.entry(at).or_default() += 1;
                self.state.use_key(&self.keys[at]);
            }
            Step::Disuse(at) if !self.users.is_empty() => {
                let which = at % self.users.len();
                let at = *self.users.keys().nth(which).unwrap();
                let users = self.users.get_mut(&at).unwrap();
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&at);
                }
                self.state.disuse_key(&self.keys[at], gone);
            }
            Step::ApplyTarget(at, workers, idle_s) => {
                let idle = idle_s.map(Duration::from_secs);
                let base_key = self.keys[at % self.keys.len()].base_key();
                self.state.apply_target(&base_key, Target { workers, idle });
            }
            Step::Refill(at) => {
                let base_key = Arc::new(self.keys[at % self.keys.len()].base_key());
                let live = self.live();
                let starts = self.state.refill(self.now, &base_key);
                assert!(starts.is_empty() || live + starts.len() <= self.runtimes_max);
                assert!(starts.is_empty() || !self.closed);
                let starts = starts
                    .into_iter()
                    .map(|id| (id, Arc::clone(&base_key), Cause::Ahead));
                self.starting.extend(starts);
            }
            Step::Observe(at) => {
                let base_key = self.keys[at % self.keys.len()].base_key();
                if let Some(tick) = self.state.observe(self.now, &base_key) {
                    assert!(tick.demand <= tick.demand_max && tick.demand <= tick.workers);
                }
            }
            Step::LetGo => self.state.let_go(self.now, gone),
            Step::EvictOldest => {
                let oldest = self.kept.first_key_value().map(|(_, (handle, _))| *handle);
                let evicted = self.state.evict_oldest(self.now);
                assert_eq!(evicted.as_ref().map(|handle| handle.0), oldest);
                gone.extend(evicted);
            }
            Step::Pass(seconds) => self.now = self.now.after(Duration::from_secs(seconds)),
            Step::Close => {
                self.closed = true;
                self.state.close(gone);
                assert_eq!(gone.len(), self.kept.len());
            }
            _ => {}
        }
    }

    /// How many requests wait for this, as a request of this key does.
    fn waits(&self, key: &RuntimeKey, on: Awaited) -> usize {
        let base_key = key.base_key();
        let alike = self.waiting.iter().filter(|(other, what)| match on {
            Awaited::Cleaning => *what == on && **other == *key,
            Awaited::Ahead => *what == on && other.base_key() == base_key,
        });
        alike.count()
    }

    /// Its holder drops it.
    fn lose(&mut self, id: RuntimeId) {
        assert_eq!(self.state.end(id, End::Destroyed), None);
        self.dropped += 1;
    }

    pub(super) fn check(&self) {
        let kept: BTreeSet<u64> = self.state.kept().map(|(_, handle)| handle.0).collect();
        let known: BTreeSet<u64> = self.kept.values().map(|(handle, _)| *handle).collect();
        assert_eq!(kept, known);
        let held = self.adapting.len() + self.leased.len() + self.cleaning.len();
        let accounted = self.dropped + u64::try_from(held + self.kept.len()).unwrap();
        assert_eq!(self.made, accounted, "a runtime is lost");
        assert!(
            self.live() <= self.runtimes_max || self.kept.is_empty(),
            "more than may be, and some of them idle"
        );
        let mut base_keys: BTreeMap<RuntimeKey, RuntimeCounts> = BTreeMap::new();
        let prewarmed = self.keys.iter().map(|key| Arc::new(key.base_key()));
        let all: BTreeSet<_> = self.keys.iter().map(Arc::clone).chain(prewarmed).collect();
        for key in all {
            let counts = self.count(&key);
            assert_eq!(self.state.of_key(&key).0, counts);
            let availability = match (counts.available, counts == RuntimeCounts::default()) {
                (0, true) => Availability::NotExisting,
                (0, false) => Availability::NotAvailable,
                _ => Availability::Available,
            };
            assert_eq!(self.state.availability(&key), availability);
            add(base_keys.entry(key.base_key()).or_default(), counts);
            let account = self.state.keys.get(&key);
            let waiting = account.map_or(0, |account| account.waiting.cleaning);
            let waiting = usize::try_from(waiting).unwrap();
            assert_eq!(self.waits(&key, Awaited::Cleaning), waiting);
        }
        let mut all = RuntimeCounts::default();
        for (base_key, counts) in base_keys {
            assert_eq!(self.state.of_base_key(&base_key), counts);
            let account = self.state.base_keys.get(&base_key);
            let waiting = account.map_or(0, |account| account.waiting);
            let waiting = usize::try_from(waiting).unwrap();
            assert_eq!(self.waits(&base_key, Awaited::Ahead), waiting);
            add(&mut all, counts);
        }
        assert_eq!(self.state.counts(), all);
    }

    fn count(&self, key: &Arc<RuntimeKey>) -> RuntimeCounts {
        let of = |held: &[Held]| {
            let count = held.iter().filter(|(_, _, other)| other == key).count();
            u32::try_from(count).unwrap()
        };
        let starting = self.starting.iter().filter(|(_, other, _)| other == key);
        let available = self.kept.values().filter(|(_, other)| other == key);
        RuntimeCounts {
            starting: u32::try_from(starting.count()).unwrap(),
            available: u32::try_from(available.count()).unwrap(),
            adapting: of(&self.adapting),
            leased: of(&self.leased),
            cleaning: of(&self.cleaning),
        }
    }

    /// Everything ends.
    pub(super) fn wind_up(&mut self) {
        while !self.waiting.is_empty() {
            self.perform(Step::GiveUp(0));
        }
        while !self.starting.is_empty() {
            self.perform(Step::Started(0));
        }
        while !self.adapting.is_empty() {
            self.perform(Step::Adapted(0));
        }
        while !self.leased.is_empty() {
            self.perform(Step::Release(0));
        }
        while !self.cleaning.is_empty() {
            self.perform(Step::Cleaned(0));
        }
        if !self.closed {
            self.perform(Step::Close);
        }
        while !self.users.is_empty() {
            self.perform(Step::Disuse(0));
        }
        self.check();
        assert_eq!(self.live(), 0);
        assert!(
            self.state.keys.is_empty() && self.state.base_keys.is_empty(),
            "accounts are left of what is no more"
        );
    }
}

fn add(sum: &mut RuntimeCounts, counts: RuntimeCounts) {
    sum.starting += counts.starting;
    sum.available += counts.available;
    sum.adapting += counts.adapting;
    sum.leased += counts.leased;
    sum.cleaning += counts.cleaning;
}

proptest! {
    #[test]
    fn whatever_happens_the_invariants_hold(
        runtimes_max in 1..8_usize, steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(runtimes_max);
        for step in steps {
            world.perform(step);
            world.check();
        }
        world.wind_up();
    }
}
