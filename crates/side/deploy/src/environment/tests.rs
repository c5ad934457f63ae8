//! Tests of both parts together. The tests of each part use [`Bench`], too.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use pilot_model::Contract;
use pilot_model::runtime::container::ContainerRuntime;
use pilot_model::runtime::http::HttpRuntime;
use pilot_model::runtime::node::NodeRuntime;
use pilot_model::runtime::python::PythonRuntime;

use super::program::tests::write_program;
use super::*;

/// Environments built with the programs on `search_path`, for code of these files.
pub(super) struct Bench {
    _folder: tempfile::TempDir,
    pub(super) data_dir: Arc<DataDir>,
    pub(super) environments: Environments,
    pub(super) code: PathBuf,
}

impl Bench {
    pub(super) fn new(files: &[(&str, &str)], search_path: OsString) -> Self {
        Self::with(files, search_path, |_| ())
    }

    pub(super) fn with(
        files: &[(&str, &str)],
        search_path: OsString,
        change: impl FnOnce(&mut EnvironmentConfig),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = Arc::new(DataDir::open(&folder.path().join("data")).unwrap().unwrap());
        let mut config = EnvironmentConfig {
            search_path,
            ..EnvironmentConfig::default()
        };
        change(&mut config);
        let bench = Self {
            environments: Environments::new(
                Arc::clone(&data_dir),
                config,
                Arc::new(pilot_testkit::UnconfinedBuilds),
            ),
            data_dir,
            code: folder.path().join("code"),
            _folder: folder,
        };
        bench.write(files);
        bench
    }

    /// Replaces the code.
    pub(super) fn write(&self, files: &[(&str, &str)]) {
        let _ = fs::remove_dir_all(&self.code);
        fs::create_dir(&self.code).unwrap();
        for (path, text) in files {
            let path = self.code.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    pub(super) async fn plan(&self, runtime: &Runtime) -> Result<Plan, EnvironmentError> {
        self.environments
            .plan(runtime, &self.code, "codehash")
            .await
    }

    pub(super) async fn obtain(&self, runtime: &Runtime) -> Result<Obtained, EnvironmentError> {
        let plan = self.plan(runtime).await?;
        self.environments.obtain(&plan, &self.code, &|_| {}).await
    }

    /// The progress messages of a build.
    pub(super) async fn said(&self, runtime: &Runtime) -> Vec<String> {
        let said = parking_lot::Mutex::new(Vec::new());
        let plan = self.plan(runtime).await.unwrap();
        self.environments
            .obtain(&plan, &self.code, &|line| said.lock().push(line))
            .await
            .unwrap();
        said.into_inner()
    }

    /// Number of folders under `environments/`.
    pub(super) fn built(&self) -> usize {
        fs::read_dir(self.data_dir.environments()).unwrap().count()
    }

    /// Number of staging folders that are left.
    pub(super) fn staged(&self) -> usize {
        let staging = self.data_dir.root().join("staging");
        let runs = fs::read_dir(staging).unwrap();
        runs.map(|run| fs::read_dir(run.unwrap().path()).unwrap().count())
            .sum()
    }
}

pub(super) const PYTHON: Runtime = Runtime::Python(PythonRuntime { minor: None });
pub(super) const NODE: Runtime = Runtime::Node(NodeRuntime { major: None });

pub(super) fn http(command: &[&str]) -> Runtime {
    Runtime::Http(HttpRuntime {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        ready: None,
    })
}

/// Creates a `python3` whose pip is this shell script, which installs into `$target`.
pub(super) fn fake_python(folder: &Path, install: &str) {
    let script = format!(
        r#"PATH=/usr/bin:/bin; case "$3" in
pip) for target; do [ "$last" = --target ] && break; last=$target; done
     {install} ;;
compileall) ;;
*) case "$*" in
   *packages*) echo '["six"]' ;;
   *) echo '{{"implementation":"cpython","version":"3.11.7","abi":"x","executable":"'"$0"'","prefix":"/usr","pip":true}}' ;;
   esac ;;
esac"#
    );
    write_program(folder, "python3", &script);
}

/// Creates a `node`, and an `npm` that is this shell script, which installs into its working directory.
pub(super) fn fake_node(folder: &Path, install: &str) {
    write_program(
        folder,
        "node",
        r#"echo '{"version":"20.20.2","abi":"115","platform":"linux-x64","executable":"'"$0"'"}'"#,
    );
    // The script gets a PATH with only that folder.
    write_program(folder, "npm", &format!("PATH=/usr/bin:/bin; {install}"));
}

