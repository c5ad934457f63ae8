mod simulation;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use pilot_model::runtime::node::NodeRuntime;
use pilot_model::runtime::provided::ProvidedRuntime;
use pilot_model::{Environment, EnvironmentId, Node, Python, Runtime};

use super::*;

fn a_program(packages_dir: PathBuf) -> Python {
    Python {
        executable: "/bin/sh".into(),
        prefix: "/usr".into(),
        packages_dir: Some(packages_dir),
        imports: vec!["six".to_owned()],
    }
}

/// A version with all its files.
fn version(data_dir: &Path, name: &str, number: u32) -> StoredVersion {
    let mut version = Version::clone(&pilot_testkit::version(name, number));
    version.code_dir = data_dir.join("code").join(version.id.as_str());
    fs::create_dir_all(&version.code_dir).unwrap();
    let packages = data_dir
        .join("environments")
        .join(version.environment.id.as_str())
        .join("packages");
    fs::create_dir_all(&packages).unwrap();
    version.environment.python = Some(a_program(packages));
    StoredVersion {
        version,
        template: TemplateReport {
            python: "3.11.7".to_owned(),
            forkable: true,
            reason: None,
            ..no_report()
        },
        deployed_unix_s: 1_700_000_000 + u64::from(number),
        problem: None,
    }
}

fn numbers(function: &StoredFunction) -> Vec<u32> {
    [&function.live]
        .into_iter()
        .chain(&function.older)
        .map(|one| one.version.number)
        .collect()
}

#[test]
fn what_was_committed_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    let stored = version(folder.path(), "invert", 1);
    registry.commit(&stored, &[]).unwrap();
    drop(registry);
    let functions = Registry::open(folder.path()).unwrap().functions().unwrap();
    assert_eq!(
        functions,
        [StoredFunction {
            live: stored,
            older: vec![]
        }]
    );
}

#[test]
fn only_the_named_versions_are_kept_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    for number in 1..=5_u32 {
        let kept = [number - 1, number.saturating_sub(2)];
        for name in ["a", "b"] {
            registry
                .commit(&version(folder.path(), name, number), &kept)
                .unwrap();
        }
    }
    let functions = registry.functions().unwrap();
    assert_eq!(
        functions.iter().map(numbers).collect::<Vec<_>>(),
        [[5, 4, 3], [5, 4, 3]]
    );
}

#[test]
fn a_removed_function_takes_its_rows_along() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    registry
        .commit(&version(folder.path(), "a", 1), &[])
        .unwrap();
    assert!(registry.remove(&"a".parse().unwrap()).unwrap());
    assert!(!registry.remove(&"a".parse().unwrap()).unwrap());
    let connection = registry.connection.lock();
    for table in ["functions", "versions", "environments"] {
        let count: i64 = connection
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
                row.get(0)
            })
            .unwrap();
        assert_eq!(count, 0, "{table}");
    }
}

#[test]
fn a_version_is_made_live_again_and_numbers_go_on_above_all() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    let name = "a".parse().unwrap();
    assert_eq!(registry.next_number(&name).unwrap(), 1);
    for number in 1..=2 {
        registry
            .commit(&version(folder.path(), "a", number), &[1])
            .unwrap();
    }
    assert!(registry.make_live(&name, 1).unwrap());
    assert!(!registry.make_live(&name, 7).unwrap());
    assert!(!registry.make_live(&"b".parse().unwrap(), 1).unwrap());
    drop(registry);
    let registry = Registry::open(folder.path()).unwrap();
    assert_eq!(numbers(&registry.functions().unwrap()[0]), [1, 2]);
    assert_eq!(registry.next_number(&name).unwrap(), 3);
}

#[test]
fn the_number_of_a_version_that_was_removed_is_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    let name = "a".parse().unwrap();
    for number in 1..=3 {
        let stored = version(folder.path(), "a", number);
        registry.commit(&stored, &[1, 2]).unwrap();
    }
    assert!(registry.make_live(&name, 2).unwrap());
    registry.keep_versions(&name, &[]).unwrap();
    drop(registry);
    let registry = Registry::open(folder.path()).unwrap();
    assert_eq!(numbers(&registry.functions().unwrap()[0]), [2]);
    assert_eq!(registry.next_number(&name).unwrap(), 4);
    // Another function of this name has its own numbers.
    assert!(registry.remove(&name).unwrap());
    assert_eq!(registry.next_number(&name).unwrap(), 1);
}

