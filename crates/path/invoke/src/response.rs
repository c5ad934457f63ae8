//! The output of an invocation: its answer. Errors of the function are answers, too, as in Lambda.

use std::sync::Arc;

use bytes::Bytes;
use pilot_model::ports::HttpHead;
use pilot_model::{
    InvocationId, InvocationRecord, Outcome, StartKind, Timeline, Transfer, Version,
};

use crate::body::HttpBody;
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
