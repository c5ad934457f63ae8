//! Functions on other nodes: where they are, and calls in both directions (Truffle, section III, cross-function data passing).
//!
//! A node runs a call only when the whole of it has arrived. So a call whose last byte was not sent has not run, and may be sent to
//! another node.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{BoxFuture, InputMemory};
use crate::calls::Refusal;
use crate::ids::FunctionName;
use crate::trace::Trace;

/// Where functions are that are not on this node.
pub trait Placement: Send + Sync + Debug {
    /// The nodes that have the function, in the order in which they are to be tried. Empty: none is known to have it.
    fn place(&self, function: &str) -> Vec<Arc<dyn Peer>>;
}

/// Every function is on this node, or nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Local;

impl Placement for Local {
    fn place(&self, _: &str) -> Vec<Arc<dyn Peer>> {
        Vec::new()
    }
}

/// Another node, as callers see it.
pub trait Peer: Send + Sync + Debug {
    /// Its name.
    fn name(&self) -> &str;

    /// Sends a call and waits for its answer. The call is announced at once; its data follows when it is there. Dropping the future
    /// ends the call on the other node, too.
    fn call<'a>(&'a self, call: &'a NodeCall) -> BoxFuture<'a, Result<CallAnswer, NodeFault>>;
}

/// A call of a function on another node.
#[derive(Debug)]
pub struct NodeCall {
    /// What the other node has to know of it.
    pub head: CallHead,
    /// The event, JSON.
    pub event: Bytes,
    /// The data that goes along.
    pub data: Option<Arc<dyn HandedData>>,
}

/// What a node is told of a call.
#[derive(Debug, Clone)]
pub struct CallHead {
    /// The function that is called.
    pub function: FunctionName,
    /// The function that calls.
    pub caller: FunctionName,
    /// The call is for functions of this owner only.
    pub owner: Option<String>,
    /// The place of the called function in the chain of functions; the one that a client invoked is 1.
    pub depth: u32,
    /// The caller is ended after this time.
    pub left: Duration,
    /// The trace of the call.
    pub trace: Option<Trace>,
}

/// Data that goes along with a call, and that may still be filled.
pub trait HandedData: Send + Sync + Debug {
    /// Its length, bytes.
    fn bytes(&self) -> u64;

    /// Waits until more than the first `at` bytes are there, or all. The last one is there when the data is complete, and not before.
    ///
    /// # Errors
    /// It was given up before.
    fn there(&self, at: u64) -> BoxFuture<'_, Result<There, Refusal>>;
}

/// The beginning of data that may still be filled, or all of it.
#[derive(Debug, Clone)]
pub struct There {
    /// What it is read from.
    pub file: Arc<OwnedFd>,
    /// So many bytes are there.
    pub len: u64,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallAnswer {
    /// Whether the function failed.
    pub end: CallEnd,
    /// What the function returned, or Lambda's error body. JSON.
    pub body: Bytes,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    /// The function returned.
    Done,
    /// The function failed.
    FunctionError,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFault {
    /// The class, and the problem in words.
    pub refusal: Refusal,
    /// Whether the function has run.
    pub ran: Ran,
}

/// Whether a call without an answer has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// It has not: it can be sent to another node.
    No,
    /// It may have.
    Perhaps,
}

impl NodeFault {
    /// Nothing has run.
    #[must_use]
    pub fn not_run(refusal: Refusal) -> Self {
        Self {
            refusal,
            ran: Ran::No,
        }
    }
}

/// This node, as other nodes see it.
pub trait NodeTarget: Send + Sync + Debug {
    /// Runs a call. Dropping the future ends it.
    fn call(&self, call: ArrivingCall) -> BoxFuture<'static, Result<CallAnswer, NodeFault>>;
}

/// A call that arrives from another node.
pub struct ArrivingCall {
    /// The node that sends it.
    pub node: String,
    /// What it says.
    pub head: CallHead,
    /// Whether data comes along.
    pub has_data: bool,
    /// Event and data, which still arrive. They are taken only if this is polled.
    pub payload: BoxFuture<'static, Result<Arrived, Refusal>>,
}

impl Debug for ArrivingCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrivingCall")
            .field("node", &self.node)
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

/// The payload of a call that has arrived.
#[derive(Debug)]
pub struct Arrived {
    /// The event. Not checked.
    pub event: Bytes,
    /// The data.
    pub data: Option<Arc<dyn InputMemory>>,
}
