//! The ports of triggers and of destinations outside of the daemon.

use std::fmt::Debug;

use bytes::Bytes;

use crate::asynchronous::Destination;
use crate::config::FunctionConfig;
use crate::ids::FunctionName;
use crate::ports::{AsyncRequest, BoxFuture, NotAccepted};
use crate::trigger::TriggerInfo;

/// Something that a trigger remembers, such as its last run or a file that it has handed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The trigger.
    pub scope: String,
    /// What, within the trigger.
    pub key: String,
    /// How it was. `None`: it is forgotten.
    pub value: Option<String>,
}

/// The durable queue as triggers use it.
pub trait TriggerStore: Send + Sync + Debug {
    /// Resolves when the invocation and the mark are on the disk: both, or none of them. `None`: the source remembers itself.
    fn accept_marked(
        &self,
        request: AsyncRequest,
        mark: Option<Mark>,
    ) -> BoxFuture<'static, Result<(), NotAccepted>>;

    /// Stores a request that failed too often as a dead letter. Resolves when it is on the disk.
    fn bury(
        &self,
        request: AsyncRequest,
        attempts: u32,
        problem: String,
    ) -> BoxFuture<'static, Result<(), NotAccepted>>;

    /// The marks of a trigger, by their keys. The error is for people.
    fn marks(&self, scope: &str) -> BoxFuture<'static, Result<Vec<(String, String)>, String>>;

    /// Changes marks. Resolves when that is on the disk. The error is for people.
    fn change(&self, marks: Vec<Mark>) -> BoxFuture<'static, Result<(), String>>;

    /// Forgets the marks of all triggers whose scope begins with this, except those of these scopes. It does not wait for the disk.
    fn forget(&self, beginning: &str, kept: Vec<String>);
}

/// The triggers as the control API sees them.
pub trait TriggerControl: Send + Sync + Debug {
    /// The triggers of the live versions, of one function or of all, in the order of the functions' names.
    fn list(&self, function: Option<&FunctionName>) -> Vec<TriggerInfo>;

    /// Whether the function may use the sources of its triggers and its destinations.
    ///
    /// # Errors
    /// Which one it may not use, and what to do.
    fn check(&self, config: &FunctionConfig) -> Result<(), String>;
}

/// Delivers the records of ended invocations to places outside of the daemon.
pub trait Deliver: Send + Sync + Debug {
    /// Delivers one record of a function. `id` is the same for each attempt. The error is for people; the delivery is tried again.
    fn deliver(
        &self,
        function: &FunctionName,
        destination: &Destination,
        id: &str,
        record: Bytes,
    ) -> BoxFuture<'static, Result<(), String>>;
}

/// Delivers nothing.
#[derive(Debug)]
pub struct NoDelivery;

impl Deliver for NoDelivery {
    fn deliver(
        &self,
        _: &FunctionName,
        destination: &Destination,
        _: &str,
        _: Bytes,
    ) -> BoxFuture<'static, Result<(), String>> {
        let problem = format!("this daemon does not deliver to {destination}");
        Box::pin(async { Err(problem) })
    }
}
