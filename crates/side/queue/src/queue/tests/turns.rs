//! How functions share the places: the rule and the schedule against a model, and the queue over a real store.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_model::ports::{
    AsyncQueue as _, AsyncRequest, AsyncRunner, AsyncTarget, AttemptEnd, NoTarget,
};
use pilot_model::{AsyncConfig, BoxFuture, FunctionName};
use proptest::prelude::*;

use super::{Queue, QueueConfig, config, done, request, stop, tokio};
use crate::dispatch::{self, Attempt};
use crate::rules::{self, Progress};
use crate::schedule::{Entry, Schedule, Work};

#[derive(Debug, Clone)]
enum Step {
    /// A function gets so many invocations.
    Add(usize, usize),
    /// One that runs ends.
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (any::<usize>(), 1..12_usize).prop_map(|(function, count)| Step::Add(function, count)),
        any::<usize>().prop_map(Step::End),
    ]
}

/// A function in the model.
#[derive(Debug, Clone, Default)]
struct Function {
    /// The most that its own configuration permits.
    most: usize,
    waiting: usize,
    running: Vec<i64>,
    /// Starts of others while it has something that waits, and runs nothing.
    passed_over: usize,
}

impl Function {
    fn waits_for_its_first(&self) -> bool {
        self.waiting > 0 && self.running.is_empty()
    }
}

struct World {
    schedule: Schedule,
    functions: Vec<Function>,
    places: usize,
    last_seq: i64,
}

impl World {
    fn new(places: usize, most: Vec<usize>) -> Self {
        let functions = most.into_iter().map(|most| Function {
            most,
            ..Function::default()
        });
        Self {
            schedule: Schedule::default(),
            functions: functions.collect(),
            places,
            last_seq: 0,
        }
    }

    fn free(&self) -> usize {
        let running = self.functions.iter().map(|one| one.running.len());
        self.places - running.sum::<usize>()
    }

    fn add(&mut self, function: usize, count: usize) {
        let index = function % self.functions.len();
        self.functions[index].waiting += count;
        for _ in 0..count {
            self.last_seq += 1;
            let entry = Entry {
                function: format!("f{index}").parse().unwrap(),
                work: Work::Attempt,
                progress: Progress {
                    accepted_ms: 0,
                    attempts: 0,
                    waits: 0,
                },
                due_ms: 0,
                bytes: 1,
                keyed: false,
                interrupted: false,
                running: false,
            };
            self.schedule.add(self.last_seq, entry);
        }
    }

    /// False: nothing runs.
    fn end(&mut self, which: usize) -> bool {
        let running = self.functions.iter().flat_map(|one| one.running.clone());
        let running: Vec<i64> = running.collect();
        let Some(seq) = running.get(which % running.len().max(1)) else {
            return false;
        };
        self.schedule.remove(*seq);
        for function in &mut self.functions {
            function.running.retain(|one| one != seq);
        }
        true
    }

    /// Starts what may be started, as the dispatcher does.
    fn start(&mut self) {
        let index = |name: &FunctionName| name.as_str()[1..].parse::<usize>().unwrap();
        loop {
            let free = self.free();
            let functions = &self.functions;
            let places = |name: &FunctionName, _| rules::places(free, functions[index(name)].most);
            let Some((seq, entry)) = self.schedule.take(0, places) else {
                break;
            };
            let started = index(&entry.function);
            for (other, function) in self.functions.iter_mut().enumerate() {
                let is_passed_over = other != started && function.waits_for_its_first();
                function.passed_over = match is_passed_over {
                    true => function.passed_over + 1,
                    false => 0,
                };
            }
            let function = &mut self.functions[started];
            let others_leave = free + function.running.len();
            function.waiting -= 1;
            function.running.push(seq);
            assert!(function.running.len() <= others_leave.div_ceil(2));
        }
    }

    fn check(&self) {
        let free = self.free();
        for function in &self.functions {
            let running = function.running.len();
            let others_leave = free + running;
            assert!(running <= function.most, "{function:?}");
            assert!(
                free == 0 || !function.waits_for_its_first(),
                "{free} free, but not for {function:?}"
            );
            let gets_all_it_may = running >= others_leave.div_ceil(2).min(function.most);
            assert!(
                function.waiting == 0 || gets_all_it_may,
                "{free} free, but not for {function:?}"
            );
            // Each other one has at most one turn.
            assert!(function.passed_over < self.functions.len(), "{function:?}");
        }
    }
}

proptest! {
    /// More functions than places, and fewer.
    #[test]
    fn a_function_that_runs_nothing_gets_a_place_if_one_is_free_and_none_is_starved(
        places in 1..24_usize,
        most in proptest::collection::vec(1..24_usize, 1..32),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(places, most);
        for step in steps {
            match step {
                Step::Add(function, count) => world.add(function, count),
                Step::End(which) => {
                    world.end(which);
                }
            }
            world.start();
            world.check();
        }
        while world.end(0) {
            world.start();
            world.check();
        }
        prop_assert!(world.functions.iter().all(|function| function.waiting == 0));
    }
}

/// Its functions may have any number of attempts.
#[derive(Debug)]
struct Unlimited;

impl AsyncRunner for Unlimited {
    fn target(&self, function: &FunctionName, _: Option<&str>) -> Result<AsyncTarget, NoTarget> {
        Ok(AsyncTarget {
            config: AsyncConfig::default(),
            owner: "us".to_owned(),
            concurrency: 1000,
            arn: format!("arn:{function}"),
        })
    }

    fn run(&self, _: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        Box::pin(std::future::ready(done()))
    }
}

async fn accept(queue: &Queue, function: &str, count: usize) {
    for number in 0..count {
        let id = format!("{function}-{number}");
        queue.accept(request(function, &id, None)).await.unwrap();
    }
}

/// How many run of each function.
fn running(queue: &Queue) -> BTreeMap<String, usize> {
    let schedule = queue.shared.schedule.lock();
    let mut running = BTreeMap::new();
    for entry in (0..1000).filter_map(|seq| schedule.entry(seq)) {
        if entry.running {
            *running.entry(entry.function.to_string()).or_default() += 1;
        }
    }
    running
}

#[test]
fn two_functions_with_long_attempts_leave_places_for_a_third_one_also_after_a_restart() {
    const PLACES: usize = 128;
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        Queue::open(QueueConfig {
            records_max: 1000,
            running_max: PLACES,
            ..config(folder.path())
        })
        .unwrap()
    };
    let runner: Arc<dyn AsyncRunner> = Arc::new(Unlimited);
    let begin_all = |queue: &Queue| -> Vec<Attempt> {
        std::iter::from_fn(|| dispatch::next(&queue.shared, &runner)).collect()
    };
    tokio().block_on(async {
        let queue = open();
        accept(&queue, "hog1", PLACES).await;
        let alone = begin_all(&queue);
        assert_eq!(alone.len(), PLACES / 2, "one function alone has half");
        accept(&queue, "hog2", PLACES).await;
        let beside = begin_all(&queue);
        assert_eq!(beside.len(), PLACES / 4);
        accept(&queue, "mark", 1).await;
        let begun = begin_all(&queue);
        assert_eq!((begun.len(), running(&queue)["mark"]), (1, 1));
        for attempt in begun {
            attempt.run().await;
        }
        assert!(!running(&queue).contains_key("mark"), "it has ended");
        drop((alone, beside));
        stop(queue).await;

        let queue = open();
        let both = begin_all(&queue);
        let now = running(&queue);
        assert_eq!((now["hog1"], now["hog2"]), (43, 43), "they take turns");
        drop(both);
        stop(queue).await;
    });
}
