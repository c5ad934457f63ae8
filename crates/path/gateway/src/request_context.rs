//! One request on the data path: what every route needs of it.

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
    /// When the head was there.
    pub(crate) received: Instant,
    /// Without the URI, which the route holds.
    pub(crate) head: Parts,
    /// The connection it came on.
    pub(crate) line: &'a Line,
    /// `None` once somebody has it.
    pub(crate) body: Option<Incoming>,
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
