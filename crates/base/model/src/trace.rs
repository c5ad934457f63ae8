//! The place of an invocation in a trace: W3C's `traceparent` and `tracestate`, and AWS X-Ray's header. Both have a trace of 16 bytes,
//! a parent of 8 and whether the caller records, so one can be written as the other.
//!
//! What comes from a client is bounded and checked here. What cannot be read is no context: it is not passed on as one of ours.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::{FunctionName, InvocationId};
use crate::timeline::Instant;
use crate::version::Version;

/// A trace's number. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// A span's number, unique in its trace. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

impl SpanId {
    /// A random one.
    #[must_use]
    pub fn random() -> Self {
        // A UUID has some fixed bits. Folded, every bit is random.
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        Self((high ^ low).max(1).to_be_bytes())
    }
}

/// Whether somebody records a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The caller does.
    Yes,
    /// The caller does not.
    No,
    /// The caller leaves it to us.
    Undecided,
}

/// What a caller says of its trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The caller's span.
    pub parent: Option<SpanId>,
    /// Whether the caller records it.
    pub recorded: Recorded,
    /// W3C's `tracestate`.
    pub state: Option<Arc<str>>,
}

impl TraceContext {
    /// W3C Trace Context, section 3.2: `00-TRACE-PARENT-FLAGS`. Of a later version what this one has. `None`: it is invalid.
    #[must_use]
    pub fn of_traceparent(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut parts = text.split('-');
        let (version, trace) = (parts.next()?, parts.next()?);
        let (parent, flags) = (parts.next()?, parts.next()?);
        let version: [u8; 1] = hex(version)?;
        let flags: [u8; 1] = hex(flags)?;
        if version == [0xff] || (version == [0] && parts.next().is_some()) {
            return None;
        }
        Some(Self {
            trace: trace_id(hex(trace)?)?,
            parent: Some(span_id(hex(parent)?)?),
            recorded: if flags[0] & 1 == 1 {
                Recorded::Yes
            } else {
                Recorded::No
            },
            state: None,
        })
    }

    /// A new trace that is recorded. X-Ray wants the time in front; everything else is random.
    #[must_use]
    pub fn begun() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = u32::try_from(since.map_or(0, |since| since.as_secs())).unwrap_or(u32::MAX);
        let [high, low] = [SpanId::random(), SpanId::random()].map(|id| u64::from_be_bytes(id.0));
        let random = u128::from(high) << 64 | u128::from(low);
        let trace = u128::from(seconds) << 96 | random >> 32;
        Self {
            trace: TraceId(trace.to_be_bytes()),
            parent: None,
            recorded: Recorded::Yes,
            state: None,
        }
    }

    /// AWS X-Ray, "Tracing header": `Root=1-TIME-REST;Parent=PARENT;Sampled=1`, in any order, with other fields. `None`: it has no root
    /// of 16 bytes.
    #[must_use]
    pub fn of_xray(text: &str) -> Option<Self> {
        let (mut trace, mut parent, mut recorded) = (None, None, Recorded::Undecided);
        for field in text.split(';') {
            let Some((key, value)) = field.split_once('=') else {
                continue;
            };
            match key.trim() {
                "Root" => {
                    let (time, rest) = value.trim().strip_prefix("1-")?.split_once('-')?;
                    let time: [u8; 4] = hex(time)?;
                    let rest: [u8; 12] = hex(rest)?;
                    let mut whole = [0; 16];
                    whole[..4].copy_from_slice(&time);
                    whole[4..].copy_from_slice(&rest);
                    trace = trace_id(whole);
                }
                "Parent" => parent = hex(value.trim()).and_then(span_id),
                "Sampled" => {
                    recorded = match value.trim() {
                        "1" => Recorded::Yes,
                        "0" => Recorded::No,
                        _ => Recorded::Undecided,
                    }
                }
                _ => {}
            }
        }
        Some(Self {
            trace: trace?,
            parent,
            recorded,
            state: None,
        })
    }
}

fn trace_id(bytes: [u8; 16]) -> Option<TraceId> {
    (bytes != [0; 16]).then_some(TraceId(bytes))
}

