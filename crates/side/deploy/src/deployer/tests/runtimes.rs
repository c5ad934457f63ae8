//! Deployments of functions with other runtimes than Python.

use super::*;

fn spec(runtime: &str, command: &[&str]) -> FunctionSpec {
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    FunctionSpec {
        runtime: Some(runtime.to_owned()),
        command: (!command.is_empty()).then_some(command),
        image: (runtime == "container").then(|| "qr:1".to_owned()),
        ..FunctionSpec::default()
    }
}

/// The progress of a deployment, and its result.
async fn deploy(
    bench: &Bench,
    spec: FunctionSpec,
    files: &[(&str, &str)],
) -> (Vec<String>, Result<DeployReport, DeployError>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&said);
    let progress = move |progress: Progress| listener.lock().push(progress.message);
    let done = bench
        .deployer()
        .deploy(Deployment {
            progress: Arc::new(progress),
            ..deployment("f", spec, archive(files))
        })
        .await;
    let said = said.lock().clone();
    (said, done)
}

/// Adds a Node.js whose npm always installs one empty package.
fn with_node(bench: &Bench) {
    for (program, text) in [("node", NODE), ("npm", NPM)] {
        let path = bench.folder.path().join("bin").join(program);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[tokio::test]
async fn every_runtime_says_what_is_tried_and_what_it_runs_in() {
    let bench = Bench::new();
    with_node(&bench);
    let express = ("package.json", r#"{"dependencies": {"express": "5"}}"#);
    let (said, done) = deploy(&bench, spec("node", &[]), &[("index.mjs", ""), express]).await;
    let report = done.unwrap();
    assert_eq!(
        (report.runtime.as_str(), report.environment_has.as_str()),
        ("node", "Node 20.20.2, 1 package")
    );
    assert_eq!(
        said[said.len() - 2..],
        ["loading index.handler in its sandbox", "version 1"]
    );
    assert!(
        said.iter()
            .any(|line| line.ends_with("built (Node 20.20.2, 1 package)")),
        "{said:?}"
    );

    let (said, done) = deploy(&bench, spec("provided", &[]), &[("bootstrap", "#!/bin/sh")]).await;
    assert!(done.unwrap().environment_reused);
    assert_eq!(
        said[1..],
        [
            "no packages to install",
            "starting it once: ./bootstrap",
            "version 2"
        ]
    );
    assert_eq!(bench.deployer().list()[0].handler, "./bootstrap");

    let server = spec("http", &["./bootstrap-server", "--verbose"]);
    let (said, _) = deploy(&bench, server, &[("bootstrap-server", "#!/bin/sh")]).await;
    assert!(
        said.contains(
            &"starting it once, until its port answers: ./bootstrap-server --verbose".to_owned()
        ),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_lockfile_of_pnpm_is_named_if_packages_are_installed() {
    let bench = Bench::new();
    with_node(&bench);
    let lock = ("pnpm-lock.yaml", "");
    let express = ("package.json", r#"{"dependencies": {"express": "5"}}"#);
    for (files, warnings) in [
        (&[("index.js", ""), lock, express][..], 1),
        (&[("index.js", "1"), lock], 0),
        (&[("index.js", "2"), express], 0),
    ] {
        let (_, done) = deploy(&bench, spec("node", &[]), files).await;
        let said = done.unwrap().template.warnings;
        assert_eq!(said.len(), warnings, "{said:?}");
        assert!(
            said.iter()
                .all(|line| line.starts_with("pnpm-lock.yaml is not read"))
        );
    }
}

#[tokio::test]
async fn an_image_alone_is_a_function() {
    let bench = Bench::new();
    let (said, done) = deploy(&bench, spec("container", &[]), &[]).await;
    assert_eq!(done.unwrap().environment_has, "");
    assert!(said.contains(&"starting a container of qr:1 once".to_owned()));
    let (_, done) = deploy(&bench, spec("python", &[]), &[]).await;
    assert_eq!(
        done.unwrap_err().to_string(),
        "the archive has no files; check the function's path in pilot.toml"
    );
}

#[tokio::test]
async fn a_program_that_cannot_be_run_is_refused_before_anything_is_built() {
    let bench = Bench::new();
    for (files, wanted) in [
        (
            &[("boot", ""), ("requirements.txt", "fails")][..],
            "command: there is no bootstrap in the code (there is boot, requirements.txt): put it there, or set command",
        ),
        (
            &[("bin/x", ""), ("app.py", "")],
            "command: there is no bootstrap in the code (there is app.py, bin): put it there, or set command",
        ),
    ] {
        let (said, done) = deploy(&bench, spec("provided", &[]), files).await;
        let error = done.unwrap_err();
        assert_eq!(error.to_string(), wanted);
        assert_eq!((code(&error), said.len()), ("bad_command", 1));
    }
    let (_, done) = deploy(
        &bench,
        spec("http", &["./server"]),
        &[("server", "#!/bin/sh")],
    )
    .await;
    assert!(
        done.unwrap_err()
            .to_string()
            .contains("server is not executable: chmod +x server")
    );
    assert!(bench.platform.0.tried.lock().is_empty());
    assert_eq!((bench.entries("code"), bench.staged()), (0, 0));
}

#[tokio::test]
async fn a_start_that_fails_is_told_in_the_runtimes_own_words() {
    let bench = Bench::new();
    with_node(&bench);
    *bench.platform.0.refuse.lock() = Some(StartError::Import {
        body: r#"{"errorType":"Error","errorMessage":"Cannot find module '/var/task/index'"}"#
            .to_owned(),
        output: String::new(),
    });
    let (_, done) = deploy(&bench, spec("node", &[]), &[("main.js", "")]).await;
    assert_eq!(
        done.unwrap_err().to_string(),
        "handler 'index.handler' could not be loaded: Error: Cannot find module '/var/task/index'; there is no index.js, \
         index.mjs or index.cjs in the code (there is main.js): set handler"
    );
    *bench.platform.0.refuse.lock() = Some(StartError::Runtime {
        problem: "it ended with exit code 127 before it asked for work".to_owned(),
        output: "env: no such thing\n".to_owned(),
    });
    let (_, done) = deploy(
        &bench,
        spec("provided", &["./bootstrap", "-x"]),
        &[("bootstrap", "#!/bin/sh\r\necho\r\n")],
    )
    .await;
    let DeployError::Invalid {
        code,
        message,
        detail,
    } = done.unwrap_err()
    else {
        panic!()
    };
    assert_eq!(
        (code, detail.as_str()),
        ("start_failed", "env: no such thing\n")
    );
    assert_eq!(
        message,
        "command './bootstrap -x' did not come up: it ended with exit code 127 before it asked for work; bootstrap has lines that \
         end as on Windows, also the one that names its interpreter: save it with Unix line ends"
    );
}

#[tokio::test]
async fn a_part_is_kept_while_any_function_needs_it() {
    let bench = Bench::new();
    with_node(&bench);
    let express = ("package.json", r#"{"dependencies": {"express": "5"}}"#);
    let six = ("requirements.txt", "six");
    let deployed = async |function: &str, files: &[(&str, &str)]| {
        bench
            .deployer()
            .deploy(deployment(function, spec("node", &[]), archive(files)))
            .await
            .unwrap()
    };
    deployed("both", &[("index.js", ""), express, six]).await;
    assert!(
        deployed("node", &[("index.js", ""), express])
            .await
            .environment_reused
    );
    assert_eq!(bench.entries("environments"), 2);
    bench.platform.0.activated.lock().clear();
    bench.platform.0.tried.lock().clear();
    bench
        .deployer()
        .remove(&name("both"), Actor::operator())
        .await
        .unwrap();
    assert_eq!(bench.entries("environments"), 1);
    bench
        .deployer()
        .remove(&name("node"), Actor::operator())
        .await
        .unwrap();
    assert_eq!(bench.entries("environments"), 0);
}

#[tokio::test]
async fn a_restart_brings_node_functions_back_and_says_what_of_them_is_gone() {
    let mut bench = Bench::new();
    with_node(&bench);
    let (_, done) = deploy(&bench, spec("node", &[]), &[("index.js", "")]).await;
    done.unwrap();
    let before = bench.platform.0.activated.lock()[0].clone();
    bench.restart();
    assert_eq!(bench.deployer().restore().functions, 1);
    assert_eq!(bench.platform.0.activated.lock()[0], before);
    fs::remove_file(bench.folder.path().join("bin/node")).unwrap();
    bench.restart();
    let restored = bench.deployer().restore();
    assert_eq!(restored.functions, 0);
    assert!(
        restored.broken[0]
            .1
            .ends_with("node is gone; deploy it again"),
        "{restored:?}"
    );
}

const NODE: &str = r#"#!/bin/sh
echo '{"version":"20.20.2","abi":"115","platform":"linux-x64","executable":"'"$0"'"}'
"#;
const NPM: &str = "#!/bin/sh\nPATH=/usr/bin:/bin; mkdir -p node_modules/express\n";