const EXPRESS: (&str, &str) = ("package.json", r#"{"dependencies": {"express": "^5"}}"#);
const BOTH: [(&str, &str); 2] = [EXPRESS, ("requirements.txt", "six")];

/// Both interpreters, with installers that count their builds.
fn machine() -> tempfile::TempDir {
    let bin = tempfile::tempdir().unwrap();
    fake_python(
        bin.path(),
        "echo built >> \"$0.builds\"; mkdir \"$target/six-1.0.dist-info\"",
    );
    fake_node(
        bin.path(),
        "echo built >> \"$0.builds\"; mkdir -p node_modules/express node_modules/@a/b node_modules/.bin",
    );
    bin
}

fn builds(bin: &tempfile::TempDir, program: &str) -> usize {
    fs::read_to_string(bin.path().join(format!("{program}.builds")))
        .map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn a_part_is_shared_by_those_that_differ_in_the_other() {
    let bin = machine();
    let bench = Bench::new(&BOTH, bin.path().into());
    let first = bench.obtain(&NODE).await.unwrap();
    bench.write(&[EXPRESS, ("requirements.txt", "numpy")]);
    let second = bench.obtain(&NODE).await.unwrap();
    assert_ne!(first.environment.id, second.environment.id);
    let node = |obtained: &Obtained| obtained.environment.node.clone().unwrap();
    assert_eq!(node(&first), node(&second));
    assert_ne!(
        first.environment.packages_dir(),
        second.environment.packages_dir()
    );
    assert_eq!((builds(&bin, "npm"), builds(&bin, "python3")), (1, 2));
    assert_eq!(bench.built(), 3);
    assert!(!second.reused && bench.obtain(&NODE).await.unwrap().reused);
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn every_runtime_gets_what_the_code_requires() {
    let bin = machine();
    let bench = Bench::new(&BOTH, bin.path().into());
    let mut ids = Vec::new();
    for runtime in [PYTHON, NODE, http(&["gunicorn"]), http(&["node", "x.js"])] {
        let plan = bench.plan(&runtime).await.unwrap();
        let environment = bench.obtain(&runtime).await.unwrap().environment;
        let node = environment.node.clone().unwrap();
        assert!(environment.packages_dir().unwrap().is_dir());
        assert!(node.modules_dir.unwrap().ends_with("node_modules"));
        assert_eq!(
            plan.in_words(&environment),
            "Python 3.11.7, 1 package; Node 20.20.2, 2 packages"
        );
        ids.push(environment.id);
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!((builds(&bin, "npm"), builds(&bin, "python3")), (1, 1));
}

#[tokio::test]
async fn an_image_brings_what_it_needs() {
    let bench = Bench::new(&BOTH, "/nonexistent".into());
    let container = Runtime::Container(ContainerRuntime {
        image: "qr:1".to_owned(),
        contract: Contract::Shim,
        command: None,
        ready: None,
        ..ContainerRuntime::default()
    });
    let obtained = bench.obtain(&container).await.unwrap();
    assert!(obtained.reused);
    assert_eq!(
        (obtained.environment.python, obtained.environment.node),
        (None, None)
    );
    assert_eq!(bench.built(), 0);
}

#[tokio::test]
async fn without_requirements_there_is_the_runtimes_interpreter_alone() {
    let bin = machine();
    let bench = Bench::new(&[("x", "")], bin.path().into());
    let has = async |runtime: Runtime| {
        let environment = bench.obtain(&runtime).await.unwrap().environment;
        (environment.python.is_some(), environment.node.is_some())
    };
    assert_eq!(has(PYTHON).await, (true, false));
    assert_eq!(has(NODE).await, (false, true));
    assert_eq!(has(http(&["./server"])).await, (false, false));
    assert_eq!(has(http(&["python3", "-m", "x"])).await, (true, false));
    assert_eq!(has(http(&["nodejs", "x.js"])).await, (false, true));
    assert_eq!(has(http(&["python-tool"])).await, (false, false));
    assert_eq!(bench.built(), 0);
}

#[tokio::test]
async fn a_pyproject_beside_node_code_is_about_its_tools() {
    let bin = machine();
    let pyproject = ("pyproject.toml", "[project]\ndependencies = [\"six\"]\n");
    let bench = Bench::new(&[pyproject], bin.path().into());
    let has = async |runtime: Runtime| {
        let environment = bench.obtain(&runtime).await.unwrap().environment;
        environment.packages_dir().is_some()
    };
    assert!(!has(NODE).await);
    assert!(has(PYTHON).await);
    assert!(has(http(&["gunicorn"])).await);
}

#[tokio::test]
async fn what_is_required_and_not_on_the_machine_says_how_to_do_without() {
    let bench = Bench::new(&BOTH, "/nonexistent".into());
    let error = bench
        .plan(&http(&["./server"]))
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "requirements.txt needs python3, which was not found on the daemon's PATH (no Python is); install it on the daemon's machine, or list requirements.txt in \
         .pilotignore if the function does without"
    );
    bench.write(&[("x", "")]);
    let error = bench
        .plan(&http(&["python3.12", "x.py"]))
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "command: python3.12 was not found on the daemon's PATH (no Python is); install it on the daemon's machine, or change command"
    );
}

#[test]
fn an_environment_of_one_part_has_that_parts_id() {
    let (one, other) = (
        EnvironmentId::from_hex("00000000000000e1"),
        EnvironmentId::from_hex("00000000000000e2"),
    );
    assert_eq!(id_of([&one].into_iter()), one);
    let both = id_of([&one, &other].into_iter());
    assert!(both != one && both != other && both != id_of([].into_iter()));
}
