//! `FunctionSpec`: a function as the user wrote it in `pilot.toml` or sent it to the control API.
//! Every key may be missing; [`FunctionSpec::check`] gives the [`FunctionConfig`] in which none is.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{
    FunctionConfig, Interface, Network, Reuse, Runtime, ScaleConfig, TemplateMode,
};
use crate::ids::FunctionName;
use crate::policy::{Policy, PolicySpec};

/// One function's keys, Lambda's words. `path` is for the client alone: where the code lies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct FunctionSpec {
    /// Where the code lies, relative to the manifest. Default: the manifest's own folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `python` or `python3.X`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// `module.attribute` (event), `module:attribute` (applications); either separator is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// `event`, `asgi` or `wsgi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Memory of one worker, MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Longest an invocation may take, seconds.
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
    /// `on` (fork from the template) or `off` (a fresh interpreter each time).
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
}

/// The `[functions.NAME.scale]` table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScaleSpec {
    /// Workers kept whatever happens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Most workers at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Forked, initialised workers kept ready beyond the busy ones while the function is hot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<u32>,
    /// Idle workers are reaped after this, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<f64>,
    /// How their number follows the traffic: a policy's name, or a table with its name and its constants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicySpec>,
}

/// A key whose value does not do. `key` is its path below the function.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("functions.{function}.{key}: {problem}")]
pub struct SpecError {
    /// The function.
    pub function: String,
    /// The key, e.g. `scale.max`.
    pub key: &'static str,
    /// What is wrong and what would do.
    pub problem: String,
}

impl FunctionSpec {
    /// Checks every key and fills in what was left out.
    ///
    /// # Errors
    /// The first key whose value is out of range or unknown, with what would do.
    pub fn check(&self, name: &FunctionName) -> Result<FunctionConfig, SpecError> {
        let fail = |key: &'static str, problem: String| SpecError {
            function: name.to_string(),
            key,
            problem,
        };
        let runtime = Runtime::parse(self.runtime.as_deref().unwrap_or("python"))
            .map_err(|problem| fail("runtime", problem))?;
        let interface = one_of(self.interface.as_deref(), Interface::Event, Interface::ALL)
            .map_err(|problem| fail("interface", problem))?;
        let default_handler = match interface {
            Interface::Event => "app.handler",
            Interface::Asgi | Interface::Wsgi => "app.app",
        };
        let handler = check_handler(self.handler.as_deref().unwrap_or(default_handler))
            .map_err(|problem| fail("handler", problem))?;
        let memory_mb = in_range(self.memory_mb.unwrap_or(256), 16, 65_536)
            .map_err(|problem| fail("memory_mb", problem))?;
        let timeout_s = in_range(self.timeout_s.unwrap_or(30.0), 0.01, 86_400.0)
            .map_err(|problem| fail("timeout_s", problem))?;
        let cpu = in_range(self.cpu.unwrap_or(1.0), 0.01, 1024.0)
            .map_err(|problem| fail("cpu", problem))?;
        let network = one_of(self.network.as_deref(), Network::None, Network::ALL)
            .map_err(|problem| fail("network", problem))?;
        let template = one_of(
            self.template.as_deref(),
            TemplateMode::On,
            TemplateMode::ALL,
        )
        .map_err(|problem| fail("template", problem))?;
        let reuse = one_of(self.reuse.as_deref(), Reuse::Always, Reuse::ALL)
            .map_err(|problem| fail("reuse", problem))?;
        let concurrency = in_range(self.concurrency.unwrap_or(1), 1, 1000)
            .map_err(|problem| fail("concurrency", problem))?;
        if reuse == Reuse::Once && concurrency > 1 {
            return Err(fail(
                "concurrency",
                "must be 1 with reuse = \"once\": a worker then serves one invocation in its life"
                    .to_owned(),
            ));
        }
        for (key, value) in &self.environment {
            check_variable(key, value).map_err(|problem| fail("environment", problem))?;
        }
        let scale = self.scale.clone().unwrap_or_default().check(&fail)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in_range bounds cpu to 0.01..=1024"
        )]
        let cpu_milli = (cpu * 1000.0).round() as u32;
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
        })
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
        let parked = in_range(self.parked.unwrap_or(0), 0, max)
            .map_err(|problem| fail("scale.parked", problem))?;
        let idle_s = in_range(self.idle_s.unwrap_or(60.0), 0.0, 86_400.0)
            .map_err(|problem| fail("scale.idle_s", problem))?;
        let policy = self.policy.as_ref().map_or(Ok(Policy::Demand), |policy| {
            policy
                .check()
                .map_err(|error| fail(error.key, error.problem))
        })?;
        Ok(ScaleConfig {
            min,
            max,
            parked,
            idle: Duration::from_secs_f64(idle_s),
            policy,
        })
    }
}

fn in_range<T: PartialOrd + std::fmt::Display>(value: T, least: T, most: T) -> Result<T, String> {
    // Written so that a NaN, which compares with nothing, is out of range.
    if value >= least && value <= most {
        Ok(value)
    } else {
        Err(format!("is {value}, must be from {least} to {most}"))
    }
}

fn one_of<T: Copy>(word: Option<&str>, default: T, all: &[(&str, T)]) -> Result<T, String> {
    let Some(word) = word else { return Ok(default) };
    if let Some((_, value)) = all.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let hint = crate::nearest::nearest(word, names.iter().copied())
        .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    Err(format!(
        "is \"{word}\", must be one of {}{hint}",
        names.join(", ")
    ))
}

/// `module.attribute` or `module:attribute`, where the module may be dotted or hold slashes as in Lambda.
fn check_handler(handler: &str) -> Result<String, String> {
    let dotted = handler.replacen(':', ".", 1);
    let fits = dotted.len() <= 128
        && !dotted.starts_with(['/', '.'])
        && !dotted.contains("..")
        && dotted
            .rsplit_once('.')
            .is_some_and(|(module, attribute)| !module.is_empty() && !attribute.is_empty())
        && dotted
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '-'));
    if fits {
        Ok(dotted)
    } else {
        Err(format!(
            "is \"{}\", must be MODULE.FUNCTION (or MODULE:APP), for example \"app.handler\"",
            handler.escape_default()
        ))
    }
}

fn check_variable(key: &str, value: &str) -> Result<(), String> {
    let mut chars = key.chars();
    let fits = chars
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !fits {
        return Err(format!(
            "has the variable \"{}\": a name is a letter or _ and then letters, digits or _",
            key.escape_default()
        ));
    }
    if value.contains('\0') {
        return Err(format!("has a NUL byte in the variable {key}"));
    }
    Ok(())
}
