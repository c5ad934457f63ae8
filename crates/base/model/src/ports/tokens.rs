//! The tokens that callers may show.

use std::fmt::{self, Debug};
use std::sync::Arc;

use crate::access::Grant;

/// The valid tokens. It is asked on the path of an invocation, so it answers from memory.
pub trait Tokens: Send + Sync + Debug {
    /// What this token permits; `None`: it is not valid. The time does not depend on how much of a valid token it contains.
    fn grant(&self, shown: &[u8]) -> Option<Arc<Grant>>;

    /// The key with which a client signs as an AWS client, by its access key id; `None`: there is none.
    fn signer(&self, access_key_id: &str) -> Option<Signer> {
        let _ = access_key_id;
        None
    }
}

/// Who signs, and with what. Its `Debug` form does not show the key.
#[derive(Clone)]
pub struct Signer {
    /// What a valid signature permits.
    pub grant: Arc<Grant>,
    /// The secret access key.
    pub secret: Vec<u8>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}
