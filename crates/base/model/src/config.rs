//! `FunctionConfig`: a function's configuration, checked, with nothing optional left over.
//! Made by [`FunctionSpec::check`](crate::spec::FunctionSpec::check) alone.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::FunctionName;
use crate::policy::Policy;

/// What a version does and may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FunctionConfig {
    /// The function's name.
    pub name: FunctionName,
    /// How its code is run.
    pub runtime: Runtime,
    /// `module.attribute`.
    pub handler: String,
    /// What the handler is.
    pub interface: Interface,
    /// Memory limit of one worker, bytes.
    pub memory_bytes: u64,
    /// Longest that an invocation may take.
    #[serde(rename = "timeout_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub timeout: Duration,
    /// CPU limit of one worker, thousandths of a CPU.
    pub cpu_milli: u32,
    /// What it can reach.
    pub network: Network,
    /// The user's environment variables.
    pub environment: BTreeMap<String, String>,
    /// Fork or spawn.
    pub template: TemplateMode,
    /// Whether a worker serves more than one invocation.
    pub reuse: Reuse,
    /// Invocations of one worker at the same time; at least 1.
    pub concurrency: u32,
    /// How many workers.
    pub scale: ScaleConfig,
}

/// How many workers a function has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScaleConfig {
    /// Kept whatever happens.
    pub min: u32,
    /// Most at once; at least 1.
    pub max: u32,
    /// Idle workers kept ready beyond the busy ones while the function is hot.
    pub parked: u32,
    /// Reaped after this long without work.
    #[serde(rename = "idle_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub idle: Duration,
    /// How their number follows the traffic. Configurations stored before there were policies have none.
    #[serde(default)]
    pub policy: Policy,
}

/// How a version's code is run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// CPython, forked from templates.
    Python {
        /// `3.11`, or `None` for the daemon's default interpreter.
        minor: Option<String>,
    },
}

impl Runtime {
    /// Reads `python` or `python3.X`.
    ///
    /// # Errors
    /// What would do, in words.
    pub fn parse(word: &str) -> Result<Self, String> {
        if word == "python" || word == "python3" {
            return Ok(Self::Python { minor: None });
        }
        let minor = word
            .strip_prefix("python3.")
            .filter(|digits| matches!(digits.len(), 1..=2))
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        match minor {
            Some(minor) => Ok(Self::Python {
                minor: Some(format!("3.{minor}")),
            }),
            None => Err(format!(
                "is \"{}\", must be \"python\" or \"python3.X\", for example \"python3.11\"",
                word.escape_default()
            )),
        }
    }
}

impl std::fmt::Display for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Python { minor } => write!(f, "python{}", minor.as_deref().unwrap_or("")),
        }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum $name {
            $(
                $(#[$vdoc])*
                #[serde(rename = $word)]
                // The schema's derive does not see serde's words through a macro.
                #[cfg_attr(feature = "openapi", schema(rename = $word))]
                $variant,
            )*
        }

        impl $name {
            /// Every value with the word it is written as.
            pub const ALL: &[(&str, Self)] = &[$(($word, Self::$variant),)*];

            /// The word it is written as.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }
    };
}

words! {
    /// What the handler is called with.
    Interface {
        /// `handler(event, context)`.
        Event = "event",
        /// An ASGI 3 application.
        Asgi = "asgi",
        /// A WSGI application (PEP 3333).
        Wsgi = "wsgi",
    }
}
words! {
    /// What a worker can reach.
    Network {
        /// Its own loopback device.
        None = "none",
        /// Other hosts, through address translation; not this one, and nobody can call in.
        Outbound = "outbound",
        /// The host's network as it is.
        Host = "host",
    }
}
words! {
    /// Where workers come from.
    TemplateMode {
        /// Forked from a template.
        On = "on",
        /// A fresh interpreter each time.
        Off = "off",
    }
}
words! {
    /// How often a worker is used.
    Reuse {
        /// Until it has been idle for long.
        Always = "always",
        /// For one invocation.
        Once = "once",
    }
}
