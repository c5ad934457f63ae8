//! The trace of a request: what its caller says of it, whether it is recorded, and what its function is told.
//!
//! A request that is not recorded allocates nothing for this but the header that its worker has always got.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderValue, Version};
use pilot_invoke::Invoker;
use pilot_model::trace::{Cause, Hop, HttpCause, Recorded, TraceContext, unrecorded};
use pilot_model::{Event, InvocationId, Trace, TraceSpan, Traces};

use crate::gate::Gate;
use crate::headers;
use crate::request_context::RequestContext;

impl RequestContext<'_> {
    /// The request's trace. If it is recorded, its headers are from here on those for the function: below our span.
    ///
    /// W3C's headers come before X-Ray's. A request without either begins a trace.
    pub(crate) fn trace(&mut self, route: &'static str) -> Trace {
        let said = said(&self.head.headers);
        let Some(traces) = &self.gate.config.traces else {
            return match said {
                Said::Nothing => Trace::of_header(own_header(&self.id)),
                Said::Context(context) => Trace::passed(context),
                Said::Header(header) => Trace::of_header(header),
            };
        };
        let (context, header) = match said {
            Said::Nothing => (None, None),
            Said::Context(context) => (Some(context), None),
            Said::Header(header) => match TraceContext::of_xray(&header) {
                Some(context) => (Some(context), Some(header)),
                // It names no trace, so the request has none.
                None => (None, None),
            },
        };
        if !traces.records(context.as_ref(), random(&self.id)) {
            // What is not recorded here must not be recorded later, as an attempt.
            return match (header, context) {
                (Some(header), _) => Trace::of_header(unrecorded(&header)),
                (None, Some(mut context)) => {
                    context.recorded = Recorded::No;
                    Trace::passed(context)
                }
                (None, None) => Trace::of_header(own_header(&self.id)),
            };
        }
        let context = context.unwrap_or_else(TraceContext::begun);
        let trace = Trace::recorded(&context, Cause::Http(Box::new(self.cause(route))));
        if let Some(span) = &trace.span {
            put(
                &mut self.head.headers,
                headers::TRACEPARENT,
                &span.traceparent(),
            );
            put(&mut self.head.headers, headers::TRACE_ID, &trace.header);
            let _ = self.recorded.set(Arc::clone(span));
        }
        trace
    }

    fn cause(&self, route: &'static str) -> HttpCause {
        let text = |name| self.head.headers.get(name).map(headers::text);
        HttpCause {
            method: short(self.head.method.as_str()),
            route,
            path: short(self.uri.path()),
            scheme: self.line.scheme().as_str(),
            protocol: match self.head.version {
                Version::HTTP_10 => "1.0",
                Version::HTTP_2 => "2",
                _ => "1.1",
            },
            host: text(headers::HOST).map(|host| short(&host)),
            client: Some(self.line.peer().ip().to_canonical().to_string()),
            user_agent: text(headers::USER_AGENT).map(|agent| short(&agent)),
        }
    }
}

/// A recorded request that is no invocation itself. It is published when it has ended, or was given up.
pub(crate) struct Recording {
    traces: Arc<Traces>,
    invoker: Arc<Invoker>,
    /// `None`: it is published.
    hop: Option<Hop>,
}

impl Recording {
    /// `hop` makes it; its end is set later. `None`: the request is not recorded.
    pub(crate) fn of(
        gate: &Gate,
        trace: &Trace,
        hop: impl FnOnce(Arc<TraceSpan>) -> Hop,
    ) -> Option<Self> {
        let span = trace.span.as_ref()?;
        Some(Self {
            traces: Arc::clone(gate.config.traces.as_ref()?),
            invoker: Arc::clone(&gate.invoker),
            hop: Some(hop(Arc::clone(span))),
        })
    }

    /// It has ended. `error`: why it failed.
    pub(crate) fn ended(mut self, error: Option<String>) {
        self.publish(error);
    }

    fn publish(&mut self, error: Option<String>) {
        if let Some(mut hop) = self.hop.take() {
            hop.ended = self.invoker.now();
            hop.error = error.map(|error| short(&error));
            self.traces.sink.publish(Event::Hopped(Arc::new(hop)));
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.publish(Some("the client hung up".to_owned()));
    }
}

/// What the caller says of its trace.
enum Said {
    Nothing,
    Context(TraceContext),
    /// X-Ray's header, as it is.
    Header(String),
}

fn said(from: &HeaderMap) -> Said {
    if let Some(value) = from.get(headers::TRACEPARENT)
        && let Ok(text) = value.to_str()
        && let Some(mut context) = TraceContext::of_traceparent(text)
    {
        context.state = state(from);
        return Said::Context(context);
    }
    match from.get(headers::TRACE_ID) {
        None => Said::Nothing,
        Some(value) => Said::Header(headers::text(value).into_owned()),
    }
}

/// `tracestate`, which may be in several headers (W3C Trace Context, section 3.3.1.5). A longer one is left out.
fn state(from: &HeaderMap) -> Option<Arc<str>> {
    let mut values = from.get_all(headers::TRACESTATE).iter();
    let first = values.next()?.to_str().ok()?;
    let mut joined = String::from(first);
    for value in values {
        joined.push(',');
        joined.push_str(value.to_str().ok()?);
    }
    (!joined.trim().is_empty() && joined.len() <= STATE_LEN_MAX).then(|| Arc::from(joined))
}

fn put(into: &mut HeaderMap, name: http::HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        into.insert(name, value);
    }
}

/// 32 random bits of the request id: its last digits.
fn random(id: &InvocationId) -> u32 {
    let text = id.as_str();
    let digits = text.len().checked_sub(8).and_then(|at| text.get(at..));
    digits.map_or(0, |digits| u32::from_str_radix(digits, 16).unwrap_or(0))
}

/// X-Ray's header of a new trace that is not recorded. Its numbers are those of the request id (AWS X-Ray, "Tracing header").
fn own_header(id: &InvocationId) -> String {
    let seconds = unix_s();
    let mut digits = String::with_capacity(32);
    for part in id.as_str().split('-') {
        digits.push_str(part);
    }
    let (root, parent) = (digits.get(..24), digits.get(16..32));
    // By hand, because it is done for almost every request, and formatting takes three times as long.
    let mut trace = String::with_capacity(80);
    trace.push_str("Root=1-");
    for place in (0..8).rev() {
        let digit = u32::try_from(seconds >> (4 * place) & 0xf).unwrap_or(0);
        trace.push(char::from_digit(digit, 16).unwrap_or('0'));
    }
    let rest = [
        "-",
        root.unwrap_or_default(),
        ";Parent=",
        parent.unwrap_or_default(),
        ";Sampled=0",
    ];
    for part in rest {
        trace.push_str(part);
    }
    trace
}

fn unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// The part of a path or header that a span has.
const TEXT_CHARS_MAX: usize = 256;
/// W3C asks for at least 512 (W3C Trace Context, section 3.3.1.5).
const STATE_LEN_MAX: usize = 512;