#[test]
fn a_number_that_is_taken_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    registry
        .commit(&version(folder.path(), "a", 1), &[])
        .unwrap();
    let before = registry.functions().unwrap();
    assert!(
        registry
            .commit(&version(folder.path(), "a", 1), &[])
            .is_err()
    );
    assert_eq!(registry.functions().unwrap(), before);
}

#[test]
fn missing_files_are_a_problem_of_that_function_alone() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    for (name, number) in [("whole", 1), ("broken-code", 2)] {
        registry
            .commit(&version(folder.path(), name, number), &[])
            .unwrap();
    }
    let mut gone = version(folder.path(), "broken-python", 3);
    gone.version.environment.python = Some(Python {
        executable: "/nonexistent/python3".into(),
        prefix: "/nonexistent".into(),
        packages_dir: None,
        imports: Vec::new(),
    });
    gone.version.environment.id = EnvironmentId::from_hex("00000000000000e1");
    registry.commit(&gone, &[]).unwrap();
    fs::remove_dir(&version(folder.path(), "broken-code", 2).version.code_dir).unwrap();
    let functions = registry.functions().unwrap();
    let problems: Vec<_> = functions
        .iter()
        .map(|function| function.live.problem.clone())
        .collect();
    assert!(
        problems[0].as_ref().unwrap().ends_with("is gone"),
        "{problems:?}"
    );
    assert!(
        problems[1]
            .as_ref()
            .unwrap()
            .contains("interpreter /nonexistent/python3 is gone"),
        "{problems:?}"
    );
    assert_eq!(problems[2], None);
}

/// A version of a Node.js function with all its files.
fn node_version(data_dir: &Path, name: &str, number: u32) -> StoredVersion {
    let mut stored = version(data_dir, name, number);
    let modules = data_dir.join("environments/00000000000000d0/node_modules");
    fs::create_dir_all(&modules).unwrap();
    stored.version.config.runtime = Runtime::Node(NodeRuntime { major: Some(20) });
    let environment = &mut stored.version.environment;
    environment.id = EnvironmentId::from_hex("00000000000000e2");
    environment.python = None;
    environment.node = Some(Node {
        executable: "/bin/sh".into(),
        prefix: "/usr".into(),
        version: "20.20.2".to_owned(),
        modules_dir: Some(modules),
    });
    stored
}

#[test]
fn environments_of_either_kind_of_both_and_of_neither_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    let python = version(folder.path(), "a", 1);
    let node = node_version(folder.path(), "b", 1);
    let mut both = node_version(folder.path(), "c", 1);
    both.version.environment = Environment {
        id: EnvironmentId::from_hex("00000000000000e3"),
        node: both.version.environment.node,
        ..python.version.environment.clone()
    };
    let mut neither = version(folder.path(), "d", 1);
    neither.version.config.runtime = Runtime::Provided(ProvidedRuntime {
        command: vec!["./bootstrap".to_owned()],
    });
    neither.version.environment = Environment {
        id: EnvironmentId::from_hex("00000000000000e4"),
        python: None,
        node: None,
    };
    let all = [python, node, both, neither];
    for stored in &all {
        registry.commit(stored, &[]).unwrap();
    }
    let functions = Registry::open(folder.path()).unwrap().functions().unwrap();
    let read: Vec<StoredVersion> = functions
        .into_iter()
        .map(|function| function.live)
        .collect();
    assert_eq!(read, all);
}

#[test]
fn a_function_whose_node_or_packages_are_gone_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    let problem = || registry.functions().unwrap()[0].live.problem.clone();
    let mut stored = node_version(folder.path(), "f", 1);
    registry.commit(&stored, &[]).unwrap();
    assert_eq!(problem(), None);
    let node = stored.version.environment.node.as_mut().unwrap();
    let modules = node.modules_dir.clone().unwrap();
    fs::remove_dir(&modules).unwrap();
    assert_eq!(
        problem().unwrap(),
        format!("its Node.js packages {} are gone", modules.display())
    );
    fs::create_dir(&modules).unwrap();
    node.executable = "/nonexistent/bin/node".into();
    stored.version.number = 2;
    registry.commit(&stored, &[]).unwrap();
    assert_eq!(
        problem().unwrap(),
        "its Node.js /nonexistent/bin/node is gone"
    );
    stored.version.environment.node = None;
    stored.version.number = 3;
    registry.commit(&stored, &[]).unwrap();
    assert_eq!(problem().unwrap(), "its Node.js is not in the registry");
}

