use bytes::Bytes;
use pilot_model::trace::{Recorded as Said, TraceContext, TraceId};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{InvocationId, Timeline, WorkerId};

use super::*;
use crate::otlp::Value;

const MS: u64 = 1_000_000;

fn source(cause: Cause) -> Arc<TraceSpan> {
    let context = TraceContext {
        trace: TraceId([7; 16]),
        parent: Some(SpanId([9; 8])),
        recorded: Said::Yes,
        state: Some(Arc::from("a=1")),
    };
    TraceSpan::new(&context, cause)
}

fn http_cause() -> Cause {
    Cause::Http(Box::new(HttpCause {
        method: "POST".to_owned(),
        route: "/fn/{name}",
        path: "/fn/f/x".to_owned(),
        scheme: "http",
        protocol: "1.1",
        host: Some("[::1]:8080".to_owned()),
        client: Some("127.0.0.1".to_owned()),
        user_agent: None,
    }))
}

/// A cold invocation, received at 100 ms and finished at 200 ms.
fn record(cause: Cause, outcome: Outcome) -> InvocationRecord {
    let at = |ms: u64| Some(Instant(ms * MS));
    InvocationRecord {
        id: InvocationId::new("a"),
        version: pilot_testkit::version("f", 7),
        trigger: FaasTrigger::Http,
        worker: Some(WorkerId(1)),
        start: StartKind::Cold,
        outcome,
        timeline: Timeline {
            admitted: at(101),
            leased: at(102),
            forked: at(110),
            sandboxed: at(120),
            initialised: at(150),
            inputs_ready: at(140),
            started: at(151),
            returned: at(190),
            finished: at(200),
            ..Timeline::new(Instant(100 * MS))
        },
        memory_bytes_max: Some(1),
        cpu: None,
        throttled: None,
        pss_bytes: None,
        shared: None,
        transfers: vec![Transfer {
            input: "photo".to_owned(),
            from: format!("{}?key=secret", "x".repeat(200)),
            bytes: 5,
            decoding: None,
            streamed: None,
            way: TransferWay::Fetched,
            began: Instant(101 * MS),
            ended: Instant(140 * MS),
            error: Some("gone ".repeat(100)),
        }],
        bytes_in: 3,
        bytes_out: 5,
        output: Bytes::new(),
        output_printed: 0,
        output_published: None,
        scripts: Vec::new(),
        trace: Some(source(cause)),
    }
}

fn now() -> Now {
    Now {
        monotonic: Instant(1000 * MS),
        unix_ns: 1_700_000_000_000 * MS,
    }
}

fn text(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|one| one.key == key)?;
    match found.value.clone()?.value? {
        Value::Text(text) => Some(text),
        Value::Bool(is) => Some(is.to_string()),
        Value::Int(number) => Some(number.to_string()),
        Value::Double(number) => Some(number.to_string()),
    }
}

#[test]
fn phases_fill_the_invocation_and_the_handlers_number_is_the_one_that_was_told() {
    let record = record(http_cause(), Outcome::Ok);
    let source = record.trace.clone().unwrap();
    let spans = of_invocation(&record, now()).unwrap().spans;
    let (first, rest) = spans.split_first().unwrap();
    assert_eq!(first.name, "f");
    assert_eq!(first.parent_span_id, [9; 8]);
    assert_eq!(first.trace_state, "a=1");
    assert_eq!(first.flags, 0x301);
    assert_eq!(
        first.end_time_unix_nano - first.start_time_unix_nano,
        100 * MS
    );
    assert_eq!(first.end_time_unix_nano, (1_700_000_000_000 - 800) * MS);
    let phases: Vec<_> = rest
        .iter()
        .filter(|span| !span.name.contains(' '))
        .collect();
    let names: Vec<_> = phases.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "admit", "lease", "fork", "sandbox", "init", "inputs", "start", "handler", "answer"
        ]
    );
    let mut at = first.start_time_unix_nano;
    for phase in &phases {
        assert_eq!(phase.start_time_unix_nano, at, "{}", phase.name);
        assert_eq!(phase.parent_span_id, first.span_id);
        assert_eq!(phase.flags, 0x101);
        at = phase.end_time_unix_nano;
    }
    assert_eq!(at, first.end_time_unix_nano);
    let handler = phases.iter().find(|span| span.name == "handler").unwrap();
    assert_eq!(handler.span_id, source.handler.0);
    let input = rest.last().unwrap();
    assert_eq!(
        (&*input.name, input.kind),
        ("input photo", SpanKind::Client.into())
    );
    assert_eq!(text(input, "pilot.input.from").unwrap(), "x".repeat(200));
    assert_eq!(input.status.as_ref().unwrap().message.len(), 256);
}

