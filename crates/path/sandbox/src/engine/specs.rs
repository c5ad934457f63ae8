//! What a function's processes are told: `TemplateSpec`s of the wire protocol, and the environment variables Lambda's
//! documentation names ("Defined runtime environment variables").

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use pilot_model::ports::StartError;
use pilot_model::{Environment, Version};
use pilot_wire::control::{FunctionInfo, TemplateSpec};

/// Where a sandbox finds what was installed.
pub(super) const PACKAGES_INSIDE: &str = "/opt/environment";

/// Where a sandbox finds the code.
pub(super) const CODE_INSIDE: &str = "/var/task";

pub(super) fn of_environment(environment: &Environment, user: Option<u32>) -> TemplateSpec {
    TemplateSpec {
        level: "environment",
        cwd: "/".to_owned(),
        sys_path: vec![PACKAGES_INSIDE.to_owned()],
        imports: environment.imports.clone(),
        handler: None,
        interface: "event".to_owned(),
        environment: base_variables(),
        uid: user,
        gid: user,
        keep_caps: true,
        filter: None,
        concurrency: 1,
        function: None,
    }
}

pub(super) fn of_function(version: &Version, user: Option<u32>, filter: &[u8]) -> TemplateSpec {
    let config = &version.config;
    let packages = version.environment.packages_dir.as_ref();
    let mut sys_path = vec![CODE_INSIDE.to_owned()];
    sys_path.extend(packages.map(|_| PACKAGES_INSIDE.to_owned()));
    TemplateSpec {
        level: "function",
        cwd: CODE_INSIDE.to_owned(),
        sys_path,
        imports: Vec::new(),
        handler: Some(config.handler.clone()),
        interface: config.interface.as_str().to_owned(),
        environment: function_variables(version),
        uid: user,
        gid: user,
        keep_caps: true,
        filter: Some(STANDARD.encode(filter)),
        concurrency: config.concurrency,
        function: Some(FunctionInfo {
            name: config.name.to_string(),
            version: version.number.to_string(),
            memory_mb: config.memory_bytes >> 20,
            timeout_s: config.timeout.as_secs_f64(),
            arn: format!("arn:aws:lambda:local:000000000000:function:{}", config.name),
        }),
    }
}

/// A spec in a pipe, to be read by the process that gets the descriptor.
pub(super) fn piped(spec: &TemplateSpec) -> Result<OwnedFd, StartError> {
    let write = || -> io::Result<OwnedFd> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // It fits the pipe, or fails: nobody reads yet.
        File::from(writer).write_all(&serde_json::to_vec(spec)?)?;
        nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(reader)
    };
    write().map_err(|error| StartError::Sandbox {
        problem: format!("hand a worker its specification: {error}"),
    })
}

pub(super) fn base_variables() -> BTreeMap<String, String> {
    [
        ("HOME", "/tmp"),
        ("LANG", "C.UTF-8"),
        ("PATH", "/opt/environment/bin:/usr/local/bin:/usr/bin:/bin"),
        ("TZ", ":UTC"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn function_variables(version: &Version) -> BTreeMap<String, String> {
    let config = &version.config;
    let name = config.name.as_str();
    let mut variables = base_variables();
    let own = [
        ("AWS_DEFAULT_REGION", "us-east-1".to_owned()),
        (
            "AWS_EXECUTION_ENV",
            format!("AWS_Lambda_{}", config.runtime),
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
        ("AWS_REGION", "us-east-1".to_owned()),
        ("LAMBDA_RUNTIME_DIR", "/opt/pilot/python".to_owned()),
        ("LAMBDA_TASK_ROOT", CODE_INSIDE.to_owned()),
        ("_HANDLER", config.handler.clone()),
    ];
    variables.extend(own.map(|(key, value)| (key.to_owned(), value)));
    variables.extend(config.environment.clone());
    variables
}
