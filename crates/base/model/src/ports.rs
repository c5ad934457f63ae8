//! The ports: where crates meet that may not know each other. Each has more than one implementation, or a fake in
//! `base/testkit`. They are put together in `bin/pilot/src/assemble.rs`.

mod http;
mod runtime;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{
    DeployError, DeployReport, ForecastStatus, FunctionDescription, FunctionSummary,
    InvocationSummary, PoolStatus, Progress, RuntimeStatus, Totals,
};
use crate::event::Event;
use crate::ids::{FunctionName, WorkerId};
use crate::policy::Policy;
use crate::size::Size;
use crate::spec::FunctionSpec;
use crate::timeline::Instant;
use crate::version::Version;
pub use http::{BodyError, PassedRequest, PassedResponse, StreamedBody};
pub use runtime::{GenericRuntime, RuntimeHost};

/// A boxed future: what makes a port usable behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The time, as an argument. `CLOCK_MONOTONIC` in the daemon, set by hand in tests.
pub trait Clock: Send + Sync + Debug {
    /// Now.
    fn now(&self) -> Instant;
}

/// Starts workers of one kind of runtime: forked Python now, containers and WASM later.
pub trait Engine: Send + Sync + Debug {
    /// Brings up whatever makes later starts fast (the template), starts and ends one worker to see whether one comes of it, and
    /// says what it found. Concurrent calls for one version share one build.
    fn prepare(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>>;

    /// Starts a worker. Resolves when it is ready to be called. Dropping the future, or the worker, ends the process.
    fn start(
        &self,
        version: &Arc<Version>,
        id: WorkerId,
    ) -> BoxFuture<'static, Result<Arc<dyn Worker>, StartError>>;

    /// Gives up what [`Engine::prepare`] made for this version: it will not be started again soon. Its workers are
    /// gone by then.
    fn forget(&self, version: &Arc<Version>);

    /// What the daemon's templates use, for the memory budget.
    fn templates(&self) -> Vec<TemplateMemory>;

    /// Ends what it keeps ready and nobody uses, the oldest first, until that had `bytes`, or nothing is left: the memory budget is
    /// exceeded. Templates are not meant, they go by [`Engine::forget`]. Says how many bytes it had. Not for the path.
    fn relieve(&self, bytes: u64) -> u64 {
        let _ = bytes;
        0
    }

    /// What is kept for a version that does not fork. `None`: it forks, or nothing is known of it.
    fn runtimes(&self, version: &Version) -> Option<RuntimeStatus> {
        let _ = version;
        None
    }
}

/// A process (or instance) that serves one version. Dropping the last reference ends it.
pub trait Worker: Send + Sync + Debug {
    /// Which.
    fn id(&self) -> WorkerId;

    /// How it came up.
    fn stamps(&self) -> StartStamps;

    /// One exchange: sends `call`, resolves at the whole answer, or at the head of a streamed one. With a
    /// concurrency of 1 the caller must not call again before the exchange is over. Dropping the future mid-way leaves
    /// the worker unusable: [`Worker::kill`] it. Those of versions with [`Interface::Http`](crate::Interface::Http) serve on, as with
    /// [`Worker::pass`].
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>>;

    /// The next part of a streamed answer.
    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>>;

    /// Passes a request through to the function's own server and resolves at the response's head. Only workers of versions
    /// with [`Interface::Http`](crate::Interface::Http) can. Dropping the future, or the response's body, tells the server that nobody
    /// waits any more, by closing the connection; the worker serves on.
    fn pass(&self, request: PassedRequest) -> BoxFuture<'_, Result<PassedResponse, WorkerFault>> {
        drop(request);
        Box::pin(std::future::ready(Err(WorkerFault::Protocol {
            problem: "this worker is no HTTP server".to_owned(),
            output: Bytes::new(),
        })))
    }

    /// What it printed since it was asked last, bounded. Asked at the end of each passed request, whose answer does not say it: must
    /// not wait.
    fn take_output(&self) -> Bytes {
        Bytes::new()
    }

    /// False once it is known to have ended. Asked on the path before each lease: a look at a flag, not at the kernel.
    fn is_alive(&self) -> bool {
        true
    }

    /// Ends the process, and everything it started, at once.
    fn kill(&self);

    /// Lets it go between invocations: it ends soon, and what it leaves may be cleaned and used again. The caller drops it.
    fn retire(&self) {
        self.kill();
    }

