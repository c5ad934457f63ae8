//! Runs what is due: one task that takes invocations from the schedule, and one task per attempt. A function has only as many attempts at
//! the same time as its target says, so that callers who wait for an answer have workers, too, and as [`rules::places`] leaves it beside
//! other functions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pilot_model::ports::{AsyncRunner, AsyncTarget, AttemptEnd, NoTarget};
use pilot_model::{AsyncConfig, FunctionName, Seldom};
use tokio::task::{JoinError, JoinSet};

use crate::command::{Change, Command};
use crate::destination;
use crate::rules::{self, Condition, Next, Progress};
use crate::schedule::{Entry, Work};
use crate::shared::QueueShared;
use crate::store::{Dead, Record};

/// Runs attempts until the queue stops, and then waits for those that run. Deliveries are soon cut: a destination that does not answer
/// would hold up the daemon's end, and they are made again after the next start. Dropping the future cancels everything.
pub(crate) async fn run(shared: Arc<QueueShared>, runner: Arc<dyn AsyncRunner>) {
    let (mut attempts, mut deliveries) = (JoinSet::new(), JoinSet::new());
    while !shared.stopping.load(Ordering::Relaxed) {
        while let Some(attempt) = next(&shared, &runner) {
            let running = match attempt.entry.work {
                Work::Attempt => &mut attempts,
                Work::Delivery => &mut deliveries,
            };
            running.spawn(attempt.run());
        }
        let wait = until_next(&shared);
        tokio::select! {
            () = shared.wake.notified() => {}
            () = tokio::time::sleep(wait) => {}
            Some(ended) = attempts.join_next() => log_panic(ended),
            Some(ended) = deliveries.join_next() => log_panic(ended),
        }
    }
    let delivered = async {
        let all = ended(&mut deliveries);
        if tokio::time::timeout(LAST_DELIVERIES, all).await.is_err() {
            let cut = shared.schedule.lock().running_of(Work::Delivery);
            tracing::info!(
                cut,
                "destinations do not answer: deliveries are repeated after the next start"
            );
            deliveries.shutdown().await;
        }
    };
    tokio::join!(delivered, ended(&mut attempts));
}

/// Waits until all have ended.
async fn ended(running: &mut JoinSet<()>) {
    while let Some(one) = running.join_next().await {
        log_panic(one);
    }
}

/// A panic is a mistake of the daemon. Its attempt is made again, see [`Place`].
fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
        && let Some(left_out) = PANICS.admit(std::time::Instant::now())
    {
        tracing::error!(%error, left_out, "an attempt of an asynchronous invocation panicked");
    }
}

/// The next attempt that may begin now.
pub(crate) fn next(shared: &Arc<QueueShared>, runner: &Arc<dyn AsyncRunner>) -> Option<Attempt> {
    let now_ms = shared.times.now_ms();
    let mut schedule = shared.schedule.lock();
    let free = |work, most: usize| most.saturating_sub(schedule.running_of(work));
    let free_attempts = free(Work::Attempt, shared.running_max);
    let free_deliveries = free(Work::Delivery, DELIVERIES_MAX);
    let places = |function: &FunctionName, work| match work {
        Work::Delivery => rules::places(free_deliveries, DELIVERIES_OF_ONE_MAX),
        // The target need not be looked up.
        Work::Attempt if free_attempts == 0 => 0,
        Work::Attempt => {
            // Those of a removed function only have to be ended.
            let target = runner.target(function, None);
            let most = target.map_or(usize::MAX, |target| target.concurrency);
            rules::places(free_attempts, most)
        }
    };
    let (seq, entry) = schedule.take(now_ms, places)?;
    Some(Attempt {
        place: Place {
            shared: Arc::clone(shared),
            seq,
            is_given_up: false,
            has_begun: false,
        },
        shared: Arc::clone(shared),
        runner: Arc::clone(runner),
        seq,
        entry,
    })
}

/// How long there is nothing to do, unless something ends or is accepted.
fn until_next(shared: &QueueShared) -> Duration {
    let now_ms = shared.times.now_ms();
    let schedule = shared.schedule.lock();
    // A deployment or a removal gives places, too, and does not tell.
    let most = if schedule.has_due(now_ms) {
        BLOCKED_LOOK_AGAIN_MS
    } else {
        LOOK_AGAIN_MS
    };
    let due_ms = schedule.next_due_ms(now_ms);
    let wait_ms = due_ms.map_or(most, |due| (due - now_ms).clamp(1, most));
    Duration::from_millis(wait_ms.unsigned_abs())
}

