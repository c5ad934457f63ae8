//! A container's folder on the host: the files that are mounted into it, and its volume.
//!
//! ```text
//! RUN/containers/shim           the program, once
//! RUN/containers/NAME/ours/     mounted read-only at /.pilot: the shim, its socket, the code,
//!                               and secrets on a tmpfs (`secret_files`)
//! RUN/containers/NAME/volume/   mounted writable at /mnt/volume; a file system of its own (`volume`) if it has a limit
//! RUN/removed-containers/       folders that are being removed (`rubbish`)
//! ```
//!
//! Only the daemon may enter the folders above (0700): no other user of the machine can reach what a function writes to a volume,
//! for example set-user-ID programs.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use pilot_sys::tree;

use crate::rubbish::Rubbish;
use crate::secret_files;
use crate::volume::{self, VolumeLimit};

/// What the daemon provides in a container.
pub(crate) const OURS_INSIDE: &str = "/.pilot";
/// The shim, which is process 1.
pub(crate) const SHIM_INSIDE: &str = "/.pilot/shim";
/// The socket at which the shim connects to the daemon.
pub(crate) const SOCKET_INSIDE: &str = "/.pilot/socket";
/// The function's code.
pub(crate) const CODE_INSIDE: &str = "/.pilot/code";
/// The secrets that are files.
pub(crate) const SECRETS_INSIDE: &str = "/.pilot/secrets";
/// Where a function may write to the disk.
pub(crate) const VOLUME_INSIDE: &str = "/mnt/volume";

/// The socket's name in [`Folder::ours`].
pub(crate) const SOCKET: &str = "socket";

/// One container's folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

/// The folder of all containers, below the daemon's run directory.
pub(crate) fn all(run: &Path) -> PathBuf {
    run.join("containers")
}

impl Folder {
    /// Creates the folder of a new container. Blocks.
    ///
    /// # Errors
    /// With the path.
    pub(crate) fn make(run: &Path, name: &str, limit: VolumeLimit) -> io::Result<Self> {
        let all = all(run);
        make_dir(&all, 0o700)?;
        let shim = all.join("shim");
        install_shim(&shim)?;
        let folder = Self(all.join(name));
        make_dir(&folder.0, 0o700)?;
        make_dir(&folder.ours(), 0o755)?;
        make_dir(&folder.code(), 0o755)?;
        make_dir(&folder.secrets(), 0o711)?;
        make_dir(&folder.volume(), 0o755)?;
        let made = secret_files::make(&folder.secrets()).and_then(|()| match limit {
            VolumeLimit::None => Ok(()),
            VolumeLimit::IfPossible(_) if volume::available().is_err() => Ok(()),
            VolumeLimit::IfPossible(bytes) | VolumeLimit::Enforced(bytes) => {
                volume::make(&folder.volume(), bytes)
            }
        });
        if let Err(error) = made {
            folder.unmount()?;
            remove(&folder.0)?;
            return Err(error);
        }
        // Not when it is created, because the daemon's umask would apply. As for /tmp: every user of an image may write.
        named(
            &folder.volume(),
            fs::set_permissions(folder.volume(), Permissions::from_mode(0o1777)),
        )?;
        share(&shim, &folder.ours().join("shim"))?;
        Ok(folder)
    }

    pub(crate) fn ours(&self) -> PathBuf {
        self.0.join("ours")
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.0.join("volume")
    }

    /// The folder of secrets that are files.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.0.join("ours/secrets")
    }

    fn code(&self) -> PathBuf {
        self.0.join("ours/code")
    }

    /// Replaces the code in the container by that of `from`, or by nothing. Blocks.
    ///
    /// # Errors
    /// With the path.
    pub(crate) fn show(&self, from: Option<&Path>) -> io::Result<()> {
        let code = self.code();
        // Keep the folder itself: it may be a working directory, and is part of a mount.
        for entry in named(&code, fs::read_dir(&code))? {
            remove(&named(&code, entry)?.path())?;
        }
        from.map_or(Ok(()), |from| share_all(from, &code))
    }

    /// Has the folder removed. Blocks, but not until it is. It is no error if it does not exist.
    ///
    /// # Errors
    /// With the path.
    pub(crate) fn discard(&self, rubbish: &Rubbish) -> io::Result<()> {
        self.unmount()?;
        named(&self.0, rubbish.take(&self.0))
    }

    /// Unmounts what is mounted in it. Blocks, but not for long.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn unmount(&self) -> io::Result<()> {
        secret_files::unmake(&self.secrets())?;
        volume::unmake(&self.volume())
    }
}

