//! What comes in: one request to one version, as the gateway hands it over, and its payload.

use std::sync::Arc;

use bytes::Bytes;
use pilot_model::{HttpRequestHead, Instant, InvocationId, Version};

/// One request to one version. The version comes from [`Invoker::find`](crate::Invoker::find).
#[derive(Debug)]
pub struct Request {
    /// Its request id.
    pub id: InvocationId,
    /// What is invoked.
    pub version: Arc<Version>,
    /// The request's head was read.
    pub received: Instant,
    /// Lambda's client context, JSON as it came.
    pub client_context: Option<String>,
    /// A trace header, as it came.
    pub trace: Option<String>,
    /// `arn:aws:lambda:local:000000000000:function:NAME[:QUALIFIER]`, as invoked.
    pub arn: String,
}

/// What the handler gets.
#[derive(Debug)]
pub struct Payload {
    /// Of an ASGI or WSGI application: the HTTP request. `None`: the body is an event, JSON, for `handler(event, context)`.
    pub http: Option<HttpRequestHead>,
    /// The event, or the request's whole body. Its content is not checked here.
    pub body: Bytes,
}

impl Payload {
    /// An event, JSON.
    #[must_use]
    pub fn event(json: Bytes) -> Self {
        Self {
            http: None,
            body: json,
        }
    }
}
