//! A daemon is killed (SIGKILL) in the middle of a container's start, cleaning or removal: the next one removes what it left,
//! and its functions answer.
//!
//! The moment is exact. Engine calls are held by a proxy (`gate`); the shim is held by a process in the container that is
//! killed but not reaped.

use std::process::{Child, Command};

use crate::daemon::Daemon;
use crate::gate::{Asked, CHANGES, CREATE, Gate, Held, REMOVE, START};
use crate::remains::{Before, pid_of, until};
use crate::support::Stage;

/// A daemon that has executed `first` and is killed while a request of `last` is held.
async fn killed(stage: &Stage, first: &[&str], last: &str, asked: Asked, at: Held) {
    let mut gate = Gate::open(stage.dir.path(), stage.engine.dir());
    let mut daemon = Daemon::begin(stage, &gate.address());
    for order in first {
        daemon.does(order).await;
    }
    gate.hold(asked, at);
    daemon.begins(last).await;
    gate.holds().await;
    daemon.dies().await;
}

pub(crate) async fn a_daemon_killed_while_it_starts_a_container_leaves_nothing(stage: Stage) {
    let before = Before::look(&stage).await;
    for (asked, at) in [
        (CREATE, Held::After),
        (START, Held::Before),
        (START, Held::After),
        (CHANGES, Held::Before),
    ] {
        killed(&stage, &[], "start", asked, at).await;
        before.is_all_there_is(&stage).await;
    }
}

pub(crate) async fn a_daemon_killed_while_it_cleans_a_container_leaves_nothing(stage: Stage) {
    let before = Before::look(&stage).await;
    // The engine's part: the shim has already ended everything else.
    for at in [Held::Before, Held::After] {
        killed(&stage, &["start", "use"], "clean", CHANGES, at).await;
        before.is_all_there_is(&stage).await;
    }
    // The shim's part: it waits for the end of what it has killed.
    let mut daemon = Daemon::begin(&stage, &stage.address());
    daemon.does("start").await;
    daemon.does("use").await;
    let lasting = Lasting::in_the_container_of(&stage).await;
    daemon.begins("clean").await;
    lasting.is_dead().await;
    daemon.dies().await;
    lasting.goes();
    before.is_all_there_is(&stage).await;
}

pub(crate) async fn a_daemon_killed_while_it_evicts_a_container_leaves_nothing(stage: Stage) {
    let before = Before::look(&stage).await;
    for at in [Held::Before, Held::After] {
        killed(&stage, &["start", "use"], "evict", REMOVE, at).await;
        before.is_all_there_is(&stage).await;
    }
}

/// A process in a container that stays a zombie when it is killed: its parent, which is outside, is stopped and does not reap
/// it.
struct Lasting {
    parent: Child,
    pid: u32,
}

impl Lasting {
    async fn in_the_container_of(stage: &Stage) -> Self {
        let target = pid_of(stage, &stage.containers()).to_string();
        let parent = Command::new("nsenter")
            .args(["--target", &target, "--pid", "sleep", "1000"])
            .spawn()
            .unwrap();
        let pid = until(|| child_of(parent.id())).await;
        signal(parent.id(), "STOP");
        let stopped = until(|| (state_and_parent(parent.id())?.0 == 'T').then_some(())).await;
        assert!(stopped.is_some(), "nsenter does not stop");
        Self {
            pid: pid.expect("nsenter has a child in the container"),
            parent,
        }
    }

    async fn is_dead(&self) {
        let dead = until(|| (state_and_parent(self.pid)?.0 == 'Z').then_some(())).await;
        assert!(dead.is_some(), "it was not killed");
    }

    fn goes(mut self) {
        signal(self.parent.id(), "CONT");
        self.parent.wait().unwrap();
    }
}

fn signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid}");
    let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
    assert!(status.success(), "{kill}");
}

fn child_of(parent: u32) -> Option<u32> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid| state_and_parent(*pid).is_some_and(|(_, of)| of == parent))
}

/// From `/proc/PID/stat`: the fields after the name, which is in parentheses and may contain anything.
fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}
