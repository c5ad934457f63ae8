//! The body of a request, as a store with one object: data that comes with the request ("direct" in Truffle, section IV-A). It is not here
//! that a slow sender is given up: the gateway limits the time between two parts, and the function's timeout is that of the whole.
//!
//! The body can be read once. It is not read before its first byte is asked for, so the store can be asked again until then: whoever
//! waits for room does so, and a client that sends meanwhile fills the kernel's buffers and no memory of the daemon.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http_body::Body as _;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::ports::{BodyError, InputFaultKind as Kind, StreamedBody};

use super::{Got, Object, Store, StoreError, Validator};

/// The body of one request.
pub(crate) struct RequestBody(Arc<Mutex<BodyState>>);

enum BodyState {
    /// The invocation comes from no request.
    Absent,
    Unread(StreamedBody),
    Read,
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBody").finish_non_exhaustive()
    }
}

impl RequestBody {
    /// `None`: the invocation comes from no request, but from a trigger or from another function.
    pub(crate) fn new(body: Option<StreamedBody>) -> Self {
        let state = body.map_or(BodyState::Absent, BodyState::Unread);
        Self(Arc::new(Mutex::new(state)))
    }

    fn ask(&self) -> Result<Got, StoreError> {
        let len = match &*self.0.lock() {
            BodyState::Absent => {
                return Err(StoreError::new(Kind::NotFound, NO_BODY));
            }
            BodyState::Unread(body) => body.size_hint().exact(),
            BodyState::Read => return Err(read_before()),
        };
        let state = Arc::clone(&self.0);
        let parts = stream::once(async move { take(&state) })
            .map_ok(|body| body.into_data_stream().map(part))
            .try_flatten();
        Ok(Got::Object(Object {
            len,
            validator: None,
            headers: Vec::new(),
            body: parts.boxed(),
        }))
    }
}

impl Store for RequestBody {
    fn get<'a>(
        &'a self,
        _: &'a str,
        _: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(std::future::ready(self.ask()))
    }

    fn retries(&self) -> u32 {
        0
    }
}

fn take(state: &Mutex<BodyState>) -> Result<StreamedBody, StoreError> {
    let mut state = state.lock();
    match std::mem::replace(&mut *state, BodyState::Read) {
        BodyState::Unread(body) => Ok(body),
        BodyState::Absent | BodyState::Read => Err(read_before()),
    }
}

fn part(part: Result<Bytes, BodyError>) -> Result<Bytes, StoreError> {
    part.map_err(|error| {
        let problem = format!("it did not arrive: {error}");
        StoreError::new(Kind::Broken, &problem)
    })
}

/// Only a decoder reads the body before there is room for what it makes of it.
fn read_before() -> StoreError {
    let problem = "the request's body can be read once, and there was no room for the input then: see data.function_mb";
    StoreError::new(Kind::Unavailable, problem)
}

const NO_BODY: &str =
    "there is no such body: only a request to the function's URL, or by Invoke, has one";
