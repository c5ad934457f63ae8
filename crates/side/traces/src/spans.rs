//! The spans of one invocation: itself, the phases of its timeline, and the transfers of its inputs. And the spans of requests that are
//! no invocations. Names of attributes are those of OpenTelemetry's semantic conventions (FaaS, HTTP, messaging); our own begin with
//! `pilot.`.
//!
//! Texts that a client or a function chose are shortened, so the size of a span is bounded.

use std::sync::Arc;
use std::time::SystemTime;

use pilot_model::ports::Clock;
use pilot_model::trace::{Cause, Hop, HopKind, HttpCause, SpanId};
use pilot_model::{
    Instant, Interface, InvocationRecord, Outcome, StartKind, TraceSpan, Transfer, TransferWay,
};

use crate::otlp::{KeyValue, Span, SpanKind, Status, StatusCode, attribute};

/// Both clocks at one instant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    monotonic: Instant,
    unix_ns: u64,
}

impl Now {
    pub(crate) fn read(clock: &dyn Clock) -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix_ns = unix.map_or(0, |since| since.as_nanos());
        Self {
            monotonic: clock.now(),
            unix_ns: u64::try_from(unix_ns).unwrap_or(u64::MAX),
        }
    }

    /// The time of day of a stamp of the past, Unix nanoseconds.
    fn of(self, at: Instant) -> u64 {
        let ago = u64::try_from(self.monotonic.since(at).as_nanos()).unwrap_or(u64::MAX);
        self.unix_ns.saturating_sub(ago)
    }
}

/// The spans of one trace that are sent together.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// The first is that of `source`.
    pub(crate) spans: Vec<Span>,
    /// The status of its response may come later than its end.
    source: Arc<TraceSpan>,
}

impl Recorded {
    /// With the status of the response.
    pub(crate) fn into_spans(mut self) -> Vec<Span> {
        if let (Some(status), Some(first)) = (self.source.status(), self.spans.first_mut())
            && matches!(self.source.cause, Cause::Http(_))
        {
            let status = u64::from(status);
            first
                .attributes
                .push(attribute("http.response.status_code", status));
        }
        self.spans
    }
}

/// The spans of an invocation. `None`: it is not recorded.
pub(crate) fn of_invocation(record: &InvocationRecord, now: Now) -> Option<Recorded> {
    let source = record.trace.as_ref()?;
    let timeline = &record.timeline;
    let end = timeline.finished.unwrap_or(timeline.received);
    let mut first = span(
        source,
        source.id,
        source.parent,
        [timeline.received, end],
        now,
    );
    first.name = record.version.config.name.to_string();
    first.kind = kind(&source.cause).into();
    first.attributes = of_record(record, source);
    first.status = status(record.outcome);
    let mut spans = vec![first];
    let mut at = timeline.received;
    for (phase, took) in timeline.phases() {
        let until = at.after(took);
        let is_handler = phase == HANDLER;
        let id = if is_handler {
            source.handler
        } else {
            SpanId::random()
        };
        let mut of_phase = span(source, id, Some(source.id), [at, until], now);
        phase.clone_into(&mut of_phase.name);
        if is_handler && !matches!(record.outcome, Outcome::Throttled | Outcome::InputError) {
            of_phase.status = status(record.outcome);
        }
        spans.push(of_phase);
        at = until;
    }
    let transfers = record.transfers.iter().take(TRANSFERS_MAX);
    spans.extend(transfers.map(|transfer| of_transfer(source, transfer, now)));
    Some(Recorded {
        spans,
        source: Arc::clone(source),
    })
}

/// The span of a request that is no invocation.
pub(crate) fn of_hop(hop: &Hop, now: Now) -> Recorded {
    let source = &hop.span;
    let mut own = span(
        source,
        source.id,
        source.parent,
        [hop.began, hop.ended],
        now,
    );
    let name = &hop.version.config.name;
    let (kind, operation) = match hop.kind {
        HopKind::Accepted => (SpanKind::Producer, "send"),
        HopKind::Chain => (SpanKind::Server, "chain"),
    };
    own.name = format!("{operation} {name}");
    own.kind = kind.into();
    own.attributes = vec![
        attribute("faas.name", name.as_str()),
        attribute("faas.invocation_id", hop.id.as_str()),
    ];
    if hop.kind == HopKind::Accepted {
        own.attributes.extend(messaging(name.as_str(), operation));
    }
    if let Cause::Http(cause) = &source.cause {
        own.attributes.extend(http(cause));
    }
    own.status = hop.error.as_deref().map(failed);
    Recorded {
        spans: vec![own],
        source: Arc::clone(source),
    }
}

fn span(
    source: &TraceSpan,
    id: SpanId,
    parent: Option<SpanId>,
    [began, ended]: [Instant; 2],
    now: Now,
) -> Span {
    // The parent is in another process only if a caller named it.
    let is_remote = id == source.id && matches!(source.cause, Cause::Http(_));
    let remote = if is_remote { FLAG_IS_REMOTE } else { 0 };
    Span {
        trace_id: source.trace.0.to_vec(),
        span_id: id.0.to_vec(),
        trace_state: source.state.as_deref().unwrap_or_default().to_owned(),
        parent_span_id: parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: now.of(began),
        end_time_unix_nano: now.of(ended),
        flags: FLAG_SAMPLED | FLAG_HAS_IS_REMOTE | remote,
        ..Span::default()
    }
}

fn kind(cause: &Cause) -> SpanKind {
    match cause {
        Cause::Http(_) | Cause::Function(_) => SpanKind::Server,
        Cause::Chain => SpanKind::Internal,
        Cause::Queue => SpanKind::Consumer,
    }
}

