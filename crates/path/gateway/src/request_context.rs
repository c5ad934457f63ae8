//! One request on the data path, as all routes need it.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::request::Parts;
use hyper::body::{Body as _, Incoming};
use pilot_model::access::Role;
use pilot_model::ports::StreamedBody;
use pilot_model::{Instant, InvocationId};

use crate::connection::line::Line;
use crate::errors::RequestError;
use crate::expectation::Expectation;
use crate::gate::Gate;
use crate::headers;
use crate::listener::Access;
use crate::token::{self, CARRIERS, TokenError};
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
    /// Checks that the caller may call this function, and removes its token from the headers.
    ///
    /// # Errors
    /// [`TokenError`].
    pub(crate) fn authorise(&mut self, function: &str) -> Result<(), TokenError> {
        let door = &self.gate.door;
        if door.calls == Access::Open || door.everyone.is_some() {
            // A client may send its token although none is needed. The function must not see it.
            if CARRIERS
                .iter()
                .any(|name| self.head.headers.contains_key(name))
            {
                let _ = token::take(&*self.gate.config.tokens, &mut self.head.headers);
            }
            return Ok(());
        }
        let grant = token::take(&*self.gate.config.tokens, &mut self.head.headers)?;
        if grant.permits(Role::Invoke, function) {
            Ok(())
        } else {
            Err(TokenError::Denied(Role::Invoke))
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
        let body = self.gate.bodies.read(body).await;
        let body = body.inspect_err(|error| self.count_slow(error))?;
        self.line.usage().body_was_read();
        Ok(body)
    }

    /// Reads the body up to the limit of its size. Returns the rest of a larger one, unread.
    ///
    /// # Errors
    /// See [`BodyReader::read_front`](crate::body::BodyReader::read_front).
    pub(crate) async fn read_front(
        &mut self,
    ) -> Result<(Bytes, Option<StreamedBody>), RequestError> {
        let Some(body) = self.body.take() else {
            return Ok((Bytes::new(), None));
        };
        let front = self.gate.bodies.read_front(body).await;
        let (front, rest) = front.inspect_err(|error| self.count_slow(error))?;
        self.body = rest;
        if self.body.is_none() {
            self.line.usage().body_was_read();
        }
        Ok((front, self.upload(None).map(StreamedBody::new)))
    }

    fn count_slow(&self, error: &RequestError) {
        if matches!(error, RequestError::Body { .. }) {
            self.line.usage().was_too_slow();
        }
    }

    /// The unread body, as a stream; `None` if there is none. It is read when `expects` permits it.
    pub(crate) fn upload(&mut self, expects: Option<Expectation>) -> Option<Upload<Incoming>> {
        let body = self.body.take().filter(|body| !body.is_end_stream())?;
        let patience = self.gate.config.body_timeout;
        let usage = Arc::clone(self.line.usage());
        Some(Upload::new(body, usage, patience, expects))
    }

    /// The caller's trace header, or a new trace that is not sampled. Its numbers are those of the request id (AWS X-Ray, "Tracing
    /// header").
    pub(crate) fn trace(&self) -> String {
        if let Some(value) = self.head.headers.get(headers::TRACE_ID) {
            return headers::text(value).into_owned();
        }
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let mut digits = String::with_capacity(32);
        digits.extend(self.id.as_str().chars().filter(char::is_ascii_hexdigit));
        let (root, parent) = (digits.get(..24), digits.get(16..32));
        let (root, parent) = (root.unwrap_or_default(), parent.unwrap_or_default());
        format!("Root=1-{seconds:08x}-{root};Parent={parent};Sampled=0")
    }
}
