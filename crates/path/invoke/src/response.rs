//! The output of an invocation: its answer. Errors of the function are answers, too, as in Lambda.

use std::sync::Arc;

use bytes::Bytes;
use pilot_model::ports::HttpHead;
use pilot_model::{
    Instant, InvocationId, InvocationRecord, Outcome, StartKind, Timeline, Transfer, Version, hint,
};

use crate::body::HttpBody;
use crate::fault::LastOutput;
use crate::invocation::Invocation;
use crate::passed::PassedBody;
use crate::passed::tunnel::Tunnel;

/// An invocation's answer.
#[derive(Debug)]
pub struct Response {
    /// The request id.
    pub id: InvocationId,
    /// The version that answered.
    pub version: Arc<Version>,
    /// Cold or warm.
    pub start: StartKind,
    /// How it ended; [`Outcome::Ok`] while a body still streams.
    pub outcome: Outcome,
    /// The time of each phase; while a body still streams, until the first byte.
    pub timeline: Timeline,
    /// The inputs that were fetched for it.
    pub transfers: Vec<Transfer>,
    /// The answer itself.
    pub body: ResponseBody,
    /// The record; `None` while a body still streams.
    pub(crate) record: Option<Arc<InvocationRecord>>,
}

impl Response {
    /// The complete answer of an invocation, which ends with it.
    pub(crate) fn complete(
        mut invocation: Invocation,
        now: Instant,
        outcome: Outcome,
        output: LastOutput,
        body: ResponseBody,
    ) -> Self {
        invocation.bytes_out = match &body {
            ResponseBody::Result(bytes) | ResponseBody::FunctionError(bytes) => bytes.len(),
            ResponseBody::Http { body, .. } => body.complete().map_or(0, Bytes::len),
            // Never complete.
            ResponseBody::Passed(_) | ResponseBody::Upgraded(_) => 0,
        } as u64;
        let output = match &body {
            ResponseBody::FunctionError(error) => with_hint(&invocation.version, error, output),
            _ => output,
        };
        let record = invocation.end(now, outcome, output);
        Self {
            id: invocation.id.clone(),
            version: Arc::clone(&invocation.version),
            start: invocation.start,
            outcome,
            timeline: invocation.timeline,
            transfers: std::mem::take(&mut invocation.transfers),
            body,
            record: Some(record),
        }
    }

    /// False while a body is still arriving, or a tunnel is open.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.record.is_some()
    }

    /// START line, output, END and REPORT line: the last 4 KiB. Empty while a body still streams. Built by each call, because it
    /// is rarely requested.
    #[must_use]
    pub fn log_tail(&self) -> Bytes {
        self.record
            .as_deref()
            .map_or_else(Bytes::new, crate::tail::of)
    }
}

/// The answer itself.
#[derive(Debug)]
pub enum ResponseBody {
    /// The handler returned this JSON.
    Result(Bytes),
    /// The handler raised, timed out, crashed, ran out of memory or could not be imported: Lambda's error body, JSON.
    /// The response has the header `X-Amz-Function-Error: Unhandled`.
    FunctionError(Bytes),
    /// An application's HTTP response.
    Http {
        /// Status and headers.
        head: HttpHead,
        /// Complete, or streamed.
        body: HttpBody,
    },
    /// The response of the function's own server, unchanged.
    Passed(http::Response<PassedBody>),
    /// Its server has switched protocols (status 101): now the connection is a tunnel.
    Upgraded(http::Response<Tunnel>),
}

/// The output, and a line that says what to change, if that is known.
fn with_hint(version: &Version, error: &[u8], output: LastOutput) -> LastOutput {
    match hint::of_error(version, error) {
        Some(hint) => output.and(&format!("[HINT] {hint}\n")),
        None => output,
    }
}
