use super::super::program::tests::write_program;
use super::super::tests::{Bench, PYTHON, fake_python};
use super::*;
use crate::environment::confined::Needs;
use std::time::Duration;

/// A folder with a `python3` whose pip is this shell script, which installs into `$target`.
fn python(install: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fake_python(folder.path(), install);
    folder
}

fn bench(requirements: &str, search_path: std::ffi::OsString) -> Bench {
    Bench::new(&[("requirements.txt", requirements)], search_path)
}

fn this_machine() -> std::ffi::OsString {
    std::env::var_os("PATH").unwrap()
}

async fn this_python() -> Interpreter {
    Interpreters::new(this_machine())
        .find(None, NeededBy::Runtime)
        .await
        .unwrap()
}

#[tokio::test]
async fn no_requirements_need_no_folder() {
    let python = python("exit 9");
    let bench = bench("# none\n", python.path().into());
    let obtained = bench.obtain(&PYTHON).await.unwrap();
    assert!(obtained.reused);
    assert_eq!(obtained.environment.packages_dir(), None);
    assert_eq!(
        obtained.environment.python.unwrap().prefix,
        Path::new("/usr")
    );
}

#[tokio::test]
async fn equal_requirements_share_one_build() {
    let python = python("echo built >> \"$0.builds\"; touch \"$target/six.py\"");
    let bench = bench("six", python.path().into());
    let (one, other) = tokio::join!(bench.obtain(&PYTHON), bench.obtain(&PYTHON));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.environment, other.environment);
    assert_ne!(one.reused, other.reused);
    assert_eq!(one.environment.python.as_ref().unwrap().imports, ["six"]);
    assert!(
        one.environment
            .packages_dir()
            .unwrap()
            .join("six.py")
            .exists()
    );
    let builds = fs::read_to_string(python.path().join("python3.builds")).unwrap();
    assert_eq!(builds.lines().count(), 1);
    assert!(bench.obtain(&PYTHON).await.unwrap().reused);
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn the_id_is_of_interpreter_and_requirements() {
    let python = python("true");
    let id = async |requirements: &str| {
        let bench = bench(requirements, python.path().into());
        bench.plan(&PYTHON).await.unwrap().id
    };
    assert_eq!(id("six\nnumpy # x").await, id("numpy\nsix").await);
    assert_ne!(id("six").await, id("numpy").await);
    let elsewhere = super::tests::python("true");
    let other = bench("six", elsewhere.path().into());
    assert_ne!(id("six").await, other.plan(&PYTHON).await.unwrap().id);
}

#[tokio::test]
async fn a_requirement_that_fails_is_named_and_leaves_nothing() {
    let python = python("echo 'ERROR: No matching distribution found for six==99'; exit 1");
    let bench = bench("six==99", python.path().into());
    let error = bench.obtain(&PYTHON).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "requirement 'six==99' could not be installed: No matching distribution found for six==99; change it in requirements.txt"
    );
    assert!(matches!(error, EnvironmentError::Failed { tail, .. } if tail.contains("ERROR:")));
    assert_eq!(bench.staged(), 0);
    assert_eq!(bench.built(), 0);
}

