//! Cgroup v2: one hierarchy (Documentation/admin-guide/cgroup-v2.rst). [`place`] finds where a daemon's folder can be in it.

mod place;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::cpu::Counters;
use super::demotion::{CpuShare, WeightScale};
use super::{Branch, Files, Limits, OwnLimit, open_peak, open_to_write, weight_in_processes};

/// The weight of a group without one, and the smallest (Documentation/admin-guide/cgroup-v2.rst).
pub(super) const WEIGHT_SCALE: WeightScale = WeightScale {
    usual: 100,
    least: 1,
};

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// This daemon's folder.
#[derive(Debug)]
pub(super) struct Folder {
    all: [PathBuf; 1],
    /// The group for containers, from the root of the hierarchy.
    containers: PathBuf,
}

impl Folder {
    /// `mounts` and `own` are the contents of `/proc/self/mounts` and `/proc/self/cgroup`.
    pub(super) fn make(mounts: &str, own: &str, name: &str) -> Result<Self, String> {
        let mount = mount(mounts).ok_or("v2 is not mounted")?;
        let own = own_folder(mounts, own).ok_or("v2 is not mounted")?;
        let folder = place::make(Path::new(mount), &own, name)?;
        let builds = folder.join(Branch::Builds.folder());
        fs::create_dir_all(&builds).map_err(|error| error.to_string())?;
        place::hand_down(&builds).map_err(|error| format!("v2 {}: {error}", builds.display()))?;
        // 100 is the weight of one process, 10,000 the maximum. An error is ignored: functions are then only slower on a busy
        // machine.
        let weight = (100 * weight_in_processes()).min(10_000);
        let _ = fs::write(folder.join("cpu.weight"), weight.to_string());
        let containers = super::for_containers(&folder, Path::new(mount));
        Ok(Self {
            all: [folder],
            containers,
        })
    }

    pub(super) fn containers(&self) -> &Path {
        &self.containers
    }

    pub(super) fn all(&self) -> &[PathBuf] {
        &self.all
    }

    pub(super) fn path(&self) -> &Path {
        &self.all[0]
    }

    pub(super) fn create(&self, name: &Path, limits: &Limits) -> io::Result<Files> {
        let folder = self.all[0].join(name);
        fs::create_dir(&folder)?;
        Self::write(&folder, limits)?;
        // When the kernel kills one of its processes for memory, it kills all. Before Linux 4.19 it cannot.
        let _ = fs::write(folder.join("memory.oom.group"), "1");
        Ok(Files {
            join: vec![open_to_write(&folder.join("cgroup.procs"))?],
            processes: File::open(folder.join("cgroup.procs"))?,
            peak: open_peak(&folder.join("memory.peak")),
            oom: folder.join("memory.events"),
            own_limit: OwnLimit::Counted,
            name: name.to_path_buf(),
            share: CpuShare::new(
                folder.join("cpu.weight"),
                WEIGHT_SCALE,
                Counters::v2(&folder),
            ),
            // Before Linux 5.2 there is none.
            freeze: super::freezer::open(&folder).ok(),
            folders: vec![folder],
        })
    }

    pub(super) fn limit(&self, files: &Files, limits: &Limits) -> io::Result<()> {
        Self::write(&self.all[0].join(&files.name), limits)
    }

    fn write(folder: &Path, limits: &Limits) -> io::Result<()> {
        write_memory(folder, limits.memory_bytes)?;
        write_cpu(folder, limits)?;
        fs::write(folder.join("pids.max"), limits.pids.to_string())
    }

    pub(super) fn limit_cpu(&self, files: &Files, limits: &Limits) -> io::Result<()> {
        write_cpu(&self.all[0].join(&files.name), limits)
    }
}

/// The folder of this process's group, if version 2 is mounted.
pub(super) fn own_folder(mounts: &str, own: &str) -> Option<PathBuf> {
    let mount = Path::new(mount(mounts)?);
    let inside = mount.join(own_path(own));
    // In a container the path may be the host's and not exist; then the mount point is this process's folder.
    Some(if inside.is_dir() {
        inside
    } else {
        mount.to_owned()
    })
}

fn mount(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then_some(path)
    })
}

/// The path of this process's group, below the mount point.
fn own_path(own: &str) -> &str {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"));
    path.unwrap_or("/").trim_start_matches('/')
}

fn write_cpu(group: &Path, limits: &Limits) -> io::Result<()> {
    let quota = limits.cpu_quota_us();
    fs::write(
        group.join("cpu.max"),
        format!("{quota} {}", limits.cpu_period_us),
    )
}

/// Reclaims what is charged to a group (since Linux 5.19).
pub(super) fn reclaim(group: &Path) -> io::Result<()> {
    let charged = fs::read_to_string(group.join("memory.current"))?;
    fs::write(group.join("memory.reclaim"), charged.trim())
}

/// Limits memory; no swap beyond it.
pub(super) fn write_memory(group: &Path, bytes: u64) -> io::Result<()> {
    fs::write(group.join("memory.max"), bytes.to_string())?;
    let swap = group.join("memory.swap.max");
    if swap.exists() {
        fs::write(swap, "0")?;
    }
    Ok(())
}
