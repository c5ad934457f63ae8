//! The daemon that `pilot dev` runs as its child process.
//!
//! The child stops when its standard input closes, so it always ends with this process, even after `kill -9`. It has its own
//! process group, so that Ctrl-C reaches only this process, which then stops the child.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::message::{Ended, Message};
use crate::control_socket::SOCKET_NAME;

/// A child daemon. Dropping it stops the daemon and waits for its end.
#[derive(Debug)]
pub(super) struct Daemon {
    socket: PathBuf,
    stopping: Arc<AtomicBool>,
    stop: Sender<Stop>,
    supervisor: Option<JoinHandle<()>>,
}

/// A request to stop; the second one kills.
#[derive(Debug)]
struct Stop;

impl Daemon {
    /// Starts the daemon, which is not ready yet. Its end is sent to `inbox`. From now on SIGINT, SIGTERM and SIGHUP stop it.
    pub(super) fn start(
        data_dir: &Path,
        address: SocketAddr,
        inbox: Sender<Message>,
    ) -> anyhow::Result<Self> {
        let (stop, stops) = mpsc::channel();
        let stopping = Arc::new(AtomicBool::new(false));
        stop_on_signals(stop.clone(), Arc::clone(&stopping))?;
        let binary = std::env::current_exe().context("cannot find this binary")?;
        let child = Command::new(binary)
            .args(["serve", "--until-stdin-closes", "--log-level", "warn"])
            .arg("--listen")
            .arg(address.to_string())
            .arg("--data-dir")
            .arg(data_dir)
            // Its socket is in its data directory, even if this is the shell of a service.
            .env_remove("RUNTIME_DIRECTORY")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("the daemon cannot be started")?;
        let supervisor = thread::spawn(move || {
            let ended = supervise(child, &stops);
            let _ = inbox.send(Message::Ended(ended));
        });
        Ok(Self {
            socket: std::path::absolute(data_dir)?.join(SOCKET_NAME),
            stopping,
            stop,
            supervisor: Some(supervisor),
        })
    }

    /// Its control socket.
    pub(super) fn endpoint(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// Set after the first signal.
    pub(super) fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopping)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.stop.send(Stop);
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
    }
}

/// Waits for the child's end. Closes its standard input at the first request to stop; kills it at the second one, or when it takes
/// too long.
fn supervise(mut child: Child, stops: &Receiver<Stop>) -> Ended {
    let mut stdin = child.stdin.take();
    let mut kill_at: Option<Instant> = None;
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(_)) if kill_at.is_some() => return Ended::AsTold,
            Ok(Some(status)) => return Ended::ByItself(status),
            Err(_) => return Ended::AsTold,
        }
        let told_again = match stops.recv_timeout(LOOK_EVERY) {
            Ok(Stop) => kill_at.is_some(),
            Err(RecvTimeoutError::Timeout) => {
                if kill_at.is_some_and(|at| Instant::now() >= at) {
                    let _ = child.kill();
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => true,
        };
        drop(stdin.take());
        kill_at.get_or_insert_with(|| Instant::now() + DRAIN_MAX);
        if told_again {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn stop_on_signals(stop: Sender<Stop>, stopping: Arc<AtomicBool>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let signals = {
        let _inside = runtime.enter();
        [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ]
        .map(signal)
    };
    let [interrupt, terminate, hangup] = signals;
    let (mut interrupt, mut terminate, mut hangup) = (interrupt?, terminate?, hangup?);
    thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                stopping.store(true, Ordering::Relaxed);
                if stop.send(Stop).is_err() {
                    return;
                }
            }
        });
    });
    Ok(())
}

/// How often to check whether the daemon is alive. (To wait for a child and a message at the same time would need a signal handler
/// or a pidfd; ten checks per second cost almost nothing.)
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A daemon that drains longer than this is killed.
const DRAIN_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn child(script: &str) -> Child {
        Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_child_that_is_told_to_stop_sees_its_standard_input_close() {
        let (stop, stops) = mpsc::channel();
        stop.send(Stop).unwrap();
        let ended = supervise(child("cat > /dev/null; exit 0"), &stops);
        assert!(matches!(ended, Ended::AsTold), "{ended:?}");
    }

    #[test]
    fn a_child_that_does_not_listen_is_killed_when_told_twice() {
        let (stop, stops) = mpsc::channel();
        stop.send(Stop).unwrap();
        stop.send(Stop).unwrap();
        let begun = Instant::now();
        let ended = supervise(child("exec sleep 60"), &stops);
        assert!(matches!(ended, Ended::AsTold), "{ended:?}");
        assert!(begun.elapsed() < DRAIN_MAX);
    }

    #[test]
    fn a_child_that_ends_by_itself_is_told_apart() {
        let (_stop, stops) = mpsc::channel();
        match supervise(child("exit 7"), &stops) {
            Ended::ByItself(status) => assert_eq!(status.code(), Some(7)),
            other @ Ended::AsTold => panic!("{other:?}"),
        }
    }
}
