use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use pilot_model::status::RuntimeCounts;
use proptest::prelude::*;

use super::*;
use crate::metrics::tests::record;

/// A bus that passes nothing on by itself within a test's time.
fn bus(events_max: usize, output_bytes_max: usize) -> Bus {
    let config = BusConfig {
        events_max,
        output_bytes_max,
        interval: Duration::from_secs(3600),
    };
    Bus::start(config, Arc::default()).unwrap()
}

fn event(number: u32) -> Event {
    Event::RuntimesCounted(RuntimeCounts {
        starting: number,
        ..RuntimeCounts::default()
    })
}

fn printed(bytes: usize) -> Event {
    let mut record = record("f", pilot_model::StartKind::Warm, pilot_model::Outcome::Ok);
    record.output = Bytes::from(vec![b'x'; bytes]);
    Event::Invoked(Arc::new(record))
}

fn number(event: &Event) -> u32 {
    match event {
        Event::RuntimesCounted(counts) => counts.starting,
        _ => 0,
    }
}

/// Notes the numbers of the events.
#[derive(Debug, Clone, Default)]
struct Noting(Arc<Mutex<Vec<u32>>>);

impl Noting {
    fn seen(&self) -> Vec<u32> {
        self.0.lock().clone()
    }
}

impl Subscriber for Noting {
    fn batch(&mut self, events: &[Event]) {
        self.0.lock().extend(events.iter().map(number));
    }
}

/// Says when it has a batch, and then waits until it may go on.
struct Blocking {
    has_batch: Sender<()>,
    go_on: Receiver<()>,
    noting: Noting,
}

impl Blocking {
    fn new() -> (Self, Receiver<()>, Sender<()>, Noting) {
        let (has_batch, arrivals) = channel();
        let (gate, go_on) = channel();
        let noting = Noting::default();
        let blocking = Self {
            has_batch,
            go_on,
            noting: noting.clone(),
        };
        (blocking, arrivals, gate, noting)
    }
}

impl Subscriber for Blocking {
    fn batch(&mut self, events: &[Event]) {
        self.has_batch.send(()).ok();
        self.go_on.recv().ok();
        self.noting.batch(events);
    }
}

/// Panics at every event with an odd number.
struct Panicking(Noting);

impl Subscriber for Panicking {
    fn batch(&mut self, events: &[Event]) {
        for event in events {
            assert!(number(event).is_multiple_of(2), "a test's panic");
            self.0.batch(std::slice::from_ref(event));
        }
    }
}

