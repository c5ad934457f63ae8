//! A container's volume with a limit: a file system of its own in a file, on a loop device (loop(4)). Who fills it gets `ENOSPC`, and the
//! disk of the data directory has what is written, not more. The file has no name once it is mounted, and the device detaches itself
//! when the file system is unmounted, so that only a mount can be left, which the next daemon removes.
//!
//! Quotas of the file system would need mount options that hardly any machine has.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How large volumes may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeLimit {
    /// The disk limits them.
    None,
    /// So many bytes if this machine can enforce it, otherwise [`VolumeLimit::None`].
    IfPossible(u64),
    /// So many bytes, or no container is started.
    Enforced(u64),
}

impl VolumeLimit {
    /// The limit for a function that asks for so many MiB.
    ///
    /// # Errors
    /// It asks for more than it may have, as text with both keys.
    pub(crate) fn of_function(self, volume_mb: Option<u32>) -> Result<Self, String> {
        let Some(asked) = volume_mb.map(|size| u64::from(size) << 20) else {
            return Ok(self);
        };
        match self {
            Self::IfPossible(most) | Self::Enforced(most) if asked > most => Err(format!(
                "volume_mb is {}, and limits.volume_mb of pilotd.toml is {}: ask for less, or raise that limit",
                asked >> 20,
                most >> 20
            )),
            Self::None | Self::IfPossible(_) => Ok(Self::IfPossible(asked)),
            Self::Enforced(_) => Ok(Self::Enforced(asked)),
        }
    }
}

/// Whether this machine can limit volumes.
///
/// # Errors
/// What is missing, as text.
pub fn available() -> Result<(), String> {
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        return Err("the daemon is not root".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Err("there is no /dev/loop-control".to_owned());
    }
    program("mke2fs").map(drop)
}

/// Makes a file system of this many bytes and mounts it at an empty folder. Blocks.
///
/// # Errors
/// What the programs said. Nothing is left behind.
pub(crate) fn make(at: &Path, bytes: u64) -> io::Result<()> {
    let image = at.with_extension("image");
    let made = File::create_new(&image)
        .and_then(|file| file.set_len(bytes))
        .and_then(|()| {
            run(Command::new(program("mke2fs").map_err(io::Error::other)?)
                // No journal: after a crash, nobody needs what is in it.
                .args(["-q", "-F", "-t", "ext4", "-O", "^has_journal,^resize_inode"])
                .args(["-m", "0", "-E", "nodiscard,lazy_itable_init=1"])
                .arg(&image))
        })
        .and_then(|()| {
            run(Command::new("mount")
                .args(["-o", "loop,nosuid,nodev"])
                .arg(&image)
                .arg(at))
        });
    let removed = fs::remove_file(&image);
    made.and(removed)?;
    // Containers begin with empty volumes.
    match fs::remove_dir(at.join("lost+found")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            unmake(at)?;
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Unmounts the folder, if something is mounted there. Blocks.
///
/// # Errors
/// What the program said.
pub(crate) fn unmake(at: &Path) -> io::Result<()> {
    if !is_mounted(at) {
        return Ok(());
    }
    // Lazily, because a container that is ending may still have it.
    run(Command::new("umount").arg("--lazy").arg(at))
}

/// Whether a file system is mounted at this folder.
pub(crate) fn is_mounted(at: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|found| found.dev());
    let around = at.parent().and_then(device);
    device(at).is_some_and(|own| around.is_some_and(|around| own != around))
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command
        .stdin(Stdio::null())
        .env("PATH", SEARCH_PATH)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: String = said.trim().chars().take(500).collect();
    let program = command.get_program().to_string_lossy().into_owned();
    Err(io::Error::other(format!("{program}: {said}")))
}

fn program(name: &str) -> Result<PathBuf, String> {
    SEARCH_PATH
        .split(':')
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
        .ok_or_else(|| format!("there is no {name} (e2fsprogs)"))
}

/// Not the daemon's, whose user may not have the folders of system programs in it.
const SEARCH_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_may_have_less_than_the_limit_and_not_more() {
        let daemon = VolumeLimit::Enforced(64 << 20);
        assert_eq!(daemon.of_function(None), Ok(daemon));
        assert_eq!(
            daemon.of_function(Some(32)),
            Ok(VolumeLimit::Enforced(32 << 20))
        );
        let problem = daemon.of_function(Some(65)).unwrap_err();
        assert!(problem.contains("limits.volume_mb"), "{problem}");
        let weak = VolumeLimit::IfPossible(64 << 20);
        assert_eq!(
            weak.of_function(Some(64)),
            Ok(VolumeLimit::IfPossible(64 << 20))
        );
        assert!(weak.of_function(Some(65)).is_err());
        assert_eq!(
            VolumeLimit::None.of_function(Some(32)),
            Ok(VolumeLimit::IfPossible(32 << 20))
        );
    }
}
