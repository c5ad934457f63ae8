//! A control group with a CPU quota, for one measurement. The groups of functions are made by `path/sandbox`; this one has only the
//! CPU controller, and any period.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A group. Dropping it removes it; its processes have ended then.
#[derive(Debug)]
pub(super) struct Group {
    folder: PathBuf,
}

impl Group {
    /// Makes a group with so much CPU time per period, microseconds, below the group of this process.
    ///
    /// # Errors
    /// There is no CPU controller, or it may not be used; the message says what to do.
    pub(super) fn make(period_us: u64, quota_us: u64) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let (around, version) = around(&mounts, &own).ok_or(
            "this machine has no CPU controller: mount cgroup v2, or the cpu controller of v1",
        )?;
        remove_left_behind(&around);
        let folder = around.join(format!("{PREFIX}{}", std::process::id()));
        let made = match version {
            Version::One => make_v1(&folder, period_us, quota_us),
            Version::Two => make_v2(&around, &folder, period_us, quota_us),
        };
        made.map_err(|(path, error)| {
            let _ = fs::remove_dir(&folder);
            refused(&path, &error)
        })?;
        Ok(Self { folder })
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn add(&self, pid: u32) -> Result<(), String> {
        let file = self.folder.join("cgroup.procs");
        fs::write(&file, pid.to_string()).map_err(|error| refused(&file, &error))
    }

    /// How often the kernel has throttled it.
    pub(super) fn throttled(&self) -> Option<u64> {
        let stat = fs::read_to_string(self.folder.join("cpu.stat")).ok()?;
        let line = stat
            .lines()
            .find_map(|line| line.strip_prefix("nr_throttled "))?;
        line.trim().parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

type Refused = (PathBuf, io::Error);

fn write(file: PathBuf, text: &str) -> Result<(), Refused> {
    fs::write(&file, text).map_err(|error| (file, error))
}

fn create(folder: &Path) -> Result<(), Refused> {
    fs::create_dir(folder).map_err(|error| (folder.to_path_buf(), error))
}

fn make_v1(folder: &Path, period_us: u64, quota_us: u64) -> Result<(), Refused> {
    create(folder)?;
    let _ = fs::write(folder.join("cpu.shares"), SHARES_MAX);
    write(folder.join("cpu.cfs_period_us"), &period_us.to_string())?;
    write(folder.join("cpu.cfs_quota_us"), &quota_us.to_string())
}

fn make_v2(around: &Path, folder: &Path, period_us: u64, quota_us: u64) -> Result<(), Refused> {
    let control = around.join("cgroup.subtree_control");
    let given = fs::read_to_string(&control).unwrap_or_default();
    if !given.split_whitespace().any(|name| name == "cpu") {
        write(control, "+cpu")?;
    }
    create(folder)?;
    let _ = fs::write(folder.join("cpu.weight"), WEIGHT_MAX);
    write(folder.join("cpu.max"), &format!("{quota_us} {period_us}"))
}

/// The folder in which a group can be made.
fn around(mounts: &str, own: &str) -> Option<(PathBuf, Version)> {
    let mount = |wanted: &dyn Fn(&str, &str, &Path) -> bool| {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
            let at = PathBuf::from(at);
            wanted(kind, options, &at).then_some(at)
        })
    };
    let v1 = mount(&|kind, options, _| {
        kind == "cgroup" && options.split(',').any(|option| option == "cpu")
    });
    if let Some(mount) = v1 {
        let path = own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers
                .split(',')
                .any(|name| name == "cpu")
                .then_some(path)
        });
        let inside = mount.join(path.unwrap_or("/").trim_start_matches('/'));
        // In a container, the path may be that of the host. Then the mount is the group of this process.
        let around = if inside.is_dir() { inside } else { mount };
        return Some((around, Version::One));
    }
    // In version 2, only the root may have processes and groups with controllers.
    let v2 = mount(&|kind, _, at| {
        let controllers = || fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
        kind == "cgroup2" && controllers().split_whitespace().any(|name| name == "cpu")
    });
    v2.map(|mount| (mount, Version::Two))
}

/// Removes groups of measurements that were interrupted: their process is gone. One that has processes stays.
fn remove_left_behind(around: &Path) {
    for entry in fs::read_dir(around).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn refused(path: &Path, error: &io::Error) -> String {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{shown}: {error}; a CPU quota needs root: run it with sudo")
        }
        io::ErrorKind::ReadOnlyFilesystem => format!(
            "{shown}: {error}; this container may not make groups: run it on the machine itself"
        ),
        io::ErrorKind::InvalidInput => {
            format!(
                "{shown}: {error}; the groups around it may have less CPU: take a smaller quota"
            )
        }
        io::ErrorKind::ResourceBusy => format!(
            "{shown}: {error}; processes are in this group itself: run it in the root of the machine's groups"
        ),
        _ => format!("{shown}: {error}"),
    }
}

const PREFIX: &str = "pilot-profile-";
/// The largest weight of a group: the limit is to be measured, and not what else runs. Without it, there is only more noise.
const SHARES_MAX: &str = "262144";
const WEIGHT_MAX: &str = "10000";
