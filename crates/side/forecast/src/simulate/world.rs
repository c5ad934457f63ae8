//! The event loop: takes arrivals and events in order of time, passes each to a pool's rules, and makes events of the returned
//! actions. It allocates nothing per event.

use pilot_model::Instant;
use pilot_rules::{Action, Ending, Key};
use pilot_workload::Arrival;
use std::iter::Peekable;

use super::count::Count;
use super::cpu::{Cpus, Job, Part};
use super::events::{Event, Events, What};
use super::outcome::{Outcome, gigabyte_seconds, nanos, seconds};
use super::pool::{Pool, WaitingArrival, Worker};
use super::settings::{Function, Load, MakeForecaster, Simulation};

pub(super) fn run<I>(
    simulation: &Simulation,
    load: Load<I>,
    forecaster: &MakeForecaster<'_>,
) -> Outcome
where
    I: IntoIterator<Item = Arrival>,
{
    let mut world = World::new(simulation, &load.functions, forecaster);
    world.open();
    world.pass(load.arrivals.into_iter().peekable());
    let end = world.begin.saturating_add(nanos(load.span));
    let end = end.max(world.count.answered);
    world.close(end)
}

struct World<'a> {
    simulation: &'a Simulation,
    pools: Vec<Pool>,
    events: Events,
    cpus: Option<Cpus>,
    /// Reused for every event.
    actions: Vec<Action<Worker, WaitingArrival>>,
    /// Nanoseconds since the functions were deployed.
    now: u64,
    /// When the load begins.
    begin: u64,
    /// Waiting and running requests.
    running: u64,
    count: Count,
}

impl<'a> World<'a> {
    fn new(
        simulation: &'a Simulation,
        functions: &[Function],
        forecaster: &MakeForecaster<'_>,
    ) -> Self {
        let numbered = (0_u32..).zip(functions);
        let pools = numbered
            .map(|(index, function)| Pool::new(simulation, *function, index, forecaster))
            .collect();
        let cpus = simulation.costs.cpus;
        Self {
            simulation,
            pools,
            events: Events::default(),
            cpus: cpus.map(|cpus| Cpus::new(cpus.cores.max(CORES_MIN))),
            actions: Vec::new(),
            now: 0,
            begin: nanos(simulation.lead),
            running: 0,
            count: Count::new(),
        }
    }

    /// Deploys the functions: their forecasters tick for the first time, and `min` workers are started.
    fn open(&mut self) {
        for function in (0_u32..).take(self.pools.len()) {
            if self.pools[function as usize].forecaster.is_some() {
                self.events.push_tick(0, function);
            }
            self.arm(function);
        }
    }

    /// Runs until the load has ended and every request has its answer.
    fn pass(&mut self, mut arrivals: Peekable<impl Iterator<Item = Arrival>>) {
        loop {
            let next = self.next_at();
            match arrivals.peek() {
                Some(arrival) => {
                    let at = self.begin.saturating_add(nanos(arrival.at)).max(self.now);
                    if next > at {
                        self.arrive(at, *arrival);
                        arrivals.next();
                        continue;
                    }
                }
                None if self.running == 0 => return,
                None => {}
            }
            if next == u64::MAX {
                return;
            }
            self.step();
        }
    }

    /// When the next event happens; `u64::MAX`: there is none.
    fn next_at(&self) -> u64 {
        let computed = self.cpus.as_ref().map_or(u64::MAX, Cpus::next_at);
        self.events.next_at().min(computed)
    }

    /// Processes the next event.
    fn step(&mut self) {
        if let Some(cpus) = &mut self.cpus {
            let at = cpus.next_at();
            if at <= self.events.next_at() {
                let job = cpus.pop(at);
                self.now = at;
                return job.into_iter().for_each(|job| self.computed(job));
            }
        }
        if let Some(event) = self.events.pop() {
            self.happen(event);
        }
    }

    /// The CPU time of a job is over: it ends after the rest of its time.
    fn computed(&mut self, job: Job) {
        let (rest, what) = match job.part {
            Part::Start { key, asked, rest } => (rest, What::Ready { key, asked }),
            Part::Invocation {
                key,
                since,
                rest,
                work,
                waited,
            } => {
                let longer = (self.now - since).saturating_sub(work);
                self.count.beyond.add(waited.saturating_add(longer));
                self.count.busy += u128::from(longer);
                (rest, What::End { key, since })
            }
        };
        self.events.push(Event {
            at: self.now.saturating_add(rest),
            function: job.function,
            what,
        });
    }

