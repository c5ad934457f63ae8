use std::os::unix::fs::PermissionsExt;

use parking_lot::Mutex;

use super::*;

struct Bench {
    _folder: tempfile::TempDir,
    environments: Environments,
    code: PathBuf,
}

impl Bench {
    /// Environments built with the interpreters on `search_path`, for code with these requirements.
    fn new(requirements: &str, search_path: OsString) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = Arc::new(DataDir::open(&folder.path().join("data")).unwrap().unwrap());
        let code = folder.path().join("code");
        fs::create_dir(&code).unwrap();
        fs::write(code.join("requirements.txt"), requirements).unwrap();
        Self {
            environments: Environments::new(
                data_dir,
                EnvironmentConfig {
                    search_path,
                    ..EnvironmentConfig::default()
                },
            ),
            code,
            _folder: folder,
        }
    }

    async fn plan(&self) -> Plan {
        let runtime = Runtime::Python { minor: None };
        self.environments
            .plan(&runtime, &self.code, "codehash")
            .await
            .unwrap()
    }

    async fn obtain(&self) -> Result<Obtained, EnvironmentError> {
        let plan = self.plan().await;
        self.environments.obtain(&plan, &self.code, &|_| {}).await
    }

    fn staged(&self) -> usize {
        let staging = self.environments.data_dir.root().join("staging");
        let runs = fs::read_dir(staging).unwrap();
        runs.map(|run| fs::read_dir(run.unwrap().path()).unwrap().count())
            .sum()
    }
}

/// A folder with a `python3` whose pip is this shell script; it installs into `$target`.
fn fake_python(install: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("python3");
    let script = format!(
        r#"#!/bin/sh
case "$3" in
pip) for target; do [ "$last" = --target ] && break; last=$target; done
     {install} ;;
compileall) ;;
*) case "$*" in
   *packages*) echo '["six"]' ;;
   *) echo '{{"implementation":"cpython","version":"3.11.7","abi":"x","executable":"'"$0"'","prefix":"/usr","pip":true}}' ;;
   esac ;;
esac
"#
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[tokio::test]
async fn no_requirements_need_no_folder() {
    let python = fake_python("exit 9");
    let bench = Bench::new("# none\n", python.path().into());
    let obtained = bench.obtain().await.unwrap();
    assert!(obtained.reused);
    assert_eq!(obtained.environment.packages_dir, None);
    assert_eq!(obtained.environment.python_prefix, Path::new("/usr"));
}

#[tokio::test]
async fn equal_requirements_share_one_build() {
    let python = fake_python("echo built >> \"$0.builds\"; touch \"$target/six.py\"");
    let bench = Bench::new("six", python.path().into());
    let (one, other) = tokio::join!(bench.obtain(), bench.obtain());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.environment, other.environment);
    assert_ne!(one.reused, other.reused);
    assert_eq!(one.environment.imports, ["six"]);
    assert!(
        one.environment
            .packages_dir
            .unwrap()
            .join("six.py")
            .exists()
    );
    let builds = fs::read_to_string(python.path().join("python3.builds")).unwrap();
    assert_eq!(builds.lines().count(), 1);
    assert!(bench.obtain().await.unwrap().reused);
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn the_id_is_of_interpreter_and_requirements() {
    let python = fake_python("true");
    let id = async |requirements: &str| {
        Bench::new(requirements, python.path().into())
            .plan()
            .await
            .id
    };
    assert_eq!(id("six\nnumpy # x").await, id("numpy\nsix").await);
    assert_ne!(id("six").await, id("numpy").await);
    let other = fake_python("true");
    assert_ne!(
        id("six").await,
        Bench::new("six", other.path().into()).plan().await.id
    );
}

