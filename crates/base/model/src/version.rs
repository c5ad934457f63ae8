//! A deployed version: immutable and content-addressed. It contains everything that the path needs to run it.

use std::path::PathBuf;

use crate::config::FunctionConfig;
use crate::environment::Environment;
use crate::ids::VersionId;
use crate::layer::MergedLayers;
use crate::runtime_key::{Base, Ipc, Limits, RuntimeSpec};

/// A function's version on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// Hash over configuration (with the layers), code and environment.
    pub id: VersionId,
    /// 1, 2, 3 … per function in the order of deployment: the number in `NAME:2`.
    pub number: u32,
    /// The checked configuration.
    pub config: FunctionConfig,
    /// The unpacked code; mounted read-only at `/var/task`.
    pub code_dir: PathBuf,
    /// Its layers; mounted read-only at `/opt`. `None`: it has none.
    pub layers: Option<MergedLayers>,
    /// Interpreter and dependencies.
    pub environment: Environment,
    /// Why its template does its own imports, as its deployment found out. `None`: this is not known, and the template finds it out.
    pub own_imports: Option<String>,
    /// What its code imports of the environment's packages, as its deployment found out ([`TemplateReport::modules`]).
    ///
    /// [`TemplateReport::modules`]: crate::deployment::TemplateReport::modules
    pub modules: Vec<String>,
}

/// The region of functions that do not set `AWS_REGION`.
pub const REGION: &str = "us-east-1";

impl Version {
    /// The function's ARN: `arn:aws:lambda:us-east-1:000000000000:function:NAME[:QUALIFIER]`. The region is the one that the function
    /// sees.
    #[must_use]
    pub fn arn(&self, qualifier: Option<&str>) -> String {
        let (region, name) = (self.region(), self.config.name.as_str());
        let colon = if qualifier.is_some() { ":" } else { "" };
        let qualifier = qualifier.unwrap_or_default();
        format!("arn:aws:lambda:{region}:000000000000:function:{name}{colon}{qualifier}")
    }

    /// `AWS_REGION` in the function.
    #[must_use]
    pub fn region(&self) -> &str {
        let own = self.config.environment.get("AWS_REGION");
        own.map_or(REGION, String::as_str)
    }

    /// The settings of the kept runtime that its configuration requires, without the mounts that a host adds.
    ///
    /// # Errors
    /// What the version lacks.
    pub fn runtime_spec(&self, pids_max: u32) -> Result<RuntimeSpec, String> {
        let config = &self.config;
        let node = self.environment.node.as_ref();
        let mut spec = RuntimeSpec {
            base: Base::Native {
                interpreter: None,
                shown: self.environment.folders(),
            },
            owner: Some(config.owner().to_owned()),
            network: config.network,
            host_name: String::new(),
            ipc: Ipc::Private,
            command: config.runtime.command().unwrap_or_default().to_vec(),
            working_dir: String::new(),
            environment: config.environment.clone().into_iter().collect(),
            execution: Vec::new(),
            mounts: Vec::new(),
            limits: Limits {
                memory_bytes: Some(config.memory_bytes),
                cpu_milli: Some(config.cpu_milli),
                pids: Some(pids_max),
            },
            user: None,
        };
        config.runtime.shape(&mut spec, node, &config.environment)?;
        Ok(spec)
    }
}

/// The versions that a function has, for an error: `there are 1, 2 (the live one), 3`.
#[must_use]
pub fn there_are(live: u32, others: &[u32]) -> String {
    let mut numbers = others.to_vec();
    numbers.push(live);
    numbers.sort_unstable();
    let named = numbers.iter().map(|number| match *number == live {
        true => format!("{number} (the live one)"),
        false => number.to_string(),
    });
    let named: Vec<String> = named.collect();
    let verb = match others {
        [] => "is",
        _ => "are",
    };
    format!("there {verb} {}", named.join(", "))
}
