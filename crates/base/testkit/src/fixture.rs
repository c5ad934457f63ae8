//! A version to test with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pilot_model::{
    Environment, EnvironmentId, FunctionConfig, FunctionName, Interface, Network, Policy, Python,
    Reuse, Runtime, ScaleConfig, TemplateMode, Version, VersionId,
};

/// The configuration of an empty `[functions.NAME]` with a timeout of one second.
///
/// # Panics
/// If `name` is not a function's name.
#[must_use]
pub fn config(name: &str) -> FunctionConfig {
    let owner = name.to_owned();
    let name: FunctionName = name.parse().expect("a function's name");
    FunctionConfig {
        name,
        runtime: Runtime::Python { minor: None },
        handler: "app.handler".to_owned(),
        interface: Interface::Event,
        memory_bytes: 256 << 20,
        timeout: Duration::from_secs(1),
        cpu_milli: 1000,
        network: Network::None,
        environment: BTreeMap::new(),
        template: TemplateMode::On,
        reuse: Reuse::Always,
        concurrency: 1,
        scale: ScaleConfig {
            min: 0,
            max: 64,
            parked: 0,
            idle: Duration::from_secs(60),
            policy: Policy::Demand,
        },
        owner,
    }
}

/// Version `number` of a function with [`config`].
#[must_use]
pub fn version(name: &str, number: u32) -> Arc<Version> {
    version_with(name, number, |_| ())
}

/// Version `number` of a function whose [`config`] is changed by `change`.
#[must_use]
pub fn version_with(
    name: &str,
    number: u32,
    change: impl FnOnce(&mut FunctionConfig),
) -> Arc<Version> {
    let mut config = config(name);
    change(&mut config);
    Arc::new(Version {
        id: VersionId::from_hex(&format!("{number:08x}{:08x}", name.len())),
        number,
        config,
        code_dir: PathBuf::from("/nonexistent/code"),
        environment: Environment {
            id: EnvironmentId::from_hex("00000000000000e0"),
            python: Some(Python {
                executable: PathBuf::from("/usr/bin/python3"),
                prefix: PathBuf::from("/usr"),
            }),
            packages_dir: None,
            imports: Vec::new(),
            node: None,
        },
    })
}
