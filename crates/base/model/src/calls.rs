//! Calls of functions by functions: why one was not done. Workers are told in this form, and other nodes.

use serde::{Deserialize, Serialize};

/// Why a request was not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The class.
    pub reason: Reason,
    /// For people.
    pub problem: String,
}

/// The class of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The function may not be invoked by this one.
    Forbidden,
    /// There is no such function, or buffer, or input.
    NotFound,
    /// The chain of functions is too long.
    TooDeep,
    /// The function is at its limit.
    Throttled,
    /// It cannot take such a call.
    NotSupported,
    /// The event, or a request, is not valid.
    Invalid,
    /// Larger than allowed.
    TooLarge,
    /// No memory is left for it.
    NoRoom,
    /// The buffer is still mapped for writing.
    StillMapped,
    /// The function cannot be run, the daemon has a problem, or another node cannot be reached.
    Unavailable,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(reason: Reason, problem: impl Into<String>) -> Self {
        Self {
            reason,
            problem: problem.into(),
        }
    }
}