fn span_id(bytes: [u8; 8]) -> Option<SpanId> {
    (bytes != [0; 8]).then_some(SpanId(bytes))
}

/// Lower-case digits, exactly as many as the bytes need. X-Ray's are the same.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte << 4 | value;
        }
    }
    Some(bytes)
}

/// X-Ray's header.
#[must_use]
pub fn xray(trace: TraceId, parent: Option<SpanId>, recorded: bool) -> String {
    let digits = trace.to_string();
    let (time, rest) = digits.split_at(8);
    let mut text = String::with_capacity(80);
    // Writing to a String cannot fail.
    let _ = write!(text, "Root=1-{time}-{rest}");
    if let Some(parent) = parent {
        let _ = write!(text, ";Parent={parent}");
    }
    let _ = write!(text, ";Sampled={}", u8::from(recorded));
    text
}

/// X-Ray's header with its other fields, such as `Lineage`, for a request that is not recorded.
#[must_use]
pub fn unrecorded(header: &str) -> String {
    let is_kept = |field: &&str| {
        let key = field.split_once('=').map_or(*field, |(key, _)| key).trim();
        !key.is_empty() && key != "Sampled"
    };
    let mut text = String::with_capacity(header.len() + 10);
    for field in header.split(';').filter(is_kept) {
        text.push_str(field);
        text.push(';');
    }
    text.push_str("Sampled=0");
    text
}

/// `traceparent` for a function, made of X-Ray's header. `None`: nobody records the trace, or it has no parent.
///
/// A function whose invocation is not recorded gets no `traceparent`, so that this case costs nothing.
#[must_use]
pub fn traceparent(header: &str) -> Option<String> {
    if !header.contains("Sampled=1") {
        return None;
    }
    let context = TraceContext::of_xray(header)?;
    let parent = context.parent?;
    (context.recorded == Recorded::Yes).then(|| format!("00-{}-{parent}-01", context.trace))
}

/// The trace of a request: what its worker is told, and what is recorded of it.
#[derive(Debug, Clone)]
pub struct Trace {
    /// X-Ray's header for the worker. Its parent is the span of the handler if the invocation is recorded, otherwise the caller's.
    pub header: String,
    /// W3C's `tracestate`, as received.
    pub state: Option<Arc<str>>,
    /// `None`: nothing is recorded.
    pub span: Option<Arc<TraceSpan>>,
}

/// The span of a recorded invocation, or of a hop before it.
#[derive(Debug)]
pub struct TraceSpan {
    /// Its trace.
    pub trace: TraceId,
    /// The span above it.
    pub parent: Option<SpanId>,
    /// W3C's `tracestate`.
    pub state: Option<Arc<str>>,
    /// Its own number.
    pub id: SpanId,
    /// The number of its handler's span, below which the function's own spans are.
    pub handler: SpanId,
    /// What caused it.
    pub cause: Cause,
    /// The status of the HTTP response; 0: there is none yet.
    status: AtomicU16,
}

/// What caused an invocation.
#[derive(Debug)]
pub enum Cause {
    /// A client's request.
    Http(Box<HttpCause>),
    /// The answer of the function before it in a chain by `X-Pilot-Target`.
    Chain,
    /// The handler of this function.
    Function(FunctionName),
    /// An asynchronous invocation, at least once.
    Queue,
}

/// The parts of an HTTP request that a span has. The query is left out, because it may be secret.
#[derive(Debug)]
pub struct HttpCause {
    /// `GET`, …
    pub method: String,
    /// `/fn/{name}`, …: the path with placeholders.
    pub route: &'static str,
    /// As sent, shortened.
    pub path: String,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// `1.0`, `1.1` or `2`.
    pub protocol: &'static str,
    /// The name and the port that the client asked for, shortened.
    pub host: Option<String>,
    /// The client's address.
    pub client: Option<String>,
    /// As sent, shortened.
    pub user_agent: Option<String>,
}

impl TraceSpan {
    /// A new span in the caller's trace.
    #[must_use]
    pub fn new(context: &TraceContext, cause: Cause) -> Arc<Self> {
        Arc::new(Self {
            trace: context.trace,
            parent: context.parent,
            state: context.state.clone(),
            id: SpanId::random(),
            handler: SpanId::random(),
            cause,
            status: AtomicU16::new(0),
        })
    }

