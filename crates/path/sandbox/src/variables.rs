//! The environment variables of functions' processes: those of AWS Lambda ("Defined runtime environment variables"), those of
//! the Knative container contract, and the paths of installed packages.

use std::collections::BTreeMap;
use std::path::Path;

use pilot_model::Version;
use pilot_model::runtime::node::LANG;

use crate::places::{CODE_INSIDE, NODE_MODULES_INSIDE, PACKAGES_INSIDE};

/// For every process in a sandbox.
pub(crate) fn base() -> BTreeMap<String, String> {
    [
        ("HOME", "/tmp"),
        LANG,
        ("PATH", "/opt/environment/bin:/usr/local/bin:/usr/bin:/bin"),
        ("TZ", ":UTC"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// For a worker that gets events. `runtime_dir` is the folder of its language's worker.
pub(crate) fn of_lambda(version: &Version, runtime_dir: &str) -> BTreeMap<String, String> {
    let config = &version.config;
    let name = config.name.as_str();
    let mut variables = base();
    let own = [
        ("AWS_DEFAULT_REGION", version.region().to_owned()),
        (
            "AWS_EXECUTION_ENV",
            format!("AWS_Lambda_{}", runtime_with_version(version)),
        ),
        (
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
            (config.memory_bytes >> 20).to_string(),
        ),
        ("AWS_LAMBDA_FUNCTION_NAME", name.to_owned()),
        ("AWS_LAMBDA_FUNCTION_VERSION", version.number.to_string()),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", "on-demand".to_owned()),
        ("AWS_LAMBDA_LOG_GROUP_NAME", format!("/aws/lambda/{name}")),
        (
            "AWS_LAMBDA_LOG_STREAM_NAME",
            format!("{}/[{}]", name, version.number),
        ),
        ("AWS_REGION", version.region().to_owned()),
        ("LAMBDA_RUNTIME_DIR", runtime_dir.to_owned()),
        ("LAMBDA_TASK_ROOT", CODE_INSIDE.to_owned()),
        ("_HANDLER", config.handler.clone()),
    ];
    variables.extend(own.map(|(key, value)| (key.to_owned(), value)));
    if config.concurrency > 1 {
        // As on Lambda's managed instances: AWS's Runtime API clients run this many polls, and its libraries keep invocations
        // apart.
        variables.insert(
            "AWS_LAMBDA_MAX_CONCURRENCY".to_owned(),
            config.concurrency.to_string(),
        );
    }
    variables.extend(config.environment.clone());
    variables
}

/// `nodejs20.x`. Without a version if only the worker knows it, which then adds it (python/pilot_worker/imports.py).
fn runtime_with_version(version: &Version) -> String {
    let runtime = version.config.runtime.full_name();
    match (&version.environment.node, runtime.as_str()) {
        (Some(node), "node") => {
            let major = node.version.split('.').next().unwrap_or_default();
            format!("nodejs{major}.x")
        }
        _ => runtime,
    }
}

/// For a program that is not one of Pilotlight's workers: it finds interpreters, commands and packages only through these.
/// Variables set by the user stay.
pub(crate) fn add_paths(version: &Version, variables: &mut BTreeMap<String, String>) {
    let environment = &version.environment;
    let folder = |executable: &Path| Some(executable.parent()?.display().to_string());
    let mut path = Vec::new();
    if environment.packages_dir().is_some() {
        path.push(format!("{PACKAGES_INSIDE}/bin"));
        keep(variables, version, "PYTHONPATH", PACKAGES_INSIDE.to_owned());
    }
    let node = environment.node.as_ref();
    if environment.modules_dir().is_some() {
        path.push(format!("{NODE_MODULES_INSIDE}/.bin"));
        keep(
            variables,
            version,
            "NODE_PATH",
            NODE_MODULES_INSIDE.to_owned(),
        );
    } else {
        // Packages uploaded with the code, if any. They are found from the code's folder; their commands only through this.
        path.push(format!("{CODE_INSIDE}/node_modules/.bin"));
    }
    path.extend(
        environment
            .python
            .as_ref()
            .and_then(|python| folder(&python.executable)),
    );
    path.extend(node.and_then(|node| folder(&node.executable)));
    path.extend(["/usr/local/bin", "/usr/bin", "/bin"].map(str::to_owned));
    keep(variables, version, "PATH", path.join(":"));
    // Otherwise a Python program keeps what it prints until its buffer is full.
    keep(variables, version, "PYTHONUNBUFFERED", "1".to_owned());
}

/// For a function's own HTTP server (Knative's container runtime contract; Cloud Run's "container runtime contract").
pub(crate) fn of_server(version: &Version, port: u16) -> BTreeMap<String, String> {
    let config = &version.config;
    let mut variables = base();
    add_paths(version, &mut variables);
    variables.extend(config.environment.clone());
    let name = config.name.as_str();
    let contract = [
        ("PORT", port.to_string()),
        ("K_SERVICE", name.to_owned()),
        ("K_CONFIGURATION", name.to_owned()),
        ("K_REVISION", format!("{name}-{:05}", version.number)),
    ];
    variables.extend(contract.map(|(key, value)| (key.to_owned(), value)));
    variables
}

fn keep(variables: &mut BTreeMap<String, String>, version: &Version, key: &str, value: String) {
    if !version.config.environment.contains_key(key) {
        variables.insert(key.to_owned(), value);
    }
}
