//! A function that is on other nodes, for callers that are no function of this node: the gateway's chains.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::ports::{CallAnswer, CallHead, NodeCall, Peer};
use pilot_model::{FunctionName, Trace};
use tokio::time::Instant as Deadline;

use crate::calls::elsewhere::send;
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
