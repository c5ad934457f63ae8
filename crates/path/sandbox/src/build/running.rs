//! A build that is being made: a sandbox, its commands, and its end.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, getegid, geteuid, pipe2};
use pilot_model::ports::{
    BoxFuture, BuildCommand, BuildEnd, BuildError, BuildSandbox, MemoryShortage, Unreached,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, interval_at};

use super::disk::DiskWatch;
use super::proxy::Proxy;
use super::{FOLDER_INSIDE, PROXY_PORT, blocking, failed};
use crate::cgroup::Cgroup;
use crate::channel::set_nonblocking;
use crate::child::ChildEnd;
use crate::machine::dev_null;
use crate::message::ExecSpec;
use crate::sandbox::Sandbox;

/// See the module.
#[derive(Debug)]
pub(super) struct SandboxedBuild {
    parts: Parts,
    deadline: Instant,
}

/// What a build consists of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) sandbox: Sandbox,
    pub(super) user: Option<u32>,
    pub(super) folder: PathBuf,
    /// What it sees: (host, inside).
    pub(super) shown: Vec<(PathBuf, PathBuf)>,
    /// The folders to which it may write.
    pub(super) writable: Vec<PathBuf>,
    pub(super) memory_bytes: u64,
    pub(super) time_max: Duration,
    pub(super) proxy: Option<Proxy>,
    pub(super) disk: DiskWatch,
    pub(super) permit: OwnedSemaphorePermit,
}

impl SandboxedBuild {
    pub(super) fn new(parts: Parts) -> Self {
        Self {
            deadline: Instant::now() + parts.time_max,
            parts,
        }
    }

    fn oom_kills(&self) -> u64 {
        self.parts.sandbox.cgroup().map_or(0, Cgroup::oom_kills)
    }

    async fn run_command(
        &self,
        command: BuildCommand,
        on_output: &mut (dyn FnMut(&[u8]) + Send),
    ) -> Result<BuildEnd, BuildError> {
        let pipe_failed = |error: io::Error| failed("make a pipe", error);
        let (here, there) = pipe2(OFlag::O_CLOEXEC).map_err(|error| pipe_failed(error.into()))?;
        set_nonblocking(&here).map_err(pipe_failed)?;
        let mut output = Receiver::from_owned_fd(here).map_err(pipe_failed)?;
        let null = dev_null().map_err(|error| failed("open /dev/null", error))?;
        let mut environment = command.environment;
        if self.parts.proxy.is_some() {
            environment.extend(proxy_variables());
        }
        let spec = ExecSpec {
            path: command.program.display().to_string(),
            arguments: command.arguments,
            environment,
            cwd: command.cwd,
            user: self.parts.user,
            cgroup_files: 0,
            template: false,
            own_filter: false,
        };
        let killed_before = self.oom_kills();
        let fds = [null.as_fd(), there.as_fd(), there.as_fd()];
        let process = self
            .parts
            .sandbox
            .exec(spec, &fds)
            .await
            .map_err(|error| failed("start a command", error))?;
        drop(there);
        let mut printed = 0;
        let mut buffer = vec![0; 16 * 1024];
        let mut open = true;
        let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        let end = loop {
            tokio::select! {
                read = output.read(&mut buffer), if open => match read {
                    Ok(count @ 1..) => {
                        printed += count as u64;
                        if printed > OUTPUT_BYTES_MAX {
                            return Ok(BuildEnd::TooMuchOutput(OUTPUT_BYTES_MAX));
                        }
                        on_output(&buffer[..count]);
                    }
                    _ => open = false,
                },
                end = process.end() => break end,
                // An installer waits for all who hold the output of an install script, and not for the script alone.
                _ = looks.tick() => self.parts.sandbox.control().end_orphans().await,
                bytes = self.parts.disk.exceeded() => return Ok(BuildEnd::OutOfDisk(bytes)),
                () = tokio::time::sleep_until(self.deadline) => return Ok(BuildEnd::OutOfTime),
            }
        };
        // What it printed before its end. A process that it left behind may hold the pipe open, so this does not wait.
        while let Ok(count @ 1..) = output.try_read(&mut buffer) {
            printed += count as u64;
            if printed > OUTPUT_BYTES_MAX {
                break;
            }
            on_output(&buffer[..count]);
        }
        let success = end == ChildEnd::Exited(0);
        let cgroup = self.parts.sandbox.cgroup();
        let ended_by_us = cgroup.is_some_and(Cgroup::is_blamed);
        if !success && (ended_by_us || self.oom_kills() > killed_before) {
            let shortage = cgroup.and_then(Cgroup::shortage);
            return Ok(match shortage {
                None | Some(MemoryShortage::Own) => BuildEnd::OutOfMemory(self.parts.memory_bytes),
                Some(around) => BuildEnd::OutOfMemoryAround(around),
            });
        }
        match end {
            ChildEnd::Exited(code) => Ok(BuildEnd::Exited(code)),
            ChildEnd::Signalled(signal) => Ok(BuildEnd::Signalled(signal)),
            other => Err(failed("wait for a command", other.in_words())),
        }
    }
}

