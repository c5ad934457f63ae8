//! The bus of events: the path publishes, and each subscriber processes the events on a thread of its own.
//!
//! Publishing is a push into one bounded inbox, however many subscribers there are. It wakes another thread at most once per
//! interval, because waking a sleeping core costs more than the push. The thread `pilot-events` empties the inbox and passes the
//! batch on to the bounded queue of each subscriber; the events are shared and not copied. A batch that does not fit into a
//! queue is lost for that subscriber alone. It is counted (`pilot_events_dropped_total`) and logged.
//!
//! Each subscriber holds at most the batch that it processes and a full queue.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pilot_model::Event;
use pilot_model::ports::EventSink;
use prometheus_client::metrics::counter::Counter;

use crate::Metrics;

/// A consumer of events. It is dropped when the bus stops.
pub trait Subscriber: Send + 'static {
    /// Processes some events. They are in the order in which they were published.
    fn batch(&mut self, events: &[Event]);

    /// If there are no events for this long after a batch, [`Subscriber::batch`] is called without any. `None`: it is not.
    fn wake_after(&self) -> Option<Duration> {
        None
    }
}

/// The bounds of a bus.
#[derive(Debug, Clone)]
pub struct BusConfig {
    /// Most events in the inbox, and in the queue of each subscriber.
    pub events_max: usize,
    /// Most output of functions, bytes, that the inbox and each queue may hold.
    pub output_bytes_max: usize,
    /// How long events gather before they are passed on. Each time up to four threads wake, which competes with requests on a small
    /// machine.
    pub interval: Duration,
}

impl Default for BusConfig {
    fn default() -> Self {
        Self {
            events_max: 16 * 1024,
            output_bytes_max: 16 << 20,
            interval: Duration::from_millis(100),
        }
    }
}

/// The bus. Dropping it stops it.
#[derive(Debug)]
pub struct Bus {
    shared: Arc<BusState>,
    /// Guards the handle alone.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Bus {
    /// Starts the bus, without subscribers.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(config: BusConfig, metrics: Arc<Metrics>) -> io::Result<Self> {
        let shared = Arc::new(BusState {
            config,
            metrics,
            inbox: Mutex::default(),
            filled: Condvar::new(),
            queues: Mutex::default(),
        });
        let passing = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("pilot-events".to_owned())
            .spawn(move || passing.run())?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Adds a subscriber. It gets what is published from now on. `name` is the label of its metric and part of its thread's name.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn subscribe(
        &self,
        name: &'static str,
        subscriber: impl Subscriber,
    ) -> io::Result<Subscription> {
        let queue = Arc::new(Queue {
            name,
            lost: self.shared.metrics.events_dropped(name),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&queue);
        let thread = thread::Builder::new()
            .name(format!("events-{name}"))
            .spawn(move || own.run(subscriber))?;
        queue.state.lock().thread = Some(thread);
        self.shared.pass_on();
        self.shared.queues.lock().push(Arc::clone(&queue));
        Ok(Subscription {
            shared: Arc::clone(&self.shared),
            queue,
        })
    }

    /// Has everything processed that was published before, then ends the subscribers. A subscriber that does not end soon is left
    /// behind. Events that are published later are lost.
    pub fn stop(&self) {
        self.shared.inbox.lock().stopped = true;
        self.shared.filled.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread pilot-events had panicked");
        }
        let queues = self.shared.queues.lock().clone();
        for queue in queues {
            queue.stop();
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.stop();
    }
}

impl EventSink for Bus {
    fn publish(&self, event: Event) {
        self.shared.publish(event);
    }
}

/// The place of one subscriber on the bus.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<BusState>,
    queue: Arc<Queue>,
}

impl Subscription {
    /// Waits until the subscriber has processed everything that was published before this call. Not to be called by a
    /// subscriber.
    pub fn flush(&self) {
        self.shared.pass_on();
        self.queue.flush();
    }

    /// Events that the subscriber has lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.queue.lost.get()
    }
}

