//! Names and ids. Each is its own type, checked when it is made, so that a checked name is never checked again.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A function's name: 1-64 of `a-z A-Z 0-9 - _` (AWS Lambda's rule), cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", schema(value_type = String))]
pub struct FunctionName(Arc<str>);

impl FunctionName {
    /// Longest name accepted, in bytes.
    pub const LEN_MAX: usize = 64;

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FunctionName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let fits = (1..=Self::LEN_MAX).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if fits {
            Ok(Self(text.into()))
        } else {
            Err(InvalidName {
                name: text.chars().take(100).collect(),
            })
        }
    }
}

impl TryFrom<String> for FunctionName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<FunctionName> for String {
    fn from(name: FunctionName) -> Self {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// An invalid function name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is not a function name: use 1 to 64 of a-z A-Z 0-9 - _")]
pub struct InvalidName {
    /// What was given, cut to 100 characters.
    pub name: String,
}

macro_rules! content_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(transparent)]
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        pub struct $name(Arc<str>);

        impl $name {
            /// From the hexadecimal text of a digest; the first sixteen characters count.
            #[must_use]
            pub fn from_hex(hex: &str) -> Self {
                let end = hex.char_indices().nth(16).map_or(hex.len(), |(at, _)| at);
                Self(hex[..end].into())
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

content_id! {
    /// A version: sixteen hexadecimal digits of the hash over configuration, code and environment.
    VersionId
}
content_id! {
    /// An environment: sixteen hexadecimal digits of the hash over interpreter and requirements.
    EnvironmentId
}

/// A worker, numbered from 1 since the daemon's start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u64);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

/// An invocation's request id: a UUID in text, as Lambda's.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InvocationId(Arc<str>);

impl InvocationId {
    /// Takes a request id as made by the gateway.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InvocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
