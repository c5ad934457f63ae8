//! Ends of containers, daemons and the engine. Nothing is left behind, and nothing needs a restart.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pilot_model::ports::RuntimeHost as _;

use crate::daemon::Daemon;
use crate::support::{BUSYBOX, Stage, answer, call, fault, prewarmed, problem, shell, specialise};

/// Longest that anything here may take.
const TIME_MAX: Duration = Duration::from_secs(20);

pub(crate) async fn a_dropped_container_is_removed_with_its_folder(stage: Stage) {
    let host = stage.host();
    let version = stage.version("short", &shell(&[("handler.sh", "sleep 1000")]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    assert_eq!(stage.containers().lines().count(), 1);
    assert_eq!(stage.folders().len(), 1);
    drop(runtime);
    assert!(worker.is_alive(), "the worker holds its container");
    let called = tokio::time::timeout(Duration::from_millis(100), worker.call(call("{}"))).await;
    assert!(called.is_err());
    drop(worker);
    tokio::time::timeout(TIME_MAX, host.settled())
        .await
        .unwrap();
    assert_eq!(stage.containers(), "");
    assert_eq!(stage.folders(), [""; 0]);
}

pub(crate) async fn a_start_that_nobody_waits_for_leaves_nothing(stage: Stage) {
    let host = stage.host();
    let version = stage.version("given-up", &shell(&[]));
    // The first start also sweeps. The second one is the one that is cancelled at every moment.
    drop(prewarmed(&host, &version).await.unwrap());
    for after_ms in [0, 5, 20, 60, 120, 200] {
        let start = prewarmed(&host, &version);
        drop(tokio::time::timeout(Duration::from_millis(after_ms), start).await);
    }
    // One more start after them all, which is completed: by then the earlier ones have been created, or never will be.
    drop(prewarmed(&host, &version).await.unwrap());
    tokio::time::timeout(TIME_MAX, async {
        loop {
            host.settled().await;
            if stage.containers().is_empty() && stage.folders().is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
}

pub(crate) async fn the_daemons_end_waits_for_containers_that_are_being_started(stage: Stage) {
    let host = stage.host();
    let version = stage.version("late", &shell(&[]));
    drop(prewarmed(&host, &version).await.unwrap());
    for after_ms in [0, 20, 120] {
        let start = prewarmed(&host, &version);
        drop(tokio::time::timeout(Duration::from_millis(after_ms), start).await);
    }
    tokio::time::timeout(TIME_MAX, host.close()).await.unwrap();
    assert_eq!(stage.containers(), "");
    assert_eq!(stage.folders(), [""; 0]);
    assert_eq!(stage.mounts(), [""; 0]);
}

pub(crate) async fn a_container_killed_behind_the_daemons_back_is_noticed(stage: Stage) {
    let host = stage.host();
    let version = stage.version("victim", &shell(&[("handler.sh", "sleep 1000")]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let name = stage.containers();
    let kill = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stage.engine.docker(&["kill", &name]);
    };
    let (fault, ()) = tokio::join!(fault(&worker, "{}"), kill);
    assert!(fault.to_string().contains("the container ended"), "{fault}");
    assert!(!worker.is_alive());
    assert!(!runtime.is_alive());
    assert!(runtime.clean().await.is_err());
    // The next container is a new one.
    let runtime = prewarmed(&host, &version).await.unwrap();
    assert!(runtime.is_alive());
}

pub(crate) async fn containers_of_a_killed_daemon_are_gone(stage: Stage) {
    let mut daemon = Daemon::begin(&stage, &stage.address());
    daemon.does("start").await;
    let name = stage.containers();
    assert_eq!(name.lines().count(), 1, "{name}");
    let removed = Command::new("docker")
        .args(["wait", &name])
        .env("DOCKER_HOST", stage.address())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    daemon.dies().await;
    // The engine does it by itself, without a request.
    tokio::task::spawn_blocking(move || removed.unwrap().wait().unwrap())
        .await
        .unwrap();
    let host = stage.host();
    host.sweep().await.unwrap();
    assert_eq!(stage.containers(), "");
    assert_eq!(stage.folders(), [""; 0]);
}

pub(crate) async fn what_a_killed_daemon_left_is_swept_and_nothing_else(stage: Stage) {
    let label = |dir: &Path| format!("io.pilotlight.daemon={}", dir.display());
    let (own, others) = (label(stage.dir.path()), "io.pilotlight.daemon=/elsewhere");
    for (name, label) in [("left-own", own.as_str()), ("left-others", others)] {
        stage
            .engine
            .docker(&["create", "--name", name, "--label", label, BUSYBOX, "true"]);
    }
    std::fs::create_dir_all(stage.dir.path().join("run/containers/left-own/volume/x")).unwrap();
    let host = stage.host();
    assert_eq!(host.sweep().await.unwrap(), 1);
    assert_eq!(stage.containers(), "");
    assert_eq!(stage.folders(), [""; 0]);
    // Once, so that what the engine makes for itself exists.
    let runtime = prewarmed(&host, &stage.version("f", &shell(&[])))
        .await
        .unwrap();
    host.sweep().await.unwrap();
    assert!(runtime.is_alive());
    assert_eq!(stage.folders().len(), 1);
    stage.engine.docker(&["rm", "left-others"]);
}

pub(crate) async fn containers_of_a_replaced_image_are_given_up(stage: Stage) {
    let name = "pilot-test/replaced:1";
    stage
        .engine
        .build(name, &format!("FROM {BUSYBOX}\nENV WHICH=old\n"));
    let host = stage.host();
    let mut spec = shell(&[("handler.sh", "echo $WHICH")]);
    spec.image = name;
    let version = stage.version("which", &spec);
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    assert_eq!(answer(&worker, "").await.0, "\"old\"");
    stage
        .engine
        .build(name, &format!("FROM {BUSYBOX}\nENV WHICH=new\n"));
    tokio::time::timeout(TIME_MAX, async {
        while runtime.is_alive() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    assert_eq!(answer(&worker, "").await.0, "\"new\"");
}

pub(crate) async fn an_engine_that_goes_away_and_comes_back_needs_no_restart(stage: Stage) {
    let host = stage.host();
    let version = stage.version("patient", &shell(&[("handler.sh", "echo here")]));
    let runtime = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&runtime, &version).await.unwrap();
    let let_go = prewarmed(&host, &version).await.unwrap();
    stage.engine.crash();

    // Running containers do not need the engine (this one has --live-restore).
    assert_eq!(answer(&worker, "").await.0, "\"here\"");
    drop(worker);
    let error = problem(&prewarmed(&host, &version).await.unwrap_err());
    assert!(error.contains("does not answer"), "{error}");
    assert!(error.contains(&stage.address()), "{error}");
    let error = problem(&runtime.clean().await.unwrap_err());
    assert!(error.contains("does not answer"), "{error}");

    drop(let_go);
    host.settled().await;

    stage.engine.up().unwrap();
    let another = prewarmed(&host, &version).await.unwrap();
    let worker = specialise(&another, &version).await.unwrap();
    assert_eq!(answer(&worker, "").await.0, "\"here\"");
    drop(worker);
    another.clean().await.unwrap();
    let report = host.report(&version).reason.unwrap();
    assert!(report.contains(BUSYBOX), "{report}");
    // The engine does not keep what ended while it was down.
    drop((runtime, another));
    host.settled().await;
    assert_eq!(stage.containers(), "");
}
