//! The inputs of an invocation: where they are fetched from, and what comes of it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use super::{BlankMemory, BoxFuture, Input, InputMemory, MemoryFault, StreamedBody};
use crate::config::FunctionConfig;
use crate::ids::FunctionName;
use crate::inputs::{InputConfig, Values};
use crate::invocation::Transfer;

/// Fetches the inputs that functions declare.
pub trait InputSource: Send + Sync + Debug {
    /// Whether the function may use the stores of its inputs.
    ///
    /// # Errors
    /// Which input names a store that is unknown, of another kind, or of other functions, and what to do.
    fn check(&self, config: &FunctionConfig) -> Result<(), String>;

    /// Begins to fetch all inputs of one invocation: those that the function declares, and those that the request names, which the
    /// function allows and does not declare. `body`: that of the request, if the function has it as an input and there is a request.
    /// Dropping the future ends that.
    fn fetch(
        &self,
        config: &FunctionConfig,
        requested: &BTreeMap<String, InputConfig>,
        values: Values<'_>,
        body: Option<StreamedBody>,
    ) -> BoxFuture<'static, Fetched>;

    /// Whether fetches begin before there is a worker. False only to measure what that gains.
    fn overlaps(&self) -> bool {
        true
    }

    /// Whether data goes to another function by reference. False only to measure what that gains: then it is copied.
    fn by_reference(&self) -> bool {
        true
    }

    /// Memory of `len` bytes that a worker of `function` fills, to hand it to another function. It counts as the function's memory.
    fn blank(
        &self,
        function: &FunctionName,
        len: u64,
    ) -> BoxFuture<'static, Result<Arc<dyn BlankMemory>, MemoryFault>>;
}

/// What was fetched.
#[derive(Debug, Default)]
pub struct Fetched {
    /// The descriptors for the worker. Each is an open file of its own, which nobody else has.
    pub inputs: Vec<Input>,
    /// For each input that still arrives: how far it is ([`InputKind::Progress`](super::InputKind::Progress)).
    pub progress: Vec<Input>,
    /// Each transfer, complete, failed or still running, in the order of the inputs' names.
    pub transfers: Vec<Transfer>,
    /// The memory that the inputs take. It is kept until the invocation has ended.
    pub memory: Vec<Arc<dyn InputMemory>>,
    /// The first input that failed and is not optional.
    pub fault: Option<InputFault>,
}

/// Why an input could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("input \"{input}\" from {source_text}: {problem}")]
pub struct InputFault {
    /// Its name.
    pub input: String,
    /// Its location, with what the placeholders stand for.
    pub source_text: String,
    /// The class of the problem.
    pub kind: InputFaultKind,
    /// The problem, in the words of the store where it has some.
    pub problem: String,
}

/// The class of a problem with an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InputFaultKind {
    /// The invocation has no value for a placeholder, or a bad one.
    Key,
    /// The store is not known, or not given to the function.
    Forbidden,
    /// The store has no such object.
    NotFound,
    /// The store does not accept the credentials.
    Denied,
    /// It is larger than inputs may be.
    TooLarge,
    /// The store could not be reached, or failed.
    Unavailable,
    /// It took longer than the function's timeout.
    TimedOut,
    /// What came is not what the store announced.
    Broken,
    /// The input's decoder cannot decode it.
    Decode,
}

impl InputFaultKind {
    /// The `errorType` of the answer.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "Input.KeyError",
            Self::Forbidden => "Input.StoreForbidden",
            Self::NotFound => "Input.NotFound",
            Self::Denied => "Input.AccessDenied",
            Self::TooLarge => "Input.TooLarge",
            Self::Unavailable => "Input.StoreUnavailable",
            Self::TimedOut => "Input.TimedOut",
            Self::Broken => "Input.Broken",
            Self::Decode => "Input.DecodeError",
        }
    }
}

/// No inputs: for daemons and tests without stores.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoInputs;

impl InputSource for NoInputs {
    fn check(&self, config: &FunctionConfig) -> Result<(), String> {
        match config.inputs.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("input \"{name}\": there are no stores")),
        }
    }

    fn fetch(
        &self,
        _: &FunctionConfig,
        _: &BTreeMap<String, InputConfig>,
        _: Values<'_>,
        _: Option<StreamedBody>,
    ) -> BoxFuture<'static, Fetched> {
        Box::pin(std::future::ready(Fetched::default()))
    }

    fn blank(
        &self,
        _: &FunctionName,
        _: u64,
    ) -> BoxFuture<'static, Result<Arc<dyn BlankMemory>, MemoryFault>> {
        let problem = "this daemon has no memory for inputs".to_owned();
        Box::pin(std::future::ready(Err(MemoryFault::Failed { problem })))
    }
}
