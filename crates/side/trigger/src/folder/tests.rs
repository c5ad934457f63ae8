//! The trigger at real folders.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::time::SystemTime;

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
    symlink(&secret, inbox.join("link.csv")).unwrap();
    let mut watched = watched(&inbox, &inbox);
    ".csv".clone_into(&mut watched.suffix);
    let (opened, _) = open(&watched).unwrap();
    let listing = all(&watched, &opened, &Progress::default()).unwrap();
    let names: Vec<String> = listing.found.into_keys().collect();
    assert_eq!(names, ["a.csv"]);
}

#[test]
fn a_link_does_not_lead_out_of_the_operators_folder() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("in")).unwrap();
    assert!(open(&watched(&root, &root.join("in"))).is_ok());
    symlink("/etc", root.join("out")).unwrap();
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
        Self::begin_with(Arc::default(), path, path, file_calls)
    }

    /// The folder of the connection is `root`.
    fn begin_with(store: Arc<FakeStore>, root: &Path, path: &Path, file_calls: FileCalls) -> Self {
        let connection = ConnectionConfig {
            name: "in".to_owned(),
            functions: vec!["*".to_owned()],
            kind: ConnectionKind::Folder {
                path: root.to_owned(),
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

    /// Waits until a file was received, and returns how many were.
    async fn received(&self, name: &str) -> u64 {
        while !self.store.has_accepted(name) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.info().received
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
    listening.received("good").await;
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
    let is_accepted = |name: &str| listening.store.has_accepted(name);
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

/// Files that nobody has just written.
fn write_old(folder: &Path, names: &[&str]) {
    for name in names {
        let file = File::create(folder.join(name)).unwrap();
        let hour = Duration::from_secs(3600);
        file.set_modified(SystemTime::now() - hour).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_folder_whose_parent_was_made_anew_is_watched_again() {
    let root = tempfile::tempdir().unwrap();
    let (parent, path) = (root.path().join("srv"), root.path().join("srv/in"));
    fs::create_dir_all(&path).unwrap();
    write_old(&path, &["first"]);
    let calls = FileCalls::default();
    let listening = Listening::begin_with(Arc::default(), root.path(), &path, calls);
    assert_eq!(listening.received("first").await, 1);
    fs::rename(&parent, root.path().join("srv.old")).unwrap();
    fs::create_dir_all(&path).unwrap();
    write_old(&path, &["second"]);
    assert_eq!(listening.received("second").await, 2);
    let problem = listening.info().last_error.unwrap();
    assert!(problem.contains("is another folder now"), "{problem}");
}

#[tokio::test(start_paused = true)]
async fn files_of_a_disk_that_was_away_are_not_received_again_also_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let place = |name: &str| root.path().join(name);
    // A link stands for the mount.
    let lead_to = |target: &str| {
        symlink(place(target), place("new")).unwrap();
        fs::rename(place("new"), place("in")).unwrap();
    };
    for name in ["disk", "below"] {
        fs::create_dir(place(name)).unwrap();
    }
    write_old(&place("disk"), &["a", "b"]);
    let store = Arc::new(FakeStore::default());
    let begin = || {
        let (store, calls) = (Arc::clone(&store), FileCalls::default());
        Listening::begin_with(store, root.path(), &place("in"), calls)
    };
    lead_to("disk");
    let listening = begin();
    listening.received("a").await;
    assert_eq!(listening.received("b").await, 2);
    drop(listening);

    // The daemon starts before the disk is mounted.
    lead_to("below");
    write_old(&place("below"), &["hidden"]);
    let listening = begin();
    assert_eq!(listening.received("hidden").await, 1);
    lead_to("disk");
    write_old(&place("disk"), &["late"]);
    assert_eq!(listening.received("late").await, 2);
    drop(listening);

    // It starts again. What was deleted is forgotten, and another state is received.
    fs::remove_file(place("disk/a")).unwrap();
    write_old(&place("disk"), &["last"]);
    let listening = begin();
    assert_eq!(listening.received("last").await, 1);
    let names: Vec<String> = store.marks.lock().keys().cloned().collect();
    let has = |name: &str| names.iter().any(|key| key.ends_with(name));
    assert!(!has("/a") && has("/b") && has("/hidden"), "{names:?}");
}

#[test]
fn a_file_that_cannot_be_looked_at_is_an_error_and_is_not_gone() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(signature(&folder.path().join("none")).unwrap(), None);
    let error = signature(&folder.path().join("x".repeat(300))).unwrap_err();
    let problem = unclear(folder.path(), OsStr::new("a.csv"), &error);
    assert!(problem.contains("\"a.csv\""), "{problem}");

    let mut files = Files {
        known: Known::read(vec![mark("a.csv"), mark("b.csv")]),
        pending: BTreeMap::new(),
        odd: OddNames::default(),
        problem: None,
    };
    let state = Signature {
        inode: 1,
        size: 1,
        modified_ns: 0,
    };
    let id = FolderId::of(&folder.path().metadata().unwrap());
    files.known.enter(id);
    let found = |names: &[&str]| {
        let found = names.iter().map(|name| ((*name).to_owned(), state.clone()));
        found.collect::<HashMap<_, _>>()
    };
    let both = Listing {
        found: found(&["a.csv", "b.csv"]),
        ..Listing::default()
    };
    files.take_in(both, now_ms());
    assert!(files.pending.is_empty(), "{:?}", files.pending);
    let fails = Listing {
        found: found(&["c.csv"]),
        unclear: HashSet::from(["a.csv".into()]),
        problem: Some(problem),
        ..Listing::default()
    };
    let (changes, _) = files.take_in(fails, now_ms());
    assert_eq!(changes, [(files.known.key("b.csv"), None)]);
    assert!(files.problem.is_some());
    // The others are received.
    assert!(files.pending.contains_key("c.csv"));
}

fn mark(name: &str) -> (String, String) {
    (name.to_owned(), "1-1-0".to_owned())
}
