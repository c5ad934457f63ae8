//! Runs the attempts of asynchronous invocations: the port of the queue, over the invoker.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pilot_invoke::{
    HttpBody, InvokeError, Invoker, Payload, Request, Response, ResponseBody, Urgency,
    function_error,
};
use pilot_model::ports::{AsyncRequest, AsyncRunner, AsyncTarget, AttemptEnd, NoTarget};
use pilot_model::{BoxFuture, FunctionName, Trace, Traces, Version};

/// The invoker as the queue uses it.
#[derive(Debug)]
pub(crate) struct InvokerRunner {
    pub(crate) invoker: Arc<Invoker>,
    /// If traces are recorded.
    pub(crate) traces: Option<Arc<Traces>>,
}

impl AsyncRunner for InvokerRunner {
    fn target(
        &self,
        function: &FunctionName,
        qualifier: Option<&str>,
    ) -> Result<AsyncTarget, NoTarget> {
        match self.invoker.find(function.as_str(), qualifier) {
            Ok(version) => Ok(target(&version, qualifier)),
            Err(error @ InvokeError::Broken { .. }) => Err(NoTarget::Broken {
                problem: error.to_string(),
            }),
            Err(_) => Err(NoTarget::Gone),
        }
    }

    fn begin_trace(&self) -> Option<String> {
        self.traces.as_ref().and_then(|traces| traces.begin())
    }

    fn run(&self, request: AsyncRequest) -> BoxFuture<'static, AttemptEnd> {
        let (invoker, records) = (Arc::clone(&self.invoker), self.traces.is_some());
        Box::pin(async move { attempt(&invoker, request, records).await })
    }
}

fn target(version: &Version, qualifier: Option<&str>) -> AsyncTarget {
    let config = &version.config;
    let slots = config.scale.max.saturating_mul(config.concurrency);
    AsyncTarget {
        config: config.asynchronous.clone(),
        owner: config.owner().to_owned(),
        concurrency: usize::try_from(slots / 2).unwrap_or(usize::MAX).max(1),
        arn: version.arn(Some(qualifier.unwrap_or("$LATEST"))),
    }
}

async fn attempt(invoker: &Invoker, asked: AsyncRequest, records: bool) -> AttemptEnd {
    let qualifier = asked.qualifier.as_deref();
    let is_live = qualifier.is_none();
    let version = match invoker.find(asked.function.as_str(), qualifier) {
        Ok(version) => version,
        Err(error) => return not_run(&error, is_live),
    };
    let request = Request {
        id: asked.id,
        arn: version.arn(qualifier),
        version,
        received: invoker.now(),
        client_context: asked.client_context,
        trace: (asked.trace.as_deref()).map(|text| Trace::of_text(text, records)),
        trigger: asked.trigger,
        inputs: std::collections::BTreeMap::new(),
        urgency: Urgency::BACKGROUND,
        chain: None,
    };
    let payload = async { Ok::<_, InvokeError>(Payload::event(asked.payload)) };
    match invoker.invoke(request, payload).await {
        Ok(response) => answered(response).await,
        Err(error) => not_run(&error, is_live),
    }
}

async fn answered(response: Response) -> AttemptEnd {
    let version = response.version.number;
    match response.body {
        ResponseBody::Result(json) => AttemptEnd::Done {
            version,
            body: (json.len() <= ANSWER_BYTES_MAX).then_some(json),
        },
        ResponseBody::FunctionError(body) => failed(version, body),
        ResponseBody::Http { mut body, .. } => match collect(&mut body).await {
            Ok(body) => AttemptEnd::Done { version, body },
            Err(error) => failed(
                version,
                function_error(&error, &response.id).unwrap_or_else(|| {
                    let error = serde_json::json!({"errorType": "Runtime.ExitError", "errorMessage": error.to_string()});
                    Bytes::from(error.to_string())
                }),
            ),
        },
        // Calls never have such a response.
        ResponseBody::Passed(_) | ResponseBody::Upgraded(_) => AttemptEnd::Done {
            version,
            body: None,
        },
    }
}

/// An error of the function, if it fits into a record.
fn failed(version: u32, body: Bytes) -> AttemptEnd {
    let body = if body.len() <= ANSWER_BYTES_MAX {
        body
    } else {
        Bytes::from_static(LARGE_ERROR)
    };
    AttemptEnd::Failed { version, body }
}

/// A streamed response, read to its end. `None`: it is too large for a record.
async fn collect(body: &mut HttpBody) -> Result<Option<Bytes>, InvokeError> {
    let mut whole = BytesMut::new();
    let mut fits = true;
    while let Some(part) = body.next().await {
        let part = part?;
        fits = fits && whole.len() + part.len() <= ANSWER_BYTES_MAX;
        if fits {
            whole.extend_from_slice(&part);
        }
    }
    Ok(fits.then(|| whole.freeze()))
}

fn not_run(error: &InvokeError, is_live: bool) -> AttemptEnd {
    let problem = error.to_string();
    match error {
        // It was replaced in this moment.
        InvokeError::VersionNotFound { .. } if is_live => AttemptEnd::NotRun { problem },
        InvokeError::FunctionNotFound { .. } | InvokeError::VersionNotFound { .. } => {
            AttemptEnd::Gone { problem }
        }
        InvokeError::ShuttingDown => AttemptEnd::Stopping,
        _ => AttemptEnd::NotRun { problem },
    }
}

const LARGE_ERROR: &[u8] =
    br#"{"errorType":"Function.ResponseSizeTooLarge","errorMessage":"the error of the function is too large for a record"}"#;
/// The largest answer that a record has: Lambda's limit for the payload of an asynchronous invocation.
const ANSWER_BYTES_MAX: usize = 1 << 20;
