//! What an engine's containers use on the machine, before and after: processes, cgroups, mounts, network namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pilot_testkit::namespaces;

use crate::support::{Stage, answer, prewarmed, shell, specialise};

/// The state before.
pub(crate) struct Before {
    engine: PathBuf,
    /// The name of the engine's cgroup folder.
    group: String,
    things: BTreeSet<String>,
    namespaces: usize,
}

impl Before {
    /// Records the state after the engine has made what it makes once, with its first container.
    pub(crate) async fn look(stage: &Stage) -> Self {
        let host = stage.host();
        let version = stage.version("first", &shell(&[]));
        let runtime = prewarmed(&host, &version).await.unwrap();
        let pid = pid_of(stage, &stage.containers());
        let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        // `4:memory:/pilot-test-1/0123456789ab`
        let group = own
            .lines()
            .filter_map(|line| line.splitn(3, ':').nth(2)?.split('/').nth(1))
            .find(|group| group.starts_with("pilot-test-"))
            .unwrap_or_else(|| panic!("the engine's control groups are elsewhere: {own}"))
            .to_owned();
        let engine = stage.engine.dir().to_owned();
        let with_one = namespaces::network().len();
        drop(runtime);
        host.settled().await;
        let things = until(|| {
            let things = things(&engine, &group);
            let of_containers = ["process of", "control group", "containerd-shim"];
            let is_of_one =
                |thing: &String| of_containers.iter().any(|words| thing.contains(words));
            (!things.iter().any(is_of_one)).then_some(things)
        })
        .await
        .unwrap_or_else(|| panic!("{:?}", self::things(&engine, &group)));
        let namespaces =
            until(|| Some(namespaces::network().len()).filter(|now| *now < with_one)).await;
        Self {
            engine,
            group,
            things,
            namespaces: namespaces
                .expect("the container's network namespace was seen, and is gone"),
        }
    }

    /// Starts a daemon after the killed one: it removes what that one left, and its function answers.
    pub(crate) async fn is_all_there_is(&self, stage: &Stage) {
        let host = stage.host();
        host.sweep().await.unwrap();
        assert_eq!(stage.containers(), "");
        assert_eq!(stage.folders(), [""; 0]);
        let version = stage.version("answers", &shell(&[("handler.sh", "echo here")]));
        let runtime = prewarmed(&host, &version).await.unwrap();
        let worker = specialise(&runtime, &version).await.unwrap();
        assert_eq!(answer(&worker, "{}").await.0, "\"here\"");
        drop((worker, runtime));
        host.settled().await;
        assert_eq!(stage.containers(), "");
        let left = || -> BTreeSet<String> {
            let now = things(&self.engine, &self.group);
            now.difference(&self.things).cloned().collect()
        };
        let none = until(|| left().is_empty().then_some(())).await;
        assert!(none.is_some(), "left: {:?}", left());
        let now = || namespaces::network().len();
        let none = until(|| (now() <= self.namespaces).then_some(())).await;
        assert!(
            none.is_some(),
            "{} network namespaces, {} before",
            now(),
            self.namespaces
        );
    }
}

/// Process 1 of a container, as the host sees it.
pub(crate) fn pid_of(stage: &Stage, container: &str) -> u32 {
    let inspect = ["inspect", "--format", "{{.State.Pid}}", container];
    stage.engine.docker(&inspect).parse().unwrap()
}

/// Repeats `look` until it returns something; `None` after [`TIME_MAX`]. The engine sends no notification when a container has
/// ended.
pub(crate) async fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        match look() {
            None if begun.elapsed() < TIME_MAX => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            seen => return seen,
        }
    }
}

/// Processes, control groups and mounts of an engine and of its containers.
fn things(engine: &Path, group: &str) -> BTreeSet<String> {
    let engine = engine.display().to_string();
    let mut found = BTreeSet::new();
    for process in names(Path::new("/proc")) {
        let folder = Path::new("/proc").join(&process);
        let read = |file: &str| fs::read(folder.join(file)).unwrap_or_default();
        let text = |file: &str| String::from_utf8_lossy(&read(file)).into_owned();
        if text("cgroup").contains(&format!("/{group}/")) {
            found.insert(format!("process of a container {process} {}", text("comm")));
        } else if text("cmdline").contains(&engine) {
            found.insert(format!("process {process} {}", text("comm")));
        }
    }
    // One folder per hierarchy in cgroup v1; a single one in v2.
    let hierarchies = names(Path::new("/sys/fs/cgroup"))
        .map(|name| Path::new("/sys/fs/cgroup").join(name))
        .chain([PathBuf::from("/sys/fs/cgroup")]);
    for folder in hierarchies.map(|folder| folder.join(group)) {
        for name in names(&folder).filter(|name| folder.join(name).is_dir()) {
            found.insert(format!("control group {}/{name}", folder.display()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for place in places.filter(|place| place.starts_with(&engine)) {
        found.insert(format!("mount {place}"));
    }
    found
}

fn names(folder: &Path) -> impl Iterator<Item = String> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
}

/// Longest time for the engine to end a container.
const TIME_MAX: Duration = Duration::from_secs(20);
