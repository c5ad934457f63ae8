//! One call of another function: may it be called, and what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pilot_model::inputs::name_of_header;
use pilot_model::invokes::not_named;
use pilot_model::ports::Peer;
use pilot_model::trigger::FaasTrigger;
use pilot_model::{FunctionConfig, FunctionName, Interface, InvocationId, Version};
use pilot_pool::Urgency;
use pilot_wire::calls::{End, Reason, Refusal};
use serde_json::value::RawValue;
use tokio::time::Instant as Deadline;

use super::call::{Call, Data};
use super::copied::copied;
use super::{CALL_DEPTH_MAX, Caller, elsewhere};
use crate::error::InvokeError;
use crate::invoker::Invoker;
use crate::request::{Chain, Payload, Request};
use crate::response::ResponseBody;

/// The name of the input that the target gets.
pub(super) const DATA_NAME: &str = "data";

/// Invokes the function and waits for its answer.
pub(super) async fn invoke(caller: &Caller, call: Call) -> (End, Bytes) {
    match answered(caller, call).await {
        Ok(answer) => answer,
        Err(refusal) => (End::Refused(refusal), Bytes::new()),
    }
}

async fn answered(caller: &Caller, call: Call) -> Result<(End, Bytes), Refusal> {
    let invoker = caller.invoker.upgrade();
    let invoker = invoker.ok_or_else(|| of_invoke(&InvokeError::ShuttingDown))?;
    let version = match target(caller, &invoker, &call)? {
        Location::Here(version) => version,
        Location::Elsewhere(function, nodes) => {
            return elsewhere::invoke(caller, function, &nodes, call).await;
        }
    };
    let now = invoker.now();
    // Its answer is of no use to a caller that has been ended.
    let left = caller.deadline.saturating_duration_since(Deadline::now());
    let request = Request {
        id: InvocationId::new(&uuid::Uuid::new_v4().to_string()),
        arn: version.arn(None),
        version,
        received: now,
        client_context: None,
        trace: (caller.trace.as_ref())
            .map(|trace| trace.below_handler(&caller.version.config.name)),
        trigger: FaasTrigger::Other,
        urgency: Urgency {
            finish_by: Some(now.after(left)),
            ..Urgency::CALLER
        },
        chain: Some(Chain {
            depth: caller.depth + 1,
            deadline: caller.deadline,
        }),
        inputs: BTreeMap::new(),
    };
    let Call { event, data, .. } = call;
    let from = caller.version.config.name.to_string();
    let target = request.version.config.name.clone();
    let by_reference = caller.version.config.by_reference && caller.source.by_reference();
    let source = Arc::clone(&caller.source);
    let payload = async move {
        let data = match data {
            None => None,
            Some(Data::Input(memory)) => Some(memory),
            Some(Data::Buffer(slot)) => Some(slot.sealed().await.map_err(NotInvoked::Data)?),
        };
        let data = match data {
            Some(memory) if !by_reference => {
                let copied = copied(source.as_ref(), &target, memory.as_ref()).await;
                Some(copied.map_err(NotInvoked::Data)?)
            }
            data => data,
        };
        let mut payload = Payload::event(event);
        payload.data = data.map(|memory| (from, memory));
        Ok::<_, NotInvoked>(payload)
    };
    let name = request.version.config.name.clone();
    let response = invoker.invoke(request, payload).await;
    let response = response.map_err(|error| match error {
        NotInvoked::Data(refusal) => refusal,
        NotInvoked::Invoke(error) => of_invoke(&error),
    })?;
    match response.body {
        ResponseBody::Result(json) => Ok((End::Done, json)),
        ResponseBody::FunctionError(json) => Ok((End::FunctionError, json)),
        ResponseBody::Http { body, .. } => match body.complete() {
            Some(whole) => Ok((End::Done, whole.clone())),
            None => Err(streams(&name)),
        },
        // Calls never have such a response.
        ResponseBody::Passed(_) | ResponseBody::Upgraded(_) => Err(streams(&name)),
    }
}

/// Why there is no response.
enum NotInvoked {
    Data(Refusal),
    Invoke(InvokeError),
}

