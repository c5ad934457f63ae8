//! The ports: how crates work together without importing each other. Each has more than one implementation, or a fake in
//! `base/testkit`. `bin/pilot/src/assemble.rs` connects them.

mod asynchronous;
mod build;
mod control;
mod costs;
mod decode;
mod engine;
mod handover;
mod http;
mod initscript;
mod input;
mod inputs;
mod nodes;
mod runtime;
mod secrets;
mod tokens;
mod trigger;
mod worker;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use crate::event::Event;
use crate::timeline::Instant;
pub use asynchronous::{
    Accepted, AsyncControl, AsyncFault, AsyncFilter, AsyncQueue, AsyncRequest, AsyncRunner,
    AsyncTarget, AttemptEnd, MayTouch, NoQueue, NoTarget, NotAccepted,
};
pub use build::{
    BuildAddress, BuildCommand, BuildEnd, BuildError, BuildHost, BuildSandbox, BuildSpec, Unreached,
};
pub use control::{
    Actor, ControlPlane, Deployment, Observation, Observed, Platform, Scaling, SecretUser,
};
pub use costs::{CostError, Costs, CostsOf, UsageRecords, UsageRows};
pub use decode::{DecoderHost, DecoderProcess, NoDecoders};
pub use engine::{Engine, MemoryPressure, StartError, TemplateMemory};
pub use handover::{BlankMemory, MemoryFault};
pub use http::{BodyError, PassedInputs, PassedRequest, PassedResponse, StreamedBody};
pub use initscript::{
    HandedConnection, HandedSocket, InitRunner, Initialised, NoInitscripts, QueueRequest, Queues,
    RawConnection, RemoteFault, RemoteReply, RemoteRequest, Remotes, ScriptLink, ScriptSent, Takes,
};
pub use input::{INPUTS_MAX, Input, InputKind, InputMemory, StoreObject, StoreRead};
pub use inputs::{Fetched, InputFault, InputFaultKind, InputSource, NoInputs};
pub use nodes::{
    Arrived, ArrivingCall, CallAnswer, CallEnd, CallHead, HandedData, Local, NodeCall, NodeFault,
    NodeTarget, Peer, Placement, Ran, There,
};
pub use runtime::{PrewarmedRuntime, RuntimeHost};
pub use secrets::Secrets;
pub use tokens::{Signer, Tokens};
pub use trigger::{Deliver, Mark, NoDelivery, TriggerControl, TriggerStore};
pub use worker::{
    Answer, Call, Done, EPOLL_WATCHES_MAX, HttpHead, LOCKS_MAX, MemoryShortage,
    OVERLAY_FOLDERS_MAX, Part, Resources, SOCKETS_MAX, ShownInputs, StartStamps, Unpassed, Worker,
    WorkerFault, WorkerMemory,
};

/// A boxed future, so that a port can be used as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The time, as an argument. `CLOCK_MONOTONIC` in the daemon, set by hand in tests.
pub trait Clock: Send + Sync + Debug {
    /// Now.
    fn now(&self) -> Instant;
}

/// The sink for the path's events. It never blocks: if there is no room, it drops the event and counts it.
pub trait EventSink: Send + Sync + Debug {
    /// Takes one event.
    fn publish(&self, event: Event);
}
