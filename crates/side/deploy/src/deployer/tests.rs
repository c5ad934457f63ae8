use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use pilot_model::asynchronous::AsyncSpec;
use pilot_model::deployment::TemplateReport;
use pilot_model::deployment::{DeployError, DeployReport, Progress};
use pilot_model::ports::{Deployment, Scaling, StartError};
use pilot_model::status::ForecastStatus;
use pilot_model::{FunctionSpec, Version, VersionId};
use tokio::sync::Semaphore;

use super::*;

mod folders;
mod runtimes;
mod turns;

/// Records calls. Each trial start waits for a permit, and those of functions in `hangs` for ever.
#[derive(Debug)]
struct FakePlatform {
    tries: Semaphore,
    hangs: Mutex<HashSet<FunctionName>>,
    tried: Mutex<Vec<Arc<Version>>>,
    refuse: Mutex<Option<StartError>>,
    discarded: Mutex<Vec<Arc<Version>>>,
    activated: Mutex<Vec<Arc<Version>>>,
    broken: Mutex<Vec<(FunctionName, String)>>,
    removed: Mutex<Vec<FunctionName>>,
}

impl Default for FakePlatform {
    fn default() -> Self {
        Self {
            tries: Semaphore::new(1000),
            hangs: Mutex::default(),
            tried: Mutex::default(),
            refuse: Mutex::default(),
            discarded: Mutex::default(),
            activated: Mutex::default(),
            broken: Mutex::default(),
            removed: Mutex::default(),
        }
    }
}

/// The platform for the deployer.
#[derive(Debug, Clone, Default)]
struct SharedPlatform(Arc<FakePlatform>);

impl Platform for SharedPlatform {
    fn try_version(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let (platform, version) = (Arc::clone(&self.0), Arc::clone(version));
        Box::pin(async move {
            if platform.hangs.lock().contains(&version.config.name) {
                return std::future::pending().await;
            }
            platform.tries.acquire().await.unwrap().forget();
            platform.tried.lock().push(version);
            match platform.refuse.lock().clone() {
                Some(error) => Err(error),
                None => Ok(template()),
            }
        })
    }

    fn discard(&self, version: &Arc<Version>) {
        self.0.discarded.lock().push(Arc::clone(version));
    }

    fn activate(&self, version: Arc<Version>) {
        assert!(version.code_dir.is_dir(), "what is activated is there");
        self.0.activated.lock().push(version);
    }

    fn mark_broken(&self, name: &FunctionName, problem: &str) {
        self.0
            .broken
            .lock()
            .push((name.clone(), problem.to_owned()));
    }

    fn keep_versions(&self, name: &FunctionName, kept: &[u32]) {
        self.0
            .activated
            .lock()
            .retain(|version| version.config.name != *name || kept.contains(&version.number));
    }

    fn remove(&self, name: &FunctionName) {
        self.0.removed.lock().push(name.clone());
    }

    fn renew(&self, _name: &FunctionName) {}

    fn status(&self, _name: &FunctionName) -> Option<PoolStatus> {
        Some(PoolStatus {
            idle: 2,
            ..PoolStatus::default()
        })
    }

    fn scale(&self, _name: &FunctionName, scaling: Scaling) -> Option<PoolStatus> {
        Some(PoolStatus {
            idle: scaling.workers.unwrap_or(0),
            ..PoolStatus::default()
        })
    }

    fn forecast(&self, _name: &FunctionName) -> Option<ForecastStatus> {
        None
    }
}

#[derive(Debug, Default)]
struct FakeObserved(Mutex<HashSet<FunctionName>>);

impl Observed for FakeObserved {
    fn observation(&self, _name: &FunctionName) -> Observation {
        Observation::default()
    }

    fn forget(&self, name: &FunctionName) {
        self.0.lock().insert(name.clone());
    }
}

fn template() -> TemplateReport {
    TemplateReport {
        python: "3.11.7".to_owned(),
        imports: vec![],
        failed_imports: vec![],
        findings: Vec::new(),
        memory_bytes: 9 << 20,
        forkable: true,
        reason: None,
        own_imports: None,
        modules: Vec::new(),
        took: Duration::from_millis(30),
        warnings: Vec::new(),
    }
}

