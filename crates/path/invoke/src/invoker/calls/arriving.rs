//! Calls that other nodes send. What a node says of itself and of the caller was checked by `side/cluster`; whether the function can be
//! called in this way is checked here, as for calls on one node.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_model::InvocationId;
use pilot_model::ports::{
    ArrivingCall, BoxFuture, CallAnswer, CallEnd, NodeFault, NodeTarget, Ran,
};
use pilot_model::trigger::FaasTrigger;
use pilot_pool::Urgency;
use pilot_wire::calls::{Reason, Refusal};
use tokio::time::Instant as Deadline;

use super::CALL_DEPTH_MAX;
use super::target::{check_event, check_target, of_invoke, streams, too_deep};
use crate::error::InvokeError;
use crate::invoker::Invoker;
use crate::request::{Chain, Payload, Request};
use crate::response::ResponseBody;

impl NodeTarget for Invoker {
    fn call(&self, call: ArrivingCall) -> BoxFuture<'static, Result<CallAnswer, NodeFault>> {
        let invoker = self.itself();
        Box::pin(async move {
            match invoker {
                Some(invoker) => answered(&invoker, call).await,
                None => Err(NodeFault::not_run(of_invoke(&InvokeError::ShuttingDown))),
            }
        })
    }
}

async fn answered(invoker: &Arc<Invoker>, call: ArrivingCall) -> Result<CallAnswer, NodeFault> {
    let ArrivingCall {
        node,
        head,
        has_data,
        payload,
    } = call;
    let function = head.function.as_str();
    let not_run = NodeFault::not_run;
    if head.depth > CALL_DEPTH_MAX {
        return Err(not_run(too_deep(function, head.depth)));
    }
    // Not to another node again: two that name each other would send it to and fro.
    let version = invoker.find(function, None);
    let version = version.map_err(|error| not_run(of_invoke(&error)))?;
    let config = &version.config;
    if let Some(owner) = &head.owner
        && owner != config.owner()
    {
        let problem = format!(
            "function '{}' may not invoke '{function}': it was deployed with a token for the owner '{owner}', and '{function}' has \
             another owner",
            head.caller
        );
        return Err(not_run(Refusal::new(Reason::Forbidden, problem)));
    }
    check_target(config, has_data).map_err(not_run)?;
    let now = invoker.now();
    let name = config.name.clone();
    let request = Request {
        trigger: FaasTrigger::Other,
        id: InvocationId::new(&uuid::Uuid::new_v4().to_string()),
        arn: version.arn(None),
        version,
        received: now,
        client_context: None,
        trace: head.trace,
        urgency: Urgency {
            finish_by: Some(now.after(head.left)),
            ..Urgency::CALLER
        },
        chain: Some(Chain {
            depth: head.depth,
            deadline: Deadline::now() + head.left,
        }),
        inputs: BTreeMap::new(),
    };
    let from = format!("{}@{node}", head.caller);
    let payload = async move {
        let arrived = payload.await.map_err(NotRun)?;
        check_event(&arrived.event).map_err(NotRun)?;
        let mut payload = Payload::event(arrived.event);
        payload.data = arrived.data.map(|memory| (from, memory));
        Ok::<_, NotRun>(payload)
    };
    let response = invoker.invoke(request, payload).await;
    let response = response.map_err(|NotRun(refusal)| not_run(refusal))?;
    let (end, body) = match response.body {
        ResponseBody::Result(json) => (CallEnd::Done, json),
        ResponseBody::FunctionError(json) => (CallEnd::FunctionError, json),
        ResponseBody::Http { body, .. } => match body.complete() {
            Some(whole) => (CallEnd::Done, whole.clone()),
            None => return Err(has_run(streams(&name))),
        },
        // Calls never have such a response.
        ResponseBody::Passed(_) | ResponseBody::Upgraded(_) => {
            return Err(has_run(streams(&name)));
        }
    };
    Ok(CallAnswer { end, body })
}

fn has_run(refusal: Refusal) -> NodeFault {
    NodeFault {
        refusal,
        ran: Ran::Perhaps,
    }
}

/// Why a call is not run.
struct NotRun(Refusal);

impl From<InvokeError> for NotRun {
    fn from(error: InvokeError) -> Self {
        Self(of_invoke(&error))
    }
}