#[derive(Debug)]
struct BusState {
    config: BusConfig,
    metrics: Arc<Metrics>,
    /// What has gathered. Held for a push or a swap.
    inbox: Mutex<Inbox>,
    /// Signalled when the inbox gets its first event, and at the end.
    filled: Condvar,
    /// One per subscriber. Held while a batch is passed on, which keeps batches in order; taken before `inbox`.
    queues: Mutex<Vec<Arc<Queue>>>,
}

#[derive(Debug, Default)]
struct Inbox {
    batch: Batch,
    /// Events that found the inbox full, since it was last emptied.
    lost: u64,
    stopped: bool,
}

#[derive(Debug, Default)]
struct Batch {
    events: Vec<Event>,
    output_bytes: usize,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.batch.events.is_empty() && self.lost == 0
    }
}

impl BusConfig {
    /// Whether this number of events with this size of output may wait in one place.
    fn admits(&self, events: usize, output_bytes: usize) -> bool {
        events <= self.events_max && output_bytes <= self.output_bytes_max
    }
}

impl BusState {
    fn publish(&self, event: Event) {
        let output_bytes = event.output_bytes();
        let mut inbox = self.inbox.lock();
        let events = inbox.batch.events.len();
        let fits = self
            .config
            .admits(events + 1, inbox.batch.output_bytes + output_bytes);
        if !fits || inbox.stopped {
            inbox.lost += 1;
            // The event is dropped after the lock.
            drop(inbox);
            return;
        }
        inbox.batch.output_bytes += output_bytes;
        inbox.batch.events.push(event);
        drop(inbox);
        if events == 0 {
            self.filled.notify_one();
        }
    }

    fn run(&self) {
        loop {
            let stopped = self.wait();
            self.pass_on();
            if stopped {
                return;
            }
        }
    }

    /// Waits for a first event, and then for more to gather. True: it is time to stop.
    fn wait(&self) -> bool {
        let mut inbox = self.inbox.lock();
        self.filled.wait_while(&mut inbox, |inbox| {
            inbox.batch.events.is_empty() && !inbox.stopped
        });
        self.filled
            .wait_while_for(&mut inbox, |inbox| !inbox.stopped, self.config.interval);
        inbox.stopped
    }

    /// Empties the inbox into the queues.
    fn pass_on(&self) {
        let queues = self.queues.lock();
        if self.inbox.lock().is_empty() {
            return;
        }
        let mut batch = Batch {
            events: Vec::with_capacity(EVENTS_USUAL),
            output_bytes: 0,
        };
        let lost = {
            let mut inbox = self.inbox.lock();
            std::mem::swap(&mut inbox.batch, &mut batch);
            std::mem::take(&mut inbox.lost)
        };
        let batch = Arc::new(batch);
        for queue in queues.iter() {
            queue.take_in(&batch, lost, &self.config);
        }
    }
}

/// What one subscriber has not processed yet.
struct Queue {
    name: &'static str,
    /// Events that the subscriber did not get, or did not get through.
    lost: Counter,
    /// Held for moments, never while events are processed.
    state: Mutex<QueueState>,
    /// Signalled at every change of `state`.
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    batches: VecDeque<Arc<Batch>>,
    /// In all of `batches`.
    events: usize,
    /// In all of `batches`.
    output_bytes: usize,
    /// Batches that were taken in, and of these how many are done.
    taken_in: u64,
    done: u64,
    closed: bool,
    /// The thread has ended.
    ended: bool,
    thread: Option<JoinHandle<()>>,
    /// Lost events that the log does not tell of yet.
    lost_untold: u64,
    told: Option<Instant>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.name).finish()
    }
}

/// What a subscriber's thread does next.
enum Next {
    Batch(Arc<Batch>),
    Nothing,
}