    /// The load ends at `end`: processes the events until then, and the final counts.
    fn close(mut self, end: u64) -> Outcome {
        while self.next_at() <= end {
            self.step();
        }
        let begin = self.begin;
        let computing = self.cpus.iter().flat_map(Cpus::starting);
        for (function, asked) in self.events.starting().chain(computing) {
            self.pools[function as usize].lived += lived(begin, asked, end);
        }
        for pool in &mut self.pools {
            let left = pool.state.workers();
            let sum: u128 = left.map(|worker| lived(begin, worker.asked, end)).sum();
            pool.lived += sum;
        }
        self.outcome(u128::from(end.saturating_sub(begin)))
    }

    fn outcome(&self, span: u128) -> Outcome {
        let (pools, count) = (&self.pools, &self.count);
        let worker_gb_s: f64 = pools
            .iter()
            .map(|pool| gigabyte_seconds(pool.worker_bytes, pool.lived))
            .sum();
        let template_gb_s =
            gigabyte_seconds(self.simulation.costs.template_bytes, span) * pools.len() as f64;
        Outcome {
            invocations: count.invocations,
            refused: count.refused,
            cold: count.cold,
            cold_shared: count.cold_shared,
            cold_wait_s: seconds(count.cold_wait),
            queued: count.queued,
            queue_wait_s: seconds(count.queue_wait),
            wait: count.waits.waits(),
            beyond_service: match self.cpus {
                Some(_) => count.beyond.waits(),
                None => count.waits.waits(),
            },
            gb_s: worker_gb_s + template_gb_s,
            template_gb_s,
            memory_max_bytes: count.memory_max,
            worker_s: seconds(pools.iter().map(|pool| pool.lived).sum()),
            busy_s: seconds(count.busy),
            forks: count.forks,
            workers_max: count.workers_max,
            ticks: count.ticks,
            span_s: seconds(span),
        }
    }

    fn arrive(&mut self, at: u64, arrival: Arrival) {
        self.now = at;
        let Some(pool) = self.pools.get_mut(arrival.function as usize) else {
            return;
        };
        let costs = &self.simulation.costs;
        let service = match arrival.service {
            Some(service) if !costs.insist => nanos(service),
            _ => costs.service.draw(&mut pool.services),
        };
        let waiting = WaitingArrival {
            arrived: at,
            service,
        };
        let answer = pool
            .state
            .arrive(Instant(at), || waiting, &mut self.actions);
        self.running += 1;
        match answer {
            pilot_rules::Arrival::Leased(key, ..) => {
                self.count.waits.none();
                self.serve(arrival.function, key, service, 0);
            }
            pilot_rules::Arrival::Queued(_) => {}
            pilot_rules::Arrival::Full(_)
            | pilot_rules::Arrival::Late(_)
            | pilot_rules::Arrival::Closed => {
                self.running -= 1;
                self.count.refused += 1;
            }
        }
        self.follow(arrival.function);
    }

    fn happen(&mut self, event: Event) {
        self.now = event.at;
        let now = Instant(event.at);
        let pool = &mut self.pools[event.function as usize];
        let actions = &mut self.actions;
        match event.what {
            What::End { key, since } => {
                self.count.answered = event.at;
                self.running -= 1;
                let ending = Ending::Reusable;
                pool.state
                    .release(now, key, Instant(since), ending, actions);
            }
            What::Ready { key, asked } => pool.state.ready(now, key, Worker { asked }, actions),
            What::Due => {
                if pool.told == event.at {
                    pool.told = u64::MAX;
                }
                if pool.state.due() <= now {
                    pool.state.tick(now, actions);
                }
            }
            What::Tick => {
                let Some(forecaster) = &mut pool.forecaster else {
                    return;
                };
                let tick = pool.state.observe(now, Some(pool.worker_bytes));
                let target = forecaster.tick(&tick);
                pool.state.apply_target(now, target, actions);
                self.count.ticks += 1;
                if let Some(interval) = pool.interval() {
                    let at = event.at.saturating_add(interval);
                    self.events.push_tick(at, event.function);
                }
            }
        }
        self.follow(event.function);
    }

