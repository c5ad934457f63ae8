//! One request on the data path, as all routes need it.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use hyper::body::{Body as _, Incoming};
use pilot_model::{Instant, InvocationId};

use crate::connection::line::Line;
use crate::errors::RequestError;
use crate::gate::Gate;
use crate::headers;
use crate::token::TokenError;
use crate::upload::Upload;

/// One request on the data path.
#[derive(Debug)]
pub(crate) struct RequestContext<'a> {
    pub(crate) gate: &'a Gate,
    /// The request id.
    pub(crate) id: InvocationId,
    /// When the head was received.
    pub(crate) received: Instant,
    /// The head without the URI, which the route has.
    pub(crate) head: Parts,
    /// Its connection.
    pub(crate) line: &'a Line,
    /// `None` after it was taken.
    pub(crate) body: Option<Incoming>,
}

impl RequestContext<'_> {
    /// Checks the token, if one is required, and removes it from the headers.
    ///
    /// # Errors
    /// [`TokenError`].
    pub(crate) fn authorise(&mut self) -> Result<(), TokenError> {
        match &self.gate.config.invoke_token {
            None => Ok(()),
            Some(token) => token.take(&mut self.head.headers),
        }
    }

    /// Reads the body. The second call returns an empty one.
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

    /// The unread body, as a stream; `None` if there is none.
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