/// Rows of the first schema.
const FIRST_SCHEMA_ROWS: &str = r#"
    INSERT INTO functions VALUES ('old', 2), ('bare', 1);
    INSERT INTO versions VALUES
        ('old', 1, '00000000000000a1', 1700000000, 'CONFIG', '{}', '00000000000000e1'),
        ('old', 2, '00000000000000a2', 1700000001, 'CONFIG', '{}', '00000000000000e1'),
        ('bare', 1, '00000000000000a3', 1700000002, 'CONFIG', '{}', '00000000000000e0');
    INSERT INTO environments VALUES
        ('00000000000000e1', '/bin/sh', '/usr', 1, '["six"]'),
        ('00000000000000e0', '/bin/sh', '/usr', 0, '[]');
    PRAGMA user_version = 1;
"#;
/// A configuration as it was written before there were other runtimes, owners and policies, and before `parked` became `spare`.
const FIRST_SCHEMA_CONFIG: &str = r#"{"name":"NAME","runtime":{"python":{"minor":null}},"handler":"app.handler","interface":"event",
    "memory_bytes":268435456,"timeout_s":30.0,"cpu_milli":1000,"network":"none","environment":{},"template":"on","reuse":"always",
    "concurrency":1,"scale":{"min":0,"max":64,"parked":1,"idle_s":60.0}}"#;

#[test]
fn a_registry_from_before_other_runtimes_is_brought_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let connection = Connection::open(folder.path().join(FILE)).unwrap();
    connection.execute_batch(MIGRATIONS[0]).unwrap();
    connection
        .execute_batch(&FIRST_SCHEMA_ROWS.replace("CONFIG", FIRST_SCHEMA_CONFIG))
        .unwrap();
    connection
        .execute_batch("UPDATE versions SET config = replace(config, 'NAME', name)")
        .unwrap();
    drop(connection);
    let packages = folder.path().join("environments/00000000000000e1/packages");
    fs::create_dir_all(&packages).unwrap();
    for id in ["a1", "a2", "a3"] {
        fs::create_dir_all(folder.path().join(format!("code/00000000000000{id}"))).unwrap();
    }
    for _ in 0..2 {
        let registry = Registry::open(folder.path()).unwrap();
        let functions = registry.functions().unwrap();
        let names: Vec<&str> = functions
            .iter()
            .map(|function| function.live.version.config.name.as_str())
            .collect();
        assert_eq!(names, ["bare", "old"]);
        let [bare, old] = functions.as_slice() else {
            panic!()
        };
        assert_eq!(numbers(old), [2, 1]);
        for (function, next) in [("old", 3), ("bare", 2), ("new", 1)] {
            let name = function.parse().unwrap();
            assert_eq!(registry.next_number(&name).unwrap(), next, "{function}");
        }
        let environment = &old.live.version.environment;
        assert_eq!(environment.python, Some(a_program(packages.clone())));
        assert_eq!(environment.node, None);
        assert_eq!(bare.live.version.environment.packages_dir(), None);
        for function in &functions {
            assert_eq!(function.live.problem, None);
            assert_eq!(function.live.version.config.scale.spare, 1);
            assert_eq!(
                function.live.version.config.owner(),
                function.live.version.config.name.as_str()
            );
        }
    }
}

#[test]
fn a_row_that_cannot_be_read_is_a_problem_too() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    registry
        .commit(&version(folder.path(), "a", 1), &[])
        .unwrap();
    for (statement, said) in [
        (
            "UPDATE environments SET imports = 'json'",
            "its environment's imports in the registry cannot be read",
        ),
        (
            "UPDATE versions SET config = '{}', template = ''",
            "configuration in the registry cannot be read",
        ),
    ] {
        let changed = registry.connection.lock().execute(statement, []);
        assert_eq!(changed, Ok(1));
        let functions = registry.functions().unwrap();
        let problem = functions[0].live.problem.as_ref().unwrap();
        assert!(problem.contains(said), "{problem}");
        assert_eq!(functions[0].live.version.config.name.as_str(), "a");
    }
}

