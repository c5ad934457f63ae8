//! A call of a function that is on another node. It is sent to the nodes that have the function, one after the other, until one has run
//! it, within the caller's deadline. A call that may have run is not sent again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::FunctionName;
use pilot_model::ports::{
    BoxFuture, CallAnswer, CallEnd, CallHead, HandedData, InputMemory, NodeCall, Peer, Ran,
};
use pilot_wire::calls::{End, Reason, Refusal};
use tokio::time::{Instant as Deadline, timeout_at};

use super::Caller;
use super::target::{Call, Data};

/// Invokes the function on one of the nodes and waits for its answer.
pub(super) async fn invoke(
    caller: &Caller,
    function: FunctionName,
    nodes: &[Arc<dyn Peer>],
    call: Call,
) -> Result<(End, Bytes), Refusal> {
    let own = &caller.version.config;
    let data = call.data.map(|data| Arc::new(data) as Arc<dyn HandedData>);
    let asked = NodeCall {
        head: CallHead {
            function,
            caller: own.name.clone(),
            owner: own.invokes.own_only.then(|| own.owner().to_owned()),
            depth: caller.depth + 1,
            left: Duration::ZERO,
            trace: caller.trace.clone(),
        },
        event: call.event,
        data,
    };
    let CallAnswer { end, body } = send(nodes, asked, caller.deadline).await?;
    let end = match end {
        CallEnd::Done => End::Done,
        CallEnd::FunctionError => End::FunctionError,
    };
    Ok((end, body))
}

/// Sends a call to the nodes, one after the other, until one has run it.
pub(crate) async fn send(
    nodes: &[Arc<dyn Peer>],
    mut asked: NodeCall,
    deadline: Deadline,
) -> Result<CallAnswer, Refusal> {
    let mut problems: Vec<String> = Vec::new();
    let mut last = Reason::Unavailable;
    for node in nodes {
        asked.head.left = deadline.saturating_duration_since(Deadline::now());
        let Ok(answer) = timeout_at(deadline, node.call(&asked)).await else {
            break;
        };
        let fault = match answer {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        let Refusal { reason, problem } = fault.refusal;
        let problem = format!("node '{}': {problem}", node.name());
        if fault.ran == Ran::Perhaps || !is_of_the_node(reason) {
            problems.push(problem);
            return Err(Refusal::new(reason, problems.join("; ")));
        }
        tracing::debug!(function = %asked.head.function, %problem, "a call was not run");
        last = reason;
        problems.push(problem);
    }
    if problems.len() < nodes.len() {
        last = Reason::Unavailable;
        problems.push("no answer before the caller's deadline".to_owned());
    }
    Err(Refusal::new(last, problems.join("; ")))
}

/// Whether another node may do what this one has refused.
fn is_of_the_node(reason: Reason) -> bool {
    match reason {
        Reason::NotFound | Reason::Throttled | Reason::NoRoom | Reason::Unavailable => true,
        Reason::Forbidden
        | Reason::TooDeep
        | Reason::NotSupported
        | Reason::Invalid
        | Reason::TooLarge
        | Reason::StillMapped => false,
    }
}

impl HandedData for Data {
    fn bytes(&self) -> u64 {
        match self {
            Self::Buffer(slot) => slot.len(),
            Self::Input(memory) => memory.bytes(),
        }
    }

    fn memory(&self) -> BoxFuture<'_, Result<Arc<dyn InputMemory>, Refusal>> {
        Box::pin(async move {
            match self {
                Self::Buffer(slot) => slot.sealed().await,
                Self::Input(memory) => Ok(Arc::clone(memory)),
            }
        })
    }
}
