//! What becomes of the folders of versions: at a start at which something is away, and while a backup is made.

use super::*;

/// Three versions whose interpreter is away at the last start.
async fn away() -> Bench {
    let mut bench = Bench::new();
    for app in [APP_1, APP_2, APP_3] {
        bench.deploy("f", app).await.unwrap();
    }
    move_python(&bench, "python3", "away");
    start(&mut bench).await;
    bench
}

fn move_python(bench: &Bench, from: &str, to: &str) {
    let bin = bench.folder.path().join("bin");
    fs::rename(bin.join(from), bin.join(to)).unwrap();
}

/// A start of the daemon, with its sweep.
async fn start(bench: &mut Bench) -> Restored {
    bench.restart();
    let restored = bench.deployer().restore();
    bench.deployer().tidy().await;
    restored
}

fn versions(bench: &Bench) -> (u32, Vec<u32>) {
    let described = bench.deployer().describe(&name("f")).unwrap();
    (described.summary.number, described.versions)
}

#[tokio::test]
async fn an_interpreter_that_is_away_at_a_start_costs_no_version() {
    let mut bench = away().await;
    assert_eq!(bench.deployer().list()[0].number, 3);
    assert!(bench.deployer().list()[0].problem.is_some());
    assert_eq!(bench.entries("code"), 3);
    let refused = bench
        .deployer()
        .rollback(&name("f"), Some(2), Actor::operator())
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(code(&refused), "broken");
    let said = refused.to_string();
    assert!(
        said.starts_with("version 2 of function 'f' cannot run: its interpreter ")
            && said.contains("python3 is gone. Bring it back and restart"),
        "{said}"
    );
    let refused = bench
        .deployer()
        .rollback(&name("f"), None, Actor::operator())
        .await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("; version 1 cannot run: its "), "{said}");
    move_python(&bench, "away", "python3");
    assert_eq!(start(&mut bench).await.functions, 1);
    assert_eq!(versions(&bench), (3, vec![2, 1]));
    let report = bench
        .deployer()
        .rollback(&name("f"), None, Actor::operator())
        .await
        .unwrap();
    assert_eq!((report.number, report.replaced), (2, 3));
}

#[tokio::test]
async fn a_folder_that_is_away_at_a_start_costs_no_version() {
    let mut bench = Bench::new();
    let needs_six = |app| [("app.py", app), ("requirements.txt", "six")];
    for app in ["1", "2"] {
        bench.deploy("f", &needs_six(app)).await.unwrap();
    }
    bench.deploy("f", APP_3).await.unwrap();
    let (environments, disk) = (
        bench.data_dir().join("environments"),
        bench.folder.path().join("disk"),
    );
    bench.deployer = None;
    fs::rename(&environments, &disk).unwrap();
    assert_eq!(start(&mut bench).await.functions, 1);
    assert_eq!(versions(&bench), (3, vec![]));
    let activated = bench.platform.0.activated.lock().len();
    assert_eq!(activated, 1, "what cannot run is not activated");
    bench.deployer = None;
    fs::remove_dir(&environments).unwrap();
    fs::rename(&disk, &environments).unwrap();
    let _ = start(&mut bench).await;
    assert_eq!(versions(&bench), (3, vec![2, 1]));
}

#[tokio::test]
async fn a_rollback_or_deployment_over_a_broken_version_keeps_it() {
    for by_rollback in [true, false] {
        let mut bench = Bench::new();
        for app in [APP_1, APP_2] {
            bench.deploy("f", app).await.unwrap();
        }
        let live = bench.platform.0.activated.lock()[1].code_dir.clone();
        let away = bench.folder.path().join("away");
        bench.deployer = None;
        fs::rename(&live, &away).unwrap();
        start(&mut bench).await;
        if by_rollback {
            let report = bench
                .deployer()
                .rollback(&name("f"), None, Actor::operator())
                .await
                .unwrap();
            assert_eq!(report.number, 1);
        }
        bench.deploy("f", APP_3).await.unwrap();
        assert_eq!(versions(&bench), (3, vec![1]), "{by_rollback}");
        bench.deployer = None;
        fs::rename(&away, &live).unwrap();
        start(&mut bench).await;
        assert_eq!(versions(&bench), (3, vec![2, 1]), "{by_rollback}");
    }
}

#[tokio::test]
async fn broken_versions_take_no_place_of_others_and_do_not_pile_up() {
    let mut bench = Bench::new();
    for app in [APP_1, APP_2] {
        bench.deploy("f", app).await.unwrap();
    }
    let live = bench.platform.0.activated.lock()[1].code_dir.clone();
    bench.deployer = None;
    fs::remove_dir_all(live).unwrap();
    start(&mut bench).await;
    bench.deploy("f", APP_3).await.unwrap();
    bench.deploy("f", APP_4).await.unwrap();
    assert_eq!(versions(&bench), (4, vec![3, 1]));
    let kept = || bench.deployer().inner.state.function(&name("f")).unwrap();
    assert_eq!(kept().older.len(), 3);
    bench.deploy("f", APP_1).await.unwrap();
    assert_eq!((versions(&bench), kept().older.len()), ((5, vec![4, 3]), 2));
}

#[tokio::test]
async fn what_a_row_names_is_kept_whatever_else_is_wrong_with_the_row() {
    let mut bench = Bench::new();
    let needs_six = [("app.py", "1"), ("requirements.txt", "six")];
    for function in ["f", "g", "h"] {
        bench.deploy(function, &needs_six).await.unwrap();
    }
    bench.deployer = None;
    let registry = rusqlite::Connection::open(bench.data_dir().join("registry.sqlite")).unwrap();
    let damage = "PRAGMA foreign_keys = OFF; UPDATE functions SET live = 7 WHERE name = 'f';
        UPDATE versions SET config = '{' WHERE name = 'g'; UPDATE versions SET name = '?' WHERE name = 'h'";
    registry.execute_batch(damage).unwrap();
    drop(registry);
    let restored = start(&mut bench).await;
    assert_eq!((restored.functions, restored.broken.len()), (0, 1));
    assert_eq!(
        (bench.entries("code"), bench.entries("environments")),
        (3, 1)
    );
}

#[tokio::test]
async fn nothing_is_swept_while_a_backup_is_made() {
    let bench = Bench::new();
    bench.deploy("f", APP_1).await.unwrap();
    let lock = File::open(bench.data_dir().join("sweep.lock")).unwrap();
    // flock(1) --shared
    let backup = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockShared).unwrap();
    for app in [APP_2, APP_3, APP_4] {
        bench.deploy("f", app).await.unwrap();
        bench.platform.0.activated.lock().clear();
        bench.platform.0.tried.lock().clear();
    }
    bench.deployer().tidy().await;
    assert_eq!(bench.entries("code"), 4);
    let prune = |dry_run| PruneRequest {
        versions: true,
        dry_run,
        ..PruneRequest::default()
    };
    let refused = bench.deployer().prune(prune(false)).await.unwrap_err();
    assert_eq!(code(&refused), "in_use");
    let would = bench.deployer().prune(prune(true)).await.unwrap();
    assert_eq!(versions(&bench), (4, vec![3, 2]));
    assert!(!would.removed.is_empty());
    drop(backup);
    tokio::time::pause();
    tokio::select! {
        () = bench.deployer().keep_tidy(Duration::from_secs(60)) => {}
        () = tokio::time::sleep(Duration::from_secs(121)) => {}
    }
    assert_eq!(bench.entries("code"), 3);
    assert!(!bench.deployer().inner.sweeps.is_due());
}
