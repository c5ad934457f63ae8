//! The environment variables of functions' processes: those of AWS Lambda ("Defined runtime environment variables"), those of
//! the Knative container contract, and the paths of installed packages.

use std::collections::BTreeMap;
use std::fs::DirEntry;
use std::path::Path;

use pilot_model::layer::LAYERS_INSIDE;
use pilot_model::runtime::node::LANG;
use pilot_model::runtime::wasm::VARIABLE;
use pilot_model::version::REGION;
use pilot_model::{Environment, MergedLayers, Version};

use crate::places::{CODE_INSIDE, LIBRARIES_INSIDE, NODE_MODULES_INSIDE, PACKAGES_INSIDE};

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

/// For the template of an environment: what all its functions have, as far as their configuration does not say otherwise. Packages
/// read some of these when they are imported.
pub(crate) fn of_environment(
    environment: &Environment,
    runtime_dir: &str,
) -> BTreeMap<String, String> {
    let mut variables = base();
    let own = [
        ("AWS_DEFAULT_REGION", REGION),
        ("AWS_EXECUTION_ENV", "AWS_Lambda_python"),
        ("AWS_LAMBDA_INITIALIZATION_TYPE", ON_DEMAND),
        ("AWS_REGION", REGION),
        ("LAMBDA_RUNTIME_DIR", runtime_dir),
        ("LAMBDA_TASK_ROOT", CODE_INSIDE),
    ];
    variables.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    variables.extend(
        paths(environment, None, None)
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value)),
    );
    variables
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
        ("AWS_LAMBDA_INITIALIZATION_TYPE", ON_DEMAND.to_owned()),
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

/// `nodejs20.x`. Without a version if only the worker knows it, which then adds it (python/pilot_worker/importing/imports.py).
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

/// For a program that is not one of Pilotlight's workers: it finds interpreters, commands, packages and layers only through these.
/// Variables set by the user stay. `python` is the version of its Python, if known: `3.11.7`.
pub(crate) fn add_paths(
    version: &Version,
    python: Option<&str>,
    variables: &mut BTreeMap<String, String>,
) {
    for (key, value) in paths(&version.environment, version.layers.as_ref(), python) {
        keep(variables, version, key, value);
    }
}

/// For the same programs: where the dynamic linker finds the libraries of the code and of the layers. Those of the system are found
/// without it, after these.
pub(crate) fn add_library_path(version: &Version, variables: &mut BTreeMap<String, String>) {
    keep(variables, version, LIBRARY_PATH, library_path());
}

/// For a Node.js worker: as on Lambda, `require` searches the code's folder last, so that `src/lib` is a name of a module.
pub(crate) fn add_code_to_modules(version: &Version, variables: &mut BTreeMap<String, String>) {
    let before = variables.get("NODE_PATH").map(|path| format!("{path}:"));
    let path = before.unwrap_or_default() + CODE_INSIDE;
    keep(variables, version, "NODE_PATH", path);
}

/// The same, if the user sets none.
fn paths(
    environment: &Environment,
    layers: Option<&MergedLayers>,
    python: Option<&str>,
) -> Vec<(&'static str, String)> {
    let folder = |executable: &Path| Some(executable.parent()?.display().to_string());
    let mut found = Vec::new();
    let (mut path, mut python_path, mut node_path) = (Vec::new(), Vec::new(), Vec::new());
    if environment.packages_dir().is_some() {
        path.push(format!("{PACKAGES_INSIDE}/bin"));
        python_path.push(PACKAGES_INSIDE.to_owned());
    }
    let node = environment.node.as_ref();
    if environment.modules_dir().is_some() {
        path.push(format!("{NODE_MODULES_INSIDE}/.bin"));
        node_path.push(NODE_MODULES_INSIDE.to_owned());
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
    if layers.is_some() {
        path.push(format!("{LAYERS_INSIDE}/bin"));
        python_path.extend(layers_python(python));
        let major = node.and_then(|node| node.version.split('.').next());
        node_path.extend(layers_node(major));
    }
    for (key, folders) in [("PYTHONPATH", python_path), ("NODE_PATH", node_path)] {
        if !folders.is_empty() {
            found.push((key, folders.join(":")));
        }
    }
    found.push(("PATH", path.join(":")));
    // Otherwise a Python program keeps what it prints until its buffer is full.
    found.push(("PYTHONUNBUFFERED", "1".to_owned()));
    found
}

/// The folders of layers with Python modules, as on Lambda. `version` is that of the interpreter: `3.11.7`.
pub(crate) fn layers_python(version: Option<&str>) -> impl Iterator<Item = String> {
    let minor = version.map(|version| version.split('.').take(2).collect::<Vec<_>>().join("."));
    let site = minor.map(|minor| format!("{LAYERS_INSIDE}/python/lib/python{minor}/site-packages"));
    site.into_iter().chain([format!("{LAYERS_INSIDE}/python")])
}

/// The folders of layers with Node.js packages, as on Lambda.
fn layers_node(major: Option<&str>) -> impl Iterator<Item = String> {
    let own = major.map(|major| format!("{LAYERS_INSIDE}/nodejs/node{major}/node_modules"));
    own.into_iter()
        .chain([format!("{LAYERS_INSIDE}/nodejs/node_modules")])
}

/// Whether a function's interpreter must know the folders of its own libraries, or of its layers', from the start. Looks into the
/// folders.
pub(crate) fn needs_libraries(version: &Version) -> bool {
    let has_lib = version.layers.as_ref().is_some_and(|layers| layers.has_lib);
    !version.config.environment.contains_key(LIBRARY_PATH)
        && (has_lib || has_library(&version.code_dir) || has_library(&version.code_dir.join("lib")))
}

/// Whether a folder of the code has a shared library that is no module of Python: those are not searched by the linker.
fn has_library(folder: &Path) -> bool {
    // Links are not followed: the code is the user's.
    let is_folder = folder.symlink_metadata().is_ok_and(|found| found.is_dir());
    let Some(files) = is_folder.then(|| folder.read_dir().ok()).flatten() else {
        return false;
    };
    let is_library = |file: DirEntry| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        let ends = name.ends_with(".so") || name.contains(".so.");
        ends && !name.contains(".cpython-") && !name.contains(".abi3.")
    };
    files.take(FILES_MAX).flatten().any(is_library)
}