#[test]
fn a_newer_schema_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(Registry::open(folder.path()).unwrap());
    let connection = Connection::open(folder.path().join(FILE)).unwrap();
    connection.pragma_update(None, "user_version", 99).unwrap();
    let error = Registry::open(folder.path()).unwrap_err();
    assert!(
        matches!(error, RegistryError::Newer { found: 99, .. }),
        "{error}"
    );
}

#[test]
fn commits_are_on_disk_when_they_return() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    let connection = registry.connection.lock();
    let mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    let synchronous: i64 = connection
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .unwrap();
    assert_eq!((mode.as_str(), synchronous), ("wal", 2));
}

#[test]
fn what_was_committed_is_there_without_a_clean_end() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let registry = Registry::open(folder.path()).unwrap();
    registry
        .commit(&version(folder.path(), "a", 1), &[])
        .unwrap();
    // The files after a `kill -9`, with a write-ahead log that is not merged.
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    assert!(
        copy.path()
            .join("registry.sqlite-wal")
            .metadata()
            .unwrap()
            .len()
            > 0
    );
    let functions = Registry::open(copy.path()).unwrap().functions().unwrap();
    assert_eq!(functions.iter().map(numbers).collect::<Vec<_>>(), [[1]]);
}

#[test]
fn the_registry_is_for_the_daemon_alone() {
    let folder = tempfile::tempdir().unwrap();
    drop(Registry::open(folder.path()).unwrap());
    let mode = fs::metadata(folder.path().join(FILE))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_file_that_is_no_database_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join(FILE),
        "not a database, not by far, not at all, no",
    )
    .unwrap();
    let error = Registry::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("registry.sqlite"), "{error}");
    assert!(error.contains("copy a backup"), "{error}");
}

#[test]
fn a_registry_that_lost_its_content_is_refused_where_something_is_deployed() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    registry
        .commit(&version(folder.path(), "a", 1), &[])
        .unwrap();
    drop(registry);
    let file = folder.path().join(FILE);
    let whole = fs::read(&file).unwrap();
    let header = folder.path().join("header");
    let empty = Connection::open(&header).unwrap();
    empty
        .pragma_update(None, "application_id", 1)
        .and_then(|()| empty.pragma_update(None, "application_id", 0))
        .unwrap();
    drop(empty);
    for (content, said) in [
        (Some(Vec::new()), "the file is empty: it is damaged"),
        (None, "it is missing, but"),
        (Some(fs::read(header).unwrap()), "it has no tables, but"),
    ] {
        match &content {
            Some(content) => fs::write(&file, content).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        let scratch = tempfile::tempdir().unwrap();
        let examined = Registry::examine(folder.path(), scratch.path()).unwrap_err();
        let error = Registry::open(folder.path()).unwrap_err().to_string();
        assert_eq!(examined.to_string(), error);
        for words in [said, "copy a backup", &file.display().to_string()] {
            assert!(error.contains(words), "{error}");
        }
        let again = Registry::open(folder.path()).unwrap_err().to_string();
        assert_eq!(again, error, "the refusal changes nothing");
    }
    fs::write(&file, whole).unwrap();
    let functions = Registry::open(folder.path()).unwrap().functions().unwrap();
    assert_eq!(functions.len(), 1);
}

#[test]
fn an_empty_registry_is_a_new_one_where_nothing_is_deployed() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(FILE), "").unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    assert!(registry.functions().unwrap().is_empty());
}

#[test]
fn a_log_without_its_registry_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("registry.sqlite-wal");
    fs::write(&log, "what was committed last").unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let examined = Registry::examine(folder.path(), scratch.path()).unwrap_err();
    let error = Registry::open(folder.path()).unwrap_err().to_string();
    assert_eq!(examined.to_string(), error);
    assert!(error.contains("(-wal) is there"), "{error}");
    assert!(fs::metadata(&log).unwrap().len() > 0);
}