#[test]
fn a_flush_waits_for_what_was_published_before_it() {
    let bus = bus(100, 100);
    let noting = Noting::default();
    let subscription = bus.subscribe("noting", noting.clone()).unwrap();
    subscription.flush();
    for round in 0..5 {
        bus.publish(event(2 * round));
        bus.publish(event(2 * round + 1));
        subscription.flush();
        assert_eq!(noting.seen().len(), 2 * (round as usize + 1));
    }
    assert_eq!(noting.seen(), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_subscriber_that_blocks_loses_only_its_own_events_and_the_count_is_exact() {
    let bus = bus(10, 100);
    let (blocking, arrivals, gate, late) = Blocking::new();
    let blocked = bus.subscribe("blocked", blocking).unwrap();
    let noting = Noting::default();
    let quick = bus.subscribe("quick", noting.clone()).unwrap();
    bus.publish(event(0));
    quick.flush();
    arrivals.recv().unwrap();
    // One event is in hand, and ten fit into the queue.
    for number in 1..25 {
        bus.publish(event(number));
        quick.flush();
    }
    assert_eq!(noting.seen(), (0..25).collect::<Vec<_>>());
    assert_eq!((quick.lost(), blocked.lost()), (0, 14));
    drop(gate);
    blocked.flush();
    assert_eq!(late.seen(), (0..11).collect::<Vec<_>>());
    let text = bus.shared.metrics.text();
    assert!(
        text.contains("pilot_events_dropped_total{subscriber=\"blocked\"} 14")
            && text.contains("pilot_events_dropped_total{subscriber=\"quick\"} 0"),
        "{text}"
    );
}

#[test]
fn a_full_inbox_drops_the_event_for_everybody() {
    let bus = bus(3, 100);
    let (first, second) = (Noting::default(), Noting::default());
    let subscriptions = [
        bus.subscribe("first", first.clone()).unwrap(),
        bus.subscribe("second", second.clone()).unwrap(),
    ];
    for number in 0..5 {
        bus.publish(event(number));
    }
    for subscription in &subscriptions {
        subscription.flush();
        assert_eq!(subscription.lost(), 2);
    }
    assert_eq!(
        (first.seen(), second.seen()),
        (vec![0, 1, 2], vec![0, 1, 2])
    );
}

#[test]
fn the_bound_in_bytes_holds_in_the_inbox_and_in_each_queue() {
    let bus = bus(100, 10);
    let (blocking, arrivals, gate, _) = Blocking::new();
    let blocked = bus.subscribe("blocked", blocking).unwrap();
    let noting = Noting::default();
    let quick = bus.subscribe("quick", noting.clone()).unwrap();
    bus.publish(printed(6));
    bus.publish(printed(5));
    quick.flush();
    assert_eq!((quick.lost(), noting.seen().len()), (1, 1));
    arrivals.recv().unwrap();
    for bytes in [6, 5, 4] {
        bus.publish(printed(bytes));
        quick.flush();
        assert!(blocked.queue.state.lock().output_bytes <= 10);
    }
    assert_eq!((quick.lost(), blocked.lost()), (1, 2));
    drop(gate);
    blocked.flush();
    assert_eq!(blocked.queue.state.lock().output_bytes, 0);
}

#[test]
fn a_subscriber_that_panics_goes_on_with_the_next_batch_and_is_switched_off_in_the_end() {
    let bus = bus(100, 100);
    let survived = Noting::default();
    let panicking = bus
        .subscribe("panicking", Panicking(survived.clone()))
        .unwrap();
    let noting = Noting::default();
    let other = bus.subscribe("other", noting.clone()).unwrap();
    for number in 0..10 {
        bus.publish(event(number));
        panicking.flush();
        other.flush();
    }
    assert_eq!(noting.seen(), (0..10).collect::<Vec<_>>());
    // 1, 3 and 5 are lost in panics. After the third, so is everything.
    assert_eq!(survived.seen(), [0, 2, 4]);
    assert_eq!((panicking.lost(), other.lost()), (7, 0));
}

#[test]
fn events_are_passed_on_without_anybody_asking() {
    let config = BusConfig {
        interval: Duration::from_millis(1),
        ..BusConfig::default()
    };
    let bus = Bus::start(config, Arc::default()).unwrap();
    let (blocking, arrivals, _gate, _) = Blocking::new();
    let _subscription = bus.subscribe("blocking", blocking).unwrap();
    bus.publish(event(1));
    arrivals.recv_timeout(Duration::from_secs(10)).unwrap();
}

#[test]
fn a_stop_processes_what_has_gathered_and_then_takes_no_more() {
    let bus = bus(100, 100);
    let noting = Noting::default();
    let subscription = bus.subscribe("noting", noting.clone()).unwrap();
    bus.publish(event(1));
    bus.stop();
    bus.publish(event(2));
    subscription.flush();
    bus.stop();
    assert_eq!((noting.seen(), subscription.lost()), (vec![1], 1));
}

#[test]
fn publishing_from_many_threads_loses_nothing() {
    let config = BusConfig {
        interval: Duration::from_micros(100),
        ..BusConfig::default()
    };
    let bus = Bus::start(config, Arc::default()).unwrap();
    let noting = Noting::default();
    let subscription = bus.subscribe("noting", noting.clone()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|number| bus.publish(event(number))));
        }
    });
    subscription.flush();
    assert_eq!((noting.seen().len(), subscription.lost()), (4000, 0));
}

#[derive(Debug, Clone)]
enum Step {
    Publish(u32),
    Flush,
    /// The blocked subscriber may process one more batch.
    GoOn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..8_u32).prop_map(Step::Publish),
        3 => Just(Step::Flush),
        1 => Just(Step::GoOn),
    ];
    proptest::collection::vec(step, 0..60)
}

const INBOX_MAX: u32 = 16;

proptest! {
    /// Each subscriber sees each event at most once, in order, and has lost exactly the others. A subscriber that keeps up loses
    /// what found the inbox full, and nothing else.
    #[test]
    fn every_event_is_seen_once_in_order_or_counted_as_lost(steps in steps()) {
        let bus = bus(INBOX_MAX as usize, 100);
        let (quick, (blocking, _arrivals, gate, late)) = (Noting::default(), Blocking::new());
        let prompt = bus.subscribe("prompt", quick.clone()).unwrap();
        let blocked = bus.subscribe("blocked", blocking).unwrap();
        let (mut published, mut gathered, mut overflowed) = (0, 0, 0);
        for step in steps {
            match step {
                Step::Publish(count) => {
                    (published..published + count).for_each(|number| bus.publish(event(number)));
                    published += count;
                    overflowed += (gathered + count).saturating_sub(INBOX_MAX);
                    gathered = (gathered + count).min(INBOX_MAX);
                }
                Step::Flush => {
                    prompt.flush();
                    gathered = 0;
                }
                Step::GoOn => gate.send(()).unwrap(),
            }
        }
        drop(gate);
        for (noting, subscription) in [(&quick, &prompt), (&late, &blocked)] {
            subscription.flush();
            let seen = noting.seen();
            prop_assert!(seen.is_sorted_by(|one, next| one < next));
            prop_assert_eq!(seen.len() as u64 + subscription.lost(), u64::from(published));
        }
        prop_assert_eq!(prompt.lost(), u64::from(overflowed));
    }
}
