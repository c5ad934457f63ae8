//! The input of an invocation: one request to one version, from the gateway, and its payload.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use pilot_model::inputs::InputConfig;
use pilot_model::ports::{InputMemory, StreamedBody};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{HttpRequestHead, Instant, InvocationId, Trace, Version};
use pilot_pool::Urgency;
use tokio::time::Instant as Deadline;

/// One request to one version. The version comes from [`Invoker::find`](crate::Invoker::find).
#[derive(Debug)]
pub struct Request {
    /// Its request id.
    pub id: InvocationId,
    /// The version to invoke.
    pub version: Arc<Version>,
    /// The request's head was read.
    pub received: Instant,
    /// Lambda's client context, JSON, as received.
    pub client_context: Option<String>,
    /// Its trace.
    pub trace: Option<Trace>,
    /// `arn:aws:lambda:us-east-1:000000000000:function:NAME[:QUALIFIER]`, as invoked.
    pub arn: String,
    /// Inputs that the request names, in addition to those that the function declares.
    pub inputs: BTreeMap<String, InputConfig>,
    /// What it comes from.
    pub trigger: FaasTrigger,
    /// Whether a caller waits for the answer, and until when.
    pub urgency: Urgency,
    /// The function that invokes this one. `None`: a client does.
    pub chain: Option<Chain>,
}

/// The functions that wait for an invocation.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    /// The place of this invocation in the chain; the one that a client invoked is 1.
    pub depth: u32,
    /// When the function that waits for this one is ended.
    pub deadline: Deadline,
}

/// The input of the handler.
#[derive(Debug)]
pub struct Payload {
    /// For an ASGI or WSGI application: the HTTP request. `None`: the body is an event, JSON, for `handler(event, context)`.
    pub http: Option<HttpRequestHead>,
    /// The event, or the request's body. Its content is not checked here.
    pub body: Bytes,
    /// What follows `body`, of a request that is too large to be kept. Only for applications.
    pub rest: Option<StreamedBody>,
    /// The request's body, if the function has it as an input: then `body` is not that. `None`: it has not, or there is no request.
    pub direct: Option<StreamedBody>,
    /// The worker's end of a WebSocket's messages, for an ASGI application. The timeout then ends with the head of the answer.
    pub websocket: Option<OwnedFd>,
    /// What another function hands over, and which function (of another node: `NAME@NODE`): the input `data`.
    pub data: Option<(String, Arc<dyn InputMemory>)>,
}

impl Payload {
    /// An event, JSON.
    #[must_use]
    pub fn event(json: Bytes) -> Self {
        Self {
            http: None,
            body: json,
            rest: None,
            direct: None,
            websocket: None,
            data: None,
        }
    }
}
