//! Versions for tests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::ports::Call;
use pilot_model::runtime::python::PythonRuntime;
use pilot_model::{
    CpuLimit, Environment, EnvironmentId, FunctionConfig, FunctionName, HttpRequestHead, Interface,
    InvocationHead, InvocationId, Invokes, KeepAlive, Network, Policy, Python, Reuse, Runtime,
    ScaleConfig, TemplateMode, Version, VersionId,
};

/// A call with its own request id, for a worker that is called directly.
#[must_use]
pub fn event_call(id: &str, event: &str) -> Call {
    Call {
        stream: 1,
        head: Arc::new(InvocationHead {
            id: InvocationId::new(id),
            arn: "arn:aws:lambda:us-east-1:000000000000:function:f".to_owned(),
            version: 3,
            deadline_unix_ms: 1_700_000_000_123,
            client_context: None,
            trace: None,
            trace_state: None,
            failed_inputs: Vec::new(),
            http: None,
        }),
        payload: Bytes::copy_from_slice(event.as_bytes()),
        inputs: Vec::new(),
        paths: Vec::new(),
    }
}

/// The head of a request `GET /a%20b?x=1` to the application `f`.
#[must_use]
pub fn http_head() -> HttpRequestHead {
    HttpRequestHead {
        method: "GET".to_owned(),
        path: "/a%20b".to_owned(),
        query: "x=1".to_owned(),
        root_path: "/fn/f".to_owned(),
        headers: vec![("host".to_owned(), "here \"quoted\"".to_owned())],
        client: SocketAddr::from(([127, 0, 0, 1], 4242)),
        scheme: "http",
    }
}

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
        runtime: Runtime::Python(PythonRuntime { minor: None }),
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
            spare: 0,
            idle: Duration::from_secs(60),
            policy: Policy::Demand,
            max_wait: None,
            reserved: 0,
        },
        owner,
        layers: Vec::new(),
        secrets: BTreeMap::new(),
        cors: None,
        inputs: BTreeMap::new(),
        inputs_by_request: false,
        drop_ins: true,
        by_reference: true,
        initscript: None,
        shared_initscript: None,
        keep_alive: KeepAlive::default(),
        cpu_limit: CpuLimit::default(),
        asynchronous: pilot_model::AsyncConfig::default(),
        triggers: Vec::new(),
        invokes: Invokes::default(),
        root_path: None,
    }
}

/// Version `number` of a function with [`config`].
#[must_use]
pub fn version(name: &str, number: u32) -> Arc<Version> {
    version_with(name, number, |_| ())
}

/// Version `number` of a function whose [`config`] `change` has edited.
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
        layers: None,
        environment: Environment {
            id: EnvironmentId::from_hex("00000000000000e0"),
            python: Some(Python {
                executable: PathBuf::from("/usr/bin/python3"),
                prefix: PathBuf::from("/usr"),
                packages_dir: None,
                imports: Vec::new(),
            }),
            node: None,
        },
        own_imports: None,
        modules: Vec::new(),
    })
}
