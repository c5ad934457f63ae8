//! A version's id: a hash over its configuration's canonical form, its code and its environment. A deployment that would make the
//! live version's id again changes nothing.
//!
//! Earlier builds hashed the configuration's JSON as the registry stores it, so that a new key with a default renamed every
//! version. Their ids stay as they are, and [`MadeOf::is_older`] recognises them (decision 0007).

mod canonical;

use pilot_model::{EnvironmentId, FunctionConfig, Version, VersionId};

use self::canonical::canonical;
use crate::hash::Fields;

/// What a version is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MadeOf<'a> {
    pub(crate) config: &'a FunctionConfig,
    /// The hash over its files.
    pub(crate) code_hash: &'a str,
    pub(crate) environment: &'a EnvironmentId,
}

impl MadeOf<'_> {
    pub(crate) fn id(self) -> VersionId {
        self.hash(&canonical(self.config))
    }

    /// Whether `version`, which an earlier build stored with `stored` as its configuration's JSON, is made of the same.
    pub(crate) fn is_older(self, version: &Version, stored: &str) -> bool {
        self.hash(stored) == version.id && canonical(self.config) == canonical(&version.config)
    }

    fn hash(self, config: &str) -> VersionId {
        let mut hash = Fields::default();
        hash.add(config)
            .add(self.code_hash)
            .add(self.environment.as_str());
        VersionId::from_hex(&hash.hex())
    }
}

#[cfg(test)]
mod tests;
