//! Builds without a sandbox: commands run as the test's own user, on the host.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pilot_model::ports::{
    BoxFuture, BuildCommand, BuildEnd, BuildError, BuildHost, BuildSandbox, BuildSpec, Unreached,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::time::Instant;

/// Runs the commands of builds on the host. Network and disk are not limited.
#[derive(Debug, Default)]
pub struct UnconfinedBuilds;

#[derive(Debug)]
struct UnconfinedBuild {
    deadline: Instant,
}

impl BuildHost for UnconfinedBuilds {
    fn open(
        &self,
        spec: BuildSpec,
    ) -> BoxFuture<'static, Result<Box<dyn BuildSandbox>, BuildError>> {
        let deadline = Instant::now() + spec.time_max;
        Box::pin(async move { Ok(Box::new(UnconfinedBuild { deadline }) as Box<dyn BuildSandbox>) })
    }
}

impl BuildSandbox for UnconfinedBuild {
    fn inside(&self, host: &Path) -> PathBuf {
        host.to_owned()
    }

    fn run<'a>(
        &'a self,
        command: BuildCommand,
        on_output: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> BoxFuture<'a, Result<BuildEnd, BuildError>> {
        Box::pin(async move {
            let failed = |error: std::io::Error| BuildError {
                problem: error.to_string(),
            };
            let (output, input) = std::io::pipe().map_err(failed)?;
            let mut process = Command::new(&command.program);
            process
                .args(&command.arguments)
                .env_clear()
                .envs(command.environment)
                .current_dir(&command.cwd)
                .stdin(Stdio::null())
                .stdout(input.try_clone().map_err(failed)?)
                .stderr(input)
                .process_group(0);
            let mut child = process.spawn().map_err(failed)?;
            drop(process);
            let group = child.id().and_then(|id| i32::try_from(id).ok());
            let mut output = Receiver::from_owned_fd(output.into()).map_err(failed)?;
            let mut buffer = vec![0; 16 * 1024];
            let mut open = true;
            let status = loop {
                tokio::select! {
                    read = output.read(&mut buffer), if open => match read.map_err(failed)? {
                        0 => open = false,
                        count => on_output(&buffer[..count]),
                    },
                    status = child.wait(), if !open => break Some(status.map_err(failed)?),
                    () = tokio::time::sleep_until(self.deadline) => break None,
                }
            };
            let Some(status) = status else {
                if let Some(group) = group {
                    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
                }
                return Ok(BuildEnd::OutOfTime);
            };
            let signal = || BuildEnd::Signalled(status.signal().unwrap_or(0));
            Ok(status.code().map_or_else(signal, BuildEnd::Exited))
        })
    }

    fn unreached(&self) -> Vec<Unreached> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), BuildError>> {
        Box::pin(async { Ok(()) })
    }
}
