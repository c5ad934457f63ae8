//! Shared by the checks: an engine, a host with a fresh data directory, versions of functions, calls.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use pilot_container::{ContainerConfig, ContainerGroup, ContainerHost, VolumeLimit};
use pilot_model::ports::{
    Answer, Call, Done, PrewarmedRuntime, RuntimeHost, StartError, Worker, WorkerFault,
};
use pilot_model::secret::{SecretSpec, SecretTable};
use pilot_model::{
    Environment, EnvironmentId, FunctionSpec, Instant, Version, VersionId, WorkerId,
};

pub(crate) const BUSYBOX: &str = "pilot-test/busybox:1";
pub(crate) const PYTHON: &str = "pilot-test/python:1";

/// An engine for this run.
pub(crate) struct TestEngine {
    dir: PathBuf,
}

impl TestEngine {
    /// With `--live-restore`, so that containers survive its end.
    pub(crate) fn start() -> Result<Self, String> {
        // A short path, because sockets are below it.
        let engine = Self {
            dir: format!("/tmp/pilot-engine-{}", std::process::id()).into(),
        };
        engine.up()?;
        let images = engine.script("images", &[]);
        if !images.status.success() {
            engine.stop();
            return Err(text(&images.stderr));
        }
        Ok(engine)
    }

    /// Ends it and removes what it made.
    pub(crate) fn stop(&self) {
        let output = self.script("stop", &[]);
        if !output.status.success() {
            eprintln!("{}", text(&output.stderr));
        }
    }

    pub(crate) fn up(&self) -> Result<(), String> {
        let output = self.script("start", &["--live-restore"]);
        if output.status.success() {
            Ok(())
        } else {
            Err(text(&output.stderr).trim().to_owned())
        }
    }

    /// Simulates a crash.
    pub(crate) fn crash(&self) {
        assert!(self.script("halt", &["KILL"]).status.success());
    }

    /// The folder of everything that it makes.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn script(&self, verb: &str, more: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/dockerd");
        Command::new(script)
            .arg(verb)
            .arg(&self.dir)
            .args(more)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap()
    }

    fn address(&self) -> String {
        format!("unix://{}/docker.sock", self.dir.display())
    }

    /// Runs docker's own client.
    pub(crate) fn docker(&self, words: &[&str]) -> String {
        let output = Command::new("docker")
            .args(words)
            .env("DOCKER_HOST", self.address())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "docker {words:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout).trim().to_owned()
    }

    /// Builds an image on top of another one.
    pub(crate) fn build(&self, name: &str, dockerfile: &str) {
        let mut build = Command::new("docker")
            .args(["build", "--quiet", "--tag", name, "-"])
            .env("DOCKER_HOST", self.address())
            .env("DOCKER_BUILDKIT", "0")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = build.stdin.take().unwrap();
        stdin.write_all(dockerfile.as_bytes()).unwrap();
        drop(stdin);
        let output = build.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// A data directory and a host for one check.
pub(crate) struct Stage {
    pub(crate) engine: &'static TestEngine,
    pub(crate) dir: tempfile::TempDir,
}

impl Drop for Stage {
    /// A host that is dropped removes its containers, and leaves their folders to the next one. Here there is none. What the
    /// host has begun to remove may be unmounted by itself meanwhile.
    fn drop(&mut self) {
        for at in self.mounts() {
            let unmounted = Command::new("umount").args(["--lazy", &at]).status();
            let unmounted = unmounted.is_ok_and(|status| status.success());
            assert!(
                unmounted || !self.mounts().contains(&at),
                "{at} stays mounted"
            );
        }
    }
}

impl Stage {
    pub(crate) fn new(engine: &'static TestEngine) -> Self {
        Self {
            engine,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn host(&self) -> ContainerHost {
        host(self.dir.path(), &self.engine.address())
    }

    pub(crate) fn address(&self) -> String {
        self.engine.address()
    }

    /// A deployed version.
    pub(crate) fn version(&self, name: &str, spec: &Spec<'_>) -> Arc<Version> {
        version(self.dir.path(), name, spec)
    }

    /// Places below the data directory where something is mounted.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let dir = self.dir.path().display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|at| at.starts_with(&dir))
            .map(str::to_owned)
            .collect()
    }

    /// Names of the engine's containers of this stage, in any state.
    pub(crate) fn containers(&self) -> String {
        let label = format!("label=io.pilotlight.daemon={}", self.dir.path().display());
        self.engine
            .docker(&["ps", "--all", "--filter", &label, "--format", "{{.Names}}"])
    }

    /// Folders of containers on the disk.
    pub(crate) fn folders(&self) -> Vec<String> {
        std::fs::read_dir(self.dir.path().join("run/containers"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "shim")
            .collect()
    }
}

/// A version deployed in this data directory.
pub(crate) fn version(dir: &Path, name: &str, spec: &Spec<'_>) -> Arc<Version> {
    let code_dir = dir.join("code").join(name);
    std::fs::create_dir_all(&code_dir).unwrap();
    for (file, code) in spec.code {
        std::fs::write(code_dir.join(file), code).unwrap();
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let config = FunctionSpec {
        runtime: Some("container".to_owned()),
        image: Some(spec.image.to_owned()),
        contract: Some(spec.contract.to_owned()),
        command: (!spec.command.is_empty()).then(|| words(spec.command)),
        ready: spec.ready.map(str::to_owned),
        memory_mb: spec.memory_mb,
        network: spec.network.map(str::to_owned),
        root: spec.root.map(str::to_owned),
        volume_mb: spec.volume_mb,
        secrets: spec
            .secret_files
            .iter()
            .map(|(variable, secret, file)| {
                let table = SecretTable {
                    secret: (*secret).to_owned(),
                    file: Some((*file).to_owned()),
                };
                ((*variable).to_owned(), SecretSpec::Table(table))
            })
            .collect(),
        owner: Some("owner".to_owned()),
        environment: [("OWN".to_owned(), "own value".to_owned())].into(),
        ..FunctionSpec::default()
    };
    Arc::new(Version {
        id: VersionId::from_hex(name),
        number: 7,
        config: config.check(&name.parse().unwrap()).unwrap(),
        code_dir,
        layers: None,
        environment: Environment {
            id: EnvironmentId::from_hex("none"),
            python: None,
            node: None,
        },
        own_imports: None,
        modules: Vec::new(),
    })
}

/// The configuration of a function; the rest is the default.
#[derive(Default)]
pub(crate) struct Spec<'a> {
    pub(crate) image: &'a str,
    pub(crate) contract: &'a str,
    pub(crate) command: &'a [&'a str],
    pub(crate) code: &'a [(&'a str, &'a str)],
    pub(crate) ready: Option<&'a str>,
    pub(crate) memory_mb: Option<u64>,
    pub(crate) network: Option<&'a str>,
    pub(crate) root: Option<&'a str>,
    pub(crate) volume_mb: Option<u32>,
    /// Variable, secret and file of each.
    pub(crate) secret_files: &'a [(&'a str, &'a str, &'a str)],
}

