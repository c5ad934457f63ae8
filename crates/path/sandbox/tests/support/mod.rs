//! Shared by the engine's suites: a configuration, a deployed version, one call of a worker, and the last line of a skipped
//! suite.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nix::unistd::geteuid;
use pilot_model::ports::{Answer, Worker, WorkerFault};
use pilot_model::{Environment, EnvironmentId, FunctionSpec, Python, Version, VersionId};
use pilot_sandbox::{EngineConfig, OUTBOUND_CIDR_DEFAULT};

/// Whether a suite with this many checks is skipped, because it does not run as root; reports and counts it.
pub(crate) fn is_skipped(checks: u32, why: &str) -> bool {
    if geteuid().is_root() {
        return false;
    }
    skip(checks, why);
    true
}

/// Reports and counts a skipped suite of this many checks.
pub(crate) fn skip(checks: u32, why: &str) {
    println!("\n*** NOTHING WAS TRIED: {why} ***");
    println!("0 passed, 0 failed, {checks} skipped");
}

/// An engine with all its files below `dir`.
pub(crate) fn engine_config(dir: &Path) -> EngineConfig {
    std::fs::create_dir_all(dir.join("run/root")).expect("a folder");
    EngineConfig {
        dir: dir.join("run"),
        tmp_bytes_max: 64 << 20,
        pids_max: 64,
        template_memory_bytes: 2 << 30,
        total: None,
        outbound_cidr: OUTBOUND_CIDR_DEFAULT,
        huge_pages: true,
        buffers_bytes_max: 64 << 20,
        answers: pilot_protocols::MemoryBudget::default(),
        secrets: Arc::new(pilot_testkit::FixedSecrets::default()),
    }
}

/// A version with this code as `app.py`, and the interpreter `python3`.
pub(crate) fn version(dir: &Path, name: &str, code: &str, spec: &FunctionSpec) -> Arc<Version> {
    let code_dir = dir.join("code").join(name);
    std::fs::create_dir_all(&code_dir).expect("a folder");
    std::fs::write(code_dir.join("app.py"), code).expect("a file");
    Arc::new(Version {
        id: VersionId::from_hex(name),
        number: 1,
        config: spec
            .check(&name.parse().expect("a name"))
            .expect("a configuration"),
        code_dir,
        layers: None,
        environment: Environment {
            id: EnvironmentId::from_hex("none"),
            python: Some(Python {
                executable: python("os.path.realpath(sys.executable)"),
                prefix: python("sys.base_prefix"),
                packages_dir: None,
                imports: Vec::new(),
            }),
            node: None,
        },
        own_imports: None,
        modules: Vec::new(),
    })
}

fn python(expression: &str) -> PathBuf {
    let script = format!("import sys, os; print({expression})");
    let output = Command::new("python3")
        .args(["-I", "-c", &script])
        .output()
        .expect("python3");
    PathBuf::from(String::from_utf8(output.stdout).expect("text").trim())
}

/// One call.
pub(crate) async fn call(worker: &Arc<dyn Worker>, event: &str) -> Result<Answer, WorkerFault> {
    let mut call = pilot_testkit::event_call("1", event);
    Arc::make_mut(&mut call.head).deadline_unix_ms = 99_999_999_999_999;
    worker.call(call).await
}
