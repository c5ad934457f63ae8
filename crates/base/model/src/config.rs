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
    /// Whose used runtimes it may be given, and who may be given its own. Empty in configurations stored before there were owners: see
    /// [`FunctionConfig::owner`].
    #[serde(default)]
    pub owner: String,
}

impl FunctionConfig {
    /// Whose used runtimes it may be given.
    #[must_use]
    pub fn owner(&self) -> &str {
        if self.owner.is_empty() {
            self.name.as_str()
        } else {
            &self.owner
        }
    }
}

/// How many workers a function has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ScaleConfig {
    /// Kept whatever happens.
    pub min: u32,
    /// Most at once; at least 1.
    pub max: u32,
    /// Idle workers kept ready beyond the busy ones while the function is hot. Stored configurations may say `parked`.
    #[serde(alias = "parked")]
    pub spare: u32,
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
    /// Node.js, specialised from a process that is already up.
    Node {
        /// `20`, or `None` for the daemon's.
        major: Option<u32>,
    },
    /// Any executable that polls the Lambda Runtime API.
    Provided {
        /// Program and arguments, run in the code's folder.
        command: Vec<String>,
    },
    /// The function's own HTTP server.
    Http {
        /// Program and arguments, run in the code's folder.
        command: Vec<String>,
        /// The path that answers 2xx once it is ready; `None`: it is ready when its port accepts.
        ready: Option<String>,
    },
    /// A container of an image.
    Container {
        /// The image, as written.
        image: String,
        /// How it is spoken to.
        contract: Contract,
        /// Program and arguments; `None`: the image's own.
        command: Option<Vec<String>>,
        /// As of `http`.
        ready: Option<String>,
    },
}

/// What `runtime` may say, for messages.
const RUNTIMES: &str = "must be \"python\" or \"python3.X\" (for example \"python3.11\"), \"node\" or \"nodejsXX.x\", \"provided\", \"http\", or \"container\"";

/// A runtime's name, as written: which, and which version of its interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeWord {
    /// `python`, `python3.X`.
    Python(Option<String>),
    /// `node`, `nodejs20.x`.
    Node(Option<u32>),
    /// `provided`, `provided.al2023`.
    Provided,
    /// `http`.
    Http,
    /// `container`.
    Container,
}

impl RuntimeWord {
    /// Reads the value of `runtime`; Lambda's names are taken.
    ///
    /// # Errors
    /// What would do, in words.
    pub fn parse(word: &str) -> Result<Self, String> {
        match word {
            "python" | "python3" => return Ok(Self::Python(None)),
            "node" | "nodejs" => return Ok(Self::Node(None)),
            "provided" | "provided.al2" | "provided.al2023" => return Ok(Self::Provided),
            "http" => return Ok(Self::Http),
            "container" => return Ok(Self::Container),
            _ => {}
        }
        let digits = |text: &&str| {
            matches!(text.len(), 1..=2) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if let Some(minor) = word.strip_prefix("python3.").filter(digits) {
            return Ok(Self::Python(Some(format!("3.{minor}"))));
        }
        let major = word
            .strip_prefix("nodejs")
            .or_else(|| word.strip_prefix("node"))
            .map(|rest| rest.strip_suffix(".x").unwrap_or(rest))
            .filter(digits)
            .and_then(|digits| digits.parse().ok());
        match major {
            Some(major) => Ok(Self::Node(Some(major))),
            None => Err(format!(
                "is \"{}\", {RUNTIMES}{}",
                word.escape_default(),
                hint(word)
            )),
        }
    }
}

/// What was probably meant.
fn hint(word: &str) -> String {
    if OTHER_LANGUAGES.iter().any(|name| word.starts_with(name)) {
        return "; other languages run as \"provided\" (with the language's Lambda runtime client) or as \"http\""
            .to_owned();
    }
    let known = ["python", "node", "provided", "http", "container"];
    crate::nearest::nearest(word, known.into_iter())
        .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"))
}

/// How Lambda's names of runtimes begin that have none of their own here.
const OTHER_LANGUAGES: [&str; 6] = ["go", "java", "ruby", "dotnet", "rust", "deno"];

/// What starts the workers of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Workers are forked from templates.
    Fork,
    /// Workers are made from runtimes that are kept and reused by their key.
    Keyed,
}

impl Runtime {
    /// Which engine starts its workers.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        match self {
            Self::Python { .. } => EngineKind::Fork,
            _ => EngineKind::Keyed,
        }
    }

    /// Whether workers are forked from templates.
    #[must_use]
    pub fn forks(&self) -> bool {
        self.engine() == EngineKind::Fork
    }
}

impl std::fmt::Display for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Python { minor } => write!(f, "python{}", minor.as_deref().unwrap_or("")),
            Self::Node { major: None } => f.write_str("node"),
            Self::Node { major: Some(major) } => write!(f, "nodejs{major}.x"),
            Self::Provided { .. } => f.write_str("provided"),
            Self::Http { .. } => f.write_str("http"),
            Self::Container { image, .. } => write!(f, "container {image}"),
        }
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
pub(crate) use words;

words! {
    /// What the handler is called with.
    Interface {
        /// `handler(event, context)`.
        Event = "event",
        /// An ASGI 3 application.
        Asgi = "asgi",
        /// A WSGI application (PEP 3333).
        Wsgi = "wsgi",
        /// An HTTP server of the function's own.
        Http = "http",
    }
}
words! {
    /// How a container is spoken to.
    Contract {
        /// It serves HTTP on `$PORT`.
        Http = "http",
        /// It polls the Lambda Runtime API.
        Provided = "provided",
        /// The deployed code is loaded into a pre-warmed container of the image; per invocation its command gets the event on
        /// standard input and writes the answer to standard output.
        Shim = "shim",
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
