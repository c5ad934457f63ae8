//! Tables whose key `kind` says which other keys they have: `[stores.NAME]` and `[connections.NAME]`. They are read key by key: an
//! error of one of serde's tagged enumerations would not name the key.

use pilot_model::manifest::in_words;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error, value};

/// The keys of a table that are not read yet.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Keys(toml::Table);

impl Keys {
    /// A key that must be there.
    pub(super) fn take<T: DeserializeOwned, E: Error>(
        &mut self,
        key: &'static str,
    ) -> Result<T, E> {
        let value = self.0.remove(key).ok_or_else(|| E::missing_field(key))?;
        T::deserialize(value).map_err(|error| E::custom(in_words(key, error.message())))
    }

    /// All others.
    pub(super) fn rest<T: DeserializeOwned, E: Error>(self) -> Result<T, E> {
        serde_path_to_error::deserialize(self.0).map_err(|error| {
            let key = error.path().to_string();
            E::custom(in_words(&key, error.inner().message()))
        })
    }
}

/// The error for a `kind` that does not exist.
pub(super) fn unknown<E: Error>(kind: &str, known: &'static [&'static str]) -> E {
    let error: value::Error = Error::unknown_variant(kind, known);
    E::custom(in_words("kind", &error.to_string()))
}