    /// Executes the pool's actions, and schedules its next tick.
    fn follow(&mut self, function: u32) {
        if !self.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            for action in actions.drain(..) {
                self.act(function, action);
            }
            self.actions = actions;
        }
        self.arm(function);
    }

    fn act(&mut self, function: u32, action: Action<Worker, WaitingArrival>) {
        let pool = &mut self.pools[function as usize];
        match action {
            Action::Start(key) => {
                let takes = self.simulation.costs.start.draw(&mut pool.starts);
                let asked = self.now;
                if let (Some(cpus), Some(costs)) = (&mut self.cpus, self.simulation.costs.cpus) {
                    let work = nanos(costs.start);
                    let rest = takes.saturating_sub(work);
                    cpus.push(asked, work, function, Part::Start { key, asked, rest });
                } else {
                    self.events.push(Event {
                        at: asked.saturating_add(takes),
                        function,
                        what: What::Ready { key, asked },
                    });
                }
                let count = &mut self.count;
                count.forks += 1;
                count.workers += 1;
                count.workers_max = count.workers_max.max(count.workers);
                count.memory = count.memory.saturating_add(pool.worker_bytes);
                count.memory_max = count.memory_max.max(count.memory);
            }
            Action::Give { to, key, kind, .. } => {
                let waited = self.now - to.arrived;
                self.count.give(kind, waited);
                self.serve(function, key, to.service, waited);
            }
            Action::Fail(_) | Action::Refuse(_) => {
                self.running -= 1;
                self.count.refused += 1;
            }
            Action::Retire(worker, _) => {
                pool.lived += lived(self.begin, worker.asked, self.now);
                self.count.workers -= 1;
                self.count.memory = self.count.memory.saturating_sub(pool.worker_bytes);
            }
            Action::Rest(..) => {}
        }
    }

    /// An invocation begins, with this service time and after this wait.
    fn serve(&mut self, function: u32, key: Key, service: u64, waited: u64) {
        self.count.invocations += 1;
        let since = self.now;
        if let (Some(cpus), Some(costs)) = (&mut self.cpus, self.simulation.costs.cpus) {
            let work = nanos(costs.service);
            let rest = service.saturating_sub(work);
            self.count.busy += u128::from(work.saturating_add(rest));
            let part = Part::Invocation {
                key,
                since,
                rest,
                work,
                waited,
            };
            return cpus.push(since, work, function, part);
        }
        self.count.busy += u128::from(service);
        self.events.push(Event {
            at: since.saturating_add(service),
            function,
            what: What::End { key, since },
        });
    }

    /// Schedules the pool's tick, unless an event that is no later already exists.
    fn arm(&mut self, function: u32) {
        let pool = &mut self.pools[function as usize];
        let due = pool.state.due().0;
        if due < pool.told {
            let at = due.max(self.now);
            pool.told = at;
            self.events.push(Event {
                at,
                what: What::Due,
                function,
            });
        }
    }
}

/// How long a worker lived since the load began, nanoseconds.
fn lived(begin: u64, asked: u64, end: u64) -> u128 {
    u128::from(end.saturating_sub(asked.max(begin)))
}

/// With fewer CPUs, simulated time would not advance.
const CORES_MIN: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    impl World<'_> {
        /// The number of events and actions for which memory is allocated.
        fn footprint(&self) -> usize {
            self.events.capacity() + self.actions.capacity()
        }
    }

    #[test]
    fn memory_does_not_grow_with_the_length_of_the_load() {
        let simulation = Simulation::default();
        let footprint = |requests: u64| {
            let functions = [Function::default(); 3];
            let mut world = World::new(&simulation, &functions, &|_| None);
            let arrivals = (0..requests).map(|number| Arrival {
                at: Duration::from_micros(number * 700),
                function: (number % 3) as u32,
                service: Some(Duration::from_millis(2)),
            });
            world.open();
            world.pass(arrivals.peekable());
            assert_eq!(world.count.invocations, requests);
            (world.footprint(), world.events.pushed())
        };
        let ((long, events), (short, _)) = (footprint(100_000), footprint(1_000));
        assert_eq!(long, short);
        // The end of each, and a tick of the pool now and then.
        assert!(events <= 3 * 100_000, "{events} events");
    }
}