/// A function whose program is this shell script.
pub(crate) fn shell<'a>(code: &'a [(&'a str, &'a str)]) -> Spec<'a> {
    Spec {
        image: BUSYBOX,
        contract: "shim",
        command: &["/bin/sh", "handler.sh"],
        code,
        ..Spec::default()
    }
}

/// Size of a container's volume.
pub(crate) const VOLUME_BYTES: u64 = 64 << 20;

pub(crate) fn host(dir: &Path, engine: &str) -> ContainerHost {
    host_in(dir, engine, ContainerGroup::Engine)
}

/// A host whose containers are in this control group.
pub(crate) fn host_in(dir: &Path, engine: &str, group: ContainerGroup) -> ContainerHost {
    ContainerHost::new(ContainerConfig {
        engine: Some(engine.to_owned()),
        dir: dir.join("run"),
        data_dir: dir.to_owned(),
        tmp_bytes_max: 16 << 20,
        pids_max: 64,
        group,
        volume: VolumeLimit::IfPossible(VOLUME_BYTES),
        answers: pilot_protocols::MemoryBudget::default(),
        secrets: std::sync::Arc::new(pilot_testkit::FixedSecrets(
            [("tls-key".to_owned(), "the key\n".to_owned())].into(),
        )),
    })
}

pub(crate) fn now() -> Instant {
    Instant(pilot_sys::clock::monotonic_ns())
}

/// A pre-warmed container for a version.
pub(crate) async fn prewarmed(
    host: &ContainerHost,
    version: &Arc<Version>,
) -> Result<Arc<dyn PrewarmedRuntime>, StartError> {
    host.start(&Arc::new(host.key(version).unwrap())).await
}

/// A worker of a version in a container.
pub(crate) async fn specialise(
    runtime: &Arc<dyn PrewarmedRuntime>,
    version: &Arc<Version>,
) -> Result<Arc<dyn Worker>, StartError> {
    Arc::clone(runtime)
        .specialise(version, WorkerId(1), now())
        .await
}

pub(crate) fn call(event: &str) -> Call {
    let mut call = pilot_testkit::event_call("request-1", event);
    Arc::make_mut(&mut call.head).deadline_unix_ms = 99_999_999_999_999;
    call
}

/// The answer to an event; panics on an error.
pub(crate) async fn answer(worker: &Arc<dyn Worker>, event: &str) -> (String, String) {
    match worker.call(call(event)).await {
        Ok(Answer::Result(body, done)) => (text(&body), text(&done.output)),
        other => panic!("{other:?}"),
    }
}

/// The error of an event; panics on an answer.
pub(crate) async fn error(worker: &Arc<dyn Worker>, event: &str) -> (serde_json::Value, Done) {
    match worker.call(call(event)).await {
        Ok(Answer::Error(body, done)) => (serde_json::from_slice(&body).unwrap(), done),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn fault(worker: &Arc<dyn Worker>, event: &str) -> WorkerFault {
    worker.call(call(event)).await.unwrap_err()
}

pub(crate) fn problem(error: &StartError) -> String {
    error.to_string()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
