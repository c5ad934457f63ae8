//! The values of secrets, for the code that starts workers.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::secret::{SecretError, SecretUse, SecretValues};

/// The stored secrets. Asked once per start of a worker that uses any; it answers from memory.
pub trait Secrets: Send + Sync + Debug {
    /// The values that a function asks for, as they are now.
    ///
    /// # Errors
    /// See [`SecretError`]; the first that is missing or unfit.
    fn values(&self, wanted: &BTreeMap<String, SecretUse>) -> Result<SecretValues, SecretError>;
}
