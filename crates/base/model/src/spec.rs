//! `FunctionSpec`: a function as the user wrote it in `pilot.toml` or sent it to the control API. Every key is optional;
//! [`FunctionSpec::check`] returns the [`FunctionConfig`], in which none is.

mod check;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::asynchronous::AsyncSpec;
use crate::cors::CorsSpec;
use crate::cpu_limit::CpuLimitSpec;
use crate::initscript::InitscriptSpec;
use crate::inputs::InputSpec;
use crate::keep_alive::KeepAliveSpec;
use crate::scale::ScaleSpec;
use crate::secret::SecretSpec;
use crate::trigger::TriggerSpec;

/// The keys of one function, with Lambda's words. `path`, the folder of the code, is only for the client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FunctionSpec {
    /// The folder of the code, relative to the manifest. Default: the manifest's own folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `python`, `python3.X`, `node`, `nodejsXX.x`, `provided`, `http`, `container` or `wasm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Program and arguments. For `provided` (default: `./bootstrap`), `http`, and `container` (default: the image's own).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The path of the function's HTTP server that answers 2xx once it is ready. Default: it is ready when its port accepts
    /// connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// For `container`: the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For `container`: `http`, `provided` or `shim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contract: Option<String>,
    /// For `container`: `writable` or `read-only`, for everything but `/tmp`, `/var/tmp`, `/run` and the volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// For `container`: size of `$PILOT_VOLUME`, MiB. Default, and most: `limits.volume_mb` of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mb: Option<u32>,
    /// For `wasm`: the component, a file of the function's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// `module.attribute` (event), `module:attribute` (applications); both separators are accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// `event`, `asgi` or `wsgi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// For `asgi` and `wsgi`: the path prefix that the application is given (`root_path` of ASGI, `SCRIPT_NAME` of WSGI). Empty: at
    /// `/`. Default: where it is called, `/fn/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_path: Option<String>,
    /// Memory of one worker, MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// The longest that an invocation may take, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// CPUs of one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// `none`, `outbound` or `host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// `on` (fork from the template) or `off` (a fresh interpreter for each worker).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// `always` or `once` (every invocation gets a fresh fork).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<String>,
    /// Invocations that one worker serves at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How many workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleSpec>,
    /// Functions with the same owner may get each other's used and cleaned runtimes. Default: the function's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Layers, at most 5, each shown at `/opt`. In the manifest: names of its `[layers]`. In a request: `NAME:ID` of layers that
    /// were uploaded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// Secrets, by the variable that has the value, or the path of the file with the value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretSpec>,
    /// Which web pages of other sites may call the function's URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cors: Option<CorsSpec>,
    /// The names of those secrets that are shared by all owners. The control API knows it; a request cannot say it.
    #[serde(skip)]
    pub shared_secrets: BTreeSet<String>,
    /// Data that is fetched while the worker starts, by the name that the handler uses.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputSpec>,
    /// Whether a request may name further inputs by the header `X-Pilot-Input`, from the stores that the function may use. Default:
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inputs_by_request: Option<bool>,
    /// Whether clients of stores (boto3, redis-py, the AWS SDK for JavaScript) answer from the inputs. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_ins: Option<bool>,
    /// Whether the data that it hands to another function goes there by reference. False: it is copied, to measure what that gains.
    /// Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_reference: Option<bool>,
    /// The functions that it may invoke: names, or the beginning of names and `*`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invokes: Vec<String>,
    /// A program that runs while the worker starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initscript: Option<InitscriptSpec>,
    /// A program whose messages do not depend on the request: it runs once for all workers of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_initscript: Option<InitscriptSpec>,
    /// What an idle worker does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAliveSpec>,
    /// How `cpu` is enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<CpuLimitSpec>,
    /// How asynchronous invocations are repeated, and where their records go.
    #[serde(default, rename = "async", skip_serializing_if = "Option::is_none")]
    pub asynchronous: Option<AsyncSpec>,
    /// What invokes it, besides requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<TriggerSpec>,
    /// It may only invoke functions of its owner. The control API knows it; a request cannot say it.
    #[serde(skip)]
    pub invokes_own_only: bool,
}

/// A key with an invalid value. `key` is its path below the function.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("functions.{function}.{key}: {problem}")]
pub struct SpecError {
    /// The function.
    pub function: String,
    /// The key, e.g. `scale.max`.
    pub key: &'static str,
    /// What is wrong and what is allowed.
    pub problem: String,
}
