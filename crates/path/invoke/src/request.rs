//! What comes in: one request to one version, as the gateway hands it over.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use pilot_model::ports::PassedRequest;
use pilot_model::{Instant, InvocationId, Version};

/// One request to one version. The version comes from [`Invoker::find`](crate::Invoker::find).
#[derive(Debug)]
pub struct Request {
    /// Its request id.
    pub id: InvocationId,
    /// What is invoked.
    pub version: Arc<Version>,
    /// What the handler gets.
    pub payload: Payload,
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
pub enum Payload {
    /// `handler(event, context)`: the event, JSON. Not looked into here.
    Event(Bytes),
    /// An ASGI or WSGI application: the HTTP request itself.
    Http(HttpRequest),
    /// A function that is an HTTP server: the request as that server is to see it. Its body may still be arriving; nobody reads
    /// it before the server does.
    Pass(PassedRequest),
}

impl Payload {
    /// The length of what is held of the body, bytes: nothing of one that passes through.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Event(event) => event.len(),
            Self::Http(request) => request.body.len(),
            Self::Pass(_) => 0,
        }
    }

    /// Whether nothing is held of a body.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An HTTP request for an application.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    /// `GET`, …
    pub method: String,
    /// Raw, as received, without `root_path`; begins with `/`.
    pub path: String,
    /// Raw, without `?`; empty when there is none.
    pub query: String,
    /// `/fn/NAME`.
    pub root_path: String,
    /// Lower-case names; values as UTF-8.
    pub headers: Vec<(String, String)>,
    /// Who asks.
    pub client: SocketAddr,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The whole body.
    pub body: Bytes,
}
