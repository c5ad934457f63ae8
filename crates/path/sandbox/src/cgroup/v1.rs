//! Cgroup v1: one hierarchy per controller (Documentation/admin-guide/cgroup-v1).
//!
//! Processes join through `tasks`, not `cgroup.procs`. This moves only the calling thread, which is the whole process right
//! after a fork. It avoids a write lock that waits for an RCU grace period, 5-7 ms if no process was moved recently
//! (cgroup_procs_write_start() in kernel/cgroup/cgroup.c).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::cpu::Counters;
use super::demotion::{CpuShare, WeightScale};
use super::{
    Branch, Files, Limits, OwnLimit, freezer, open_peak, open_to_write, v2, weight_in_processes,
};

/// This daemon's folder in each hierarchy (memory, cpu, pids); fewer if controllers share one.
#[derive(Debug)]
pub(super) struct Folders {
    memory: PathBuf,
    cpu: PathBuf,
    pids: PathBuf,
    /// Counts CPU time; often the same folder as `cpu`. `None`: the machine has it nowhere.
    cpuacct: Option<PathBuf>,
    /// The hierarchies that processes join through `tasks`.
    joined: Vec<PathBuf>,
    /// The folder whose groups can be frozen. `None`: the machine has none.
    freezer: Option<PathBuf>,
    /// All of these.
    all: Vec<PathBuf>,
    /// The group for containers, from the root of the memory controller's hierarchy. An engine uses the same name in all.
    containers: PathBuf,
    /// The folder around it in the other hierarchies, where an engine makes it.
    engines: Vec<PathBuf>,
}

impl Folders {
    /// `mounts` and `own` are the contents of `/proc/self/mounts` and `/proc/self/cgroup`.
    pub(super) fn make(mounts: &str, own: &str, name: &str) -> Result<Self, String> {
        let folder = |controller: &str| {
            let mount = mount_of(mounts, controller)
                .ok_or_else(|| format!("v1 controller {controller} is not mounted"))?;
            let base = own_folder(own, controller).unwrap_or("/");
            let inside = Path::new(mount).join(base.trim_start_matches('/'));
            // In a container the path may be the host's and not exist; then the mount point is this process's folder.
            let base = if inside.is_dir() {
                inside
            } else {
                PathBuf::from(mount)
            };
            let folder = base.join(name);
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    Err(format!("v1 {}: {error}", folder.display()))
                }
                _ => Ok(folder),
            }
        };
        let (memory, cpu, pids) = (folder("memory")?, folder("cpu")?, folder("pids")?);
        let cpuacct = folder("cpuacct").ok();
        let joined = [Some(&memory), Some(&cpu), cpuacct.as_ref(), Some(&pids)];
        let mut joined: Vec<PathBuf> = joined.into_iter().flatten().cloned().collect();
        joined.dedup();
        // Kernels before 5.11 count what is in the groups below only if asked to, before there are any.
        let _ = fs::write(memory.join("memory.use_hierarchy"), "1");
        for base in &joined {
            let builds = base.join(Branch::Builds.folder());
            match fs::create_dir(&builds) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(format!("v1 {}: {error}", builds.display()));
                }
                _ => {}
            }
        }
        // 1024 is the weight of one process. An error is ignored: functions are then only slower on a busy machine.
        let shares = 1024 * weight_in_processes();
        let _ = fs::write(cpu.join("cpu.shares"), shares.to_string());
        let freezer = v2::own_folder(mounts, own).and_then(|base| freezer::make(&base, name));
        let all: Vec<PathBuf> = joined.iter().chain(&freezer).cloned().collect();
        let mount = Path::new(mount_of(mounts, "memory").unwrap_or_default());
        let containers = super::for_containers(&memory, mount);
        let own = memory.strip_prefix(mount).unwrap_or(&memory);
        let engines = mounts_of_all(mounts).map(|mount| Path::new(mount).join(own));
        let engines = engines.filter(|folder| !all.contains(folder)).collect();
        Ok(Self {
            memory,
            cpu,
            pids,
            cpuacct,
            joined,
            freezer,
            all,
            containers,
            engines,
        })
    }

    pub(super) fn containers(&self) -> &Path {
        &self.containers
    }

    pub(super) fn engines(&self) -> &[PathBuf] {
        &self.engines
    }

    pub(super) fn all(&self) -> &[PathBuf] {
        &self.all
    }

    pub(super) fn freezes(&self) -> bool {
        self.freezer.is_some()
    }

    pub(super) fn memory(&self) -> &Path {
        &self.memory
    }

    pub(super) fn pids(&self) -> &Path {
        &self.pids
    }

    pub(super) fn create(&self, name: &Path, limits: &Limits) -> io::Result<Files> {
        let mut folders: Vec<PathBuf> = self.joined.iter().map(|base| base.join(name)).collect();
        for folder in &folders {
            fs::create_dir(folder)?;
        }
        self.write(name, limits)?;
        let memory = self.memory.join(name);
        let mut join = folders
            .iter()
            .map(|folder| open_to_write(&folder.join("tasks")))
            .collect::<io::Result<Vec<_>>>()?;
        let mut freeze = None;
        if let Some(freezer) = self.freezer.as_ref().filter(|_| limits.freezable) {
            let folder = freezer.join(name);
            let (thread, file) = freezer::create(&folder)?;
            join.push(thread);
            folders.push(folder);
            freeze = Some(file);
        }
        let cpuacct = self.cpuacct.as_ref().map(|base| base.join(name));
        let cpu = self.cpu.join(name);
        let counters = Counters::v1(cpuacct.as_deref(), &cpu);
        Ok(Files {
            share: CpuShare::new(cpu.join("cpu.shares"), WEIGHT_SCALE, counters),
            processes: File::open(memory.join("cgroup.procs"))?,
            peak: open_peak(&memory.join("memory.max_usage_in_bytes")),
            oom: memory.join("memory.oom_control"),
            own_limit: OwnLimit::ByPeak(memory.join("memory.limit_in_bytes")),
            name: name.to_path_buf(),
            folders,
            join,
            freeze,
        })
    }

    pub(super) fn limit(&self, files: &Files, limits: &Limits) -> io::Result<()> {
        self.write(&files.name, limits)
    }

    pub(super) fn limit_cpu(&self, files: &Files, limits: &Limits) -> io::Result<()> {
        write_cpu(&self.cpu.join(&files.name), limits)
    }

    fn write(&self, name: &Path, limits: &Limits) -> io::Result<()> {
        let memory = self.memory.join(name);
        // The kernel counts buffers of sockets only in groups with this limit, from when it is set: before the first process is in
        // the group. Some kernels do not have the file.
        match fs::write(
            memory.join("memory.kmem.tcp.limit_in_bytes"),
            limits.memory_bytes.to_string(),
        ) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(%error, "the limit of socket memory");
            }
            _ => {}
        }
        write_memory(&memory, limits.memory_bytes)?;
        write_cpu(&self.cpu.join(name), limits)?;
        fs::write(
            self.pids.join(name).join("pids.max"),
            limits.pids.to_string(),
        )
    }
}

