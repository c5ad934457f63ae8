//! A file that takes room on the disk of the data directory, so that a full disk can be repaired with Pilotlight itself. It is
//! emptied when the disk is full; then the daemon starts, and functions can be removed. When there is room again, the file gets its
//! size back. Without it, deployments and logs are refused, so they cannot use up the room that removals need.
//!
//! Not a guarantee: other programs can take the room as soon as it is free.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;
use pilot_model::size::Size;

/// The reserve of one data directory.
#[derive(Debug)]
pub struct Reserve {
    data_dir: PathBuf,
    /// Held while the file's size changes. Has why the file could not be made although there was room.
    change: Mutex<Option<String>>,
}

impl Reserve {
    /// The size of the file. A start and a removal write less than 1 MiB.
    pub const BYTES: u64 = 4 << 20;

    /// The reserve of a data directory. Writes nothing.
    #[must_use]
    pub fn of(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            change: Mutex::default(),
        }
    }

    /// Before a start: makes the reserve, or empties it if the disk is full. Does nothing if another daemon uses the data
    /// directory.
    pub fn prepare(&self) {
        if let Ok(lock) = File::open(self.data_dir.join("lock"))
            && let Err(TryLockError::WouldBlock) = lock.try_lock_shared()
        {
            return;
        }
        self.make_room();
        self.refill();
    }

    /// Whether there is room for what the daemon could do without.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let file = self.path().metadata();
        file.is_ok_and(|file| file.len() >= Self::BYTES)
    }

    /// Whether there is room for what the daemon could keep in memory instead, so that the disk is not filled with it.
    #[must_use]
    pub fn has_room_beyond(&self) -> bool {
        self.is_held() && self.free() >= BEYOND
    }

    /// Empties the file if less is free than a start or a removal may need.
    pub fn make_room(&self) {
        if self.free() < NEEDED {
            self.release();
        }
    }

    /// Empties the file. Returns whether it had something.
    pub fn release(&self) -> bool {
        let _change = self.change.lock();
        let emptied = OpenOptions::new().write(true).open(self.path());
        let emptied = emptied.and_then(|file| {
            let held = file.metadata()?.len() > 0;
            file.set_len(0).map(|()| held)
        });
        let released = emptied.unwrap_or(false);
        if released {
            tracing::warn!(
                data_dir = %self.data_dir.display(),
                "the disk is full: nothing can be deployed and functions' logs are not written until {} are free; remove functions \
                 with `pilot remove`, or other files",
                Size(REFILL)
            );
        }
        released
    }

    /// Gives the file its size back if there is room. Returns whether it has it.
    pub fn refill(&self) -> bool {
        if self.is_held() {
            return true;
        }
        let mut failure = self.change.lock();
        *failure = None;
        if self.free() < REFILL {
            return false;
        }
        let made = self.fill();
        *failure = made.as_ref().err().map(ToString::to_string);
        match &made {
            Ok(()) => tracing::debug!("the reserve on the disk is there"),
            Err(error) => {
                tracing::warn!(%error, path = %self.path().display(), "the reserve on the disk was not made");
                let _ = OpenOptions::new()
                    .write(true)
                    .open(self.path())
                    .and_then(|file| file.set_len(0));
            }
        }
        made.is_ok()
    }

    /// Checks that something new may be stored.
    ///
    /// # Errors
    /// `StorageFull` or `NotFound`, with what to do.
    pub fn admit(&self) -> io::Result<()> {
        if self.refill() && self.free() >= NEEDED {
            return Ok(());
        }
        Err(self.problem())
    }

    /// Checks that logs and usage records may be written, which the daemon could do without.
    ///
    /// # Errors
    /// As [`Reserve::admit`].
    pub fn admit_records(&self) -> io::Result<()> {
        match self.is_held() {
            true => Ok(()),
            false => Err(self.problem()),
        }
    }

    /// Why nothing may be written.
    fn problem(&self) -> io::Error {
        let failure = self.change.lock().clone();
        if let Some(why) = failure.filter(|_| self.data_dir.is_dir() && self.free() >= REFILL) {
            return io::Error::other(format!(
                "the file {}, which keeps room on the disk, cannot be made ({why}): remove what is in its place, or correct its rights",
                self.path().display()
            ));
        }
        if self.data_dir.is_dir() {
            return io::Error::new(io::ErrorKind::StorageFull, self.advice());
        }
        let gone = format!(
            "the data directory {} is gone: put it back and restart the daemon, or restart the daemon and deploy the functions again",
            self.data_dir.display()
        );
        io::Error::new(io::ErrorKind::NotFound, gone)
    }

    /// Why a start failed, if the disk has no room for one, and what to do.
    #[must_use]
    pub fn shortage(&self) -> Option<String> {
        let free = self.free();
        (free < NEEDED).then(|| {
            format!(
                "the disk of the data directory {} is full ({} free, {} are needed): make room on this disk, and start again",
                self.data_dir.display(),
                Size(free),
                Size(REFILL)
            )
        })
    }

    /// What is wrong and what to do.
    pub(crate) fn advice(&self) -> String {
        format!(
            "the disk of the data directory {} is full ({} free, {} are needed): remove functions with `pilot remove`, or other \
             files on this disk",
            self.data_dir.display(),
            Size(self.free()),
            Size(REFILL)
        )
    }

    /// Runs something that must work on a full disk: once more with the reserve's room if it fails for want of room.
    pub(crate) fn spend<T, E>(
        &self,
        is_full: impl Fn(&E) -> bool,
        run: impl Fn() -> Result<T, E>,
    ) -> Result<T, E> {
        match run() {
            Err(error) if is_full(&error) && self.release() => run(),
            done => done,
        }
    }

    fn fill(&self) -> io::Result<()> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.path())?;
        match posix_fallocate(&file, 0, Self::BYTES.cast_signed()) {
            Ok(()) => Ok(()),
            // Some file systems cannot reserve room without writing.
            Err(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSYS) => {
                let zeros = vec![0; 64 * 1024];
                for _ in 0..Self::BYTES / zeros.len() as u64 {
                    file.write_all(&zeros)?;
                }
                file.sync_data()
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What users other than root may still write, bytes. An error counts as room: the next write tells.
    fn free(&self) -> u64 {
        statvfs(&self.data_dir).map_or(u64::MAX, |disk| {
            disk.blocks_available().saturating_mul(disk.fragment_size())
        })
    }

    fn path(&self) -> PathBuf {
        self.data_dir.join("reserve")
    }
}

/// Whether a message quotes the kernel's or SQLite's words for a disk or a quota without room.
pub(crate) fn says_full(message: &str) -> bool {
    [
        "No space left on device",
        "Disk quota exceeded",
        "database or disk is full",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// A start or a removal may need this much.
const NEEDED: u64 = 1 << 20;
/// So much must be free before the reserve is made again. More than the reserve, so that the disk is not full again at once.
const REFILL: u64 = 2 * Reserve::BYTES;
/// What the daemon could keep in memory leaves so much for others.
const BEYOND: u64 = 2 * REFILL;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_made_emptied_and_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(folder.path());
        assert!(!reserve.is_held());
        reserve.prepare();
        assert!(reserve.is_held());
        reserve.make_room();
        assert!(reserve.is_held(), "the disk is not full");
        assert!(reserve.release() && !reserve.release());
        assert!(!reserve.is_held());
        assert!(!reserve.has_room_beyond());
        reserve.admit().unwrap();
        assert!(reserve.is_held() && reserve.has_room_beyond());
    }

    #[test]
    fn who_cannot_write_is_told_whether_the_disk_is_full_or_the_directory_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("data");
        std::fs::create_dir(&data_dir).unwrap();
        let reserve = Reserve::of(&data_dir);
        let full = reserve.admit_records().unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        reserve.prepare();
        reserve.admit_records().unwrap();
        std::fs::remove_dir_all(&data_dir).unwrap();
        for gone in [
            reserve.admit_records().unwrap_err(),
            reserve.admit().unwrap_err(),
        ] {
            assert_eq!(gone.kind(), io::ErrorKind::NotFound);
            assert!(gone.to_string().contains("is gone"), "{gone}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_made_is_not_told_as_a_full_disk() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(folder.path());
        std::fs::create_dir(reserve.path()).unwrap();
        for problem in [reserve.admit(), reserve.admit_records()] {
            let problem = problem.unwrap_err();
            assert_ne!(problem.kind(), io::ErrorKind::StorageFull);
            let problem = problem.to_string();
            assert!(
                problem.contains("/reserve") && problem.contains("cannot be made"),
                "{problem}"
            );
        }
        std::fs::remove_dir(reserve.path()).unwrap();
        reserve.admit().unwrap();
    }

    #[test]
    fn what_fails_for_want_of_room_is_tried_again_with_the_room_of_the_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::of(folder.path());
        reserve.prepare();
        let room = || match reserve.is_held() {
            true => Err("full"),
            false => Ok(()),
        };
        assert_eq!(reserve.spend(|error| *error == "other", room), Err("full"));
        assert_eq!(reserve.spend(|error| *error == "full", room), Ok(()));
    }
}
