use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// A version whose files are all there.
fn version(data_dir: &Path, name: &str, number: u32) -> StoredVersion {
    let mut version = Version::clone(&pilot_testkit::version(name, number));
    version.code_dir = data_dir.join("code").join(version.id.as_str());
    fs::create_dir_all(&version.code_dir).unwrap();
    version.environment.python = "/bin/sh".into();
    let packages = data_dir
        .join("environments")
        .join(version.environment.id.as_str())
        .join("packages");
    fs::create_dir_all(&packages).unwrap();
    version.environment.packages_dir = Some(packages);
    version.environment.imports = vec!["six".to_owned()];
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
    let stored = version(folder.path(), "invert", 1);
    Registry::open(folder.path())
        .unwrap()
        .commit(&stored, 3)
        .unwrap();
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
fn the_newest_versions_are_kept_newest_first() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    for number in 1..=5 {
        registry
            .commit(&version(folder.path(), "a", number), 3)
            .unwrap();
        registry
            .commit(&version(folder.path(), "b", number), 3)
            .unwrap();
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
    registry.commit(&version(folder.path(), "a", 1), 3).unwrap();
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
fn a_number_that_is_taken_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    registry.commit(&version(folder.path(), "a", 1), 3).unwrap();
    let before = registry.functions().unwrap();
    assert!(registry.commit(&version(folder.path(), "a", 1), 3).is_err());
    assert_eq!(registry.functions().unwrap(), before);
}

#[test]
fn missing_files_are_a_problem_of_that_function_alone() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    for (name, number) in [("whole", 1), ("broken-code", 2)] {
        registry
            .commit(&version(folder.path(), name, number), 3)
            .unwrap();
    }
    let mut gone = version(folder.path(), "broken-python", 3);
    gone.version.environment.python = "/nonexistent/python3".into();
    gone.version.environment.id = EnvironmentId::from_hex("00000000000000e1");
    gone.version.environment.packages_dir = None;
    registry.commit(&gone, 3).unwrap();
    fs::remove_dir(&version(folder.path(), "broken-code", 2).version.code_dir).unwrap();
    let functions = registry.functions().unwrap();
    let problems: Vec<_> = functions
        .iter()
        .map(|function| function.live.problem.clone())
        .collect();
    assert!(
        problems[0]
            .as_ref()
            .unwrap()
            .ends_with("is gone; deploy it again"),
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

#[test]
fn a_row_that_cannot_be_read_is_a_problem_too() {
    let folder = tempfile::tempdir().unwrap();
    let registry = Registry::open(folder.path()).unwrap();
    registry.commit(&version(folder.path(), "a", 1), 3).unwrap();
    registry
        .connection
        .lock()
        .execute("UPDATE versions SET config = '{}', template = ''", [])
        .unwrap();
    let functions = registry.functions().unwrap();
    let problem = functions[0].live.problem.as_ref().unwrap();
    assert!(
        problem.contains("configuration in the registry cannot be read"),
        "{problem}"
    );
    assert_eq!(functions[0].live.version.config.name.as_str(), "a");
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
    registry.commit(&version(folder.path(), "a", 1), 3).unwrap();
    // What a kill -9 leaves: the files as they are, the write-ahead log not folded in.
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
}
