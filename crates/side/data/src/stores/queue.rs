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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::TryStreamExt;
    use http_body_util::Full;
    use pilot_model::ports::StreamedBody;

    use super::*;

    /// Queues that answer with the arguments, unless there are none.
    #[derive(Debug)]
    struct Fake;

    impl Queues for Fake {
        fn check(&self, _: &str, _: &str) -> Result<(), String> {
            Ok(())
        }

        fn call(
            &self,
            request: QueueRequest,
        ) -> BoxFuture<'static, Result<StreamedBody, RemoteFault>> {
            Box::pin(async move {
                if request.arguments.is_empty() {
                    let problem = "nothing is asked".to_owned();
                    let kind = Kind::Key;
                    return Err(RemoteFault { kind, problem });
                }
                let body = Full::new(request.arguments);
                Ok(body.map_err(|never| match never {}).boxed_unsync())
            })
        }
    }

    async fn asked(arguments: &'static str) -> Result<Vec<u8>, StoreError> {
        let store = OneAnswer {
            queues: Arc::new(Fake),
            request: QueueRequest {
                function: "resize".parse().unwrap(),
                connection: "jobs".to_owned(),
                queue: "tasks".to_owned(),
                action: "ReceiveMessage".to_owned(),
                arguments: Bytes::from_static(arguments.as_bytes()),
            },
        };
        let Got::Object(object) = store.get("tasks", None).await? else {
            panic!("an answer is always another one");
        };
        assert_eq!(object.len, Some(arguments.len() as u64));
        let parts: Vec<Bytes> = object.body.try_collect().await?;
        Ok(parts.concat())
    }

    #[tokio::test]
    async fn an_answer_is_an_object_and_a_refusal_keeps_its_reason() {
        assert_eq!(asked("{}").await.unwrap(), b"{}");
        let refused = asked("").await.unwrap_err();
        assert_eq!(
            (refused.kind, refused.problem.as_str()),
            (Kind::Key, "nothing is asked")
        );
    }
}
