//! A handler's call of a function that is on other nodes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::FunctionName;
use pilot_model::ports::{CallAnswer, CallEnd, CallHead, HandedData, NodeCall, Peer};
use pilot_wire::calls::{End, Refusal};

use super::Caller;
use super::call::Call;
use crate::elsewhere::send;

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
