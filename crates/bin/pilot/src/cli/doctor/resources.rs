//! What the daemon itself needs: its data directory, its address, descriptors, a container engine. Nothing is created or changed.

use std::fs::{File, TryLockError};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{
    BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, DEVPTS_SUPER_MAGIC,
    FsType, PROC_SUPER_MAGIC, SECURITYFS_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC, statfs,
};
use nix::unistd::{AccessFlags, access};
use pilot_container::{VolumeLimit, available};
use pilot_model::size::Size;

use super::{Check, CheckState};
use crate::daemon_config::DaemonConfig;
use crate::daemon_config::nodes::NodesSettings;
use crate::tls::{Certificate, TlsFiles};
use crate::{data_dir, listen, open_files};

/// Whether the engine for containers answers.
pub(super) fn container_engine(configured: Option<&str>) -> Check {
    let of_environment = std::env::var("DOCKER_HOST").ok();
    let address = configured.or(of_environment.as_deref());
    let socket = address.unwrap_or(DOCKER_SOCKET);
    let path = socket.strip_prefix("unix://").unwrap_or(socket);
    let found = match UnixStream::connect(path) {
        Ok(_) => Ok(format!("an engine listens on {path}")),
        Err(error) => Err(format!("no engine listens on {path}: {error}")),
    };
    Check::of(
        ("features", "containers"),
        found,
        CheckState::Absent,
        "install Docker Engine, or name its socket with container_engine in pilotd.toml",
    )
}

/// Whether the volumes of containers have a limit.
pub(super) fn volumes(limit: VolumeLimit) -> Check {
    let found = match limit {
        VolumeLimit::None => Err("containers may fill the disk: limits.volume_mb is 0".to_owned()),
        VolumeLimit::IfPossible(bytes) | VolumeLimit::Enforced(bytes) => available()
            .map(|()| format!("{} each", Size(bytes)))
            .map_err(|why| format!("containers may fill the disk: {why}")),
    };
    Check::of(
        ("features", "volumes of containers"),
        found,
        CheckState::Absent,
        "run the daemon as root, with e2fsprogs and loop devices, and leave limits.volume_mb above 0",
    )
}

/// Who uses the data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UseOfDataDir {
    /// A daemon, which has read everything in it.
    Daemon,
    /// It is there, and nobody.
    Free,
    /// It is not there, or cannot be used.
    Nobody,
}

/// The checks of the daemon's own resources.
pub(super) fn daemon(config: &DaemonConfig) -> (UseOfDataDir, Vec<Check>) {
    let found = data_dir(&config.data_dir);
    let use_of_dir = match &found {
        Ok((use_of_dir, _)) => *use_of_dir,
        Err(_) => UseOfDataDir::Nobody,
    };
    let mut checks = vec![Check::of(
        ("daemon", "data directory"),
        found.map(|(_, shown)| shown),
        CheckState::Missing,
        "name another folder with --data-dir, or run as a user who may write there",
    )];
    let control = config.control_listen;
    let control = control.filter(|address| *address != config.listen);
    let nodes = config.nodes.as_ref().and_then(NodesSettings::listen);
    let addresses = [
        ("address", Some(config.listen), "listen"),
        ("control address", control, "control_listen"),
        ("address for nodes", nodes, "nodes.listen"),
    ];
    for (what, wanted, key) in addresses {
        checks.extend(wanted.map(|wanted| address((what, key), wanted, use_of_dir)));
    }
    checks.extend([
        Check::of(
            ("daemon", "descriptors"),
            descriptors(config.limits.workers_max()),
            CheckState::Absent,
            "raise the hard limit: LimitNOFILE=65536 in the systemd unit, or `ulimit -Hn`",
        ),
        Check::of(
            ("daemon", "IPv4 forwarding"),
            forwarding(),
            CheckState::Absent,
            "start the daemon: it disables it again",
        ),
        Check::of(
            ("daemon", "open files"),
            open_files::check(config.limits.total_memory_mb),
            CheckState::Absent,
            open_files::CHANGE,
        ),
    ]);
    (use_of_dir, checks)
}

/// The certificates of the configuration.
pub(super) fn certificates(config: &DaemonConfig) -> impl Iterator<Item = Check> {
    let files = config.tls.iter().chain(&config.control_tls);
    files.map(certificate)
}

fn certificate(files: &TlsFiles) -> Check {
    match Certificate::load(files) {
        Ok(certificate) => Check::of(
            ("daemon", "certificate"),
            certificate
                .tell_validity()
                .map(|ends| format!("its files can be used; it {ends}"))
                .map_err(|problem| format!("{}: {problem}", certificate.key())),
            // The daemon serves with it, and clients decide.
            CheckState::Absent,
            "renew the certificate; a daemon that runs reads it again by itself",
        ),
        Err(error) => Check::of(
            ("daemon", "certificate"),
            Err(format!("{error:#}")),
            CheckState::Missing,
            "correct the file, or the key in pilotd.toml that names it",
        ),
    }
}