impl BuildSandbox for SandboxedBuild {
    fn inside(&self, host: &Path) -> PathBuf {
        let mut mounts = self.parts.shown.iter();
        let (from, to) = match host.strip_prefix(&self.parts.folder) {
            Ok(rest) => (rest, Path::new(FOLDER_INSIDE)),
            Err(_) => match mounts.find_map(|(from, to)| Some((host.strip_prefix(from).ok()?, to)))
            {
                Some((rest, to)) => (rest, to.as_path()),
                None => return host.to_owned(),
            },
        };
        match from.as_os_str().is_empty() {
            true => to.to_owned(),
            false => to.join(from),
        }
    }

    fn run<'a>(
        &'a self,
        command: BuildCommand,
        on_output: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> BoxFuture<'a, Result<BuildEnd, BuildError>> {
        Box::pin(self.run_command(command, on_output))
    }

    fn unreached(&self) -> Vec<Unreached> {
        self.parts
            .proxy
            .as_ref()
            .map_or_else(Vec::new, Proxy::unreached)
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), BuildError>> {
        let Parts {
            mut sandbox,
            writable,
            proxy,
            disk,
            permit,
            ..
        } = self.parts;
        Box::pin(async move {
            drop(proxy);
            // The sandbox's init kills and reaps every process of the build before it answers.
            let ended = sandbox.clean().await;
            drop((sandbox, disk));
            ended.map_err(|error| failed("end its processes", error))?;
            blocking(move || take_back(&writable)).await?;
            drop(permit);
            Ok(())
        })
    }
}

/// For pip, uv, npm, git and curl.
fn proxy_variables() -> impl Iterator<Item = (String, String)> {
    ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"]
        .into_iter()
        .map(|name| (name.to_owned(), format!("http://127.0.0.1:{PROXY_PORT}")))
}

/// Gives folders and what is in them to the build's user.
pub(super) fn give(folders: &[PathBuf], (user, group): (Uid, Gid)) -> io::Result<()> {
    walk(folders, |path, _| {
        lchown(path, Some(user.as_raw()), Some(group.as_raw()))
    })
}

/// Gives them to the daemon's user, without set-user-id bits, and writable by nobody else. No process of the build runs any more.
fn take_back(folders: &[PathBuf]) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    walk(folders, |path, metadata| {
        if user.is_root() && (metadata.uid(), metadata.gid()) != (user.as_raw(), group.as_raw()) {
            lchown(path, Some(user.as_raw()), Some(group.as_raw()))?;
        }
        let mode = metadata.permissions().mode() & 0o7777;
        let least = if metadata.is_dir() { 0o700 } else { 0o600 };
        let wanted = (mode & 0o755) | least;
        if mode != wanted && !metadata.is_symlink() {
            fs::set_permissions(path, Permissions::from_mode(wanted))?;
        }
        Ok(())
    })
}

/// Visits folders and everything below them, first the folder and then its content. Follows no link.
fn walk(
    folders: &[PathBuf],
    mut visit: impl FnMut(&Path, &fs::Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let mut open = folders.to_vec();
    for folder in folders {
        let metadata = folder.symlink_metadata()?;
        if !metadata.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        visit(folder, &metadata)?;
    }
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let metadata = path.symlink_metadata()?;
            visit(&path, &metadata)?;
            if metadata.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(())
}

/// How often it is looked for what programs of a build have left behind. That is ended at the second look.
const LOOK_EVERY: Duration = Duration::from_secs(4);
/// What the commands of a build may print, each. Installers print some hundred kilobytes.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
