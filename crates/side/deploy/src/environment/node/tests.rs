use std::time::Duration;

use super::super::config::SourceBuilds;
use super::super::program::tests::write_program;
use super::super::tests::{Bench, NODE, fake_node};
use super::*;
use crate::process;

/// A folder with a `node`, and an `npm` that is this shell script.
fn machine(install: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fake_node(folder.path(), install);
    folder
}

const EXPRESS: (&str, &str) = ("package.json", r#"{"dependencies": {"express": "^5"}}"#);
const INSTALLS: &str = "mkdir -p node_modules/express; echo \"$1\" > node_modules/express/how";

fn modules(obtained: &super::super::Obtained) -> PathBuf {
    let node = obtained.environment.node.clone().unwrap();
    node.modules_dir.unwrap()
}

#[tokio::test]
async fn equal_dependencies_share_one_build() {
    let bin = machine(&format!("echo built >> \"$0.builds\"; {INSTALLS}"));
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    let (one, other) = tokio::join!(bench.obtain(&NODE), bench.obtain(&NODE));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.environment, other.environment);
    assert_ne!(one.reused, other.reused);
    let text = r#"{ "name": "other", "dependencies": { "express": "^5" }, "scripts": {} }"#;
    bench.write(&[("package.json", text), ("index.js", "")]);
    assert!(bench.obtain(&NODE).await.unwrap().reused);
    let builds = fs::read_to_string(bin.path().join("npm.builds")).unwrap();
    assert_eq!(builds.lines().count(), 1);
    assert_eq!((bench.built(), bench.staged()), (1, 0));
    let node = one.environment.node.unwrap();
    assert_eq!(node.version, "20.20.2");
    assert_eq!(node.executable, bin.path().join("node"));
    assert_eq!(node.prefix, bin.path());
}

#[tokio::test]
async fn a_lockfile_decides_how_and_what() {
    let bin = machine(&format!(
        "{INSTALLS}; cp package-lock.json node_modules/express 2>/dev/null; true"
    ));
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    let open = bench.obtain(&NODE).await.unwrap();
    let how = |obtained| fs::read_to_string(modules(obtained).join("express/how")).unwrap();
    assert_eq!(how(&open), "install\n");
    bench.write(&[EXPRESS, ("package-lock.json", "{\"lockfileVersion\": 3}\n")]);
    let locked = bench.obtain(&NODE).await.unwrap();
    assert_eq!(how(&locked), "ci\n");
    assert_ne!(open.environment.id, locked.environment.id);
    let given = modules(&locked).join("express/package-lock.json");
    assert_eq!(
        fs::read_to_string(given).unwrap(),
        "{\"lockfileVersion\":3}",
        "npm reads what is hashed"
    );
}

#[tokio::test]
async fn another_node_has_a_part_of_its_own() {
    let bin = machine(INSTALLS);
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    let plan = bench.plan(&NODE).await.unwrap();
    write_program(
        bin.path(),
        "node",
        r#"echo '{"version":"20.20.2","abi":"127","platform":"linux-x64","executable":"'"$0"'"}'"#,
    );
    // As after an upgrade at the same path.
    let later = std::time::SystemTime::now() + Duration::from_secs(1);
    let node = fs::File::options()
        .write(true)
        .open(bin.path().join("node"))
        .unwrap();
    node.set_modified(later).unwrap();
    drop(node);
    assert_ne!(plan.id, bench.plan(&NODE).await.unwrap().id);
}

#[tokio::test]
async fn node_modules_in_the_code_are_left_as_they_are() {
    let bin = machine("exit 9");
    let bench = Bench::new(
        &[EXPRESS, ("node_modules/express/index.js", "mine")],
        bin.path().into(),
    );
    assert_eq!(
        bench.said(&NODE).await,
        ["node_modules is in the code: nothing of package.json is installed"]
    );
    let obtained = bench.obtain(&NODE).await.unwrap();
    assert_eq!(obtained.environment.node.unwrap().modules_dir, None);
    assert!(obtained.reused);
    assert_eq!(bench.built(), 0);
    let theirs = bench.code.join("node_modules/express/index.js");
    assert_eq!(fs::read_to_string(theirs).unwrap(), "mine");
}

#[tokio::test]
async fn a_package_that_fails_is_named_and_leaves_nothing() {
    let bin = machine(
        "echo 'npm http fetch GET 404 https://registry.example/express 3ms'; echo 'npm error code ETARGET'\n\
         echo 'npm error notarget No matching version found for express@^5.'; exit 1",
    );
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    let error = bench.obtain(&NODE).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "package 'express@^5' could not be installed: No matching version found for express@^5; change it in package.json"
    );
    let EnvironmentError::Failed { tail, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(
        tail,
        "npm error code ETARGET\nnpm error notarget No matching version found for express@^5.\n"
    );
    assert_eq!((bench.built(), bench.staged()), (0, 0));
}

#[tokio::test]
async fn an_npm_over_its_time_is_ended() {
    let bin = machine("sleep 600");
    let bench = Bench::with(&[EXPRESS], bin.path().into(), |config| {
        config.install_time_max = Duration::from_millis(100);
    });
    let error = bench.obtain(&NODE).await.unwrap_err();
    assert!(matches!(error, EnvironmentError::TooLong { .. }), "{error}");
    assert_eq!(bench.staged(), 0);
}

