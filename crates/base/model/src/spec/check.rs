//! From what the user wrote to what is configured: the range of each key, its default, and which keys exclude each other.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{FunctionSpec, SpecError};
use crate::asynchronous::AsyncConfig;
use crate::checks::{KeyProblem, check_owner, check_root_path, check_variable, in_range, one_of};
use crate::choices::{Interface, Network, Reuse, TemplateMode};
use crate::config::FunctionConfig;
use crate::cors::CorsSpec;
use crate::cpu_limit::CpuLimit;
use crate::ids::FunctionName;
use crate::initscript::{self, InitscriptConfig, InitscriptSpec, ScriptKind};
use crate::inputs;
use crate::invokes::{self, Invokes};
use crate::keep_alive::{self, KeepAlive};
use crate::layer::{self, Layer};
use crate::runtime::Runtime;
use crate::scale::ScaleConfig;
use crate::secret::{self, SecretUse};
use crate::trigger::{self, TriggerConfig};

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
        let root_path = self.root_path.as_deref();
        let root_path = check_root_path(root_path, interface);
        let root_path = root_path.map_err(|problem| fail("root_path", problem))?;
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
            has_triggers: !self.triggers.is_empty(),
        };
        let inputs = inputs::check(&self.inputs, runtime.no_inputs(), takes)
            .map_err(|problem| fail("inputs", problem))?;
        let can_take = interface == Interface::Event && runtime.no_inputs().is_none();
        let inputs_by_request = inputs::check_by_request(self.inputs_by_request, can_take)
            .map_err(|problem| fail("inputs_by_request", problem))?;
        let (invokes, by_reference) = self.check_invokes(&runtime, interface, &fail)?;
        let (initscript, shared_initscript) = self.check_scripts(&runtime, interface, &fail)?;
        let (asynchronous, triggers) = self.check_events(name, interface, timeout_s, &fail)?;
        let scale = self.scale.clone().unwrap_or_default().check();
        let scale = scale.map_err(|(key, problem)| fail(key, problem))?;
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
            by_reference,
            keep_alive,
            cpu_limit,
            invokes,
            initscript,
            shared_initscript,
            asynchronous,
            triggers,
            root_path,
        })
    }

    /// Which functions it invokes, and whether data goes there by reference.
    fn check_invokes(
        &self,
        runtime: &Runtime,
        interface: Interface,
        fail: &impl Fn(&'static str, String) -> SpecError,
    ) -> Result<(Invokes, bool), SpecError> {
        let can_invoke = interface == Interface::Event && runtime.invokes();
        let invokes = invokes::check(&self.invokes, self.invokes_own_only, can_invoke)
            .map_err(|problem| fail("invokes", problem))?;
        let by_reference = invokes::check_by_reference(self.by_reference, &invokes)
            .map_err(|problem| fail("by_reference", problem))?;
        Ok((invokes, by_reference))
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
        Ok((cpu_milli, limit.check(runtime.no_cpu_limit(), cpu_milli)?))
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
            no_rest: runtime.no_rest(),
            no_signals: runtime.no_signals(),
            is_server: runtime.interface() == Interface::Http,
            forks: runtime.forks(),
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