/// The dynamic linker reads it when a process starts.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Its value: the folders of the function in Lambda's, in their order.
pub(crate) fn library_path() -> String {
    LIBRARIES_INSIDE.join(":")
}

/// Those of a Python function's variables that are read only when an interpreter starts. `all` are all of its variables.
pub(crate) fn read_at_start(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let read = |name: &str, value: &str| {
        name.starts_with("LD_")
            || name.starts_with("MALLOC_")
            || name == "GLIBC_TUNABLES"
            // The interpreter takes an empty one as not set.
            || READ_BY_PYTHON.contains(&name) && !value.is_empty()
    };
    all.iter()
        .filter(|(name, value)| read(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// What CPython reads when it starts, and what changes something for a function. The worker itself applies PYTHONPATH,
/// PYTHONIOENCODING, PYTHONDONTWRITEBYTECODE, and the others that its streams or its fault handler make superfluous.
const READ_BY_PYTHON: [&str; 21] = [
    "PYTHONASYNCIODEBUG",
    "PYTHONBREAKPOINT",
    "PYTHONCOERCECLOCALE",
    "PYTHONDEBUG",
    "PYTHONDEVMODE",
    "PYTHONHASHSEED",
    "PYTHONINTMAXSTRDIGITS",
    "PYTHONMALLOC",
    "PYTHONMALLOCSTATS",
    "PYTHONNODEBUGRANGES",
    "PYTHONOPTIMIZE",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONPYCACHEPREFIX",
    "PYTHONTRACEMALLOC",
    "PYTHONUTF8",
    "PYTHONVERBOSE",
    "PYTHONWARNDEFAULTENCODING",
    "PYTHONWARNINGS",
    "PYTHON_CPU_COUNT",
    "PYTHON_GIL",
    "PYTHON_JIT",
];

/// Most files of a folder that are looked at for a library.
const FILES_MAX: usize = 10_000;

const ON_DEMAND: &str = "on-demand";

/// The version of a Python whose executable has it in its name, as links to it are resolved: `python3.11`.
pub(crate) fn python_of(version: &Version) -> Option<&str> {
    let python = version.environment.python.as_ref()?;
    let name = python.executable.file_name()?.to_str()?;
    name.strip_prefix("python")
        .filter(|version| version.contains('.'))
}

/// For a function's own HTTP server (Knative's container runtime contract; Cloud Run's "container runtime contract").
pub(crate) fn of_server(version: &Version, port: u16) -> BTreeMap<String, String> {
    let config = &version.config;
    let mut variables = base();
    add_paths(version, python_of(version), &mut variables);
    add_library_path(version, &mut variables);
    variables.extend(config.environment.clone());
    variables.insert("PORT".to_owned(), port.to_string());
    variables.extend(service(version));
    variables
}

/// For the worker of a component, which gives them to the component.
pub(crate) fn of_component(
    version: &Version,
    secrets: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let config = &version.config;
    let mut variables = config.environment.clone();
    variables.extend(secrets);
    variables.extend(service(version));
    let named = |(name, value)| (format!("{VARIABLE}{name}"), value);
    variables.into_iter().map(named).collect()
}

/// What a server is told about itself.
fn service(version: &Version) -> [(String, String); 3] {
    let name = version.config.name.as_str();
    [
        ("K_SERVICE", name.to_owned()),
        ("K_CONFIGURATION", name.to_owned()),
        ("K_REVISION", format!("{name}-{:05}", version.number)),
    ]
    .map(|(key, value)| (key.to_owned(), value))
}

fn keep(variables: &mut BTreeMap<String, String>, version: &Version, key: &str, value: String) {
    if !version.config.environment.contains_key(key) {
        variables.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_at_the_start_is_told_from_what_is_not() {
        let all: BTreeMap<String, String> = [
            ("LD_PRELOAD", "/var/task/x.so"),
            ("MALLOC_ARENA_MAX", "1"),
            ("PYTHONHASHSEED", "0"),
            ("PYTHONWARNINGS", ""),
            ("PYTHONPATH", "lib"),
            ("PYTHONHOME", "/var/task"),
            ("PYTHONUNBUFFERED", "1"),
            ("TZ", "UTC"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let read: Vec<String> = read_at_start(&all).into_keys().collect();
        assert_eq!(read, ["LD_PRELOAD", "MALLOC_ARENA_MAX", "PYTHONHASHSEED"]);
    }

    #[test]
    fn only_libraries_of_the_folder_itself_count() {
        let folder = tempfile::tempdir().unwrap();
        let code = folder.path().join("code");
        std::fs::create_dir_all(code.join("below")).unwrap();
        for name in [
            "app.py",
            "below/libx.so",
            "_x.cpython-311-x86_64-linux-gnu.so",
            "_y.abi3.so",
        ] {
            std::fs::write(code.join(name), "").unwrap();
        }
        assert!(!has_library(&code));
        assert!(has_library(&code.join("below")));
        std::fs::write(code.join("libx.so.1"), "").unwrap();
        assert!(has_library(&code));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&code, &link).unwrap();
        assert!(!has_library(&link));
        assert!(!has_library(&folder.path().join("none")));
    }
}