    /// Lets it go as [`Worker::retire`] does, and nothing of what it leaves is kept: its memory is wanted.
    fn discard(&self) {
        self.retire();
    }

    /// Memory in use and its peak; reads `/proc` and the cgroup, so not for the path.
    fn memory(&self) -> WorkerMemory;
}

/// What one exchange sends.
#[derive(Debug, Clone)]
pub struct Call {
    /// Chosen by the caller, not in use on this worker; never 0.
    pub stream: u32,
    /// `INVOKE` or `HTTP`.
    pub kind: CallKind,
    /// `InvokeMeta` or `HttpMeta` of the wire protocol, JSON.
    pub meta: Bytes,
    /// The event, or the request's body.
    pub body: Bytes,
}

/// Which frame begins the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// `handler(event, context)`.
    Event,
    /// An ASGI or WSGI application.
    Http,
}

/// What an exchange gives back.
#[derive(Debug)]
pub enum Answer {
    /// The handler returned this JSON.
    Result(Bytes, Done),
    /// The handler raised: Lambda's error body, JSON.
    Error(Bytes, Done),
    /// An HTTP response begins.
    Http {
        /// Status and headers.
        head: HttpHead,
        /// First bytes of the body.
        first: Bytes,
        /// Present when that was all of it; otherwise go on with [`Worker::next`].
        done: Option<Done>,
    },
}

/// Head of an application's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpHead {
    /// 100-599.
    pub status: u16,
    /// Names and values, as sent.
    pub headers: Vec<(String, String)>,
}

/// A part of a streamed answer.
#[derive(Debug)]
pub enum Part {
    /// More body.
    Chunk(Bytes),
    /// The last of it, may be empty.
    End(Bytes, Done),
    /// The application raised, and there is no more: Lambda's error body, JSON. The worker serves on.
    Error(Bytes, Done),
}

/// What is known once an exchange is over.
#[derive(Debug, Clone)]
pub struct Done {
    /// The handler was called.
    pub started: Instant,
    /// The handler returned.
    pub returned: Instant,
    /// The answer's first byte reached the daemon.
    pub first_byte: Instant,
    /// What the invocation printed (stdout and stderr, in order), bounded.
    pub output: Bytes,
}

/// When a worker's start reached what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartStamps {
    /// The decision to start it.
    pub asked: Instant,
    /// First instruction.
    pub forked: Instant,
    /// Isolated.
    pub sandboxed: Instant,
    /// Initialised.
    pub initialised: Instant,
}

/// Why an exchange did not end with an answer. The worker is dead or to be killed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerFault {
    /// It ended by itself.
    #[error("the worker exited with status {code}")]
    Exited {
        /// Exit status.
        code: i32,
        /// What it printed.
        output: Bytes,
    },
    /// A signal ended it.
    #[error("the worker was ended by signal {signal}")]
    Signalled {
        /// Signal number.
        signal: i32,
        /// What it printed.
        output: Bytes,
    },
    /// The kernel killed it at its memory limit.
    #[error("the worker used more memory than its limit of {}", Size(*.limit_bytes))]
    OutOfMemory {
        /// The limit, bytes.
        limit_bytes: u64,
        /// What it printed.
        output: Bytes,
    },
    /// It did not keep to the protocol.
    #[error("the worker sent what it must not: {problem}")]
    Protocol {
        /// What.
        problem: String,
        /// What it printed.
        output: Bytes,
    },
}

/// Why a worker or template did not come up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// User code failed while it was imported; `body` is Lambda's error body, JSON.
    #[error("the handler could not be imported: {body}")]
    Import {
        /// `{"errorType", "errorMessage", "stackTrace"}`.
        body: String,
        /// What it printed.
        output: String,
    },
    /// It ended, or did not answer in time, before it was ready.
    #[error("the runtime did not come up: {problem}")]
    Runtime {
        /// What happened.
        problem: String,
        /// What it printed.
        output: String,
    },
    /// The machine refused a sandbox.
    #[error("no sandbox: {problem}")]
    Sandbox {
        /// Which step and why.
        problem: String,
    },
}

/// What a template found when it came up.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateReport {
    /// The interpreter's version, e.g. `3.11.7`; empty where there is none.
    pub python: String,
    /// Slowest imports first.
    pub imports: Vec<ImportTime>,
    /// Declared packages that could not be imported in the template; the handler may still import them.
    #[serde(default)]
    pub failed_imports: Vec<FailedImport>,
    /// Memory of the function's template, PSS, bytes.
    pub memory_bytes: u64,
    /// Whether workers are forked from the function's own template.
    pub forkable: bool,
    /// If not, why, and what is done instead.
    pub reason: Option<String>,
    /// How long the template took to come up.
    #[serde(rename = "took_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub took: Duration,
}

