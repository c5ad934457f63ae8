//! The domain types: what a function is, what happened to an invocation, and the ports through which crates work together without
//! importing each other.
//!
//! Not here: anything that does I/O, any policy. This crate imports nothing of ours.

pub mod access;
pub mod api;
pub mod asynchronous;
pub mod calendar;
pub mod calls;
mod checks;
mod choices;
pub mod config;
pub mod cors;
pub mod cost;
pub mod cpu_limit;
pub mod deployment;
mod environment;
pub mod event;
pub mod exception;
pub mod forecast;
pub mod hint;
pub mod ids;
pub mod image;
pub mod initscript;
pub mod inputs;
pub mod invocation;
pub mod invokes;
pub mod keep_alive;
pub mod layer;
pub mod log_line;
pub mod manifest;
pub mod nearest;
pub mod policy;
pub mod ports;
pub mod runtime;
pub mod runtime_key;
pub mod sampling;
pub mod scale;
mod seconds;
pub mod secret;
pub mod seldom;
pub mod sharing;
pub mod size;
pub mod spec;
pub mod start_rule;
pub mod status;
pub mod timeline;
pub mod trace;
pub mod trigger;
pub mod unsupported;
pub mod version;

pub use asynchronous::AsyncConfig;
pub use choices::{Contract, Interface, Network, Reuse, RootAccess, TemplateMode};
pub use config::FunctionConfig;
pub use cpu_limit::{CpuLimit, Enforcement};
pub use environment::{Environment, Node, Python};
pub use event::{EndReason, Event, RuntimeOrigin, WorkerRecord};
pub use exception::Exception;
pub use ids::{EnvironmentId, FunctionName, InvalidName, InvocationId, VersionId, WorkerId};
pub use invocation::{
    CpuTime, FailedInput, HttpRequestHead, InvocationHead, InvocationRecord, Outcome, SharedWorker,
    Streamed, Transfer, TransferWay,
};
pub use invokes::Invokes;
pub use keep_alive::{Behaviour, Farewell, KeepAlive, Rest, Stop};
pub use layer::{Layer, LayerId, MergedLayers};
pub use policy::Policy;
pub use ports::BoxFuture;
pub use runtime::{EngineKind, Runtime};
pub use sampling::Traces;
pub use scale::ScaleConfig;
pub use secret::{SecretId, SecretName, SecretUse, SecretValues};
pub use seldom::Seldom;
pub use spec::FunctionSpec;
pub use start_rule::StartRule;
pub use timeline::{Instant, StartKind, Timeline, WorkerOrigin};
pub use trace::{Trace, TraceSpan};
pub use version::Version;
