//! The trigger at real folders.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use pilot_model::trigger::{FaasTrigger, TriggerConfig, TriggerInfo, TriggerState};
use tokio::sync::watch::{self, Sender};
use tokio::task::JoinHandle;

use super::*;
use crate::connections::{ConnectionConfig, ConnectionKind, Connections};
use crate::context::{Stop, TriggerPorts};
use crate::file_calls::FileCalls;
use crate::testing::{FakeStore, Nobody};

fn watched(root: &Path, path: &Path) -> Watched {
    Watched {
        bucket: "in".to_owned(),
        root: root.to_owned(),
        path: path.to_owned(),
        suffix: String::new(),
        lane: FileCalls::default().lane("lab"),
    }
}

#[test]
fn only_regular_files_in_the_folder_itself_count() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "s").unwrap();
    let inbox = folder.path().join("inbox");
    fs::create_dir_all(inbox.join("deeper")).unwrap();
    fs::write(inbox.join("deeper/file"), "").unwrap();
    fs::write(inbox.join("a.csv"), "1").unwrap();
    std::os::unix::fs::symlink(&secret, inbox.join("link.csv")).unwrap();
    let opened = open(&watched(&inbox, &inbox)).unwrap();
    let (found, _) = all(&opened, ".csv", &Progress::default()).unwrap();
    let names: Vec<String> = found.into_keys().collect();
    assert_eq!(names, ["a.csv"]);
}

#[test]
fn a_link_does_not_lead_out_of_the_operators_folder() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("in")).unwrap();
    assert!(open(&watched(&root, &root.join("in"))).is_ok());
    std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
    let refused = open(&watched(&root, &root.join("out"))).unwrap_err();
    assert!(refused.contains("leads out"), "{refused}");
    assert!(open(&watched(&root, &root.join("none"))).is_err());
}

#[test]
fn the_event_is_that_of_s3() {
    let signature = Signature {
        inode: 1,
        size: 3,
        modified_ns: 1_709_251_199_007_000_000,
    };
    let watched = watched(Path::new("/srv"), Path::new("/srv/in"));
    let event: serde_json::Value =
        serde_json::from_str(&event(&watched, "a b+ü.csv", &signature)).unwrap();
    let record = &event["Records"][0];
    assert_eq!(record["s3"]["object"]["key"], "in/a+b%2B%C3%BC.csv");
    assert_eq!(record["eventTime"], "2024-02-29T23:59:59.007Z");
    assert_eq!(record["pilot"]["path"], "/srv/in/a b+ü.csv");
    assert_eq!(record["pilot"]["key"], "in/a b+ü.csv");
}

/// A trigger that runs.
struct Listening {
    store: Arc<FakeStore>,
    context: Context,
    spec: FolderSpec,
    _stop: Sender<Stop>,
    task: JoinHandle<()>,
}

impl Listening {
    fn begin(path: &Path, file_calls: FileCalls) -> Self {
        let store = Arc::new(FakeStore::default());
        let connection = ConnectionConfig {
            name: "in".to_owned(),
            functions: vec!["*".to_owned()],
            kind: ConnectionKind::Folder {
                path: path.to_owned(),
            },
        };
        let shared = Arc::new(TriggerPorts {
            store: Arc::clone(&store) as _,
            runner: Arc::new(Nobody),
            connections: Arc::new(Connections::new(vec![connection])),
            file_calls,
        });
        let spec = FolderSpec {
            path: path.display().to_string(),
            suffix: None,
        };
        let (stop, stopped) = watch::channel(Stop::No);
        let context = Context {
            shared,
            function: "lab".parse().unwrap(),
            owner: "me".to_owned(),
            trigger: FaasTrigger::Datasource,
            timeout: Duration::from_secs(1),
            scope: "lab".to_owned(),
            status: Arc::default(),
            stop: stopped,
            failures: 0,
        };
        let task = tokio::spawn(run(context.clone(), spec.clone()));
        Self {
            store,
            context,
            spec,
            _stop: stop,
            task,
        }
    }

    fn info(&self) -> TriggerInfo {
        let config = TriggerConfig::Folder(self.spec.clone());
        self.context.status.info(&self.context.function, &config)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_folder_that_does_not_answer_is_said_and_looked_at_again() {
    let folder = tempfile::tempdir().unwrap();
    let calls = FileCalls::new(Duration::from_millis(20));
    let (answer, answered) = std::sync::mpsc::channel::<()>();
    // A call that a trigger before it has left behind.
    let hangs = calls.lane("lab");
    let hangs = hangs.call(folder.path(), move |_| answered.recv().is_ok());
    assert!(hangs.await.is_err());
    let listening = Listening::begin(folder.path(), calls);
    while listening.info().state != TriggerState::Failing {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let problem = listening.info().last_error.unwrap();
    assert!(problem.contains("does not answer"), "{problem}");
    answer.send(()).unwrap();
    while listening.info().state != TriggerState::Active {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_file_whose_name_is_not_utf8_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &'static [u8]| folder.path().join(OsStr::from_bytes(name));
    fs::write(place(b"old-\xe9"), "1").unwrap();
    let listening = Listening::begin(folder.path(), FileCalls::default());
    let said = async |name: &str, errors: u64| {
        while listening.info().errors < errors {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let problem = listening.info().last_error.unwrap();
        assert!(problem.contains(name), "{problem}");
    };
    said("\"old-\\xe9\"", 1).await;
    while listening.info().state != TriggerState::Active {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The old one is written again, and is not said again.
    for name in [&b"old-\xe9"[..], b"new-\xe9"] {
        fs::write(place(name), "2").unwrap();
    }
    said("\"new-\\xe9\"", 2).await;
    fs::write(folder.path().join("good"), "1").unwrap();
    while !listening.store.accepted.lock().contains("good") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(listening.info().errors, 2);
    assert_eq!(listening.store.accepted.lock().len(), 1);
}

#[tokio::test]
async fn a_file_that_was_young_at_the_start_is_received_although_others_keep_arriving() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("young"), "1").unwrap();
    let listening = Listening::begin(folder.path(), FileCalls::default());
    // From now on, others are seen when they arrive.
    while listening.info().state != TriggerState::Active {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let begun_at = Instant::now();
    let is_accepted = |name: &str| listening.store.accepted.lock().contains(name);
    let mut count = 0;
    while !is_accepted("young") {
        let waited = begun_at.elapsed();
        assert!(waited < 5 * SETTLED_AFTER, "{count} others were received");
        let name = format!("other-{count}");
        fs::write(folder.path().join(&name), "1").unwrap();
        while !is_accepted(&name) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        count += 1;
    }
    assert!(count > 1, "others arrived");
}
