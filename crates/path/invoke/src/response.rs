//! What goes out: an invocation's answer. Errors of the function are answers too, as in Lambda.

use std::sync::Arc;

use bytes::Bytes;
use pilot_model::ports::HttpHead;
use pilot_model::{InvocationId, InvocationRecord, Outcome, StartKind, Timeline, Version};

use crate::body::HttpBody;
use crate::passing::{PassedBody, Tunnel};

/// An invocation's answer.
#[derive(Debug)]
pub struct Response {
    /// The request id.
    pub id: InvocationId,
    /// Who answered.
    pub version: Arc<Version>,
    /// Cold or warm.
    pub start: StartKind,
    /// How it ended; of a body that still streams: how it looks so far, [`Outcome::Ok`].
    pub outcome: Outcome,
    /// Phase by phase; of a body that still streams: up to the first byte.
    pub timeline: Timeline,
    /// The answer itself.
    pub body: ResponseBody,
    /// What there is to tell of it; `None` while a body still streams.
    pub(crate) record: Option<Arc<InvocationRecord>>,
}

impl Response {
    /// False while a body still comes in, or a tunnel is open.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.record.is_some()
    }

    /// START line, what was printed, END and REPORT line: the last 4 KiB. Empty while a body still streams. Made anew by each
    /// call, since few ask for it.
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
    /// The caller is told `X-Amz-Function-Error: Unhandled`.
    FunctionError(Bytes),
    /// An application's HTTP response.
    Http {
        /// Status and headers.
        head: HttpHead,
        /// In one piece, or streamed.
        body: HttpBody,
    },
    /// The response of the function's own server, as it came.
    Passed(http::Response<PassedBody>),
    /// Its server has switched protocols (status 101): from here on the connection is a tunnel.
    Upgraded(http::Response<Tunnel>),
}