    /// Stores the status of the response.
    pub fn answered(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// The status of the response, if it is known.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        Some(self.status.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    /// `traceparent` for the handler (W3C Trace Context, section 3.2).
    #[must_use]
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-01", self.trace, self.handler)
    }

    /// A context below this span.
    fn below(&self, parent: SpanId) -> TraceContext {
        TraceContext {
            trace: self.trace,
            parent: Some(parent),
            recorded: Recorded::Yes,
            state: self.state.clone(),
        }
    }
}

impl Trace {
    /// A recorded invocation.
    #[must_use]
    pub fn recorded(context: &TraceContext, cause: Cause) -> Self {
        let span = TraceSpan::new(context, cause);
        Self {
            header: xray(span.trace, Some(span.handler), true),
            state: context.state.clone(),
            span: Some(span),
        }
    }

    /// A request of which nothing is recorded here. Its caller's span is the parent of the function's.
    #[must_use]
    pub fn passed(context: TraceContext) -> Self {
        let recorded = context.recorded == Recorded::Yes;
        Self {
            header: xray(context.trace, context.parent, recorded),
            state: context.state,
            span: None,
        }
    }

    /// X-Ray's header, as it is.
    #[must_use]
    pub fn of_header(header: String) -> Self {
        Self {
            header,
            state: None,
            span: None,
        }
    }

    /// The trace of an invocation that this one's handler causes.
    #[must_use]
    pub fn below_handler(&self, caller: &FunctionName) -> Self {
        match &self.span {
            None => self.clone(),
            Some(span) => {
                Self::recorded(&span.below(span.handler), Cause::Function(caller.clone()))
            }
        }
    }

    /// The trace of an invocation in a chain that this is the request for.
    #[must_use]
    pub fn below_request(&self) -> Self {
        match &self.span {
            None => self.clone(),
            Some(span) => Self::recorded(&span.below(span.id), Cause::Chain),
        }
    }

    /// The context for something that is done later, as text. Attempts are below the request that was accepted. `None`: it is too long.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        let mut text = match &self.span {
            None => self.header.clone(),
            Some(span) => xray(span.trace, Some(span.id), true),
        };
        if let Some(state) = &self.state {
            text.push('\n');
            text.push_str(state);
        }
        (text.len() <= TEXT_LEN_MAX).then_some(text)
    }

    /// The reverse of [`Trace::to_text`], for one attempt. `records`: this daemon records traces.
    #[must_use]
    pub fn of_text(text: &str, records: bool) -> Self {
        let (header, state) = match text.split_once('\n') {
            Some((header, state)) => (header, Some(Arc::from(state))),
            None => (text, None),
        };
        let context = TraceContext::of_xray(header);
        match context.filter(|context| records && context.recorded == Recorded::Yes) {
            Some(context) => Self::recorded(&TraceContext { state, ..context }, Cause::Queue),
            None => Self {
                header: header.to_owned(),
                state,
                span: None,
            },
        }
    }
}

/// A recorded request that is no invocation itself.
#[derive(Debug, Clone)]
pub struct Hop {
    /// Its span.
    pub span: Arc<TraceSpan>,
    /// Its request id: that of the invocation, or of the chain's first one.
    pub id: InvocationId,
    /// The function that it names.
    pub version: Arc<Version>,
    /// What it was.
    pub kind: HopKind,
    /// The request's head was read.
    pub began: Instant,
    /// It is answered, or an invocation is on the disk.
    pub ended: Instant,
    /// Why it failed.
    pub error: Option<String>,
}

/// The kind of a [`Hop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HopKind {
    /// An asynchronous invocation was accepted.
    Accepted,
    /// A chain by `X-Pilot-Target`, from its request to its answer.
    Chain,
}