/// A deployer with its own data directory, and an interpreter that installs nothing.
struct Bench {
    folder: tempfile::TempDir,
    platform: SharedPlatform,
    observed: Arc<FakeObserved>,
    deployer: Option<Deployer>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let python = bin.join("python3");
        fs::write(&python, PYTHON).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let mut bench = Self {
            folder,
            platform: SharedPlatform::default(),
            observed: Arc::default(),
            deployer: None,
        };
        bench.restart();
        bench
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn open(&self, data_dir: &Path) -> Result<(Deployer, SharedPlatform), OpenError> {
        let mut config = DeployConfig::new(
            data_dir.to_owned(),
            Arc::new(pilot_testkit::UnconfinedBuilds),
        );
        config.environment.search_path = self.folder.path().join("bin").into();
        let platform = SharedPlatform::default();
        let observed = Arc::clone(&self.observed) as Arc<dyn Observed>;
        Deployer::open(config, Arc::new(platform.clone()), observed)
            .map(|deployer| (deployer, platform))
    }

    /// Simulates a restart of the daemon.
    fn restart(&mut self) {
        self.deployer = None;
        let (deployer, platform) = self.open(&self.data_dir()).unwrap();
        (self.deployer, self.platform) = (Some(deployer), platform);
    }

    fn deployer(&self) -> &Deployer {
        self.deployer.as_ref().unwrap()
    }

    async fn deploy(
        &self,
        name: &str,
        files: &[(&str, &str)],
    ) -> Result<DeployReport, DeployError> {
        self.deploy_with(name, files, |_| {}).await
    }

    async fn deploy_with(
        &self,
        name: &str,
        files: &[(&str, &str)],
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<DeployReport, DeployError> {
        let progress = Arc::new(progress);
        self.deployer()
            .deploy(Deployment {
                progress,
                ..deployment(name, FunctionSpec::default(), archive(files))
            })
            .await
    }

    fn entries(&self, folder: &str) -> usize {
        entries(&self.data_dir().join(folder))
    }

    fn staged(&self) -> usize {
        let runs = fs::read_dir(self.data_dir().join("staging")).unwrap();
        runs.map(|run| entries(&run.unwrap().path())).sum()
    }
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Files whose name begins with `bootstrap` are executable.
fn archive(files: &[(&str, &str)]) -> File {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, text) in files {
        let mut header = tar::Header::new_gnu();
        let executable = path.starts_with("bootstrap");
        header.set_mode(if executable { 0o755 } else { 0o644 });
        header.set_size(text.len() as u64);
        tar.append_data(&mut header, path, text.as_bytes()).unwrap();
    }
    file_of(&tar.into_inner().unwrap().finish().unwrap())
}

/// An upload, written to its end as the control API leaves it or not.
fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// By the operator, who does not listen.
fn deployment(name: &str, spec: FunctionSpec, archive: File) -> Deployment {
    Deployment {
        name: name.parse().unwrap(),
        spec,
        archive,
        actor: Actor::operator(),
        progress: Arc::new(|_| {}),
    }
}

fn name(text: &str) -> FunctionName {
    text.parse().unwrap()
}

fn code(error: &DeployError) -> &'static str {
    match error {
        DeployError::Invalid { code, .. } => code,
        DeployError::Internal { .. } => "internal",
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &place);
        } else {
            fs::copy(entry.path(), place).unwrap();
        }
    }
}

