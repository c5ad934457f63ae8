//! Deployments that run at the same time, that wait, and that are given up.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;

#[tokio::test]
async fn deployments_of_one_function_come_one_after_the_other() {
    let bench = Bench::new();
    bench.platform.0.tries.forget_permits(1000);
    let first = bench.deploy("f", APP_1);
    let second = bench.deploy("f", APP_2);
    let other = bench.deploy("g", APP_1);
    let release = async {
        // The second version cannot be tried before the first is live. Two permits are enough for the first one and for the other function.
        bench.platform.0.tries.add_permits(2);
        let other = other.await.unwrap();
        bench.platform.0.tries.add_permits(1);
        other
    };
    let (first, second, other) = tokio::join!(first, second, release);
    assert_eq!(
        (first.unwrap().number, second.unwrap().number, other.number),
        (1, 2, 1)
    );
    let activated: Vec<String> = bench
        .platform
        .0
        .activated
        .lock()
        .iter()
        .filter(|version| version.config.name == name("f"))
        .map(|version| version.number.to_string())
        .collect();
    assert_eq!(activated, ["1", "2"]);
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_the_old_version() {
    let bench = Bench::new();
    bench.deploy("f", APP_1).await.unwrap();
    bench.platform.0.tries.forget_permits(1000);
    {
        let (reached, mut at_template) = tokio::sync::mpsc::unbounded_channel();
        let deploying = bench.deploy_with("f", APP_2, move |progress| {
            if progress.stage == "template" {
                let _ = reached.send(());
            }
        });
        tokio::select! {
            _ = deploying => panic!("it cannot end without a permit"),
            _ = at_template.recv() => {}
        }
    }
    assert_eq!(bench.deployer().list()[0].number, 1);
    // The function is not locked any more, and the remaining files are removed.
    bench.platform.0.tries.add_permits(10);
    assert_eq!(bench.deploy("f", APP_3).await.unwrap().number, 2);
    assert_eq!((bench.entries("code"), bench.staged()), (2, 0));
}

type Deploying = JoinHandle<Result<DeployReport, DeployError>>;

/// A deployment by this owner's token that runs in a task of its own, and its stages.
fn begin(
    bench: &Bench,
    owner: &str,
    function: &str,
) -> (Deploying, mpsc::UnboundedReceiver<String>) {
    begin_if(bench, owner, function, || true)
}

fn begin_if(
    bench: &Bench,
    owner: &str,
    function: &str,
    is_permitted: impl Fn() -> bool + Send + Sync + 'static,
) -> (Deploying, mpsc::UnboundedReceiver<String>) {
    let (stage, stages) = mpsc::unbounded_channel();
    let spec = FunctionSpec {
        owner: Some(owner.to_owned()),
        ..FunctionSpec::default()
    };
    let deploying = bench.deployer().deploy(Deployment {
        actor: Actor {
            is_permitted: Arc::new(is_permitted),
            ..of(owner)
        },
        progress: Arc::new(move |progress| {
            let _ = stage.send(progress.stage);
        }),
        ..deployment(function, spec, archive(APP_2))
    });
    (tokio::spawn(deploying), stages)
}

fn of(owner: &str) -> Actor {
    Actor {
        share: owner.to_owned(),
        only_of: Some(owner.to_owned()),
        ..Actor::operator()
    }
}

async fn reaches(stages: &mut mpsc::UnboundedReceiver<String>, wanted: &str) {
    while let Some(stage) = stages.recv().await {
        if stage == wanted {
            return;
        }
    }
    panic!("it ended before '{wanted}'");
}

#[tokio::test]
async fn imports_of_one_owner_that_hang_do_not_delay_another_owner() {
    let bench = Bench::new();
    let names: Vec<String> = (0..8).map(|number| format!("hangs-{number}")).collect();
    bench
        .platform
        .0
        .hangs
        .lock()
        .extend(names.iter().map(|text| name(text)));
    let mut hanging = Vec::new();
    for (number, function) in names.iter().enumerate() {
        let (deploying, mut stages) = begin(&bench, "evil", function);
        let stage = if number < 4 { "template" } else { "wait" };
        reaches(&mut stages, stage).await;
        hanging.push(deploying);
    }
    // What waits has unpacked nothing.
    assert_eq!(
        bench.staged(),
        0,
        "those that are tried have moved their code"
    );
    let (honest, _stages) = begin(&bench, "honest", "f");
    assert!(honest.await.unwrap().unwrap().changed);
    // One that ends lets the next one begin.
    hanging[0].abort();
    bench.platform.0.hangs.lock().remove(&name("hangs-4"));
    assert!(hanging.remove(4).await.unwrap().unwrap().changed);
    for deploying in hanging {
        deploying.abort();
    }
}

#[tokio::test]
async fn a_deployment_that_waits_does_not_run_once_its_token_is_revoked() {
    let bench = Bench::new();
    bench.platform.0.hangs.lock().insert(name("f"));
    let (first, mut stages) = begin(&bench, "a", "f");
    reaches(&mut stages, "template").await;
    let revoked = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = Arc::clone(&revoked);
    let (second, _stages) = begin_if(&bench, "a", "f", move || {
        !asked.load(std::sync::atomic::Ordering::SeqCst)
    });
    tokio::task::yield_now().await;
    revoked.store(true, std::sync::atomic::Ordering::SeqCst);
    bench.platform.0.hangs.lock().clear();
    first.abort();
    let error = second.await.unwrap().unwrap_err();
    assert_eq!(code(&error), "forbidden", "{error}");
    assert!(bench.deployer().list().is_empty());
}

#[tokio::test]
async fn a_removal_gives_up_the_deployments_that_run_and_wait() {
    let bench = Bench::new();
    bench.platform.0.hangs.lock().insert(name("new"));
    let (running, mut stages) = begin(&bench, "a", "new");
    reaches(&mut stages, "template").await;
    let (waiting, _stages) = begin(&bench, "a", "new");
    tokio::task::yield_now().await;
    // A removal by another owner ends nothing.
    let deployer = bench.deployer();
    let of_another = deployer.remove(&name("new"), of("b"));
    let waits = tokio::select! {
        biased;
        _ = of_another => false,
        () = tokio::task::yield_now() => true,
    };
    assert!(waits && !running.is_finished());
    assert!(deployer.remove(&name("new"), of("a")).await.unwrap());
    for given_up in [running, waiting] {
        let error = given_up.await.unwrap().unwrap_err();
        assert_eq!(code(&error), "overtaken");
        assert!(
            error.to_string().contains("'new' was removed meanwhile"),
            "{error}"
        );
    }
    assert_eq!(bench.platform.0.discarded.lock().len(), 1);
    bench.platform.0.discarded.lock().clear();
    deployer.tidy().await;
    assert_eq!((bench.entries("code"), bench.staged()), (0, 0));
    assert!(!deployer.remove(&name("new"), of("a")).await.unwrap());
}

#[tokio::test]
async fn a_removal_does_not_remove_what_another_owner_has_deployed_meanwhile() {
    let bench = Bench::new();
    let (deployed, _stages) = begin(&bench, "a", "f");
    deployed.await.unwrap().unwrap();
    let error = bench
        .deployer()
        .remove(&name("f"), of("b"))
        .await
        .unwrap_err();
    assert_eq!(code(&error), "forbidden");
    let error = bench
        .deployer()
        .rollback(&name("f"), None, of("b"))
        .await
        .unwrap_err();
    assert_eq!(code(&error), "forbidden");
    assert_eq!(bench.deployer().list().len(), 1);
}

#[tokio::test]
async fn a_rollback_gives_up_a_deployment_that_runs() {
    let bench = Bench::new();
    bench.deploy("f", APP_1).await.unwrap();
    bench.deploy("f", APP_3).await.unwrap();
    bench.platform.0.hangs.lock().insert(name("f"));
    let (running, mut stages) = begin(&bench, "f", "f");
    reaches(&mut stages, "template").await;
    bench.platform.0.hangs.lock().clear();
    let report = bench
        .deployer()
        .rollback(&name("f"), None, Actor::operator())
        .await
        .unwrap();
    assert_eq!((report.number, report.replaced), (1, 2));
    let error = running.await.unwrap().unwrap_err();
    assert!(
        error.to_string().contains("'f' was rolled back meanwhile"),
        "{error}"
    );
}