/// One import.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImportTime {
    /// Module.
    pub module: String,
    /// Time with everything it imports, ms.
    pub ms: f64,
}

/// An import that failed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedImport {
    /// Module.
    pub module: String,
    /// The exception, one line.
    pub error: String,
}

/// A template's memory.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TemplateMemory {
    /// `interpreter`, `environment` or `function`; `generic`: a runtime that is kept and has no function.
    pub level: String,
    /// What it is the template of.
    pub name: String,
    /// PSS, bytes.
    pub memory_bytes: u64,
}

/// A worker's memory, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerMemory {
    /// Proportional set size (smaps_rollup): shared pages are counted once over all who share them.
    pub pss: u64,
    /// The cgroup's highest charge so far; `None` without a memory cgroup.
    pub peak: Option<u64>,
}

/// Where the path's events go. Never blocks; drops (and counts) rather than waits.
pub trait EventSink: Send + Sync + Debug {
    /// Takes one event.
    fn publish(&self, event: Event);
}

/// What was observed of a function since the daemon's start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// Counts.
    pub totals: Totals,
    /// The newest invocation.
    pub last: Option<InvocationSummary>,
    /// The newest cold invocation.
    pub last_cold: Option<InvocationSummary>,
}

/// The events' subscriber, as deployment sees it: what it says of a function, and when to forget one.
pub trait Observed: Send + Sync + Debug {
    /// Everything published before this call is counted. Zeroes for a function nobody has invoked.
    fn observation(&self, name: &FunctionName) -> Observation;

    /// The function is removed: its counts, metric series and log files go.
    fn forget(&self, name: &FunctionName);
}

/// The running functions, as the control side sees them. The path implements it.
pub trait Platform: Send + Sync + Debug {
    /// Imports the handler in its sandbox, keeps the template, and tries whether a worker comes of it.
    fn try_version(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>>;

    /// Makes this version the one that NAME means; requests to the one before finish there, then it is retired.
    fn activate(&self, version: Arc<Version>);

    /// Has requests to a function that cannot be run answered with why and what to do, until a version of it is activated or it
    /// is removed.
    fn mark_broken(&self, name: &FunctionName, problem: &str);

    /// Takes a function away: new requests get 404, those running finish.
    fn remove(&self, name: &FunctionName);

    /// Workers by state. `None`: no such function.
    fn status(&self, name: &FunctionName) -> Option<PoolStatus>;

    /// Scales by hand, until the next request or deploy. `None`: no such function.
    fn scale(&self, name: &FunctionName, scaling: Scaling) -> Option<PoolStatus>;

    /// What is predicted of a function. `None`: nothing, or no such function.
    fn forecast(&self, name: &FunctionName) -> Option<ForecastStatus>;

    /// The runtimes that are kept for a function. `None`: it forks, or no such function.
    fn runtimes(&self, name: &FunctionName) -> Option<RuntimeStatus> {
        let _ = name;
        None
    }
}

/// What is to change about a function's workers now.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Scaling {
    /// Idle workers beyond this are retired, or some started up to it.
    pub workers: Option<u32>,
    /// Which forecaster sizes the pool from now on.
    pub policy: Option<Policy>,
}

/// What the control API does. Deployment implements it; the API only translates.
pub trait ControlPlane: Send + Sync + Debug {
    /// Deploys: all or nothing. `archive` is a gzip-compressed tar of the code.
    fn deploy(
        &self,
        name: FunctionName,
        spec: FunctionSpec,
        archive: Bytes,
        progress: Arc<dyn Fn(Progress) + Send + Sync>,
    ) -> BoxFuture<'static, Result<DeployReport, DeployError>>;

    /// Every function.
    fn list(&self) -> Vec<FunctionSummary>;

    /// One function. `None`: no such function.
    fn describe(&self, name: &FunctionName) -> Option<FunctionDescription>;

    /// Takes a function away, with its versions. False: no such function.
    fn remove(&self, name: &FunctionName) -> BoxFuture<'static, Result<bool, DeployError>>;

    /// See [`Platform::scale`].
    fn scale(&self, name: &FunctionName, scaling: Scaling) -> Option<PoolStatus>;
}
