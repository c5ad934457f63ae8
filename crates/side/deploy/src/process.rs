//! Runs another program with limits of time and output, and kills it together with its children.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit status; `None`: it was killed at its time limit.
    pub(crate) status: Option<ExitStatus>,
    /// The last lines of stdout and stderr together.
    pub(crate) tail: String,
}

impl Ended {
    pub(crate) fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program, at most for `time`. `on_line` gets each line of its output as it is written. Dropping the future kills the
/// program and its children.
pub(crate) async fn run(
    mut command: Command,
    time: Duration,
    mut on_line: impl FnMut(&str) + Send,
) -> io::Result<Ended> {
    // One pipe for both streams keeps the order of the lines.
    let (output, input) = io::pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(input.try_clone()?)
        .stderr(input)
        .process_group(0);
    let mut group = Group::spawn(&mut command)?;
    // The command holds the write ends of the pipe.
    drop(command);
    let mut output = Receiver::from_owned_fd(output.into())?;
    let mut lines = Lines::default();
    let mut buffer = vec![0; 16 * 1024];
    let deadline = tokio::time::sleep(time);
    tokio::pin!(deadline);
    let status = loop {
        tokio::select! {
            count = output.read(&mut buffer) => match count? {
                0 => break tokio::time::timeout_at(deadline.deadline(), group.child.wait()).await.ok().transpose()?,
                count => lines.push(&buffer[..count], &mut on_line),
            },
            status = group.child.wait() => break Some(status?),
            () = &mut deadline => break None,
        }
    };
    // Children that still run would hold the pipe open.
    group.kill();
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        lines.push(&buffer[..count], &mut on_line);
    }
    Ok(Ended {
        status,
        tail: lines.finish(&mut on_line),
    })
}

/// A child that leads its process group. Dropping it kills the group.
struct Group {
    child: Child,
    leader: Option<Pid>,
}

impl Group {
    fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.kill_on_drop(true).spawn()?;
        let leader = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Ok(Self { child, leader })
    }

    fn kill(&mut self) {
        let Some(leader) = self.leader.take() else {
            return;
        };
        match killpg(leader, Signal::SIGKILL) {
            // All processes have ended already.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => {
                tracing::warn!(%error, group = %leader, "an installer's processes could not be killed")
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Splits output into lines and keeps its end.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    line: Vec<u8>,
    tail: String,
}

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8], on_line: &mut impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => self.end_line(on_line),
                _ if self.line.len() < LINE_BYTES_MAX => self.line.push(*byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self, on_line: &mut impl FnMut(&str)) {
        let line = String::from_utf8_lossy(&self.line);
        let line = line.trim_end();
        if !line.is_empty() {
            on_line(line);
            self.tail.push_str(line);
            self.tail.push('\n');
            if self.tail.len() > 2 * TAIL_BYTES_MAX {
                self.cut_tail();
            }
        }
        self.line.clear();
    }

    fn cut_tail(&mut self) {
        let excess = self.tail.len().saturating_sub(TAIL_BYTES_MAX);
        if excess > 0 {
            let next_line = self.tail.as_bytes()[excess..]
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(self.tail.len(), |at| excess + at + 1);
            self.tail.drain(..next_line);
        }
    }

    pub(crate) fn finish(mut self, on_line: &mut impl FnMut(&str)) -> String {
        self.end_line(on_line);
        self.cut_tail();
        self.tail
    }
}

const LINE_BYTES_MAX: usize = 4 * 1024;
const TAIL_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn lines_of_both_streams_come_in_order() {
        let mut seen = Vec::new();
        let ended = run(
            shell("echo one; echo two >&2; printf three; exit 3"),
            MINUTE,
            |line| {
                seen.push(line.to_owned());
            },
        )
        .await
        .unwrap();
        assert_eq!(seen, ["one", "two", "three"]);
        assert_eq!(ended.tail, "one\ntwo\nthree\n");
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
    }

    #[tokio::test]
    async fn a_program_over_its_time_dies_with_its_children() {
        let mut child = None;
        let ended = run(
            shell("sleep 600 & echo $!; wait"),
            Duration::from_millis(300),
            |line| {
                child = line.parse::<i32>().ok();
            },
        )
        .await
        .unwrap();
        assert!(ended.status.is_none());
        let child = Pid::from_raw(child.unwrap());
        // SIGKILL was sent before `run` returned. Init reaps the orphan some time later.
        let gone = || match std::fs::read_to_string(format!("/proc/{child}/stat")) {
            Ok(stat) => stat.contains(") Z ") || stat.contains(") X "),
            Err(_) => true,
        };
        while !gone() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_child_left_running_does_not_hold_up_the_end() {
        let ended = run(shell("sleep 600 & echo done"), MINUTE, |_| {})
            .await
            .unwrap();
        assert!(ended.succeeded());
        assert_eq!(ended.tail, "done\n");
    }

    #[tokio::test]
    async fn output_is_kept_to_its_last_lines() {
        let ended = run(
            shell("i=0; while [ $i -lt 5000 ]; do echo line number $i; i=$((i+1)); done"),
            MINUTE,
            |_| {},
        )
        .await
        .unwrap();
        assert!(ended.tail.len() <= TAIL_BYTES_MAX);
        assert!(ended.tail.ends_with("line number 4999\n"));
        assert!(ended.tail.starts_with("line number "));
    }

    const MINUTE: Duration = Duration::from_secs(60);
}