#[tokio::test]
async fn a_deployed_function_is_listed_and_described() {
    let bench = Bench::new();
    let report = bench.deploy("invert", APP_1).await.unwrap();
    assert!(report.changed && report.environment_reused);
    assert_eq!(
        (report.number, report.url_path.as_str()),
        (1, "/fn/invert/")
    );
    assert_eq!(report.template, template());
    let list = bench.deployer().list();
    assert_eq!(list.len(), 1);
    assert_eq!(
        (list[0].version.clone(), list[0].workers.idle),
        (report.version, 2)
    );
    let described = bench.deployer().describe(&name("invert")).unwrap();
    assert_eq!(described.summary, list[0]);
    assert_eq!(described.config.handler, "app.handler");
    assert!(bench.deployer().describe(&name("other")).is_none());
    assert_eq!(bench.platform.0.activated.lock().len(), 1);
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn the_same_again_changes_nothing() {
    let bench = Bench::new();
    let first = bench.deploy("f", APP_1).await.unwrap();
    let second = bench.deploy("f", APP_1).await.unwrap();
    assert!(!second.changed);
    assert_eq!((second.version, second.number), (first.version, 1));
    assert_eq!(bench.platform.0.tried.lock().len(), 1);
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn a_destination_that_is_not_deployed_is_named_until_it_is() {
    let bench = Bench::new();
    let deployed = |function: &'static str| {
        let spec = FunctionSpec {
            asynchronous: Some(AsyncSpec {
                on_success: Some("bill".to_owned()),
                on_failure: Some("file:failed.jsonl".to_owned()),
                ..AsyncSpec::default()
            }),
            ..FunctionSpec::default()
        };
        let deployer = bench.deployer();
        deployer.deploy(deployment(function, spec, archive(APP_1)))
    };
    for changed in [true, false] {
        let report = deployed("orders").await.unwrap();
        assert_eq!(report.changed, changed);
        let [warning] = &report.template.warnings[..] else {
            panic!("{:?}", report.template.warnings);
        };
        assert!(warning.contains("async.on_success"), "{warning}");
        assert!(warning.contains("no function 'bill'"), "{warning}");
    }
    bench.deploy("bill", APP_1).await.unwrap();
    let report = deployed("orders").await.unwrap();
    assert_eq!(report.template.warnings, Vec::<String>::new());
}

/// The ids of the versions whose templates were ended because they do not become live.
fn discarded(bench: &Bench) -> Vec<u32> {
    let discarded = bench.platform.0.discarded.lock();
    discarded.iter().map(|version| version.number).collect()
}

#[tokio::test]
async fn a_version_that_does_not_become_live_leaves_no_template() {
    let bench = Bench::new();
    bench.deploy("f", APP_1).await.unwrap();
    let registry = rusqlite::Connection::open(bench.data_dir().join("registry.sqlite")).unwrap();
    let refuse =
        "CREATE TRIGGER refuse BEFORE INSERT ON versions BEGIN SELECT RAISE(FAIL, 'no'); END";
    registry.execute_batch(refuse).unwrap();
    let error = bench.deploy("f", APP_2).await.unwrap_err();
    assert_eq!(code(&error), "internal", "{error}");
    assert_eq!(discarded(&bench), [2]);
    registry.execute_batch("DROP TRIGGER refuse").unwrap();
    let report = bench.deploy("f", APP_2).await.unwrap();
    assert_eq!((report.number, discarded(&bench).len()), (2, 1));
}

#[tokio::test]
async fn a_deployment_for_which_nobody_waits_leaves_no_template() {
    let bench = Bench::new();
    bench.platform.0.tries.forget_permits(1000);
    let tries = Arc::new(tokio::sync::Notify::new());
    let begun = Arc::clone(&tries);
    let deployed = bench.deploy_with("f", APP_1, move |progress| {
        if progress.stage == "template" {
            begun.notify_one();
        }
    });
    tokio::select! {
        done = deployed => panic!("{done:?}"),
        () = tries.notified() => {}
    }
    assert_eq!(discarded(&bench), [1]);
}

#[tokio::test]
async fn another_configuration_is_another_version() {
    let bench = Bench::new();
    bench.deploy("f", APP_1).await.unwrap();
    let spec = FunctionSpec {
        memory_mb: Some(512),
        ..FunctionSpec::default()
    };
    let report = bench
        .deployer()
        .deploy(deployment("f", spec, archive(APP_1)))
        .await
        .unwrap();
    assert!(report.changed);
    assert_eq!(report.number, 2);
}

#[tokio::test]
async fn an_import_error_leaves_the_old_version_and_says_where() {
    let bench = Bench::new();
    let first = bench.deploy("f", APP_1).await.unwrap();
    *bench.platform.0.refuse.lock() = Some(StartError::Import {
        body: r#"{"errorType":"ZeroDivisionError","errorMessage":"division by zero","stackTrace":["  File \"/var/task/app.py\", line 1, in <module>\n    1/0\n"]}"#.to_owned(),
        output: "printed before\n[ERROR] ZeroDivisionError: division by zero\nTraceback…\n".to_owned(),
    });
    let error = bench.deploy("f", APP_2).await.unwrap_err();
    let DeployError::Invalid {
        code,
        message,
        detail,
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(code, "import_failed");
    assert_eq!(
        message,
        "handler 'app.handler' could not be imported: ZeroDivisionError: division by zero"
    );
    assert_eq!(
        detail,
        "Traceback (most recent call last):\n  File \"/var/task/app.py\", line 1, in <module>\n    1/0\nZeroDivisionError: division by zero\nOutput:\nprinted before\n"
    );
    let live = bench.deployer().describe(&name("f")).unwrap();
    assert_eq!(
        (live.summary.version, live.summary.number),
        (first.version, 1)
    );
    // Nothing is left; the path drops the version that was tried.
    bench.platform.0.tried.lock().clear();
    bench.deployer().tidy().await;
    assert_eq!((bench.entries("code"), bench.staged()), (1, 0));
}

#[tokio::test]
async fn a_missing_module_is_explained_by_what_there_is() {
    let bench = Bench::new();
    *bench.platform.0.refuse.lock() = Some(StartError::Import {
        body: r#"{"errorType":"ModuleNotFoundError","errorMessage":"No module named 'app'"}"#
            .to_owned(),
        output: String::new(),
    });
    let error = bench.deploy("f", &[("main.py", "")]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "handler 'app.handler' could not be imported: ModuleNotFoundError: No module named 'app'; there is no app.py in the \
         code (there is main.py): set handler"
    );
}

#[tokio::test]
async fn whatever_is_wrong_with_a_request_has_its_word_and_leaves_nothing() {
    let bench = Bench::new();
    let refused = async |spec: FunctionSpec, archive: File| {
        let error = bench
            .deployer()
            .deploy(deployment("f", spec, archive))
            .await
            .unwrap_err();
        code(&error)
    };
    let runtime = |word: &str| FunctionSpec {
        runtime: Some(word.to_owned()),
        ..FunctionSpec::default()
    };
    assert_eq!(
        refused(runtime("cobol"), archive(APP_1)).await,
        "bad_config"
    );
    assert_eq!(
        refused(runtime("python3.9"), archive(APP_1)).await,
        "runtime_missing"
    );
    assert_eq!(
        refused(FunctionSpec::default(), file_of(b"PK")).await,
        "bad_archive"
    );
    let endless = archive(&[("requirements.txt", "-r requirements.txt")]);
    assert_eq!(
        refused(FunctionSpec::default(), endless).await,
        "bad_requirements"
    );
    let failing = archive(&[("app.py", ""), ("requirements.txt", "fails")]);
    assert_eq!(
        refused(FunctionSpec::default(), failing).await,
        "requirement_failed"
    );
    *bench.platform.0.refuse.lock() = Some(StartError::Sandbox {
        problem: "no cgroup".to_owned(),
    });
    assert_eq!(
        refused(FunctionSpec::default(), archive(APP_1)).await,
        "internal"
    );
    assert!(bench.deployer().list().is_empty());
    bench.platform.0.tried.lock().clear();
    bench.deployer().tidy().await;
    assert_eq!(
        (
            bench.entries("code"),
            bench.entries("environments"),
            bench.staged()
        ),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn three_versions_are_kept_and_their_code() {
    let bench = Bench::new();
    for app in [APP_1, APP_2, APP_3, APP_4] {
        bench.deploy("f", app).await.unwrap();
    }
    let described = bench.deployer().describe(&name("f")).unwrap();
    assert_eq!(
        (described.summary.number, described.versions),
        (4, vec![3, 2])
    );
    // The path still uses the first version, so its code stays until then.
    assert_eq!(bench.entries("code"), 4);
    bench.platform.0.activated.lock().clear();
    bench.platform.0.tried.lock().clear();
    bench.deployer().tidy().await;
    assert_eq!(bench.entries("code"), 3);
}

#[tokio::test]
async fn going_back_to_older_code_is_a_new_number_with_the_same_id() {
    let bench = Bench::new();
    let first = bench.deploy("f", APP_1).await.unwrap();
    bench.deploy("f", APP_2).await.unwrap();
    let third = bench.deploy("f", APP_1).await.unwrap();
    assert_eq!(third.version, first.version);
    assert_eq!((third.number, third.changed), (3, true));
    assert_eq!(bench.entries("code"), 2);
}

#[tokio::test]
async fn a_removed_function_takes_its_files_along() {
    let bench = Bench::new();
    let needs = &[("app.py", ""), ("requirements.txt", "six")];
    assert!(!bench.deploy("f", needs).await.unwrap().environment_reused);
    assert!(bench.deploy("g", needs).await.unwrap().environment_reused);
    bench.platform.0.activated.lock().clear();
    bench.platform.0.tried.lock().clear();
    assert!(
        bench
            .deployer()
            .remove(&name("f"), Actor::operator())
            .await
            .unwrap()
    );
    assert_eq!(
        (bench.entries("code"), bench.entries("environments")),
        (1, 1)
    );
    assert!(
        bench
            .deployer()
            .remove(&name("g"), Actor::operator())
            .await
            .unwrap()
    );
    assert_eq!(
        (bench.entries("code"), bench.entries("environments")),
        (0, 0)
    );
    assert!(
        !bench
            .deployer()
            .remove(&name("g"), Actor::operator())
            .await
            .unwrap()
    );
    assert_eq!(*bench.platform.0.removed.lock(), [name("f"), name("g")]);
    assert!(bench.observed.0.lock().contains(&name("g")));
    assert!(bench.deployer().list().is_empty());
}

#[tokio::test]
async fn what_the_path_held_on_to_is_removed_once_it_lets_go() {
    let bench = Bench::new();
    bench.deploy("f", APP_1).await.unwrap();
    bench.deploy("f", APP_2).await.unwrap();
    assert!(
        !bench.deployer().inner.state.waits_for_release(),
        "the registry keeps both"
    );
    assert!(
        bench
            .deployer()
            .remove(&name("f"), Actor::operator())
            .await
            .unwrap()
    );
    assert_eq!(bench.entries("code"), 2);
    // From here on nothing outside the test is awaited, so the clock may be advanced.
    tokio::time::pause();
    let keeping = bench.deployer().keep_tidy(Duration::from_secs(60));
    tokio::pin!(keeping);
    let minutes = |count: u64| tokio::time::sleep(Duration::from_secs(60 * count + 1));
    tokio::select! {
        () = &mut keeping => {}
        () = minutes(2) => assert_eq!(bench.entries("code"), 2),
    }
    bench.platform.0.activated.lock().clear();
    bench.platform.0.tried.lock().clear();
    tokio::select! {
        () = &mut keeping => {}
        () = minutes(2) => assert_eq!(bench.entries("code"), 0),
    }
}

#[tokio::test]
async fn a_restart_brings_every_function_back_without_trying_it() {
    let mut bench = Bench::new();
    bench.deploy("f", APP_1).await.unwrap();
    bench.deploy("f", APP_2).await.unwrap();
    bench
        .deploy("g", &[("app.py", ""), ("requirements.txt", "six")])
        .await
        .unwrap();
    let before = bench.deployer().describe(&name("g"));
    bench.restart();
    assert_eq!(
        bench.deployer().restore(),
        Restored {
            functions: 2,
            broken: vec![]
        }
    );
    let activated = bench.platform.0.activated.lock().clone();
    let names: Vec<String> = activated
        .iter()
        .map(|version| format!("{}:{}", version.config.name, version.number))
        .collect();
    assert_eq!(names, ["f:1", "f:2", "g:1"]);
    assert!(bench.platform.0.tried.lock().is_empty());
    assert_eq!(bench.deployer().describe(&name("g")), before);
    assert!(!bench.deploy("f", APP_2).await.unwrap().changed);
    assert_eq!(bench.deploy("f", APP_3).await.unwrap().number, 3);
}

#[tokio::test]
async fn a_function_whose_files_are_gone_is_listed_broken_and_mended_by_a_deployment() {
    let mut bench = Bench::new();
    bench.deploy("broken", APP_1).await.unwrap();
    bench.deploy("whole", APP_1).await.unwrap();
    let code_dir = bench.platform.0.activated.lock()[0].code_dir.clone();
    bench.deployer = None;
    fs::remove_dir_all(code_dir).unwrap();
    bench.restart();
    let restored = bench.deployer().restore();
    assert_eq!((restored.functions, restored.broken.len()), (1, 1));
    assert_eq!(*bench.platform.0.broken.lock(), restored.broken);
    let list = bench.deployer().list();
    assert!(
        list[0]
            .problem
            .as_ref()
            .unwrap()
            .contains("is gone; deploy it again"),
        "{list:?}"
    );
    assert_eq!(list[1].problem, None);
    let mended = bench.deploy("broken", APP_1).await.unwrap();
    assert!(mended.changed);
    assert_eq!(bench.deployer().list()[0].problem, None);
}

#[tokio::test]
async fn a_second_daemon_on_the_same_data_is_refused() {
    let bench = Bench::new();
    let error = bench.open(&bench.data_dir()).unwrap_err();
    assert!(
        error.to_string().contains("is in use by another daemon"),
        "{error}"
    );
}

/// The data directory after a `kill -9` at each step of a deployment has the complete old or new version, and nothing else after
/// it is tidied.
#[tokio::test]
async fn a_kill_at_any_step_leaves_the_old_version_or_the_new_one() {
    let bench = Bench::new();
    bench
        .deploy("f", &[("app.py", "1"), ("requirements.txt", "six")])
        .await
        .unwrap();
    let snapshots = bench.folder.path().join("snapshots");
    fs::create_dir(&snapshots).unwrap();
    let (from, to) = (bench.data_dir(), snapshots.clone());
    let step = Mutex::new(0);
    let next = &[("app.py", "2"), ("requirements.txt", "six\nnumpy")];
    bench
        .deploy_with("f", next, move |progress| {
            let mut step = step.lock();
            *step += 1;
            copy_tree(&from, &to.join(format!("{step}-{}", progress.stage)));
        })
        .await
        .unwrap();
    copy_tree(&bench.data_dir(), &snapshots.join("9-done"));
    let mut steps: Vec<PathBuf> = fs::read_dir(&snapshots)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    steps.sort();
    assert!(steps.len() >= 6, "{steps:?}");
    for step in steps {
        let done = step.ends_with("9-done");
        let (deployer, platform) = bench.open(&step).unwrap();
        assert_eq!(
            deployer.restore(),
            Restored {
                functions: 1,
                broken: vec![]
            },
            "{step:?}"
        );
        let live = platform.0.activated.lock().last().unwrap().clone();
        assert_eq!(live.number, if done { 2 } else { 1 }, "{step:?}");
        assert!(live.environment.packages_dir().unwrap().is_dir());
        deployer.tidy().await;
        let kept = if done { 2 } else { 1 };
        assert_eq!(entries(&step.join("code")), kept, "{step:?}");
        assert_eq!(entries(&step.join("environments")), kept, "{step:?}");
        assert_eq!(
            entries(&step.join("staging")),
            1,
            "only its own stage: {step:?}"
        );
    }
}

#[tokio::test]
async fn a_committed_version_is_what_its_row_says() {
    let mut bench = Bench::new();
    let report = bench.deploy("f", APP_1).await.unwrap();
    let deployed = bench.platform.0.activated.lock()[0].clone();
    assert_eq!(deployed.id, VersionId::from_hex(report.version.as_str()));
    bench.restart();
    let _restored = bench.deployer().restore();
    assert_eq!(bench.platform.0.activated.lock()[0], deployed);
}

const APP_1: &[(&str, &str)] = &[("app.py", "1")];
const APP_2: &[(&str, &str)] = &[("app.py", "2")];
const APP_3: &[(&str, &str)] = &[("app.py", "3")];
const APP_4: &[(&str, &str)] = &[("app.py", "4")];
const PYTHON: &str = r#"#!/bin/sh
PATH=/usr/bin:/bin
case "$3" in
pip) for file; do :; done
     if grep -q fails "$file"; then echo 'ERROR: No matching distribution found for fails'; exit 1; fi ;;
compileall) ;;
*) case "$*" in
   *packages*) echo '[]' ;;
   *) echo '{"implementation":"cpython","version":"3.11.7","abi":"x","executable":"'"$0"'","prefix":"/usr","pip":true}' ;;
   esac ;;
esac
"#;
