//! What the daemon itself needs: its data directory, its address, descriptors, a container engine. Nothing is created or changed.

use std::fs::{File, TryLockError};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{AccessFlags, access};
use pilot_container::{VolumeLimit, available};
use pilot_model::size::Size;

use super::{Check, State};
use crate::daemon_config::DaemonConfig;
use crate::listen;
use crate::tls::Certificate;

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
        State::Absent,
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
        State::Absent,
        "run the daemon as root, with e2fsprogs and loop devices, and leave limits.volume_mb above 0",
    )
}

/// The checks of the daemon's own resources.
pub(super) fn daemon(config: &DaemonConfig) -> [Check; 4] {
    [
        Check::of(
            ("daemon", "data directory"),
            data_dir(&config.data_dir),
            State::Missing,
            "name another folder with --data-dir, or run as a user who may write there",
        ),
        Check::of(
            ("daemon", "address"),
            address(config.listen),
            State::Missing,
            "name another address with listen in pilotd.toml",
        ),
        Check::of(
            ("daemon", "descriptors"),
            descriptors(config.limits.workers_max()),
            State::Absent,
            "raise the hard limit: LimitNOFILE=65536 in the systemd unit, or `ulimit -Hn`",
        ),
        Check::of(
            ("daemon", "IPv4 forwarding"),
            forwarding(),
            State::Absent,
            "start the daemon: it disables it again",
        ),
    ]
}

/// The certificates of the configuration.
pub(super) fn certificates(config: &DaemonConfig) -> impl Iterator<Item = Check> {
    let files = config.tls.iter().chain(&config.control_tls);
    files.map(|files| match Certificate::load(files) {
        Ok(certificate) => Check::of(
            ("daemon", "certificate"),
            certificate
                .tell_validity()
                .map(|ends| format!("its files can be used; it {ends}"))
                .map_err(|problem| format!("{}: {problem}", certificate.key())),
            // The daemon serves with it, and clients decide.
            State::Absent,
            "renew the certificate; a daemon that runs reads it again by itself",
        ),
        Err(error) => Check::of(
            ("daemon", "certificate"),
            Err(format!("{error:#}")),
            State::Missing,
            "correct the file, or the key in pilotd.toml that names it",
        ),
    })
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

fn data_dir(dir: &Path) -> Result<String, String> {
    let shown = dir.display();
    if let Ok(lock) = File::open(dir.join("lock"))
        && let Err(TryLockError::WouldBlock) = lock.try_lock_shared()
    {
        return Ok(format!("{shown}, in use by a daemon"));
    }
    // The daemon creates missing folders.
    let there = dir.ancestors().find(|folder| folder.exists());
    let there = there.unwrap_or(Path::new("/"));
    match access(there, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Ok(shown.to_string()),
        Err(error) => Err(format!(
            "{shown} cannot be written: {}: {}",
            there.display(),
            error.desc()
        )),
    }
}

/// An address that is in use is no problem: a daemon may be running there.
fn address(address: SocketAddr) -> Result<String, String> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Ok(format!("{address} is in use, perhaps by a daemon"))
        }
        Err(error) => Err(listen::refusal(address, "listen", &error)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_is_free_in_use_or_cannot_be_written() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("not/there/yet");
        assert_eq!(data_dir(&dir).unwrap(), dir.display().to_string());
        assert!(!dir.exists(), "nothing is created");
        let lock = File::create(home.path().join("lock")).unwrap();
        assert!(!data_dir(home.path()).unwrap().contains("in use"));
        lock.lock().unwrap();
        assert!(
            data_dir(home.path())
                .unwrap()
                .contains("in use by a daemon")
        );
        let below_a_file = home.path().join("lock/data");
        assert!(
            data_dir(&below_a_file)
                .unwrap_err()
                .contains("cannot be written")
        );
    }
}