#[test]
fn the_status_of_a_response_may_come_after_the_end() {
    let record = record(http_cause(), Outcome::Timeout);
    let recorded = of_invocation(&record, now()).unwrap();
    record.trace.as_ref().unwrap().answered(504);
    let spans = recorded.into_spans();
    let first = spans.first().unwrap();
    for (key, value) in [
        ("http.response.status_code", "504"),
        ("http.request.method", "POST"),
        ("server.address", "[::1]"),
        ("server.port", "8080"),
        ("faas.coldstart", "true"),
        ("faas.trigger", "http"),
        ("error.type", "timeout"),
    ] {
        assert_eq!(text(first, key).as_deref(), Some(value), "{key}");
    }
    let failed: Vec<_> = spans
        .iter()
        .filter(|span| {
            span.status
                .as_ref()
                .is_some_and(|status| status.message == "timeout")
        })
        .map(|span| span.name.as_str())
        .collect();
    assert_eq!(failed, ["f", "handler"]);
}

#[test]
fn a_part_of_an_event_is_not_sent_as_the_size_of_a_body() {
    let sizes = |cause| {
        let record = record(cause, Outcome::Ok);
        let spans = of_invocation(&record, now()).unwrap().into_spans();
        let first = spans.first().unwrap();
        [
            text(first, "http.request.body.size").is_some(),
            text(first, "pilot.event.bytes").is_some(),
        ]
    };
    let Cause::Http(mut invoke) = http_cause() else {
        panic!("it is a request");
    };
    invoke.route = "/2015-03-31/functions/{name}/invocations";
    assert_eq!(sizes(Cause::Http(invoke)), [true, false]);
    assert_eq!(sizes(http_cause()), [false, true]);
    assert_eq!(sizes(Cause::Queue), [false, true]);
}

#[test]
fn the_kind_says_what_caused_an_invocation() {
    let caller = "caller".parse().unwrap();
    for (cause, kind) in [
        (Cause::Queue, SpanKind::Consumer),
        (Cause::Chain, SpanKind::Internal),
        (Cause::Function(caller), SpanKind::Server),
    ] {
        let spans = of_invocation(&record(cause, Outcome::Ok), now()).unwrap();
        let spans = spans.into_spans();
        let first = spans.first().unwrap();
        assert_eq!(first.kind, i32::from(kind));
        assert_eq!(text(first, "http.response.status_code"), None);
    }
    let mut unrecorded = record(Cause::Chain, Outcome::Ok);
    unrecorded.trace = None;
    assert!(of_invocation(&unrecorded, now()).is_none());
}

#[test]
fn the_trigger_is_that_of_the_invocation_also_of_an_attempt_from_the_queue() {
    for trigger in FaasTrigger::ALL {
        let mut record = record(Cause::Queue, Outcome::Ok);
        record.trigger = trigger;
        let spans = of_invocation(&record, now()).unwrap().into_spans();
        let first = spans.first().unwrap();
        assert_eq!(
            text(first, "faas.trigger").as_deref(),
            Some(trigger.as_str())
        );
    }
}