#[tokio::test]
async fn a_requirement_that_fails_is_named_and_leaves_nothing() {
    let python = fake_python("echo 'ERROR: No matching distribution found for six==99'; exit 1");
    let bench = Bench::new("six==99", python.path().into());
    let error = bench.obtain().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "requirement 'six==99' could not be installed: No matching distribution found for six==99; change it in requirements.txt"
    );
    assert!(matches!(error, EnvironmentError::Failed { tail, .. } if tail.contains("ERROR:")));
    assert_eq!(bench.staged(), 0);
    assert_eq!(
        fs::read_dir(bench.environments.data_dir.environments())
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn an_installer_over_its_time_is_ended() {
    let python = fake_python("sleep 600");
    let mut bench = Bench::new("six", python.path().into());
    bench.environments.config.install_time_max = Duration::from_millis(100);
    let error = bench.obtain().await.unwrap_err();
    assert!(matches!(error, EnvironmentError::TooLong { .. }), "{error}");
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn a_folder_without_its_record_is_built_again() {
    let python = fake_python("touch \"$target/six.py\"");
    let bench = Bench::new("six", python.path().into());
    let packages = bench
        .obtain()
        .await
        .unwrap()
        .environment
        .packages_dir
        .unwrap();
    fs::remove_file(packages.parent().unwrap().join(RECORD)).unwrap();
    fs::remove_file(packages.join("six.py")).unwrap();
    assert!(!bench.obtain().await.unwrap().reused);
    assert!(packages.join("six.py").exists());
}

#[tokio::test]
async fn progress_is_told_as_it_happens() {
    let python =
        fake_python("echo 'Collecting six'; echo noise; echo 'Successfully installed six-1.16'");
    let bench = Bench::new("six", python.path().into());
    let said = Mutex::new(Vec::new());
    let plan = bench.plan().await;
    bench
        .environments
        .obtain(&plan, &bench.code, &|line| said.lock().push(line))
        .await
        .unwrap();
    assert_eq!(
        *said.lock(),
        [
            "installing the packages of requirements.txt",
            "Collecting six",
            "Successfully installed six-1.16"
        ]
    );
}

/// The one test that installs for real, from the machine's package index.
#[tokio::test]
async fn a_real_package_is_installed_with_bytecode_and_importable() {
    let bench = Bench::new("six==1.16.0\n", std::env::var_os("PATH").unwrap());
    let obtained = match bench.obtain().await {
        Ok(obtained) => obtained,
        Err(EnvironmentError::Failed { tail, .. }) if tail.contains("Connection") => {
            pilot_testkit::probe::skip(
                "a_real_package_is_installed",
                "no package index can be reached",
            );
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(obtained.environment.imports, ["six"]);
    let packages = obtained.environment.packages_dir.unwrap();
    let bytecode = fs::read_dir(packages.join("__pycache__")).unwrap();
    assert_eq!(bytecode.count(), 1);
    let mode = fs::metadata(packages.join("six.py"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(
        mode & 0o044,
        0o044,
        "workers, which are somebody else, must be able to read it"
    );
}

#[tokio::test]
async fn an_interpreter_without_pip_gets_one_of_ours() {
    let bench = Bench::new("six\n", "/nonexistent".into());
    let path = std::env::var_os("PATH").unwrap();
    let mut python = Interpreters::new(path)
        .find(&Runtime::Python { minor: None })
        .await
        .unwrap();
    python.pip = false;
    let installer = match bench.environments.installer(&python, &|_| {}).await {
        Err(EnvironmentError::NoPip { .. }) => {
            pilot_testkit::probe::skip(
                "an_interpreter_without_pip",
                "this Python has no ensurepip",
            );
            return;
        }
        installer => installer.unwrap(),
    };
    let Installer::Pip(own) = &installer else {
        panic!("{installer:?}")
    };
    assert!(own.starts_with(bench.environments.data_dir.tooling()));
    let mut command = Command::new(own);
    command.args(["-I", "-m", "pip", "--version"]);
    let ended = process::run(command, Duration::from_secs(60), |_| {})
        .await
        .unwrap();
    assert!(ended.succeeded(), "{ended:?}");
    let made = fs::metadata(own).unwrap().modified().unwrap();
    let again = bench
        .environments
        .installer(&python, &|_| {})
        .await
        .unwrap();
    assert_eq!(again, installer);
    assert_eq!(fs::metadata(own).unwrap().modified().unwrap(), made);
}

#[tokio::test]
async fn code_is_compiled_for_a_read_only_mount() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("app.py"), "x = 1\n").unwrap();
    fs::write(folder.path().join("broken.py"), "x = (\n").unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let python = Interpreters::new(path)
        .find(&Runtime::Python { minor: None })
        .await
        .unwrap();
    compile(&python.executable, folder.path()).await;
    let compiled: Vec<_> = fs::read_dir(folder.path().join("__pycache__"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(compiled.len(), 1);
    assert!(compiled[0].starts_with("app."), "{compiled:?}");
}

#[tokio::test]
async fn imports_are_those_of_the_requested_packages() {
    let folder = tempfile::tempdir().unwrap();
    let package = |name: &str, files: &[(&str, &str)], record: &str| {
        let info = folder.path().join(format!("{name}-1.0.dist-info"));
        fs::create_dir(&info).unwrap();
        fs::write(
            info.join("METADATA"),
            format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"),
        )
        .unwrap();
        fs::write(info.join("RECORD"), record).unwrap();
        for (file, text) in files {
            fs::write(info.join(file), text).unwrap();
        }
    };
    package(
        "pillow",
        &[("REQUESTED", ""), ("top_level.txt", "PIL\n_private\n")],
        "",
    );
    package(
        "scikit_image",
        &[("REQUESTED", "")],
        "skimage/__init__.py,,\nskimage.libs/x.so,,\n../bin/skivi,,\ntests/test_x.py,,\nsingle.cpython-311-x86_64-linux-gnu.so,,\nscikit_image-1.0.dist-info/RECORD,,\n",
    );
    package("numpy", &[], "numpy/__init__.py,,\n");
    let required = Requirements {
        file: "requirements.txt",
        lines: vec!["Pillow".to_owned()],
        local: false,
    };
    let path = std::env::var_os("PATH").unwrap();
    let python = Interpreters::new(path)
        .find(&Runtime::Python { minor: None })
        .await
        .unwrap();
    assert_eq!(
        imports(&python, folder.path(), &required).await,
        ["PIL", "single", "skimage"]
    );
    // An installer that leaves no marks: the declared names count.
    for name in ["pillow", "scikit_image"] {
        fs::remove_file(
            folder
                .path()
                .join(format!("{name}-1.0.dist-info/REQUESTED")),
        )
        .unwrap();
    }
    assert_eq!(imports(&python, folder.path(), &required).await, ["PIL"]);
}
