//! `FunctionSpec`: a function as the user wrote it in `pilot.toml` or sent it to the control API. Every key is optional;
//! [`FunctionSpec::check`] returns the [`FunctionConfig`], in which none is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::asynchronous::{AsyncConfig, AsyncSpec};
use crate::checks::{KeyProblem, check_owner, check_variable, in_range, one_of};
use crate::choices::{Interface, Network, Reuse, TemplateMode};
use crate::config::{FunctionConfig, ScaleConfig};
use crate::cors::CorsSpec;
use crate::cpu_limit::{CpuLimit, CpuLimitSpec};
use crate::ids::FunctionName;
use crate::initscript::{self, During, InitscriptConfig, InitscriptSpec, ScriptKind};
use crate::inputs::{self, InputSpec};
use crate::invokes;
use crate::keep_alive::{self, KeepAlive, KeepAliveSpec};
use crate::layer::{self, Layer};
use crate::policy::{Policy, PolicySpec};
use crate::runtime::Runtime;
use crate::secret::{self, SecretSpec, SecretUse};
use crate::trigger::{self, TriggerConfig, TriggerSpec};

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

/// The `[functions.NAME.scale]` table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScaleSpec {
    /// Workers that are always kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Maximum number of workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Forked, initialised workers kept ready beyond the busy ones while the function is hot. Formerly `parked`.
    #[serde(alias = "parked", skip_serializing_if = "Option::is_none")]
    pub spare: Option<u32>,
    /// Idle workers are reaped after this time, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<f64>,
    /// How their number follows the traffic: a policy's name, or a table with the name and constants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySpec>,
    /// The longest that a request waits for a busy worker, seconds. Beyond it, it is refused, at once if that can be foreseen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_s: Option<f64>,
    /// So many workers always have a place, whatever other functions need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u32>,
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