impl From<InvokeError> for NotInvoked {
    fn from(error: InvokeError) -> Self {
        Self::Invoke(error)
    }
}

/// Where the function is.
enum Location {
    Here(Arc<Version>),
    /// On these nodes.
    Elsewhere(FunctionName, Vec<Arc<dyn Peer>>),
}

/// Where the function is that is called, if the caller may call it in this way. A function that is on this node is invoked here.
fn target(caller: &Caller, invoker: &Invoker, call: &Call) -> Result<Location, Refusal> {
    let (own, function) = (&caller.version.config, call.function.as_str());
    let forbidden = |problem| Refusal::new(Reason::Forbidden, problem);
    // Before anything else: a function finds out nothing about functions that it may not invoke.
    if !own.invokes.names(function) {
        return Err(forbidden(not_named(&own.name, function)));
    }
    if caller.depth >= CALL_DEPTH_MAX {
        return Err(too_deep(function, caller.depth + 1));
    }
    let version = match invoker.find(function, None) {
        Ok(version) => version,
        Err(error @ InvokeError::FunctionNotFound { .. }) => {
            let nodes = invoker.nodes_of(function);
            let Some(name) = function.parse().ok().filter(|_| !nodes.is_empty()) else {
                return Err(of_invoke(&error));
            };
            check_event(&call.event)?;
            return Ok(Location::Elsewhere(name, nodes));
        }
        Err(error) => return Err(of_invoke(&error)),
    };
    let config = &version.config;
    own.may_invoke(config).map_err(forbidden)?;
    check_target(config, call.data.is_some())?;
    check_event(&call.event)?;
    Ok(Location::Here(version))
}

/// Whether functions can invoke this one. `has_data`: and hand data to it.
pub(super) fn check_target(config: &FunctionConfig, has_data: bool) -> Result<(), Refusal> {
    let function = &config.name;
    let not_supported = |problem: String| Err(Refusal::new(Reason::NotSupported, problem));
    if config.interface != Interface::Event {
        return not_supported(format!(
            "'{function}' does not take events: call its URL, /fn/{function}/"
        ));
    }
    if !has_data {
        return Ok(());
    }
    if let Some(reason) = config.runtime.no_inputs() {
        return not_supported(format!(
            "'{function}' cannot take data, which {reason}: put it into the event"
        ));
    }
    let is_taken = |name: &&String| match config.runtime.forks() {
        true => *name == DATA_NAME,
        // It becomes a part of a header's or a variable's name.
        false => name_of_header(name) == DATA_NAME,
    };
    if let Some(name) = config.inputs.keys().find(is_taken) {
        return not_supported(format!(
            "'{function}' declares an input \"{name}\" itself, and what is handed over is \"{DATA_NAME}\" there: rename it"
        ));
    }
    Ok(())
}

/// Whether it is JSON.
pub(super) fn check_event(event: &[u8]) -> Result<(), Refusal> {
    let read = serde_json::from_slice::<&RawValue>(event);
    read.map(drop)
        .map_err(|error| Refusal::new(Reason::Invalid, format!("the event is not JSON: {error}")))
}

pub(super) fn too_deep(function: &str, depth: u32) -> Refusal {
    let problem = format!(
        "'{function}' would be number {depth} of a chain of functions that invoke each other, and {CALL_DEPTH_MAX} is the most: does \
         one of them invoke itself?"
    );
    Refusal::new(Reason::TooDeep, problem)
}

pub(super) fn streams(name: &pilot_model::FunctionName) -> Refusal {
    let problem = format!("'{name}' streams its response: call it over HTTP");
    Refusal::new(Reason::NotSupported, problem)
}

pub(super) fn of_invoke(error: &InvokeError) -> Refusal {
    let reason = match error {
        InvokeError::FunctionNotFound { .. } | InvokeError::VersionNotFound { .. } => {
            Reason::NotFound
        }
        InvokeError::TooManyRequests { .. } => Reason::Throttled,
        InvokeError::PayloadTooLarge { .. } => Reason::TooLarge,
        _ => Reason::Unavailable,
    };
    Refusal::new(reason, error.to_string())
}