/// A daemon of which all processes were killed puts nothing back.
fn forwarding() -> Result<String, String> {
    let left = pilot_sandbox::forwarding_left_behind()?;
    if left.is_empty() {
        return Ok("no daemon that was killed has left it enabled".to_owned());
    }
    Err(format!(
        "a daemon that was killed has left it enabled on {}",
        left.join(", ")
    ))
}

fn data_dir(dir: &Path) -> Result<(UseOfDataDir, String), String> {
    let shown = dir.display();
    if let Ok(lock) = File::open(dir.join("lock"))
        && let Err(TryLockError::WouldBlock) = lock.try_lock_shared()
    {
        let found = format!("{shown}, in use by a daemon: no second one can start there");
        return Ok((UseOfDataDir::Daemon, found));
    }
    let is_there = dir.exists();
    if is_there {
        data_dir::check(dir).map_err(|error| format!("{error:#}"))?;
    }
    // The daemon creates missing folders.
    let there = dir.ancestors().find(|folder| folder.exists());
    let there = there.unwrap_or(Path::new("/"));
    if !there.is_dir() {
        return Err(format!(
            "{shown} cannot be created: {} is not a folder",
            there.display()
        ));
    }
    // What their files say of rights does not count.
    if statfs(there).is_ok_and(|fs| KERNELS_OWN.contains(&fs.filesystem_type())) {
        return Err(format!(
            "{shown} cannot be used: {} shows what the kernel has, and keeps no files",
            there.display()
        ));
    }
    match access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) if is_there => Ok((UseOfDataDir::Free, shown.to_string())),
        Ok(()) => Ok((
            UseOfDataDir::Nobody,
            format!("{shown}, which the daemon creates"),
        )),
        Err(error) => Err(format!(
            "{shown} cannot be written: {}: {}",
            there.display(),
            error.desc()
        )),
    }
}

/// An address that is in use is no problem if a daemon uses the data directory, too.
fn address(
    (what, key): (&'static str, &'static str),
    address: SocketAddr,
    use_of_dir: UseOfDataDir,
) -> Check {
    let what = ("daemon", what);
    let other = "name another address in pilotd.toml";
    match TcpListener::bind(address) {
        Ok(_) => Check::of(
            what,
            Ok(format!("{address} is free")),
            CheckState::Missing,
            other,
        ),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let found = match use_of_dir {
                UseOfDataDir::Daemon => Ok(format!("{address} is in use, perhaps by the daemon")),
                _ => Err(listen::refusal(address, key, &error)),
            };
            // The socket may be the supervisor's, which hands it to the daemon.
            let change = "stop the program that listens there; nothing if that is systemd with the daemon's socket unit";
            Check::of(what, found, CheckState::Absent, change)
        }
        Err(error) => {
            let problem = listen::refusal(address, key, &error);
            Check::of(what, Err(problem), CheckState::Missing, other)
        }
    }
}

fn descriptors(workers: usize) -> Result<String, String> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| error.to_string())?;
    let found = format!("{hard}; there is room for {workers} workers");
    if hard >= DESCRIPTORS_WANTED {
        Ok(found)
    } else {
        Err(found)
    }
}

const DOCKER_SOCKET: &str = "/var/run/docker.sock";
const DESCRIPTORS_WANTED: u64 = 16_384;

/// File systems that root may write to by their rights, and that keep no files (filesystems(5)).
const KERNELS_OWN: [FsType; 9] = [
    PROC_SUPER_MAGIC,
    SYSFS_MAGIC,
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    DEBUGFS_MAGIC,
    TRACEFS_MAGIC,
    SECURITYFS_MAGIC,
    BPF_FS_MAGIC,
    DEVPTS_SUPER_MAGIC,
];

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_data_directory_is_free_in_use_or_cannot_be_written() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("not/there/yet");
        let (found, shown) = data_dir(&dir).unwrap();
        assert_eq!(found, UseOfDataDir::Nobody);
        assert!(shown.contains("which the daemon creates"), "{shown}");
        assert!(!dir.exists(), "nothing is created");
        let lock = File::create(home.path().join("lock")).unwrap();
        assert_eq!(data_dir(home.path()).unwrap().0, UseOfDataDir::Free);
        lock.lock().unwrap();
        let (found, shown) = data_dir(home.path()).unwrap();
        assert_eq!(found, UseOfDataDir::Daemon);
        assert!(shown.contains("in use by a daemon"), "{shown}");
        let below_a_file = home.path().join("lock/data");
        assert!(
            data_dir(&below_a_file)
                .unwrap_err()
                .contains("is not a folder")
        );
        for kernels in ["/proc/data", "/sys/not/there/yet"] {
            let problem = data_dir(Path::new(kernels)).unwrap_err();
            assert!(problem.contains("keeps no files"), "{problem}");
        }
        let wide = tempfile::tempdir().unwrap();
        std::fs::set_permissions(wide.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(wide.path().join("thesis.tex"), "").unwrap();
        assert!(data_dir(wide.path()).unwrap_err().contains("--data-dir"));
    }
}