/// Has the folders of containers removed, except those to keep. Blocks, but not until they are.
pub(crate) fn discard_all(
    run: &Path,
    rubbish: &Rubbish,
    kept: impl Fn(&str) -> bool,
) -> io::Result<()> {
    let all = all(run);
    let entries = match fs::read_dir(&all) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return named(&all, Err(error)),
    };
    for entry in entries {
        let entry = named(&all, entry)?;
        if !entry.file_name().to_str().is_some_and(&kept) {
            Folder(entry.path()).discard(rubbish)?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    named(path, made)
}

/// Installs the program atomically: several containers may start at once.
fn install_shim(path: &Path) -> io::Result<()> {
    let there = fs::metadata(path);
    let size = u64::try_from(pilot_sys::shim::BINARY.len()).unwrap_or(u64::MAX);
    // Any writer in this run directory writes the same build; another daemon has another run directory.
    let is_ours = there.is_ok_and(|file| file.len() == size)
        && fs::read(path).is_ok_and(|bytes| bytes == pilot_sys::shim::BINARY);
    if is_ours {
        return Ok(());
    }
    let made = path.with_extension(format!("{:?}", std::thread::current().id()));
    let install = || {
        fs::write(&made, pilot_sys::shim::BINARY)?;
        fs::set_permissions(&made, Permissions::from_mode(0o555))?;
        fs::rename(&made, path)
    };
    named(path, install())
}

/// Makes the same file available at another path, as a hard link where possible. It is mounted read-only, so nobody in a
/// container can change what others see (mount_namespaces(7): a read-only mount also protects modes and owners).
fn share(from: &Path, to: &Path) -> io::Result<()> {
    let shared = fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop));
    named(to, shared)
}

fn share_all(from: &Path, to: &Path) -> io::Result<()> {
    for entry in named(from, fs::read_dir(from))? {
        let entry = named(from, entry)?;
        let (here, there) = (entry.path(), to.join(entry.file_name()));
        let kind = named(&here, entry.file_type())?;
        if kind.is_dir() {
            make_dir(&there, 0o755)?;
            share_all(&here, &there)?;
        } else if kind.is_symlink() {
            named(
                &there,
                fs::read_link(&here).and_then(|target| symlink(target, &there)),
            )?;
        } else {
            share(&here, &there)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    named(path, tree::remove(path))
}

fn named<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use nix::fcntl::{self, OFlag};
    use nix::sys::stat::{Mode, mkdirat};

    use super::*;

    /// A run directory. At its end, nothing is mounted below it.
    struct Run(tempfile::TempDir);

    impl Run {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self) -> &Path {
            self.0.path()
        }
    }

    impl Drop for Run {
        fn drop(&mut self) {
            for entry in fs::read_dir(all(self.path())).into_iter().flatten() {
                // A failed test has another reason to tell.
                let _ = entry.map(|entry| Folder(entry.path()).unmount());
            }
        }
    }

    #[test]
    fn code_is_shown_in_place_of_what_was_there_and_not_copied() {
        let dir = Run::new();
        let folder = Folder::make(dir.path(), "c1", VolumeLimit::None).unwrap();
        let code = dir.path().join("code");
        fs::create_dir_all(code.join("lib")).unwrap();
        fs::write(code.join("lib/a.py"), "a").unwrap();
        symlink("lib/a.py", code.join("link")).unwrap();
        fs::write(folder.code().join("old"), "old").unwrap();

        folder.show(Some(&code)).unwrap();

        assert!(!folder.code().join("old").exists());
        assert_eq!(fs::read_to_string(folder.code().join("link")).unwrap(), "a");
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(
            inode(&folder.code().join("lib/a.py")),
            inode(&code.join("lib/a.py"))
        );
        folder.show(None).unwrap();
        assert_eq!(fs::read_dir(folder.code()).unwrap().count(), 0);
    }

    #[test]
    fn a_volume_is_anybodys_and_what_is_around_it_nobodys() {
        let dir = Run::new();
        let folder = Folder::make(dir.path(), "c1", VolumeLimit::None).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&folder.volume()), 0o1777);
        assert_eq!(mode(&folder.0), 0o700);
        assert_eq!(mode(&all(dir.path())), 0o700);
    }

    /// Whoever writes to a volume decides how it is removed.
    #[tokio::test]
    async fn a_volume_of_any_depth_is_removed() {
        // Disks take milliseconds for each.
        let dir = Run(tempfile::tempdir_in("/dev/shm").unwrap());
        let folder = Folder::make(dir.path(), "c1", VolumeLimit::None).unwrap();
        let flags = OFlag::O_DIRECTORY;
        let mut at = fcntl::open(&folder.volume(), flags, Mode::empty()).unwrap();
        for _ in 0..20_000 {
            mkdirat(&at, c"deeper", Mode::S_IRWXU).unwrap();
            at = fcntl::openat(&at, c"deeper", flags, Mode::empty()).unwrap();
        }
        let rubbish = Rubbish::new(dir.path());
        folder.discard(&rubbish).unwrap();
        assert!(!folder.0.exists());
        rubbish.removed().await;
    }

    #[tokio::test]
    async fn folders_of_containers_are_removed_but_those_that_are_kept() {
        let dir = Run::new();
        for name in ["old", "new"] {
            Folder::make(dir.path(), name, VolumeLimit::None).unwrap();
        }
        let rubbish = Rubbish::new(dir.path());
        discard_all(dir.path(), &rubbish, |name| name == "new").unwrap();
        rubbish.removed().await;
        assert!(all(dir.path()).join("new").exists());
        assert!(!all(dir.path()).join("old").exists());
    }
}