/// A longer context is not kept. X-Ray's header has less than 200 bytes, and W3C's `tracestate` up to 512.
const TEXT_LEN_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const XRAY: &str = "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1";

    #[test]
    fn both_headers_say_the_same() {
        let context = TraceContext::of_traceparent(PARENT).unwrap();
        assert_eq!(TraceContext::of_xray(XRAY).unwrap(), context);
        assert_eq!(Trace::passed(context.clone()).header, XRAY);
        assert_eq!(traceparent(XRAY).as_deref(), Some(PARENT));
        assert_eq!(traceparent(&XRAY.replace("Sampled=1", "Sampled=0")), None);
        assert_eq!(traceparent("Root=1-2-3;Sampled=1"), None);
        let span = TraceSpan::new(&context, Cause::Chain);
        let own = TraceContext::of_traceparent(&span.traceparent()).unwrap();
        assert_eq!((own.trace, own.parent), (context.trace, Some(span.handler)));
        assert_eq!(own.recorded, Recorded::Yes);
    }

    #[test]
    fn an_invalid_traceparent_is_none() {
        let later = PARENT.replacen("00", "7f", 1);
        assert!(TraceContext::of_traceparent(&[&later, "-more"].concat()).is_some());
        for wrong in [
            "",
            "00",
            &[PARENT, "-more"].concat(),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.to_uppercase(),
            &PARENT.replace("b7ad6b7169203331", "0000000000000000"),
            &PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &PARENT.replace("-01", "-1"),
            &PARENT.replace("-01", "-+1"),
        ] {
            assert_eq!(TraceContext::of_traceparent(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_header_of_x_ray_may_lack_what_the_caller_leaves_open() {
        let read = |text: &str| TraceContext::of_xray(text).map(|context| context.recorded);
        let root = "Root=1-5759e988-bd862e3fe1be46a994272793";
        assert_eq!(read(root), Some(Recorded::Undecided));
        let kept = unrecorded(&format!("Self=1-1-1;{root}; Sampled=1 ;Lineage=a:1|b:2;"));
        assert_eq!(kept, format!("Self=1-1-1;{root};Lineage=a:1|b:2;Sampled=0"));
        assert_eq!(unrecorded(""), "Sampled=0");
        let more = format!("Self=1-1-1;{root}; Sampled=? ;Lineage=a:1");
        assert_eq!(read(&more), Some(Recorded::Undecided));
        assert_eq!(read(&format!("Sampled=0;{root}")), Some(Recorded::No));
        for wrong in [
            "",
            "Root=1-2-3",
            "Sampled=1",
            "Root=;Parent=",
            "Root=1-5759e988",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_done_later_is_below_the_request() {
        let mut context = TraceContext::of_traceparent(PARENT).unwrap();
        context.state = Some(Arc::from("a=1,b=2"));
        let accepted = Trace::recorded(&context, Cause::Queue);
        let text = accepted.to_text().unwrap();
        let attempt = Trace::of_text(&text, true);
        let (first, second) = (accepted.span.unwrap(), attempt.span.unwrap());
        assert_eq!((second.trace, second.parent), (first.trace, Some(first.id)));
        assert_eq!(second.state.as_deref(), Some("a=1,b=2"));
        // The daemon was restarted without traces.
        let passed = Trace::of_text(&text, false);
        assert!(passed.span.is_none() && passed.header.ends_with("Sampled=1"));
        // A client's header that is no context is kept as it is.
        assert_eq!(Trace::of_text("Root=1-2-3", true).header, "Root=1-2-3");
        let long = Trace::of_header("x".repeat(2000));
        assert_eq!(long.to_text(), None);
    }

    proptest! {
        #[test]
        fn no_header_is_too_odd(text in any::<String>()) {
            let _ = TraceContext::of_traceparent(&text);
            let _ = TraceContext::of_xray(&text);
            let _ = Trace::of_text(&text, true);
        }

        #[test]
        fn a_context_survives_both_headers(trace in 1_u128.., parent in 1_u64.., recorded: bool) {
            let context = TraceContext {
                trace: TraceId(trace.to_be_bytes()),
                parent: Some(SpanId(parent.to_be_bytes())),
                recorded: if recorded { Recorded::Yes } else { Recorded::No },
                state: None,
            };
            let text = Trace::passed(context.clone()).header;
            prop_assert_eq!(TraceContext::of_xray(&text), Some(context));
        }
    }
}
