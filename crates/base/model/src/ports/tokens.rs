//! The tokens that callers may show.

use std::fmt::Debug;
use std::sync::Arc;

use crate::access::Grant;

/// The valid tokens. It is asked on the path of an invocation, so it answers from memory.
pub trait Tokens: Send + Sync + Debug {
    /// What this token permits; `None`: it is not valid. The time does not depend on how much of a valid token it contains.
    fn grant(&self, shown: &[u8]) -> Option<Arc<Grant>>;
}
