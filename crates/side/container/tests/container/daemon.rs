//! A daemon that can be killed: a container host in a process of its own, which executes commands one after the other.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::{Stage, answer, host, prewarmed, shell, specialise, version};

/// Environment variables of that process: its data directory, whose presence marks the process, and its engine.
pub(crate) const DIR: &str = "PILOT_TEST_DAEMON";
const ENGINE: &str = "PILOT_TEST_ENGINE";

/// That process.
pub(crate) async fn run(dir: &Path) {
    let engine = std::env::var(ENGINE).unwrap();
    let host = host(dir, &engine);
    let version = version(dir, "killed", &shell(&[("handler.sh", "echo used")]));
    let mut runtime = None;
    // This thread has nothing else to do.
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        match order.as_str() {
            "start" => runtime = Some(prewarmed(&host, &version).await.unwrap()),
            "use" => {
                let worker = specialise(runtime.as_ref().unwrap(), &version)
                    .await
                    .unwrap();
                assert_eq!(answer(&worker, "{}").await.0, "\"used\"");
                worker.retire();
            }
            "clean" => runtime.as_ref().unwrap().clean().await.unwrap(),
            "evict" => runtime = None,
            other => panic!("{other} is no order"),
        }
        println!("{order}");
    }
}

/// That process, as the test sees it.
pub(crate) struct Daemon {
    process: Child,
    orders: ChildStdin,
    done: Lines<BufReader<ChildStdout>>,
}

impl Daemon {
    /// Starts one with this engine.
    pub(crate) fn begin(stage: &Stage, engine: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(DIR, stage.dir.path())
            .env(ENGINE, engine)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            orders: process.stdin.take().unwrap(),
            done: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
        }
    }

    /// Sends a command without waiting.
    pub(crate) async fn begins(&mut self, order: &str) {
        let line = format!("{order}\n");
        self.orders.write_all(line.as_bytes()).await.unwrap();
    }

    /// Sends a command and waits until it is done.
    pub(crate) async fn does(&mut self, order: &str) {
        self.begins(order).await;
        let done = self.done.next_line().await.unwrap();
        assert_eq!(done.as_deref(), Some(order));
    }

    /// Sends SIGKILL and waits for the end.
    pub(crate) async fn dies(mut self) {
        self.process.kill().await.unwrap();
    }
}