#[tokio::test]
async fn an_installer_that_a_signal_ends_says_so() {
    let python = python("echo 'Collecting six'; kill -9 $$");
    let bench = bench("six", python.path().into());
    let error = bench.obtain(&PYTHON).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the packages of requirements.txt could not be installed: SIGKILL ended the installer"
    );
    assert!(matches!(error, EnvironmentError::Killed { tail, .. } if tail.contains("Collecting")));
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn an_installer_over_its_time_is_ended() {
    let python = python("sleep 600");
    let requirements = [("requirements.txt", "six")];
    let bench = Bench::with(&requirements, python.path().into(), |config| {
        config.install_time_max = Duration::from_millis(100);
    });
    let error = bench.obtain(&PYTHON).await.unwrap_err();
    assert!(matches!(error, EnvironmentError::TooLong { .. }), "{error}");
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn a_folder_without_its_record_is_built_again() {
    let python = python("touch \"$target/six.py\"");
    let bench = bench("six", python.path().into());
    let obtained = bench.obtain(&PYTHON).await.unwrap();
    let packages = obtained.environment.packages_dir().unwrap();
    fs::remove_file(packages.parent().unwrap().join("environment.json")).unwrap();
    fs::remove_file(packages.join("six.py")).unwrap();
    assert!(!bench.obtain(&PYTHON).await.unwrap().reused);
    assert!(packages.join("six.py").exists());
}

#[tokio::test]
async fn progress_is_told_as_it_happens() {
    let python =
        python("echo 'Collecting six'; echo noise; echo 'Successfully installed six-1.16'");
    let bench = bench("six", python.path().into());
    assert_eq!(
        bench.said(&PYTHON).await,
        [
            "installing the packages of requirements.txt",
            "Collecting six",
            "Successfully installed six-1.16"
        ]
    );
}

/// The only test with a real installation, from the machine's package index.
#[tokio::test]
async fn a_real_package_is_installed_with_bytecode_and_importable() {
    let bench = bench("six==1.16.0\n", this_machine());
    let obtained = match bench.obtain(&PYTHON).await {
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
    assert_eq!(
        obtained.environment.python.as_ref().unwrap().imports,
        ["six"]
    );
    let packages = obtained.environment.packages_dir().unwrap();
    let bytecode = fs::read_dir(packages.join("__pycache__")).unwrap();
    assert_eq!(bytecode.count(), 1);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(packages.join("six.py")).unwrap().permissions(),
    );
    assert_eq!(
        mode & 0o044,
        0o044,
        "workers, which are somebody else, must be able to read it"
    );
}

#[tokio::test]
async fn an_interpreter_without_pip_gets_one_of_ours() {
    let bench = bench("six\n", "/nonexistent".into());
    let parts = &bench.environments.python;
    let site = Site {
        parts: &parts.parts,
        config: &parts.config,
        builds: &pilot_testkit::UnconfinedBuilds,
        code: &bench.code,
        say: &|_| {},
    };
    let mut python = this_python().await;
    python.pip = false;
    let installer = match site.installer(&python).await {
        Err(EnvironmentError::NoPip { .. }) => {
            pilot_testkit::probe::skip(
                "an_interpreter_without_pip",
                "this Python has no ensurepip",
            );
            return;
        }
        installer => installer.unwrap(),
    };
    let Installer::OwnPip(own, _) = &installer else {
        panic!("{installer:?}")
    };
    assert!(own.starts_with(bench.data_dir.tooling()));
    let mut command = Command::new(own);
    command.args(["-I", "-m", "pip", "--version"]);
    let ended = process::run(command, Duration::from_secs(60), |_| {})
        .await
        .unwrap();
    assert!(ended.succeeded(), "{ended:?}");
    let made = fs::metadata(own).unwrap().modified().unwrap();
    let again = site.installer(&python).await.unwrap();
    assert_eq!(again, installer);
    assert_eq!(fs::metadata(own).unwrap().modified().unwrap(), made);
}

#[test]
fn commands_installed_by_a_borrowed_pip_run_on_the_interpreter_itself() {
    let bin = tempfile::tempdir().unwrap();
    write_program(bin.path(), "other", "echo /tooling/bin/python");
    let tool = bin.path().join("functions-framework");
    write_program(bin.path(), "functions-framework", "");
    fs::write(&tool, "#!/tooling/bin/python\nimport sys\n").unwrap();
    fs::write(bin.path().join("binary"), b"#!/tooling/bin/python \xff").unwrap();
    let (from, to) = (Path::new("/tooling/bin/python"), Path::new("/usr/bin/py"));
    readdress(bin.path(), from, to).unwrap();
    assert_eq!(
        fs::read_to_string(&tool).unwrap(),
        "#!/usr/bin/py\nimport sys\n"
    );
    assert!(super::super::program::is_there(&tool));
    let binary = fs::read(bin.path().join("binary")).unwrap();
    assert!(binary.starts_with(b"#!/tooling"));
    readdress(&bin.path().join("nowhere"), from, to).unwrap();
}

#[tokio::test]
async fn code_is_compiled_for_a_read_only_mount() {
    let bench = bench("", this_machine());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("app.py"), "x = 1\n").unwrap();
    fs::write(folder.path().join("broken.py"), "x = (\n").unwrap();
    let compiler = Compiler::new(
        this_python().await,
        Arc::clone(&bench.data_dir),
        Arc::new(pilot_testkit::UnconfinedBuilds),
    );
    assert_eq!(compiler.compile(folder.path()).await, [""; 0]);
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
    // An import of it changes `sys.path` and `distutils`.
    let top_level = (
        "top_level.txt",
        "_distutils_hack\npkg_resources\nsetuptools\n",
    );
    package("setuptools", &[("REQUESTED", ""), top_level], "");
    let required = Requirements {
        file: "requirements.txt",
        lines: vec!["Pillow".to_owned(), "setuptools".to_owned()],
        constraints: Vec::new(),
        local: false,
    };
    let python = this_python().await;
    let stage = tempfile::tempdir().unwrap();
    let needs = Needs {
        stage: stage.path(),
        writable: Vec::new(),
        shown: Vec::new(),
        settings: None,
        time_max: Duration::from_secs(60),
    };
    let build = Confined::begin(&pilot_testkit::UnconfinedBuilds, needs)
        .await
        .unwrap();
    assert_eq!(
        imports(&python, folder.path(), &required, &build)
            .await
            .unwrap(),
        ["PIL", "single", "skimage"]
    );
    // An installer that writes no metadata: the declared names are used.
    for name in ["pillow", "scikit_image", "setuptools"] {
        fs::remove_file(
            folder
                .path()
                .join(format!("{name}-1.0.dist-info/REQUESTED")),
        )
        .unwrap();
    }
    assert_eq!(
        imports(&python, folder.path(), &required, &build)
            .await
            .unwrap(),
        ["PIL"]
    );
}

#[tokio::test]
async fn a_daemon_with_wheels_only_refuses_what_would_be_built_and_no_line_changes_that() {
    let python = python("touch \"$target/six.py\"");
    let refused = async |line: &str| {
        let requirements = [("requirements.txt", line)];
        let bench = Bench::with(&requirements, python.path().into(), |config| {
            config.source_builds = SourceBuilds::Refused;
        });
        bench
            .obtain(&PYTHON)
            .await
            .err()
            .map(|error| error.to_string())
    };
    assert_eq!(refused("six").await, None);
    for line in [
        "./p",
        "--no-binary :all:\nsix",
        "six @ git+https://example.org/x.git",
    ] {
        let problem = refused(line).await.unwrap();
        assert!(problem.contains("is built from its source"), "{problem}");
    }
}

#[tokio::test]
async fn uv_does_not_see_the_configuration_beside_the_code() {
    let python = python("exit 9");
    write_program(
        python.path(),
        "uv",
        "PATH=/usr/bin:/bin; ls -A > \"$0.saw\"; ls -A .. >> \"$0.saw\"",
    );
    let files = [
        ("requirements.txt", "six"),
        ("uv.toml", "index-url = \"https://evil.example\""),
    ];
    let bench = Bench::new(&files, python.path().into());
    bench.obtain(&PYTHON).await.unwrap();
    let saw = fs::read_to_string(python.path().join("uv.saw")).unwrap();
    assert_eq!(saw, "code\nrequirements.txt\n");
}
