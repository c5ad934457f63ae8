//! Initscripts: who runs them, and what they send requests to.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;

use super::{
    BoxFuture, Fetched, Input, InputFaultKind, InputMemory, MemoryFault, StoreRead, StreamedBody,
};
use crate::config::FunctionConfig;
use crate::ids::FunctionName;
use crate::initscript::{Endpoint, ScriptRun};
use crate::invocation::{Transfer, TransferWay};
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

    /// Runs the initscript of a version for one invocation. It has begun when this returns. It ends in a limited time, whatever the script
    /// does. Dropping the future ends the script.
    ///
    /// With `link`, the handler does not wait for the script: what it sends goes there at once, and the result has only the transfers. The
    /// script may wait there for messages of the function.
    fn run(
        &self,
        version: &Arc<Version>,
        event: Bytes,
        link: Option<Arc<dyn ScriptLink>>,
    ) -> BoxFuture<'static, Initialised>;

    /// The messages of the shared initscript of a version. If this node has them and they are not too old, the future is ready at once.
    /// Otherwise it waits for a run, as all do that ask meanwhile. Dropping the future ends nothing.
    fn shared(&self, version: &Arc<Version>) -> BoxFuture<'static, Initialised>;

    /// A worker of the version is about to start, whoever asked for it. If the node needs the messages of its shared initscript again, they
    /// are fetched meanwhile. Must not wait.
    fn worker_starts(&self, version: &Arc<Version>) {
        let _ = version;
    }
}

/// What came of the run of an initscript.
#[derive(Debug, Default)]
pub struct Initialised {
    /// The messages to the function, and a transfer for each and for the script. Never with a fault: the function goes on without what
    /// failed.
    pub fetched: Fetched,
    /// The connections to the function.
    pub connections: Vec<HandedConnection>,
    /// For the function's log: what the script said, and why it failed.
    pub said: Option<String>,
    /// The run, for the metrics. `None`: there was none, or another invocation has it.
    pub run: Option<ScriptRun>,
}

/// The function of a script, while the handler may run.
pub trait ScriptLink: Send + Sync + Debug {
    /// A message or a connection of the script is here, or will not come. This never waits: a script sends a limited number.
    fn sent(&self, sent: ScriptSent);

    /// Waits for the message that the function sends as `id`. A message is here from when it has come until the script has ended. `None`:
    /// it will not come, because the function cannot send any more.
    fn message(&self, id: u64) -> BoxFuture<'static, Option<Bytes>>;
}

/// What a script has sent.
#[derive(Debug)]
pub enum ScriptSent {
    /// A message.
    Message {
        /// Its id.
        id: u64,
        /// The descriptor for the worker.
        input: Input,
        /// What it takes. It is kept until the invocation has ended.
        memory: Arc<dyn InputMemory>,
        /// How it came.
        transfer: Transfer,
    },
    /// A message whose request failed.
    NoMessage {
        /// Its id.
        id: u64,
        /// Its error says why.
        transfer: Transfer,
    },
    /// A connection, or why there is none.
    Connection(HandedConnection),
}

/// A live connection that a script gives to its function.
#[derive(Debug)]
pub struct HandedConnection {
    /// Its id.
    pub id: u64,
    /// Where it leads, as the script wrote it: `tcp://HOST:PORT`.
    pub address: String,
    /// The socket for the worker, or why there is none.
    pub socket: Result<HandedSocket, String>,
}

/// The worker's end of a connection.
#[derive(Debug)]
pub struct HandedSocket {
    /// [`Takes::Descriptor`]: a connected stream socket. [`Takes::Path`]: what connect(2) takes by a path in `/proc`, once.
    pub descriptor: OwnedFd,
    /// Kept until the invocation has ended. Without it, nobody can connect any more.
    pub kept: Option<Box<dyn Debug + Send + Sync>>,
}

/// How a worker gets a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// As a descriptor.
    Descriptor,
    /// By a path, because it cannot receive descriptors.
    Path,
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

    fn run(
        &self,
        _: &Arc<Version>,
        _: Bytes,
        _: Option<Arc<dyn ScriptLink>>,
    ) -> BoxFuture<'static, Initialised> {
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
        endpoint: &Endpoint,
        request: RemoteRequest,
    ) -> BoxFuture<'static, Result<RemoteReply, RemoteFault>>;

    /// Begins to connect to an endpoint of the scheme `tcp`, which `allow` permits. Must be called within a tokio runtime.
    fn open(&self, config: &FunctionConfig, endpoint: &Endpoint) -> Arc<dyn RawConnection>;

    /// Copies bytes into memory for a worker of `function`.
    fn keep(
        &self,
        function: &FunctionName,
        bytes: Vec<u8>,
    ) -> BoxFuture<'static, Result<Arc<dyn InputMemory>, MemoryFault>>;
}

/// A connection without a protocol, of one script. Requests are sent one after the other, in the order of the calls. Dropping it closes
/// the connection, unless it was handed over.
pub trait RawConnection: Send + Sync + Debug {
    /// Sends bytes, and then reads as the request says: `READ` and a number of bytes, or `LINES` and a number of lines. Returns
    /// what was read.
    fn exchange(&self, request: RemoteRequest) -> BoxFuture<'static, Result<Vec<u8>, RemoteFault>>;

    /// When all exchanges before have ended: a socket for the function. The connection lives until one of its ends closes it. Exchanges
    /// that begin later fail.
    fn hand_over(&self, takes: Takes) -> BoxFuture<'static, Result<HandedSocket, RemoteFault>>;
}

/// The queues of the operator's connections, for initscripts. The daemon's credentials stay behind it.
pub trait Queues: Send + Sync + Debug {
    /// Whether a function may use the queues of a connection.
    ///
    /// # Errors
    /// It may not, and what to do.
    fn check(&self, function: &str, connection: &str) -> Result<(), String>;

    /// The URL of the queue of a request, as clients of its server name it. `None`: the function may not use it.
    fn url(&self, request: &QueueRequest) -> Option<String>;

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
    /// `GET`; other methods only for HTTP servers that are no stores. For a queue, the action. For a raw connection, how the reply ends.
    pub method: String,
    /// The key of an object, the name of a queue, or for such a server `/PATH[?QUERY]`.
    pub key: String,
    /// Headers, only for such a server.
    pub headers: Vec<(String, String)>,
    /// The body, only for such a server, a queue or a raw connection.
    pub body: Bytes,
}

/// A whole reply.
#[derive(Debug)]
pub struct RemoteReply {
    /// Its bytes.
    pub memory: Arc<dyn InputMemory>,
    /// What clients of the store call the object.
    pub object: Option<Arc<StoreRead>>,
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
