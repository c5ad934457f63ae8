//! One request of an initscript to a queue, as a store with one object: the answer. The queues are behind the port [`Queues`].

use std::sync::Arc;

use futures_util::StreamExt;
use http_body::Body as _;
use http_body_util::{BodyDataStream, BodyExt};
use pilot_model::BoxFuture;
use pilot_model::ports::{InputFaultKind as Kind, QueueRequest, Queues, RemoteFault, StoreObject};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

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

    fn named(&self, _: &str, _: &[(String, String)]) -> Option<StoreObject> {
        let QueueRequest {
            action, arguments, ..
        } = &self.request;
        if !ANSWERED.contains(&action.as_str()) {
            return None;
        }
        let mut given: Map<String, Value> = match arguments.is_empty() {
            true => Map::new(),
            false => serde_json::from_slice(arguments).ok()?,
        };
        // The URL is the daemon's, whatever the script says.
        given.remove("QueueUrl");
        let mut given = Value::Object(given);
        given.sort_all_objects();
        Some(StoreObject::Sqs {
            url: self.queues.url(&self.request)?,
            action: action.clone(),
            arguments_sha256: hex::encode(Sha256::digest(given.to_string())),
        })
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

/// What clients of the function are answered from. What deletes or returns a message is the function's own to say.
const ANSWERED: [&str; 4] = [
    "ReceiveMessage",
    "SendMessage",
    "SendMessageBatch",
    "GetQueueAttributes",
];

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

        fn url(&self, request: &QueueRequest) -> Option<String> {
            Some(format!("https://sqs.example.com/1/{}", request.queue))
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

    fn store(action: &str, arguments: &'static str) -> OneAnswer {
        OneAnswer {
            queues: Arc::new(Fake),
            request: QueueRequest {
                function: "resize".parse().unwrap(),
                connection: "jobs".to_owned(),
                queue: "tasks".to_owned(),
                action: action.to_owned(),
                arguments: Bytes::from_static(arguments.as_bytes()),
            },
        }
    }

    async fn asked(arguments: &'static str) -> Result<Vec<u8>, StoreError> {
        let store = store("ReceiveMessage", arguments);
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

    #[test]
    fn an_answer_is_named_by_its_queue_and_its_arguments() {
        let named = |action, arguments| store(action, arguments).named("tasks", &[]);
        let expected = |action: &str, arguments_sha256: &str| {
            Some(StoreObject::Sqs {
                url: "https://sqs.example.com/1/tasks".to_owned(),
                action: action.to_owned(),
                arguments_sha256: arguments_sha256.to_owned(),
            })
        };
        // printf '{}' | sha256sum
        let nothing = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(
            named("ReceiveMessage", ""),
            expected("ReceiveMessage", nothing)
        );
        assert_eq!(
            named("ReceiveMessage", r#"{"QueueUrl": "x"}"#),
            expected("ReceiveMessage", nothing)
        );
        // printf '{"MessageBody":"a \\"task\\"\\nä"}' | sha256sum
        let task = "a3bfeb6aba0bea8a61f272f9177b048dd9d7c2efbca9cd3331d0037924a0a6c8";
        assert_eq!(
            named("SendMessage", r#"{"MessageBody": "a \"task\"\n\u00e4"}"#),
            expected("SendMessage", task)
        );
        // printf '{"a":{"c":"\\u0001","d":1},"b":[2,1]}' | sha256sum
        let sorted = "c5c3b7980278958bbf29ab5d79baeee143f95cc0a427296648cf5bba66cef884";
        assert_eq!(
            named(
                "SendMessage",
                r#"{"b": [2, 1], "a": {"d": 1, "c": "\u0001"}}"#
            ),
            expected("SendMessage", sorted)
        );
        for action in ["DeleteMessage", "ChangeMessageVisibility", "PurgeQueue"] {
            assert_eq!(named(action, "{}"), None);
        }
    }
}