/// One attempt.
pub(crate) struct Attempt {
    shared: Arc<QueueShared>,
    runner: Arc<dyn AsyncRunner>,
    seq: i64,
    entry: Entry,
    place: Place,
}

/// The place of an attempt in the schedule. If the attempt panics, the invocation waits again.
struct Place {
    shared: Arc<QueueShared>,
    seq: i64,
    /// The invocation waits again already, or the writer has the end of the attempt.
    is_given_up: bool,
    /// It is stored that an attempt with a key has begun.
    has_begun: bool,
}

impl Place {
    /// The invocation waits again.
    fn release_after(&mut self, ms: i64) {
        let due_ms = self.shared.times.now_ms() + ms;
        self.shared.schedule.lock().release(self.seq, due_ms);
        self.is_given_up = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_given_up {
            return;
        }
        if self.has_begun {
            // As after a crash: the handler may have run.
            self.shared.schedule.lock().interrupt(self.seq);
        }
        self.release_after(PANICKED_WAIT_MS);
    }
}

impl Attempt {
    /// Runs it to its end, and until its end is stored.
    pub(crate) async fn run(mut self) {
        let Some(record) = self.load().await else {
            self.place.release_after(UNREADABLE_WAIT_MS);
            return;
        };
        let target = self.target(&record);
        let config = match (&target, &record.file) {
            (Ok(target), None) => target.config.clone(),
            _ => AsyncConfig::default(),
        };
        let (end, next) = self.attempt(&record, &target, &config).await;
        let target = target.ok();
        let change = match next {
            // That it began is stored: it did not run, so it is taken back.
            Next::Unchanged if self.entry.keyed && end == AttemptEnd::Stopping => {
                let Progress {
                    attempts, waits, ..
                } = self.entry.progress;
                Change::Again {
                    due_ms: self.shared.times.now_ms(),
                    attempts,
                    waits,
                    error: String::new(),
                }
            }
            Next::Unchanged => {
                self.place.release_after(NOT_STARTED_WAIT_MS);
                return;
            }
            Next::Again {
                due_ms,
                attempts,
                waits,
            } => Change::Again {
                due_ms,
                attempts,
                waits,
                error: error_text(&end),
            },
            Next::End(condition) => self.ended(&record, target.as_ref(), &config, &end, condition),
        };
        // The writer keeps it until it is written.
        self.place.is_given_up = true;
        let (seq, entry) = (self.seq, self.entry);
        let settled = self.shared.tell(|reply| Command::Settle {
            seq,
            entry,
            change,
            reply,
        });
        settled.await;
    }

    /// Its record. `None`: it cannot be read now.
    async fn load(&self) -> Option<Record> {
        let (shared, seq) = (Arc::clone(&self.shared), self.seq);
        let loaded = tokio::task::spawn_blocking(move || shared.load(seq))
            .await
            .ok()?;
        match loaded {
            Ok(Some(record)) => return Some(record),
            Ok(None) => tracing::error!(seq, "an asynchronous invocation is not in the store"),
            Err(error) => {
                if let Some(left_out) = UNREADABLE.admit(std::time::Instant::now()) {
                    tracing::error!(seq, %error, left_out, "an asynchronous invocation cannot be read");
                }
            }
        }
        None
    }

    /// The function, if it is still that of the same owner.
    fn target(&self, record: &Record) -> Result<AsyncTarget, NoTarget> {
        let request = &record.request;
        let target = self
            .runner
            .target(&request.function, request.qualifier.as_deref())?;
        if target.owner == request.owner {
            Ok(target)
        } else {
            Err(NoTarget::Gone)
        }
    }

