//! A function that is on other nodes. A call is sent to the nodes that have the function, one after the other, until one has run it,
//! within the caller's deadline. A call that may have run is not sent again.
//!
//! [`Elsewhere`] is for callers that are no function of this node: the gateway's chains.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::calls::{Reason, Refusal};
use pilot_model::ports::{CallAnswer, CallHead, NodeCall, Peer, Ran};
use pilot_model::{FunctionName, Trace};
use tokio::time::{Instant as Deadline, timeout_at};

use crate::error::InvokeError;

/// A function that is on other nodes, from [`Invoker::elsewhere`](crate::Invoker::elsewhere).
#[derive(Debug)]
pub struct Elsewhere {
    /// Its name.
    pub function: FunctionName,
    pub(crate) nodes: Vec<Arc<dyn Peer>>,
}

impl Elsewhere {
    /// Invokes it with the answer of another function, and waits for its own at most for `left`. Dropping the future ends the call.
    ///
    /// # Errors
    /// [`InvokeError::Elsewhere`].
    pub async fn invoke(
        &self,
        caller: &FunctionName,
        depth: u32,
        left: Duration,
        trace: Option<Trace>,
        event: Bytes,
    ) -> Result<CallAnswer, InvokeError> {
        let asked = NodeCall {
            head: CallHead {
                function: self.function.clone(),
                caller: caller.clone(),
                owner: None,
                depth,
                left,
                trace,
            },
            event,
            data: None,
        };
        let answer = send(&self.nodes, asked, Deadline::now() + left).await;
        answer.map_err(|refusal| InvokeError::Elsewhere {
            name: self.function.clone(),
            refusal,
        })
    }
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
