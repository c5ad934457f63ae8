//! One request on the data path, from its head to its reply: what every route needs of it, and the dispatch to the routes.
//! Runs inside the connection's task: to hand a request to another thread costs more than to serve it.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode};
use hyper::body::{Body as _, Incoming};
use pilot_model::{Instant, InvocationId};

use crate::Gate;
use crate::connection::Line;
use crate::errors::RequestError;
use crate::function_url::{self, Place};
use crate::headers;
use crate::lambda_api::{self, Form};
use crate::reply::{Reply, ReplyBody};
use crate::route::{Route, route};
use crate::token::TokenError;
use crate::upload::Upload;

/// One request on the data path.
#[derive(Debug)]
pub(crate) struct RequestContext<'a> {
    pub(crate) gate: &'a Gate,
    /// The request id.
    pub(crate) id: InvocationId,
    /// When the head was there.
    pub(crate) received: Instant,
    /// Without the URI, which the route holds.
    pub(crate) head: Parts,
    /// The connection it came on.
    pub(crate) line: &'a Line,
    /// `None` once somebody has it.
    body: Option<Incoming>,
}

impl RequestContext<'_> {
    /// Lets through who shows the token, if one is wanted, and takes it out of the headers.
    ///
    /// # Errors
    /// [`TokenError`].
    pub(crate) fn authorise(&mut self) -> Result<(), TokenError> {
        match &self.gate.config.invoke_token {
            None => Ok(()),
            Some(token) => token.take(&mut self.head.headers),
        }
    }

    /// Reads the body; a second time there is none.
    ///
    /// # Errors
    /// See [`BodyReader::read`](crate::body::BodyReader::read).
    pub(crate) async fn read_body(&mut self) -> Result<Bytes, RequestError> {
        let Some(body) = self.body.take() else {
            return Ok(Bytes::new());
        };
        let body = self.gate.bodies.read(body).await?;
        self.line.usage().body_was_read();
        Ok(body)
    }

    /// The body, unread, for somebody to read who takes his time; `None` when there is none.
    pub(crate) fn upload(&mut self) -> Option<Upload<Incoming>> {
        let body = self.body.take().filter(|body| !body.is_end_stream())?;
        let patience = self.gate.config.body_timeout;
        Some(Upload::new(body, Arc::clone(self.line.usage()), patience))
    }

    /// The caller's trace header.
    pub(crate) fn trace(&self) -> Option<String> {
        let value = self.head.headers.get(headers::TRACE_ID)?;
        Some(headers::text(value).into_owned())
    }
}

/// Answers one request, whatever it is.
pub(crate) async fn answer(gate: &Gate, request: Request<Incoming>, line: &Line) -> Reply {
    let received = gate.invoker.now();
    let usage = line.usage();
    usage.request_began(request.version(), !request.body().is_end_stream());
    let (mut head, body) = request.into_parts();
    if head.method == Method::CONNECT {
        // Not a proxy; and hyper would take a 2xx for the beginning of a tunnel.
        let mut reply = Reply::new(ReplyBody::empty());
        *reply.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return reply;
    }
    let uri = std::mem::take(&mut head.uri);
    let target = route(uri.path());
    if target == Route::Control {
        head.uri = uri;
        let response = (gate.control)(Request::from_parts(head, body)).await;
        return response.map(ReplyBody::Control);
    }
    let context = RequestContext {
        gate,
        id: new_id(),
        received,
        head,
        line,
        body: Some(body),
    };
    let id = context.id.clone();
    let result = match target {
        Route::Invoke { name } => lambda_api::invoke(context, name, uri.query(), Form::Whole).await,
        Route::InvokeStreaming { name } => {
            lambda_api::invoke(context, name, uri.query(), Form::EventStream).await
        }
        Route::FunctionUrl { name, root, path } => {
            let whole = uri.path_and_query().map_or("", PathAndQuery::as_str);
            let place = Place {
                name,
                root,
                path,
                query: uri.query().unwrap_or(""),
                path_and_query: whole.strip_prefix(root).unwrap_or("/"),
            };
            function_url::call(context, place).await
        }
        Route::Unsupported { operation } => Err(RequestError::NotSupported {
            feature: operation,
            instead: "use Invoke, POST /2015-03-31/functions/NAME/invocations",
        }),
        Route::UnknownOperation | Route::Control => Err(RequestError::UnknownOperation {
            method: context.head.method.as_str().chars().take(20).collect(),
        }),
    };
    result.unwrap_or_else(|error| error.into_reply(&id))
}

/// A random UUID. The generator is a local one, seeded by the kernel: ids must differ, not be secret.
fn new_id() -> InvocationId {
    let mut text = uuid::Uuid::encode_buffer();
    InvocationId::new(uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text))
}