impl Queue {
    fn take_in(&self, batch: &Arc<Batch>, lost_before: u64, config: &BusConfig) {
        let mut state = self.state.lock();
        let count = batch.events.len();
        let (events, output_bytes) = (
            state.events + count,
            state.output_bytes + batch.output_bytes,
        );
        let mut lost = lost_before;
        if state.closed || !config.admits(events, output_bytes) {
            lost += count as u64;
        } else if count > 0 {
            state.batches.push_back(Arc::clone(batch));
            (state.events, state.output_bytes) = (events, output_bytes);
            state.taken_in += 1;
            self.changed.notify_all();
        }
        self.lose(&mut state, lost);
        self.tell(&mut state);
    }

    fn lose(&self, state: &mut QueueState, events: u64) {
        self.lost.inc_by(events);
        state.lost_untold += events;
    }

    /// Tells the log of what was lost, every now and then.
    fn tell(&self, state: &mut QueueState) {
        let told_lately = state.told.is_some_and(|told| told.elapsed() < TELL_EVERY);
        if state.lost_untold > 0 && !told_lately {
            let lost = std::mem::take(&mut state.lost_untold);
            state.told = Some(Instant::now());
            tracing::warn!(
                subscriber = self.name,
                lost,
                "a subscriber has lost events: it was too slow, or had ended"
            );
        }
    }

    fn run(&self, mut subscriber: impl Subscriber) {
        let mut panics = 0;
        while let Some(next) = self.next(subscriber.wake_after()) {
            let Next::Batch(batch) = next else {
                // A subscriber that panics here is ended by its next batch.
                let _ = catch_unwind(AssertUnwindSafe(|| subscriber.batch(&[])));
                continue;
            };
            let processing = AssertUnwindSafe(|| subscriber.batch(&batch.events));
            let panicked = catch_unwind(processing).is_err();
            let events = batch.events.len() as u64;
            drop(batch);
            let mut state = self.state.lock();
            state.done += 1;
            if panicked {
                panics += 1;
                state.closed |= panics == PANICS_MAX;
                self.lose(&mut state, events);
                tracing::error!(
                    subscriber = self.name,
                    events,
                    switched_off = panics == PANICS_MAX,
                    "a subscriber of events panicked: the rest of these events is lost for it"
                );
            }
            if panics == PANICS_MAX {
                let waiting = state.events as u64;
                (state.events, state.output_bytes) = (0, 0);
                state.batches.clear();
                self.lose(&mut state, waiting);
            }
            self.changed.notify_all();
        }
        drop(subscriber);
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// The next batch, or that there was none for this long; `None`: there is none left, and none will come.
    fn next(&self, wake_after: Option<Duration>) -> Option<Next> {
        let mut state = self.state.lock();
        let waits = |state: &mut QueueState| state.batches.is_empty() && !state.closed;
        match wake_after {
            None => self.changed.wait_while(&mut state, waits),
            Some(limit) => {
                let waited = self.changed.wait_while_for(&mut state, waits, limit);
                if waited.timed_out() && waits(&mut state) {
                    return Some(Next::Nothing);
                }
            }
        }
        let batch = state.batches.pop_front()?;
        state.events -= batch.events.len();
        state.output_bytes -= batch.output_bytes;
        Some(Next::Batch(batch))
    }

    fn flush(&self) {
        let mut state = self.state.lock();
        let until = state.taken_in;
        self.changed
            .wait_while(&mut state, |state| state.done < until && !state.ended);
    }

    fn stop(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        self.changed
            .wait_while_for(&mut state, |state| !state.ended, STOP_WAIT_MAX);
        let (ended, thread) = (state.ended, state.thread.take());
        state.told = None;
        self.tell(&mut state);
        drop(state);
        if !ended {
            tracing::error!(subscriber = self.name, "a subscriber of events did not end");
        } else if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(
                subscriber = self.name,
                "a subscriber of events had panicked"
            );
        }
    }
}

/// Initial capacity of the inbox.
const EVENTS_USUAL: usize = 256;
/// A subscriber that panicked so often is switched off.
const PANICS_MAX: u32 = 3;
/// Lost events are logged at most this often.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long a subscriber may take to end.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
