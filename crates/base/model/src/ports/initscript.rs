//! Initscripts: who runs them, and what they send requests to.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use super::{
    BoxFuture, Fetched, InputFaultKind, InputMemory, MemoryFault, StoreObject, StreamedBody,
};
use crate::config::FunctionConfig;
use crate::ids::FunctionName;
use crate::initscript::{Place, ScriptRun};
use crate::invocation::TransferWay;
use crate::version::Version;

/// Runs the initscripts of functions.
pub trait InitRunner: Send + Sync + Debug {
    /// Checks and compiles the initscripts of a version that is deployed. Does nothing if it has none.
    ///
    /// # Errors
    /// What is wrong with the module or with what it may connect to, and what to do.
    fn prepare(&self, version: &Arc<Version>) -> BoxFuture<'static, Result<(), String>>;

    /// The version serves from now on. Its initscript is compiled in the background unless it has been.
    fn activate(&self, version: &Arc<Version>);

    /// Runs the initscript of a version for one invocation. It ends in a limited time, whatever the script does. Dropping the future ends
    /// the script.
    fn run(&self, version: &Arc<Version>, event: Bytes) -> BoxFuture<'static, Initialised>;

    /// The messages of the shared initscript of a version. If this node has them and they are not too old, the future is ready at once.
    /// Otherwise it waits for a run, as all do that ask meanwhile. Dropping the future ends nothing.
    fn shared(&self, version: &Arc<Version>) -> BoxFuture<'static, Initialised>;
}

/// What came of the run of an initscript.
#[derive(Debug, Default)]
pub struct Initialised {
    /// The messages to the function, and a transfer for each and for the script. Never with a fault: the function goes on without what
    /// failed.
    pub fetched: Fetched,
    /// For the function's log: what the script said, and why it failed.
    pub said: Option<String>,
    /// The run, for the metrics. `None`: there was none, or another invocation has it.
    pub run: Option<ScriptRun>,
}

/// No initscripts: for daemons and tests without them.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoInitscripts;

impl InitRunner for NoInitscripts {
    fn prepare(&self, version: &Arc<Version>) -> BoxFuture<'static, Result<(), String>> {
        let refused = match version.config.initscripts().next() {
            None => Ok(()),
            Some(_) => Err("this daemon runs no initscripts".to_owned()),
        };
        Box::pin(std::future::ready(refused))
    }

    fn activate(&self, _: &Arc<Version>) {}

    fn run(&self, _: &Arc<Version>, _: Bytes) -> BoxFuture<'static, Initialised> {
        Box::pin(std::future::ready(Initialised::default()))
    }

    fn shared(&self, _: &Arc<Version>) -> BoxFuture<'static, Initialised> {
        Box::pin(std::future::ready(Initialised::default()))
    }
}

/// What initscripts send requests to: stores and servers. The daemon's credentials stay behind it.
pub trait Remotes: Send + Sync + Debug {
    /// Whether the initscript of a function may connect to all that its `allow` names.
    ///
    /// # Errors
    /// Which entry it may not have, and what to do.
    fn check(&self, config: &FunctionConfig) -> Result<(), String>;

    /// Sends a request, which `allow` permits, and waits for the whole reply. Dropping the future ends that.
    fn request(
        &self,
        config: &FunctionConfig,
        place: &Place,
        request: RemoteRequest,
    ) -> BoxFuture<'static, Result<RemoteReply, RemoteFault>>;

    /// Copies bytes into memory for a worker of `function`.
    fn keep(
        &self,
        function: &FunctionName,
        bytes: Vec<u8>,
    ) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>>;
}

/// The queues of the operator's connections, for initscripts. The daemon's credentials stay behind it.
pub trait Queues: Send + Sync + Debug {
    /// Whether a function may use the queues of a connection.
    ///
    /// # Errors
    /// It may not, and what to do.
    fn check(&self, function: &str, connection: &str) -> Result<(), String>;

    /// Sends a request to a queue. Returns the body of the answer, JSON, when its head has come. Dropping the future ends that.
    fn call(&self, request: QueueRequest) -> BoxFuture<'static, Result<StreamedBody, RemoteFault>>;
}

/// A request to a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRequest {
    /// The function that asks.
    pub function: FunctionName,
    /// The connection's name.
    pub connection: String,
    /// The queue, as its URL ends after that of the connection.
    pub queue: String,
    /// The action of the SQS API, for example `ReceiveMessage`.
    pub action: String,
    /// The arguments: an object of JSON, or nothing. The URL of the queue is the daemon's.
    pub arguments: Bytes,
}

/// A request to a store, a queue or a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteRequest {
    /// `GET`; other methods only for HTTP servers that are no stores. For a queue, the action.
    pub method: String,
    /// The key of an object, the name of a queue, or for such a server `/PATH[?QUERY]`.
    pub key: String,
    /// Headers, only for such a server.
    pub headers: Vec<(String, String)>,
    /// The body, only for such a server or a queue.
    pub body: Bytes,
}

/// A whole reply.
#[derive(Debug)]
pub struct RemoteReply {
    /// Its bytes.
    pub memory: Arc<dyn InputMemory>,
    /// What clients of the store call the object.
    pub object: Option<Arc<StoreObject>>,
    /// The status of an HTTP server; otherwise 200.
    pub status: u16,
    /// Where the bytes came from.
    pub way: TransferWay,
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct RemoteFault {
    /// The class of the problem.
    pub kind: InputFaultKind,
    /// The problem, in the words of the store where it has some.
    pub problem: String,
}
