//! The ports of the queue of asynchronous invocations: what the gateway gives it, what it runs through the path, and what the control
//! API reads and changes.

use std::fmt::Debug;

use bytes::Bytes;

use crate::asynchronous::{
    AsyncConfig, AsyncCounts, AsyncInfo, AsyncShown, DeadLetters, DeadLettersChanged,
};
use crate::ids::{FunctionName, InvocationId};
use crate::ports::BoxFuture;
use crate::trigger::FaasTrigger;

/// An invocation whose caller does not wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsyncRequest {
    /// Its request id, the same in every attempt.
    pub id: InvocationId,
    /// The function.
    pub function: FunctionName,
    /// The function's owner at this time.
    pub owner: String,
    /// A version's number or id; `None`: the live version of each attempt.
    pub qualifier: Option<String>,
    /// The event, JSON.
    pub payload: Bytes,
    /// Lambda's client context, JSON.
    pub client_context: Option<String>,
    /// The trace: see [`Trace::to_text`](crate::Trace::to_text).
    pub trace: Option<String>,
    /// The idempotency key.
    pub key: Option<String>,
    /// What it comes from.
    pub trigger: FaasTrigger,
}

/// An invocation that is on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Its request id: that of an earlier request, if the idempotency key was accepted before.
    pub id: InvocationId,
    /// Whether it was accepted before.
    pub repeated: bool,
}

/// Why an invocation was not accepted. Nothing of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAccepted {
    /// A limit of the queue is reached.
    #[error("the queue of asynchronous invocations is full: {problem}")]
    Full {
        /// Which limit, and what to do.
        problem: String,
    },
    /// It cannot be written.
    #[error("the asynchronous invocation cannot be stored: {problem}")]
    Disk {
        /// Why.
        problem: String,
    },
    /// The key was accepted with another payload, qualifier or client context.
    #[error(
        "the idempotency key was used for another request to this function ({id}): use a new key"
    )]
    KeyReused {
        /// The id of that request.
        id: String,
    },
    /// The daemon is stopping.
    #[error("the daemon is shutting down: try again once it is back")]
    Stopping,
}

/// Takes invocations whose callers do not wait.
pub trait AsyncQueue: Send + Sync + Debug {
    /// Resolves when the invocation is on the disk. From then on it is run at least once, whatever happens to the daemon.
    fn accept(&self, request: AsyncRequest) -> BoxFuture<'static, Result<Accepted, NotAccepted>>;
}

/// No queue: nothing is accepted.
#[derive(Debug)]
pub struct NoQueue;

impl AsyncQueue for NoQueue {
    fn accept(&self, _: AsyncRequest) -> BoxFuture<'static, Result<Accepted, NotAccepted>> {
        let problem = "this daemon has no store for them".to_owned();
        Box::pin(async { Err(NotAccepted::Disk { problem }) })
    }
}

/// A function as the queue needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct AsyncTarget {
    /// How its invocations are repeated, and where their records go.
    pub config: AsyncConfig,
    /// Its owner.
    pub owner: String,
    /// How many attempts may run at the same time, so that callers who wait have workers, too.
    pub concurrency: usize,
    /// The ARN of the function with the qualifier.
    pub arn: String,
}

/// Why there is no target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoTarget {
    /// The function or the version does not exist.
    Gone,
    /// The function is deployed and cannot be run at present.
    Broken {
        /// Why, and what to do.
        problem: String,
    },
}

/// How one attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The function answered.
    Done {
        /// The version that did.
        version: u32,
        /// The answer: JSON, or the body of an HTTP response. `None`: it is too large for a record.
        body: Option<Bytes>,
    },
    /// The function raised, timed out, crashed, ran out of memory or could not be imported.
    Failed {
        /// The version that did.
        version: u32,
        /// Lambda's error body, JSON.
        body: Bytes,
    },
    /// There was no worker for it, or the daemon or the machine failed.
    NotRun {
        /// Why.
        problem: String,
    },
    /// The function or the version does not exist any more.
    Gone {
        /// Which.
        problem: String,
    },
    /// The daemon is stopping.
    Stopping,
}

/// Runs attempts through the path.
pub trait AsyncRunner: Send + Sync + Debug {
    /// What an invocation of this function needs.
    ///
    /// # Errors
    /// Why it cannot be run.
    fn target(
        &self,
        function: &FunctionName,
        qualifier: Option<&str>,
    ) -> Result<AsyncTarget, NoTarget>;

    /// The trace that an invocation of a trigger begins, as text ([`Trace::to_text`](crate::Trace::to_text)). `None`: it is not
    /// recorded.
    fn begin_trace(&self) -> Option<String> {
        None
    }

    /// Runs one attempt. Dropping the future cancels it.
    fn run(&self, request: AsyncRequest) -> BoxFuture<'static, AttemptEnd>;
}

/// Whether the caller may see and change the invocations of a function, by its name and owner.
pub type MayTouch = Box<dyn Fn(&FunctionName, &str) -> bool + Send + Sync>;

/// What is asked for of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AsyncFilter {
    /// Only dead letters; otherwise only those that wait or run.
    pub dead: bool,
    /// Only this function's.
    pub function: Option<FunctionName>,
    /// At most this many, oldest first.
    pub limit: usize,
}

/// The queue as the control API sees it. Every call may read or write the disk.
pub trait AsyncControl: Send + Sync + Debug {
    /// Invocations, oldest first.
    ///
    /// # Errors
    /// See [`AsyncFault`].
    fn list(&self, filter: &AsyncFilter, may: &MayTouch) -> Result<Vec<AsyncInfo>, AsyncFault>;

    /// One invocation.
    ///
    /// # Errors
    /// See [`AsyncFault`].
    fn show(&self, id: &str, may: &MayTouch) -> Result<AsyncShown, AsyncFault>;

    /// Removes one that waits.
    ///
    /// # Errors
    /// See [`AsyncFault`].
    fn cancel(&self, id: &str, may: MayTouch) -> Result<(), AsyncFault>;

    /// Dead letters wait again, as if they were accepted now.
    ///
    /// # Errors
    /// See [`AsyncFault`].
    fn redrive(&self, which: DeadLetters, may: MayTouch) -> Result<DeadLettersChanged, AsyncFault>;

    /// Removes dead letters.
    ///
    /// # Errors
    /// See [`AsyncFault`].
    fn purge(&self, which: DeadLetters, may: MayTouch) -> Result<DeadLettersChanged, AsyncFault>;

    /// Counts for the metrics.
    fn counts(&self) -> AsyncCounts;
}

/// Why a call of [`AsyncControl`] failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AsyncFault {
    /// There is none, or the caller may not see it.
    #[error(
        "there is no asynchronous invocation {id}: it has ended, was cancelled, or never existed"
    )]
    Unknown {
        /// As asked for, shortened.
        id: String,
    },
    /// It runs.
    #[error("the asynchronous invocation {id} is running and cannot be cancelled")]
    Running {
        /// Its id.
        id: String,
    },
    /// It is a dead letter.
    #[error("{id} is a dead letter: remove it with `pilot dlq purge {id}`")]
    Dead {
        /// Its id.
        id: String,
    },
    /// The store failed, or the daemon is stopping.
    #[error("the store of asynchronous invocations failed: {problem}")]
    Store {
        /// Its message.
        problem: String,
    },
}
