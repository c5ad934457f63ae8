//! One request of an initscript to a queue, as a store with one object: the answer. The queues are behind the port [`Queues`].

use std::sync::Arc;

use futures_util::StreamExt;
use http_body::Body as _;
use http_body_util::{BodyDataStream, BodyExt};
use pilot_model::BoxFuture;
use pilot_model::ports::{InputFaultKind as Kind, QueueRequest, Queues, RemoteFault};

use super::{Got, Object, Store, StoreError, Validator};

/// A store whose object is the answer to one request.
#[derive(Debug)]
pub(crate) struct OneAnswer {
    pub(crate) queues: Arc<dyn Queues>,
    pub(crate) request: QueueRequest,
}

impl Store for OneAnswer {
    /// A request may have taken a message.
    fn retries(&self) -> u32 {
        0
    }

    fn get<'a>(
        &'a self,
        _: &'a str,
        _: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let answer = self.queues.call(self.request.clone()).await;
            let body =
                answer.map_err(|RemoteFault { kind, problem }| StoreError::new(kind, &problem))?;
            let failed = |error: pilot_model::ports::BodyError| {
                StoreError::new(Kind::Unavailable, &error.to_string())
            };
            Ok(Got::Object(Object {
                len: body.size_hint().exact(),
                validator: None,
                headers: Vec::new(),
                body: BodyDataStream::new(body.map_err(failed)).boxed(),
            }))
        })
    }
}
