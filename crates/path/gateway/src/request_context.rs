//! One request on the data path, as all routes need it.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::Uri;
use http::request::Parts;
use http_body::Body as _;
use http_body_util::{BodyExt as _, Empty, Full};
use pilot_invoke::InvokeError;
use pilot_model::access::{Grant, Role};
use pilot_model::ports::StreamedBody;
use pilot_model::{FunctionName, Instant, InvocationId, TraceSpan};
use pilot_protocols::FunctionBudget;

use crate::connection::line::Line;
use crate::errors::RequestError;
use crate::expectation::Expectation;
use crate::gate::Gate;
use crate::headers;
use crate::listener::Access;
use crate::request_body::RequestBody;
use crate::signature::{self, Signature, SignatureError, SignedPayload, UNSIGNED};
use crate::token::{self, CARRIERS, TokenError};
use crate::upload::Upload;

/// A random UUID from a local generator that the kernel seeds. Ids must be unique, but not secret.
pub(crate) fn new_id() -> InvocationId {
    let mut text = uuid::Uuid::encode_buffer();
    InvocationId::new(uuid::Uuid::new_v4().hyphenated().encode_lower(&mut text))
}

/// Whether the query of a request may have its signature. The function would see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presigned {
    /// It may.
    Taken,
    /// It may not.
    No,
}

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
    /// As sent.
    pub(crate) uri: &'a Uri,
    /// `None` after it was taken.
    pub(crate) body: &'a mut Option<RequestBody>,
    /// The body, if its signature required to read it first.
    pub(crate) held: Option<Bytes>,
    /// Its span, if it is recorded.
    pub(crate) recorded: &'a OnceLock<Arc<TraceSpan>>,
}

impl RequestContext<'_> {
    /// Checks that the caller may call these functions, and removes its token or signature from the headers. The body of a signed request
    /// is read here, up to the limit of its size, because the signature is over its hash.
    ///
    /// # Errors
    /// [`TokenError`], [`SignatureError`], and those of reading a body.
    pub(crate) async fn authorise(
        &mut self,
        functions: &[&str],
        presigned: Presigned,
    ) -> Result<(), RequestError> {
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
        let grant = match token::take(&*self.gate.config.tokens, &mut self.head.headers) {
            Ok(grant) => grant,
            Err(TokenError::Missing) => {
                let function = functions.first().copied().unwrap_or_default();
                self.signer(function, presigned).await?
            }
            Err(wrong) => return Err(wrong.into()),
        };
        let permits = |function: &&str| grant.permits(Role::Invoke, function);
        if functions.iter().all(permits) {
            Ok(())
        } else {
            Err(TokenError::Denied(Role::Invoke).into())
        }
    }

    /// What the signature of the request permits. Everything that can be checked without the body is checked before it is read.
    async fn signer(
        &mut self,
        function: &str,
        presigned: Presigned,
    ) -> Result<Arc<Grant>, RequestError> {
        let query = self.uri.query().filter(|_| presigned == Presigned::Taken);
        let Some(signature) = Signature::of(&self.head.headers, query)? else {
            return Err(TokenError::Missing.into());
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        signature.check_scope(now.map_or(0, |since| since.as_secs()))?;
        let signer = self.gate.config.tokens.signer(&signature.access_key_id);
        let signer = signer.ok_or(SignatureError::UnknownKey)?;
        let payload = signature.payload(&self.head.headers)?;
        let verify = |context: &Self, hash: &str| {
            let head = &context.head;
            signature.verify(
                &signer.secret,
                &head.method,
                context.uri,
                &head.headers,
                hash,
            )
        };
        match payload {
            SignedPayload::Unsigned => verify(self, UNSIGNED)?,
            SignedPayload::Said(hash) => {
                verify(self, &hash)?;
                if self.hold_body(function).await? != hash {
                    return Err(SignatureError::Body.into());
                }
            }
            SignedPayload::OfBody => {
                let hash = self.hold_body(function).await?;
                verify(self, &hash)?;
            }
        }
        self.head.headers.remove(headers::AUTHORIZATION);
        Ok(signer.grant)
    }

    /// Reads the body, and keeps it for those who read it next. Returns its hash.
    async fn hold_body(&mut self, function: &str) -> Result<String, RequestError> {
        let body = self.read_body(function).await?;
        let hash = signature::sha256(&body);
        self.held = Some(body);
        Ok(hash)
    }

    /// Reads the body, which is for this function. The second call returns an empty one.
    ///
    /// # Errors
    /// See [`BodyReader::read`](crate::body::BodyReader::read).
    pub(crate) async fn read_body(&mut self, function: &str) -> Result<Bytes, RequestError> {
        if let Some(held) = self.held.take() {
            return Ok(held);
        }
        let Some(body) = self.body.take() else {
            return Ok(Bytes::new());
        };
        let body = self.gate.bodies.read(function, body).await;
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
        function: &str,
    ) -> Result<(Bytes, Option<StreamedBody>), RequestError> {
        if let Some(held) = self.held.take() {
            return Ok((held, None));
        }
        let Some(body) = self.body.take() else {
            return Ok((Bytes::new(), None));
        };
        let front = self.gate.bodies.read_front(function, body).await;
        let (front, rest) = front.inspect_err(|error| self.count_slow(error))?;
        *self.body = rest;
        if self.body.is_none() {
            self.line.usage().body_was_read();
        }
        Ok((front, self.upload(None).map(StreamedBody::new)))
    }

    /// The body, unread, for a function that has it as an input.
    pub(crate) fn direct_body(&mut self) -> StreamedBody {
        let upload = self.upload(None);
        self.streamed(upload)
    }

    /// The body as a stream: what is unread of it, or what was read for its signature, or nothing.
    pub(crate) fn streamed(&mut self, upload: Option<Upload>) -> StreamedBody {
        match (upload, self.held.take()) {
            (Some(upload), _) => StreamedBody::new(upload),
            (None, Some(held)) => {
                StreamedBody::new(Full::new(held).map_err(|never| match never {}))
            }
            (None, None) => StreamedBody::new(Empty::new().map_err(|never| match never {})),
        }
    }

    /// The error of an invocation. That of a streamed body becomes the client's, if it sent no valid HTTP.
    pub(crate) fn known_body_fault(&self, error: RequestError) -> RequestError {
        let is_malformed = self.line.usage().has_malformed_body();
        match error {
            RequestError::Invoke(InvokeError::UploadBroken { problem }) if is_malformed => {
                RequestError::Malformed { problem }
            }
            RequestError::Invoke(InvokeError::BodyInput { fault }) if is_malformed => {
                RequestError::Malformed {
                    problem: fault.problem,
                }
            }
            other => other,
        }
    }

    /// The memory of this function's answers, which the response holds until the client has it.
    pub(crate) fn holds_answer_of(&self, function: &FunctionName) -> FunctionBudget {
        let memory = self.gate.config.answers.of(function);
        self.line.usage().answers_hold(memory.clone());
        memory
    }

    fn count_slow(&self, error: &RequestError) {
        if matches!(error, RequestError::Body { .. }) {
            self.line.usage().was_too_slow();
        }
    }

    /// The unread body, as a stream; `None` if there is none. It is read when `expects` permits it.
    pub(crate) fn upload(&mut self, expects: Option<Expectation>) -> Option<Upload> {
        let body = self.body.take().filter(|body| !body.is_end_stream())?;
        let patience = self.gate.config.body_timeout;
        let usage = Arc::clone(self.line.usage());
        usage.body_is_streamed();
        Some(Upload::new(body, usage, patience, expects))
    }
}