/// The shares of a group without a weight, and the fewest (`MIN_SHARES` in kernel/sched/sched.h).
const WEIGHT_SCALE: WeightScale = WeightScale {
    usual: 1024,
    least: 2,
};

fn write_cpu(group: &Path, limits: &Limits) -> io::Result<()> {
    fs::write(
        group.join("cpu.cfs_period_us"),
        limits.cpu_period_us.to_string(),
    )?;
    fs::write(
        group.join("cpu.cfs_quota_us"),
        limits.cpu_quota_us().to_string(),
    )
}

/// Reclaims what is charged to a group.
pub(super) fn reclaim(group: &Path) -> io::Result<()> {
    fs::write(group.join("memory.force_empty"), "0")
}

/// Limits memory, and memory and swap together, to the same number.
pub(super) fn write_memory(group: &Path, bytes: u64) -> io::Result<()> {
    let (alone, with_swap) = (
        group.join("memory.limit_in_bytes"),
        // Memory and swap together. Missing in a kernel without swap accounting.
        group.join("memory.memsw.limit_in_bytes"),
    );
    // The limit of memory alone must never be the larger one.
    let before = fs::read_to_string(&alone)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let order = if before.is_none_or(|before: u64| bytes <= before) {
        [&alone, &with_swap]
    } else {
        [&with_swap, &alone]
    };
    for file in order {
        if file.exists() {
            fs::write(file, bytes.to_string())?;
        }
    }
    Ok(())
}

/// Where a controller's hierarchy is mounted.
fn mount_of<'a>(mounts: &'a str, controller: &str) -> Option<&'a str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind, options) = (
            fields.next()?,
            fields.next()?,
            fields.next()?,
            fields.next()?,
        );
        (kind == "cgroup" && options.split(',').any(|option| option == controller)).then_some(path)
    })
}

/// Where the hierarchies are mounted, also those without a controller that limits functions, and version 2 beside version 1, where runc
/// makes its groups too.
fn mounts_of_all(mounts: &str) -> impl Iterator<Item = &str> {
    mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup").then_some(path)
    })
}

/// This process's folder in a controller's hierarchy.
fn own_folder<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })
}
