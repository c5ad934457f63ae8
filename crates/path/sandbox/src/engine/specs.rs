//! The `TemplateSpec`s (see the wire protocol) of a Python function's processes.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use pilot_model::ports::StartError;
use pilot_model::{Environment, Version};
use pilot_wire::control::{FunctionInfo, TemplateSpec};

use crate::places::{CODE_INSIDE, PACKAGES_INSIDE};
use crate::runtime_files::PYTHON_WORKER_INSIDE;
use crate::variables;

/// `libraries`: whether the interpreter was started with the folders of libraries.
pub(super) fn of_environment(
    environment: &Environment,
    user: Option<u32>,
    libraries: bool,
) -> TemplateSpec {
    let mut own = variables::of_environment(environment, PYTHON_WORKER_INSIDE);
    if libraries {
        own.insert(
            variables::LIBRARY_PATH.to_owned(),
            variables::library_path(),
        );
    }
    TemplateSpec {
        level: "environment",
        cwd: "/".to_owned(),
        sys_path: vec![PACKAGES_INSIDE.to_owned()],
        imports: environment
            .python
            .as_ref()
            .map_or_else(Vec::new, |python| python.imports.clone()),
        handler: None,
        interface: "event".to_owned(),
        environment: own,
        uid: user,
        gid: user,
        keep_caps: true,
        filter: None,
        concurrency: 1,
        function: None,
        secrets: false,
        drop_ins: Vec::new(),
    }
}

/// `python` is the interpreter's version, `3.11.7`. `libraries` as above.
pub(super) fn of_function(
    version: &Version,
    python: &str,
    user: Option<u32>,
    filter: &[u8],
    libraries: bool,
) -> TemplateSpec {
    let config = &version.config;
    let packages = version.environment.packages_dir();
    let mut sys_path = vec![CODE_INSIDE.to_owned()];
    // The interpreter was started without it. Relative ones are below the code, as for Python.
    let more = config.environment.get("PYTHONPATH").map(String::as_str);
    let more = more
        .unwrap_or_default()
        .split(':')
        .filter(|part| !part.is_empty());
    sys_path.extend(more.map(|part| format!("{}", Path::new(CODE_INSIDE).join(part).display())));
    sys_path.extend(packages.map(|_| PACKAGES_INSIDE.to_owned()));
    if version.layers.is_some() {
        sys_path.extend(variables::layers_python(Some(python)));
    }
    let mut environment = variables::of_lambda(version, PYTHON_WORKER_INSIDE);
    // For the programs that it starts; it finds its own packages through `sys_path`.
    variables::add_paths(version, Some(python), &mut environment);
    if libraries {
        let path = variables::library_path();
        environment.insert(variables::LIBRARY_PATH.to_owned(), path);
    }
    TemplateSpec {
        level: "function",
        cwd: CODE_INSIDE.to_owned(),
        sys_path,
        imports: Vec::new(),
        handler: Some(config.handler.clone()),
        interface: config.interface.as_str().to_owned(),
        environment,
        uid: user,
        gid: user,
        keep_caps: true,
        filter: Some(STANDARD.encode(filter)),
        concurrency: config.concurrency,
        function: Some(function_info(version)),
        secrets: !config.secrets.is_empty(),
        drop_ins: config.drop_ins(),
    }
}

/// The function's properties in a worker's `context`.
pub(crate) fn function_info(version: &Version) -> FunctionInfo {
    let config = &version.config;
    FunctionInfo {
        name: config.name.to_string(),
        version: version.number.to_string(),
        memory_mb: config.memory_bytes >> 20,
        timeout_s: config.timeout.as_secs_f64(),
        arn: version.arn(None),
    }
}

/// Writes a spec into a pipe, for a new worker or template that gets the descriptor.
pub(super) fn piped(spec: &TemplateSpec) -> Result<OwnedFd, StartError> {
    let write = || -> io::Result<OwnedFd> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // It fits into the pipe or fails, because nothing reads yet.
        File::from(writer).write_all(&serde_json::to_vec(spec)?)?;
        nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(reader)
    };
    write().map_err(|error| StartError::Sandbox {
        problem: format!("send an interpreter its specification: {error}"),
    })
}