    /// Runs it, if it may be run.
    async fn attempt(
        &mut self,
        record: &Record,
        target: &Result<AsyncTarget, NoTarget>,
        config: &AsyncConfig,
    ) -> (AttemptEnd, Next) {
        let Progress { accepted_ms, .. } = self.entry.progress;
        let ends = |problem: &str, condition| {
            let problem = problem.to_owned();
            (AttemptEnd::NotRun { problem }, Next::End(condition))
        };
        if self.entry.interrupted {
            let problem = "the daemon ended during an attempt, and it has an idempotency key: it may have run";
            return ends(problem, Condition::Interrupted);
        }
        if record.file.is_none() && matches!(target, Err(NoTarget::Gone)) {
            let problem = "there is no such function or version of this owner any more";
            return ends(problem, Condition::FunctionNotFound);
        }
        if rules::is_too_old(accepted_ms, config, self.shared.times.now_ms()) {
            let problem = "it was not begun within its greatest age";
            return ends(problem, Condition::EventAgeExceeded);
        }
        if self.entry.keyed && !self.starts().await {
            let problem = "its beginning cannot be stored".to_owned();
            return (AttemptEnd::NotRun { problem }, Next::Unchanged);
        }
        let end = match (&record.file, target) {
            (Some(place), _) => {
                let delivery = &*self.shared.delivery;
                destination::deliver(&self.shared, delivery, record, place).await
            }
            (None, Err(NoTarget::Broken { problem })) => AttemptEnd::NotRun {
                problem: problem.clone(),
            },
            (None, _) => self.runner.run(record.request.clone()).await,
        };
        let now_ms = self.shared.times.now_ms();
        let next = rules::after(&end, self.entry.progress, config, now_ms, self.seq);
        (end, next)
    }

    /// Stores that the attempt begins. False: it cannot be stored.
    async fn starts(&mut self) -> bool {
        let seq = self.seq;
        let started = self.shared.tell(|reply| Command::Start { seq, reply });
        self.place.has_begun = started.await.unwrap_or(false);
        self.place.has_begun
    }

    /// What is stored at its end.
    fn ended(
        &self,
        record: &Record,
        target: Option<&AsyncTarget>,
        config: &AsyncConfig,
        end: &AttemptEnd,
        condition: Condition,
    ) -> Change {
        let ran = matches!(end, AttemptEnd::Done { .. } | AttemptEnd::Failed { .. });
        let attempts = self.entry.progress.attempts + u32::from(ran);
        let then = destination::record(
            &*self.runner,
            &destination::Ended {
                record,
                target,
                config,
                end,
                condition,
                attempts,
                now_ms: self.shared.times.now_ms(),
            },
        );
        let failed = condition != Condition::Success;
        let dead = (failed && (config.dead_letter || record.file.is_some())).then(|| Dead {
            condition,
            error: error_text(end),
            attempts,
        });
        if failed && dead.is_none() && then.is_none() {
            self.shared.counters.dropped();
            if let Some(left_out) = DROPPED.admit(std::time::Instant::now()) {
                let function = record.request.function.as_str();
                tracing::warn!(
                    function,
                    condition = condition.as_str(),
                    left_out,
                    "a failed asynchronous invocation was not kept: async.dead_letter is false"
                );
            }
        }
        Change::End {
            dead,
            then: then.map(Box::new),
        }
    }
}

/// What an attempt failed of, for people.
fn error_text(end: &AttemptEnd) -> String {
    let text = match end {
        AttemptEnd::Done { .. } | AttemptEnd::Stopping => return String::new(),
        AttemptEnd::Failed { body, .. } => String::from_utf8_lossy(body).into_owned(),
        AttemptEnd::NotRun { problem } | AttemptEnd::Gone { problem } => problem.clone(),
    };
    text.chars().take(ERROR_CHARS_MAX).collect()
}

static UNREADABLE: Seldom = Seldom::new(5);
static DROPPED: Seldom = Seldom::new(5);
static PANICS: Seldom = Seldom::new(5);
/// Deliveries to destinations that are no functions, which are running at the same time: of all functions, and of one. Each holds its
/// record, up to 1 MiB, in memory.
const DELIVERIES_MAX: usize = 64;
const DELIVERIES_OF_ONE_MAX: usize = 8;
/// How long deliveries may still run when the queue stops.
const LAST_DELIVERIES: Duration = Duration::from_secs(2);

/// Longest time between two looks at the schedule.
const LOOK_AGAIN_MS: i64 = 60_000;
/// The same, while something is due and has no place.
const BLOCKED_LOOK_AGAIN_MS: i64 = 1000;
const UNREADABLE_WAIT_MS: i64 = 30_000;
const NOT_STARTED_WAIT_MS: i64 = 1000;
const PANICKED_WAIT_MS: i64 = 30_000;
const ERROR_CHARS_MAX: usize = 1000;
