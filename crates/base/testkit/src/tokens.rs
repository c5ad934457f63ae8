//! Tokens that are a list in memory.

use std::sync::Arc;

use pilot_model::access::Grant;
use pilot_model::ports::Tokens;

/// These tokens and no other ones.
#[derive(Debug, Default)]
pub struct FixedTokens(pub Vec<(&'static str, Arc<Grant>)>);

impl FixedTokens {
    /// One token.
    #[must_use]
    pub fn one(token: &'static str, grant: Grant) -> Arc<Self> {
        Arc::new(Self(vec![(token, Arc::new(grant))]))
    }
}

impl Tokens for FixedTokens {
    fn grant(&self, shown: &[u8]) -> Option<Arc<Grant>> {
        let found = self.0.iter().find(|(token, _)| token.as_bytes() == shown);
        found.map(|(_, grant)| Arc::clone(grant))
    }
}
