//! The subscriber, and the thread that sends.
//!
//! While the collector does not answer, one batch is tried again with growing waits and for a limited time; meanwhile the queue fills,
//! and what does not fit is dropped. The log has one warning when this begins and one message when it is over.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pilot_model::ports::Clock;
use pilot_model::{Event, Seldom};
use pilot_telemetry::metrics::Counter;
use pilot_telemetry::{Bus, Metrics, Subscriber};

use crate::otlp::{
    ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans,
    attribute,
};
use crate::queue::Queue;
use crate::spans::{self, Now, Recorded};
use crate::transport::{NotTaken, Transport, TransportConfig, TransportError};

/// What the exporter needs.
#[derive(Debug, Clone)]
pub struct ExporterConfig {
    /// Where spans are sent.
    pub transport: TransportConfig,
    /// The attribute `service.name`.
    pub service: String,
    /// The attribute `service.version`.
    pub version: &'static str,
    /// The attribute `service.instance.id`: another one for each daemon.
    pub instance: String,
    /// The attribute `host.name`.
    pub host: Option<String>,
}

/// Why nothing is sent.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Subscribes to the events. Spans are sent as long as the bus runs. Does not connect yet.
///
/// # Errors
/// See [`ExporterError`].
pub fn subscribe(
    bus: &Bus,
    config: ExporterConfig,
    metrics: &Metrics,
    clock: Arc<dyn Clock>,
) -> Result<(), ExporterError> {
    let queue = Arc::new(Queue::default());
    let sender = Sender {
        queue: Arc::clone(&queue),
        resource: resource(&config),
        version: config.version,
        endpoint: config.transport.endpoint.to_string(),
        transport: Transport::new(config.transport)?,
        exported: metrics.trace_spans("exported"),
        rejected: metrics.trace_spans("rejected"),
        failed: metrics.trace_spans("failed"),
        lost: None,
    };
    thread::Builder::new()
        .name("pilot-traces".to_owned())
        .spawn(move || sender.run())?;
    let recording = Recording {
        queue,
        clock,
        dropped: metrics.trace_spans("queue_full"),
    };
    bus.subscribe("traces", recording)?;
    Ok(())
}

/// Whether spans could be sent with this configuration. Connects to nothing.
///
/// # Errors
/// What is wrong with it.
pub fn check(config: ExporterConfig) -> Result<(), ExporterError> {
    Transport::new(config.transport)?;
    Ok(())
}

/// The subscriber.
struct Recording {
    queue: Arc<Queue>,
    clock: Arc<dyn Clock>,
    dropped: Counter,
}

impl Subscriber for Recording {
    fn batch(&mut self, events: &[Event]) {
        // Most batches have nothing that is recorded.
        let mut now = None;
        for event in events {
            let recorded = match event {
                Event::Invoked(record) if record.trace.is_some() => {
                    let now = *now.get_or_insert_with(|| Now::read(&*self.clock));
                    spans::of_invocation(record, now)
                }
                Event::Hopped(hop) => {
                    let now = *now.get_or_insert_with(|| Now::read(&*self.clock));
                    Some(spans::of_hop(hop, now))
                }
                _ => None,
            };
            if let Some(recorded) = recorded {
                let refused = self.queue.push(recorded);
                self.dropped.inc_by(refused as u64);
            }
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let left = self.queue.close(LAST_SPANS);
        if left > 0 {
            tracing::warn!(
                spans = left,
                "spans were not sent before the daemon stopped"
            );
            self.dropped.inc_by(left as u64);
        }
    }
}

/// What happens to spans that the collector does not take.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// They are sent again for some time.
    ForAWhile,
    /// They are dropped at once: sending them again would not help.
    Not,
}

/// The thread that sends.
struct Sender {
    queue: Arc<Queue>,
    resource: Vec<KeyValue>,
    version: &'static str,
    transport: Transport,
    endpoint: String,
    exported: Counter,
    rejected: Counter,
    failed: Counter,
    /// While the collector takes nothing: the spans that were dropped for it.
    lost: Option<u64>,
}

impl Sender {
    fn run(mut self) {
        while let Some(batch) = self.queue.next() {
            self.deliver(batch);
        }
        self.queue.sender_ended();
    }

