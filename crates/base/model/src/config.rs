//! `FunctionConfig`: the checked configuration of a function, in which nothing is optional. Only
//! [`FunctionSpec::check`](crate::spec::FunctionSpec::check) makes one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::asynchronous::AsyncConfig;
use crate::choices::{Interface, Network, Reuse, TemplateMode};
use crate::cors::Cors;
use crate::cpu_limit::CpuLimit;
use crate::ids::FunctionName;
use crate::initscript::{InitscriptConfig, ScriptKind};
use crate::inputs::{InputConfig, Scheme};
use crate::invokes::{self, Invokes};
use crate::keep_alive::KeepAlive;
use crate::layer::Layer;
use crate::runtime::Runtime;
use crate::scale::ScaleConfig;
use crate::secret::SecretUse;
use crate::timeline::WorkerOrigin;
use crate::trigger::TriggerConfig;

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
    /// The longest that an invocation may take.
    #[serde(rename = "timeout_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub timeout: Duration,
    /// CPU limit of one worker, thousandths of a CPU.
    pub cpu_milli: u32,
    /// What a worker can connect to.
    pub network: Network,
    /// The user's environment variables.
    pub environment: BTreeMap<String, String>,
    /// Whether workers are forked from a template or spawned.
    pub template: TemplateMode,
    /// Whether a worker serves more than one invocation.
    pub reuse: Reuse,
    /// Invocations of one worker at the same time; at least 1.
    pub concurrency: u32,
    /// How many workers.
    pub scale: ScaleConfig,
    /// Functions with the same owner may get each other's used runtimes. Empty in configurations that were stored before owners
    /// existed: see [`FunctionConfig::owner`].
    #[serde(default)]
    pub owner: String,
    /// Its layers, in the order in which they are merged: a file of a later one replaces that of an earlier one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub layers: Vec<Layer>,
    /// Its secrets, by variable. Their values are not part of a version: a worker gets those of its start.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretUse>,
    /// Which web pages of other sites may call its URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cors: Option<Cors>,
    /// Its inputs by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, InputConfig>,
    /// The functions that it may invoke.
    #[serde(default, skip_serializing_if = "Invokes::is_empty")]
    pub invokes: Invokes,
    /// How its asynchronous invocations are run.
    #[serde(
        default,
        rename = "async",
        skip_serializing_if = "AsyncConfig::is_default"
    )]
    pub asynchronous: AsyncConfig,
    /// What invokes it, besides requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<TriggerConfig>,
    /// Whether a request may name further inputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inputs_by_request: bool,
    /// Whether clients of stores in its workers answer from the inputs.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub drop_ins: bool,
    /// Whether the data that it hands to another function goes there by reference.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub by_reference: bool,
    /// A program that runs while a worker starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initscript: Option<InitscriptConfig>,
    /// A program that runs once for all workers of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_initscript: Option<InitscriptConfig>,
    /// What an idle worker does.
    #[serde(default, skip_serializing_if = "KeepAlive::is_default")]
    pub keep_alive: KeepAlive,
    /// How `cpu` is enforced.
    #[serde(default, skip_serializing_if = "CpuLimit::is_default")]
    pub cpu_limit: CpuLimit,
    /// The path prefix that an application is given. `None`: where it is called, `/fn/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_path: Option<String>,
}

/// Stored configurations do not say it.
fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

impl FunctionConfig {
    /// The owner: functions with the same owner may get each other's used runtimes.
    #[must_use]
    pub fn owner(&self) -> &str {
        if self.owner.is_empty() {
            self.name.as_str()
        } else {
            &self.owner
        }
    }

    /// One of its initscripts.
    #[must_use]
    pub fn script(&self, kind: ScriptKind) -> Option<&InitscriptConfig> {
        match kind {
            ScriptKind::Own => self.initscript.as_ref(),
            ScriptKind::Shared => self.shared_initscript.as_ref(),
        }
    }

    /// Its initscripts.
    pub fn initscripts(&self) -> impl Iterator<Item = (ScriptKind, &InitscriptConfig)> {
        let kinds = [ScriptKind::Own, ScriptKind::Shared].into_iter();
        kinds.filter_map(|kind| Some((kind, self.script(kind)?)))
    }

    /// Whether its invocations may have inputs: declared ones, or what initscripts send.
    #[must_use]
    pub fn may_have_inputs(&self) -> bool {
        !self.inputs.is_empty()
            || self.inputs_by_request
            || !self.invokes.is_empty()
            || self.initscripts().next().is_some()
    }

    /// The name of the input that is the body of the request. Then the event does not have it.
    #[must_use]
    pub fn body_input(&self) -> Option<&str> {
        let mut inputs = self.inputs.iter();
        let (name, _) = inputs.find(|(_, input)| input.is_body())?;
        Some(name)
    }

    /// The kinds of stores for whose clients its workers have drop-ins, as the drop-ins are called, and `lambda` if it may invoke
    /// functions.
    #[must_use]
    pub fn drop_ins(&self) -> Vec<&'static str> {
        // Node.js has none for a client of Lambda.
        let invokes = self.drop_ins && !self.invokes.is_empty() && self.runtime.forks();
        let allowed = self.initscripts().flat_map(|(_, script)| &script.allow);
        let asks_servers = self.initscripts().any(|(_, script)| {
            let mut schemes = script.allow.iter().map(|one| one.endpoint().scheme());
            schemes.any(|scheme| matches!(scheme, Scheme::Http | Scheme::Https))
        });
        let declared = self.inputs.values().map(|input| input.from.scheme());
        let schemes = declared.chain(allowed.map(|allowed| allowed.endpoint().scheme()));
        let kinds: BTreeSet<_> = schemes
            .filter(|_| self.drop_ins)
            .filter_map(|scheme| match scheme {
                Scheme::S3 => Some("s3"),
                Scheme::Redis | Scheme::Rediss => Some("redis"),
                Scheme::Sqs => Some("sqs"),
                Scheme::Http
                | Scheme::Https
                | Scheme::File
                | Scheme::Grpc
                | Scheme::Grpcs
                | Scheme::Tcp
                | Scheme::Direct => None,
            })
            // Inputs of HTTP servers have no drop-ins: only a script says which request it has sent.
            .chain((self.drop_ins && asks_servers).then_some("http"))
            .chain(invokes.then_some("lambda"))
            .collect();
        kinds.into_iter().collect()
    }

    /// Where its workers come from.
    #[must_use]
    pub fn worker_origin(&self) -> WorkerOrigin {
        match (self.runtime.forks(), self.template) {
            (true, TemplateMode::On) => WorkerOrigin::Fork,
            (true, TemplateMode::Off) => WorkerOrigin::Exec,
            (false, _) => WorkerOrigin::Runtime,
        }
    }
}

impl FunctionConfig {
    /// Whether this function may invoke `target`.
    ///
    /// # Errors
    /// Why not, and what to change.
    pub fn may_invoke(&self, target: &Self) -> Result<(), String> {
        let (name, target_name) = (&self.name, &target.name);
        if !self.invokes.names(target_name.as_str()) {
            return Err(invokes::not_named(name, target_name.as_str()));
        }
        if self.invokes.own_only && self.owner() != target.owner() {
            return Err(format!(
                "function '{name}' may not invoke '{target_name}': it was deployed with a token for the owner '{}', and '{target_name}' \
                 has another owner",
                self.owner()
            ));
        }
        Ok(())
    }
}