fn of_record(record: &InvocationRecord, source: &TraceSpan) -> Vec<KeyValue> {
    let config = &record.version.config;
    let name = config.name.as_str();
    let sizes = sizes(config.interface, &source.cause);
    let mut all = vec![
        attribute("faas.name", name),
        attribute("faas.version", record.version.number.to_string()),
        attribute("faas.trigger", record.trigger.as_str()),
        attribute("faas.invocation_id", record.id.as_str()),
        attribute("faas.coldstart", record.start != StartKind::Warm),
        attribute("faas.max_memory", config.memory_bytes),
        attribute("cloud.resource_id", record.version.arn(None)),
        attribute("pilot.outcome", record.outcome.as_str()),
        attribute(sizes.0, record.bytes_in),
        attribute(sizes.1, record.bytes_out),
    ];
    if let Some(worker) = record.worker {
        all.push(attribute("faas.instance", worker.0.to_string()));
    }
    if record.start == StartKind::ColdShared {
        all.push(attribute("pilot.start_shared", true));
    }
    if record.outcome != Outcome::Ok {
        all.push(attribute("error.type", record.outcome.as_str()));
    }
    if let Some(bytes) = record.memory_bytes_max {
        all.push(attribute("pilot.memory_bytes_max", bytes));
    }
    if let Some(cpu) = record.cpu {
        all.push(attribute("pilot.cpu_s", cpu.total().as_secs_f64()));
    }
    if let Some(throttled) = record.throttled.filter(|time| !time.is_zero()) {
        all.push(attribute("pilot.throttled_s", throttled.as_secs_f64()));
    }
    match &source.cause {
        Cause::Http(cause) => all.extend(http(cause)),
        Cause::Queue => all.extend(messaging(name, "process")),
        Cause::Function(caller) => all.push(attribute("pilot.caller", caller.as_str())),
        Cause::Chain => {}
    }
    all
}

/// What the numbers of bytes are of. The body of a request to a function's URL is only a part of an event, and perhaps in base64.
fn sizes(interface: Interface, cause: &Cause) -> (&'static str, &'static str) {
    let is_event = match cause {
        Cause::Http(cause) => interface == Interface::Event && cause.route.starts_with("/fn/"),
        Cause::Queue | Cause::Function(_) | Cause::Chain => true,
    };
    match is_event {
        true => ("pilot.event.bytes", "pilot.result.bytes"),
        false => ("http.request.body.size", "http.response.body.size"),
    }
}

fn http(cause: &HttpCause) -> Vec<KeyValue> {
    let mut all = vec![
        attribute("http.request.method", &*cause.method),
        attribute("http.route", cause.route),
        attribute("url.path", &*cause.path),
        attribute("url.scheme", cause.scheme),
        attribute("network.protocol.version", cause.protocol),
    ];
    if let Some(host) = &cause.host {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port.parse::<u64>().ok()),
            _ => (&**host, None),
        };
        all.push(attribute("server.address", name));
        all.extend(port.map(|port| attribute("server.port", port)));
    }
    for (key, text) in [
        ("client.address", &cause.client),
        ("user_agent.original", &cause.user_agent),
    ] {
        all.extend(text.as_deref().map(|text| attribute(key, text)));
    }
    all
}

fn messaging(function: &str, operation: &str) -> [KeyValue; 3] {
    [
        attribute("messaging.system", "pilotlight"),
        attribute("messaging.destination.name", function),
        attribute("messaging.operation.type", operation),
    ]
}

fn of_transfer(source: &TraceSpan, transfer: &Transfer, now: Now) -> Span {
    let times = [transfer.began, transfer.ended];
    let mut own = span(source, SpanId::random(), Some(source.id), times, now);
    let what = match transfer.way {
        TransferWay::Script => "initscript",
        _ => "input",
    };
    own.name = format!("{what} {}", short(&transfer.input));
    let is_fetched = matches!(transfer.way, TransferWay::Fetched | TransferWay::Shared);
    if is_fetched {
        own.kind = SpanKind::Client.into();
    }
    own.attributes = vec![
        attribute("pilot.input.from", short(without_query(&transfer.from))),
        attribute("pilot.input.way", transfer.way.as_str()),
        attribute("pilot.input.bytes", transfer.bytes),
    ];
    let decode_us = transfer.decode_took().map(|took| took.as_micros());
    let decode_us = decode_us.and_then(|us| u64::try_from(us).ok());
    own.attributes
        .extend(decode_us.map(|us| attribute("pilot.input.decode_us", us)));
    own.status = transfer.error.as_deref().map(failed);
    own
}

fn status(outcome: Outcome) -> Option<Status> {
    (outcome != Outcome::Ok).then(|| failed(outcome.as_str()))
}

fn failed(problem: &str) -> Status {
    Status {
        message: short(problem),
        code: StatusCode::Error.into(),
    }
}

/// A query may have a secret.
fn without_query(location: &str) -> &str {
    location.split('?').next().unwrap_or_default()
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// The phase below which the function's own spans are.
const HANDLER: &str = "handler";
const TEXT_CHARS_MAX: usize = 256;
/// More than a function may declare.
const TRANSFERS_MAX: usize = 64;
/// W3C's flags, and whether it is known where the parent is (`SpanFlags` of `trace.proto`).
const FLAG_SAMPLED: u32 = 1;
const FLAG_HAS_IS_REMOTE: u32 = 0x100;
const FLAG_IS_REMOTE: u32 = 0x200;

#[cfg(test)]
mod tests;