    /// Sends a batch, again and again for a limited time.
    fn deliver(&mut self, batch: Vec<Recorded>) {
        let spans: Vec<_> = batch.into_iter().flat_map(Recorded::into_spans).collect();
        let count = spans.len() as u64;
        let body = self.transport.encode(&self.request(spans));
        let began = Instant::now();
        let mut wait = FIRST_WAIT;
        loop {
            let (problem, asked) = match self.transport.send(&body, self.queue.time_left()) {
                Ok(taken) => {
                    let rejected = taken.rejected.min(count);
                    self.rejected.inc_by(rejected);
                    self.exported.inc_by(count - rejected);
                    self.recovered(rejected, &taken.message);
                    return;
                }
                Err(NotTaken::Never { problem }) => {
                    self.give_up(count, &problem, Kept::Not);
                    return;
                }
                Err(NotTaken::Later { problem, after }) => {
                    self.tell(&problem, Kept::ForAWhile);
                    (problem, after)
                }
            };
            let pause = asked.unwrap_or_else(|| jittered(wait));
            let is_over = began.elapsed() + pause > TRY_TIME_MAX;
            if is_over || self.queue.wait(pause) {
                self.give_up(count, &problem, Kept::ForAWhile);
                if asked.is_some() {
                    // The next batch is not sooner than the collector asked for.
                    self.queue.wait(pause);
                }
                return;
            }
            wait = (wait * 2).min(WAIT_MAX);
        }
    }

    /// Tells the log once that the collector takes nothing.
    fn tell(&mut self, problem: &str, kept: Kept) {
        if self.lost.is_some() {
            return;
        }
        self.lost = Some(0);
        let endpoint = &self.endpoint;
        match kept {
            Kept::ForAWhile => tracing::warn!(
                endpoint,
                problem,
                "the collector takes no spans: they are kept for {TRY_TIME_MAX:?}, then dropped and counted (pilot_trace_spans_total)"
            ),
            Kept::Not => tracing::warn!(
                endpoint,
                problem,
                "the collector refuses spans: they are dropped and counted (pilot_trace_spans_total)"
            ),
        }
    }

    fn give_up(&mut self, count: u64, problem: &str, kept: Kept) {
        self.tell(problem, kept);
        self.failed.inc_by(count);
        if let Some(lost) = &mut self.lost {
            *lost += count;
        }
    }

    fn recovered(&mut self, rejected: u64, message: &str) {
        if let Some(lost) = self.lost.take() {
            tracing::info!(
                endpoint = self.endpoint,
                lost,
                "the collector takes spans again"
            );
        }
        if rejected > 0 {
            static REJECTED: Seldom = Seldom::new(1);
            if REJECTED.admit(Instant::now()).is_some() {
                tracing::warn!(
                    endpoint = self.endpoint,
                    rejected,
                    message,
                    "the collector rejected spans"
                );
            }
        }
    }

    fn request(&self, spans: Vec<crate::otlp::Span>) -> ExportTraceServiceRequest {
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource {
                    attributes: self.resource.clone(),
                }),
                scope_spans: vec![ScopeSpans {
                    scope: Some(InstrumentationScope {
                        name: "pilotlight".to_owned(),
                        version: self.version.to_owned(),
                    }),
                    spans,
                    schema_url: SCHEMA.to_owned(),
                }],
                schema_url: SCHEMA.to_owned(),
            }],
        }
    }
}

fn resource(config: &ExporterConfig) -> Vec<KeyValue> {
    let mut all = vec![
        attribute("service.name", &*config.service),
        attribute("service.version", config.version),
        attribute("service.instance.id", &*config.instance),
    ];
    let host = config.host.as_deref();
    all.extend(host.map(|host| attribute("host.name", host)));
    all
}

/// Between half of it and all of it, so that daemons do not ask a collector that comes back at the same time.
fn jittered(wait: Duration) -> Duration {
    let random = u32::from(pilot_model::trace::SpanId::random().0[0]);
    wait / 2 + wait * random / 512
}

const FIRST_WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(16);
/// How long a batch is tried.
const TRY_TIME_MAX: Duration = Duration::from_secs(60);
/// How long the last spans may take. Less than the bus waits for a subscriber.
const LAST_SPANS: Duration = Duration::from_secs(3);
/// The semantic conventions of the attributes.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";