#[tokio::test]
async fn without_npm_it_is_said_what_to_install() {
    let bin = machine("true");
    fs::remove_file(bin.path().join("npm")).unwrap();
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    assert_eq!(
        bench.obtain(&NODE).await.unwrap_err().to_string(),
        format!(
            "package.json needs npm, which is neither beside {} nor on PATH; install npm, or deploy node_modules with the code \
             ('!node_modules/' in .pilotignore)",
            bin.path().join("node").display()
        )
    );
}

#[tokio::test]
async fn a_part_without_its_record_is_built_again() {
    let bin = machine(INSTALLS);
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    let modules = modules(&bench.obtain(&NODE).await.unwrap());
    fs::remove_file(modules.parent().unwrap().join("environment.json")).unwrap();
    fs::remove_dir_all(modules.join("express")).unwrap();
    assert!(!bench.obtain(&NODE).await.unwrap().reused);
    assert!(modules.join("express/how").exists());
}

#[tokio::test]
async fn progress_is_told_as_it_happens() {
    let bin = machine(
        "echo 'npm http fetch GET 200 https://registry.example/express 41ms (cache miss)'\n\
         echo 'npm http fetch GET 200 https://registry.example/express/-/express-5.1.0.tgz 9ms'\n\
         echo 'npm warn deprecated x'; echo 'added 66 packages in 2s'; mkdir node_modules",
    );
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    assert_eq!(
        bench.said(&NODE).await,
        [
            "installing the packages of package.json (there is no package-lock.json: the newest that fit)",
            "Resolving express",
            "Downloaded express-5.1.0",
            "added 66 packages in 2s"
        ]
    );
}

#[tokio::test]
async fn a_package_beside_the_code_is_installed_and_counts() {
    let bin = machine("mkdir node_modules; ln -s ../lib node_modules/lib");
    let files = [
        ("package.json", r#"{"dependencies": {"lib": "file:./lib"}}"#),
        ("lib/index.js", "1"),
    ];
    let bench = Bench::new(&files, bin.path().into());
    let first = bench.obtain(&NODE).await.unwrap();
    let copied = modules(&first).join("lib/index.js");
    assert_eq!(fs::read_to_string(copied).unwrap(), "1");
    let plan = bench
        .environments
        .plan(&NODE, &bench.code, "other code")
        .await
        .unwrap();
    assert_ne!(plan.id, first.environment.id);
}

#[tokio::test]
async fn a_link_out_of_the_code_is_refused() {
    let bin = machine("mkdir node_modules; ln -s /etc node_modules/express");
    let bench = Bench::new(&[EXPRESS], bin.path().into());
    assert_eq!(
        bench.obtain(&NODE).await.unwrap_err().to_string(),
        "package 'express' could not be installed: it is a link to /etc, which is not in the code; change it in package.json"
    );
    assert_eq!((bench.built(), bench.staged()), (0, 0));
}

#[tokio::test]
async fn an_npmrc_chooses_registries_and_no_programs() {
    let bin = machine("mkdir node_modules; cp .npmrc node_modules; echo \"$*\" > node_modules/how");
    let npmrc = "registry=https://registry.example/\n@own:registry=https://own.example/\n//own.example/:_authToken=x\n\
                 git=./evil\nscript-shell=./evil\nprefix=/usr\nnode-options=--require=./evil\n";
    let files = [EXPRESS, (".npmrc", npmrc)];
    let given = async |source_builds| {
        let bench = Bench::with(&files, bin.path().into(), |config| {
            config.source_builds = source_builds;
        });
        let modules = modules(&bench.obtain(&NODE).await.unwrap());
        let text = |name: &str| fs::read_to_string(modules.join(name)).unwrap();
        (text(".npmrc"), text("how").contains("--ignore-scripts"))
    };
    let kept: String = npmrc.split_inclusive('\n').take(3).collect();
    for (source_builds, no_scripts) in [
        (SourceBuilds::Allowed, false),
        (SourceBuilds::Refused, true),
    ] {
        assert_eq!(given(source_builds).await, (kept.clone(), no_scripts));
    }
}

/// The only test with a real installation, from the machine's registry.
#[tokio::test]
async fn a_real_package_is_installed_and_found_by_a_real_node() {
    let skip = |why: &str| pilot_testkit::probe::skip("a_real_package_is_installed (npm)", why);
    let files = [(
        "package.json",
        r#"{"dependencies": {"is-number": "7.0.0"}, "scripts": {"postinstall": "exit 1"}}"#,
    )];
    let bench = Bench::new(&files, std::env::var_os("PATH").unwrap());
    let obtained = match bench.obtain(&NODE).await {
        Ok(obtained) => obtained,
        Err(EnvironmentError::NotFound(_)) => return skip("there is no Node.js"),
        Err(EnvironmentError::NoNpm { .. }) => return skip("there is no npm"),
        Err(EnvironmentError::Failed { failure, .. })
            if failure.reason.contains("could not be reached") =>
        {
            return skip("no registry can be reached");
        }
        Err(error) => panic!("{error}"),
    };
    let modules = modules(&obtained);
    let mut command = tokio::process::Command::new(obtained.environment.node.unwrap().executable);
    command
        .args(["-p", "require('is-number')(5)"])
        .env("NODE_PATH", &modules)
        .current_dir("/");
    let ended = process::run(command, Duration::from_secs(60), |_| {})
        .await
        .unwrap();
    assert_eq!(ended.tail, "true\n");
    assert_eq!(count(Some(&modules)), 1);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(modules.join("is-number/index.js"))
            .unwrap()
            .permissions(),
    );
    assert_eq!(mode & 0o044, 0o044, "workers are somebody else");
}