impl FunctionSpec {
    /// Checks every key and fills in the defaults.
    ///
    /// # Errors
    /// The first key whose value is out of range or unknown, with what is allowed.
    pub fn check(&self, name: &FunctionName) -> Result<FunctionConfig, SpecError> {
        let fail = |key: &'static str, problem: String| SpecError {
            function: name.to_string(),
            key,
            problem,
        };
        let runtime = self.runtime();
        let (runtime, interface, handler) = runtime.map_err(|(key, problem)| fail(key, problem))?;
        let memory_mb = in_range(self.memory_mb.unwrap_or(256), 16, 65_536)
            .map_err(|problem| fail("memory_mb", problem))?;
        let timeout_s = in_range(self.timeout_s.unwrap_or(30.0), 0.01, 86_400.0)
            .map_err(|problem| fail("timeout_s", problem))?;
        let cpu = self.check_cpu(&runtime);
        let (cpu_milli, cpu_limit) = cpu.map_err(|(key, problem)| fail(key, problem))?;
        let network = one_of(self.network.as_deref(), Network::None, Network::ALL)
            .map_err(|problem| fail("network", problem))?;
        let template = one_of(
            self.template.as_deref(),
            TemplateMode::On,
            TemplateMode::ALL,
        )
        .map_err(|problem| fail("template", problem))?;
        let (reuse, concurrency) = self.check_reuse(&runtime, &fail)?;
        for (key, value) in &self.environment {
            check_variable(key, value).map_err(|problem| fail("environment", problem))?;
            if key == "PORT" && interface == Interface::Http {
                let problem =
                    "has the variable PORT, which every worker's server is given; leave it out";
                return Err(fail("environment", problem.to_owned()));
            }
        }
        let owner = self.owner.as_deref().unwrap_or(name.as_str());
        let owner = check_owner(owner).map_err(|problem| fail("owner", problem))?;
        let layers = self
            .check_layers(&runtime)
            .map_err(|problem| fail("layers", problem))?;
        let secrets = self
            .check_secrets(&runtime, interface, &owner)
            .map_err(|problem| fail("secrets", problem))?;
        let cors = self.cors.as_ref().map(CorsSpec::check).transpose();
        let cors = cors.map_err(|(key, problem)| fail(key, problem))?;
        let takes = inputs::Takes {
            descriptors: runtime.forks(),
            streams: runtime.streams_inputs(),
        };
        let inputs = inputs::check(&self.inputs, runtime.no_inputs(), takes)
            .map_err(|problem| fail("inputs", problem))?;
        let is_plain = runtime.forks() && interface == Interface::Event;
        let inputs_by_request = inputs::check_by_request(self.inputs_by_request, is_plain)
            .map_err(|problem| fail("inputs_by_request", problem))?;
        let invokes = invokes::check(&self.invokes, self.invokes_own_only, is_plain)
            .map_err(|problem| fail("invokes", problem))?;
        let (initscript, shared_initscript) = self.check_scripts(&runtime, interface, &fail)?;
        let (asynchronous, triggers) = self.check_events(name, interface, timeout_s, &fail)?;
        let scale = self.scale.clone().unwrap_or_default().check(&fail)?;
        let keep_alive = self.check_keep_alive(&runtime, template, reuse, &scale, &fail)?;
        Ok(FunctionConfig {
            name: name.clone(),
            runtime,
            handler,
            interface,
            memory_bytes: memory_mb * 1024 * 1024,
            timeout: Duration::from_secs_f64(timeout_s),
            cpu_milli,
            network,
            environment: self.environment.clone(),
            template,
            reuse,
            concurrency,
            scale,
            owner,
            layers,
            secrets,
            cors,
            inputs,
            inputs_by_request,
            drop_ins: self.drop_ins.unwrap_or(true),
            keep_alive,
            cpu_limit,
            invokes,
            initscript,
            shared_initscript,
            asynchronous,
            triggers,
        })
    }

    /// How often a worker is used, and by how many invocations at once.
    fn check_reuse(
        &self,
        runtime: &Runtime,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<(Reuse, u32), SpecError> {
        let reuse = one_of(self.reuse.as_deref(), Reuse::Always, Reuse::ALL)
            .map_err(|problem| fail("reuse", problem))?;
        let concurrency = in_range(self.concurrency.unwrap_or(runtime.concurrency()), 1, 1000)
            .map_err(|problem| fail("concurrency", problem))?;
        if reuse == Reuse::Once && concurrency > 1 {
            return Err(fail(
                "concurrency",
                "must be 1 with reuse = \"once\": a worker then serves one invocation in its life"
                    .to_owned(),
            ));
        }
        Ok((reuse, concurrency))
    }

    /// Its initscript and its shared one.
    fn check_scripts(
        &self,
        runtime: &Runtime,
        interface: Interface,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<(Option<InitscriptConfig>, Option<InitscriptConfig>), SpecError> {
        let check = |spec: Option<&InitscriptSpec>, kind: ScriptKind| {
            let refusal = match interface {
                Interface::Event => runtime.no_inputs(),
                _ => Some(initscript::EVENTS_ONLY.to_owned()),
            };
            let checked = initscript::check(spec, kind, refusal);
            let checked = checked.and_then(|script| match script {
                Some(script) if script.during == During::Invocation && !runtime.forks() => {
                    Err(initscript::NOT_RUNNING.to_owned())
                }
                script => Ok(script),
            });
            checked.map_err(|problem| fail(kind.key(), problem))
        };
        let own = check(self.initscript.as_ref(), ScriptKind::Own)?;
        let shared = check(self.shared_initscript.as_ref(), ScriptKind::Shared)?;
        Ok((own, shared))
    }

    /// How its asynchronous invocations are run, and what invokes it besides requests.
    fn check_events(
        &self,
        name: &FunctionName,
        interface: Interface,
        timeout_s: f64,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<(AsyncConfig, Vec<TriggerConfig>), SpecError> {
        let asynchronous = self.check_async(interface, fail)?;
        let takes_events = !matches!(interface, Interface::Asgi | Interface::Wsgi);
        let triggers = trigger::check(&self.triggers, name, timeout_s, takes_events)
            .map_err(|problem| fail("triggers", problem))?;
        Ok((asynchronous, triggers))
    }

    /// How its asynchronous invocations are run.
    fn check_async(
        &self,
        interface: Interface,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<AsyncConfig, SpecError> {
        let Some(spec) = &self.asynchronous else {
            return Ok(AsyncConfig::default());
        };
        let takes_events = !matches!(interface, Interface::Asgi | Interface::Wsgi);
        spec.check(self.invokes_own_only, takes_events)
            .map_err(|(key, problem)| fail(key, problem))
    }

    /// How much CPU a worker may use, thousandths of a CPU, and how that is enforced.
    fn check_cpu(&self, runtime: &Runtime) -> Result<(u32, CpuLimit), KeyProblem> {
        let cpu = in_range(self.cpu.unwrap_or(1.0), 0.01, 1024.0);
        let cpu = cpu.map_err(|problem| ("cpu", problem))?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in_range bounds cpu to 0.01..=1024"
        )]
        let cpu_milli = (cpu * 1000.0).round() as u32;
        let limit = self.cpu_limit.clone().unwrap_or_default();
        Ok((cpu_milli, limit.check(runtime, cpu_milli)?))
    }

    /// What an idle worker does.
    fn check_keep_alive(
        &self,
        runtime: &Runtime,
        template: TemplateMode,
        reuse: Reuse,
        scale: &ScaleConfig,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<KeepAlive, SpecError> {
        let idle_s = self.scale.as_ref().and_then(|scale| scale.idle_s);
        let around = keep_alive::Around {
            runtime,
            template,
            reuse,
            scale,
            idle_given: idle_s.is_some(),
        };
        let table = self.keep_alive.clone().unwrap_or_default();
        let checked = table.check(around);
        checked.map_err(|(key, problem)| fail(key, problem))
    }

    /// Which secrets the function uses, and how.
    fn check_secrets(
        &self,
        runtime: &Runtime,
        interface: Interface,
        owner: &str,
    ) -> Result<BTreeMap<String, SecretUse>, String> {
        let mut secrets = secret::check(&self.secrets, &self.environment, owner)?;
        for (variable, used) in &mut secrets {
            if let (true, Some(reason)) = (used.file.is_some(), runtime.no_secret_files()) {
                return Err(format!("{variable}: {reason}"));
            }
            if variable == "PORT" && interface == Interface::Http {
                return Err(
                    "has the variable PORT, which every worker's server is given".to_owned(),
                );
            }
            if self.shared_secrets.contains(used.secret.as_str()) {
                used.owner.clear();
            }
        }
        Ok(secrets)
    }

    /// The layers as they are sent to the daemon.
    fn check_layers(&self, runtime: &Runtime) -> Result<Vec<Layer>, String> {
        if let (false, Some(reason)) = (self.layers.is_empty(), runtime.no_layers()) {
            return Err(reason);
        }
        let layers = self.layers.iter().map(|layer| layer.parse());
        let layers: Vec<Layer> = layers
            .collect::<Result<_, _>>()
            .map_err(|error: layer::InvalidLayer| error.to_string())?;
        layer::check_list(layers.iter().map(|layer| layer.name.as_str()))?;
        Ok(layers)
    }
}

impl ScaleSpec {
    fn check(
        &self,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<ScaleConfig, SpecError> {
        let max = in_range(self.max.unwrap_or(64), 1, 10_000)
            .map_err(|problem| fail("scale.max", problem))?;
        let min = in_range(self.min.unwrap_or(0), 0, max)
            .map_err(|problem| fail("scale.min", problem))?;
        let spare = in_range(self.spare.unwrap_or(0), 0, max)
            .map_err(|problem| fail("scale.spare", problem))?;
        let idle_s = in_range(self.idle_s.unwrap_or(60.0), 0.0, 86_400.0)
            .map_err(|problem| fail("scale.idle_s", problem))?;
        let policy = self.policy.as_ref().map_or(Ok(Policy::Demand), |policy| {
            policy
                .check()
                .map_err(|error| fail(error.key, error.problem))
        })?;
        let max_wait_s = self.max_wait_s.map(|wait| in_range(wait, 0.0, 900.0));
        let max_wait_s = max_wait_s
            .transpose()
            .map_err(|problem| fail("scale.max_wait_s", problem))?;
        let reserved = in_range(self.reserved.unwrap_or(0), 0, max)
            .map_err(|problem| fail("scale.reserved", problem))?;
        Ok(ScaleConfig {
            min,
            max,
            spare,
            idle: Duration::from_secs_f64(idle_s),
            policy,
            max_wait: max_wait_s.map(Duration::from_secs_f64),
            reserved,
        })
    }
}
