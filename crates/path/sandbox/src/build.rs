//! Builds in sandboxes: installers, build back ends and the compiler run like functions do, as a user of their own in namespaces
//! of their own, with the functions' filter, and with limits on memory, processes, disk, output and time. The network is loopback;
//! a [`proxy`] of the daemon listens there and connects to registries only.
//!
//! Not here: which commands run, and the check of what they made. Both are in `side/deploy`.

mod disk;
mod proxy;
mod running;

use std::path::PathBuf;
use std::sync::Arc;

use nix::unistd::{Gid, Uid};
use pilot_model::cpu_limit::WEIGHT;
use pilot_model::ports::{BoxFuture, BuildError, BuildHost, BuildSandbox, BuildSpec};
use tokio::sync::Semaphore;

use self::disk::DiskWatch;
use self::proxy::{Proxy, UpstreamProxy};
use self::running::SandboxedBuild;
use crate::cgroup::{Branch, CPU_PERIOD_US, Limits};
use crate::isolation::UserNamespace;
use crate::machine::Machine;
use crate::rootfs::RootSpec;
use crate::sandbox::{Sandbox, SandboxSpec};

/// The limits of each build.
#[derive(Debug, Clone)]
pub struct BuildLimits {
    /// Memory of all its processes, and of `/tmp`, bytes.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes that it may have written at one time.
    pub disk_bytes: u64,
    /// The HTTP proxy through which the daemon reaches registries, `http://[user:password@]host:port`.
    pub upstream_proxy: Option<String>,
}

/// Runs builds in sandboxes.
#[derive(Debug)]
pub struct SandboxedBuilds {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    machine: Arc<Machine>,
    limits: BuildLimits,
    upstream: Option<UpstreamProxy>,
    running: Arc<Semaphore>,
}

impl SandboxedBuilds {
    /// # Errors
    /// The upstream proxy's address is not one.
    pub fn new(machine: Arc<Machine>, limits: BuildLimits) -> Result<Self, String> {
        let upstream = limits.upstream_proxy.as_deref();
        let upstream = upstream.map(UpstreamProxy::parse).transpose()?;
        Ok(Self {
            inner: Arc::new(Inner {
                machine,
                limits,
                upstream,
                running: Arc::new(Semaphore::new(BUILDS_MAX)),
            }),
        })
    }
}

impl BuildHost for SandboxedBuilds {
    fn open(
        &self,
        spec: BuildSpec,
    ) -> BoxFuture<'static, Result<Box<dyn BuildSandbox>, BuildError>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let build = inner.open(spec).await?;
            Ok(Box::new(build) as Box<dyn BuildSandbox>)
        })
    }
}

impl Inner {
    async fn open(&self, spec: BuildSpec) -> Result<SandboxedBuild, BuildError> {
        let permit = Arc::clone(&self.running).acquire_owned().await;
        let permit = permit.map_err(|error| failed("wait for other builds", error))?;
        let machine = &self.machine;
        let user = machine.user();
        if let (Some(user), UserNamespace::Mapped { base }) =
            (user, machine.isolation.user_namespace())
        {
            let owner = (Uid::from_raw(base + user), Gid::from_raw(base + user));
            let writable = spec.writable.clone();
            blocking(move || running::give(&writable, owner)).await?;
        }
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cgroup = machine
            .cgroup_of(
                Branch::Builds,
                &Limits {
                    memory_bytes: self.limits.memory_bytes,
                    cpu_milli: u32::try_from(cpus).unwrap_or(1) * 1000,
                    cpu_period_us: CPU_PERIOD_US,
                    cpu_weight: WEIGHT,
                    pids: self.limits.pids,
                    freezable: false,
                },
            )
            .map_err(|error| failed("make a cgroup", error))?;
        let root = RootSpec {
            mount_point: machine.config.dir.join("root"),
            shown: visible_once(spec.shown.clone()),
            writable: Some((spec.folder.clone(), PathBuf::from(FOLDER_INSIDE))),
            user: user.unwrap_or(0),
            resolver: None,
            libraries: false,
        };
        let request = SandboxSpec {
            root,
            own_network: true,
            own_users: None,
            tmp_bytes_max: machine.config.tmp_bytes_max,
        };
        let sandbox = Sandbox::with_root(&machine.spawner, request, None, cgroup)
            .await
            .map_err(|error| failed("make a sandbox", error))?;
        let proxy = if spec.hosts.is_empty() {
            None
        } else {
            let listener = sandbox.control().listen(PROXY_PORT).await;
            let listener = listener.map_err(|error| failed("listen in the sandbox", error))?;
            let proxy = Proxy::start(listener, spec.hosts, self.upstream.clone());
            Some(proxy.map_err(|error| failed("listen in the sandbox", error))?)
        };
        let disk = DiskWatch::start(
            spec.writable.clone(),
            self.limits.disk_bytes,
            sandbox.pid_namespace(),
        );
        Ok(SandboxedBuild::new(running::Parts {
            sandbox,
            user,
            folder: spec.folder,
            shown: spec.shown,
            writable: spec.writable,
            memory_bytes: self.limits.memory_bytes,
            time_max: spec.time_max,
            proxy,
            disk,
            permit,
        }))
    }
}

/// The mounts without those that another one already shows.
fn visible_once(shown: Vec<(PathBuf, PathBuf)>) -> Vec<(PathBuf, PathBuf)> {
    let mut kept: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut shown = shown;
    shown.sort_by_key(|(_, inside)| inside.components().count());
    for (host, inside) in shown {
        let below_another = kept.iter().any(|(_, other)| inside.starts_with(other));
        let of_the_system = SYSTEM_FOLDERS
            .iter()
            .any(|folder| inside.starts_with(folder));
        if !below_another && !of_the_system && host.exists() {
            kept.push((host, inside));
        }
    }
    kept
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, BuildError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(std::io::Error::other)
        .and_then(|done| done)
        .map_err(|error| failed("change the owner of its files", error))
}

fn failed(step: &str, error: impl std::fmt::Display) -> BuildError {
    BuildError {
        problem: format!("{step}: {error}"),
    }
}

/// Builds at the same time; further ones wait. As many as deployments have turns, so that one owner's builds do not take all.
const BUILDS_MAX: usize = 16;
/// Where a build sees its folder.
const FOLDER_INSIDE: &str = "/build";
/// The proxy's port on the build's loopback.
const PROXY_PORT: u16 = 3128;
/// Folders that every root shows.
const SYSTEM_FOLDERS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ssl/certs"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_mount_shows_is_not_mounted_again() {
        let same = |path: &str| (PathBuf::from(path), PathBuf::from(path));
        let shown = vec![
            same("/etc/passwd"),
            same("/etc"),
            same("/usr/lib"),
            same("/nowhere"),
        ];
        assert_eq!(visible_once(shown), [same("/etc")]);
    }
}
