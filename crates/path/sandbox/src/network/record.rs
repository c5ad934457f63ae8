//! What the daemons of this machine have changed in its network, and whether one of them still runs.
//!
//! A daemon whose processes are all killed puts nothing back: forwarding stays on, and looks like the administrator's choice. So
//! each change is recorded before it is made, and whoever comes next finds it. The record is below `/run`, which is emptied when
//! the machine restarts, as are the settings; it also names the boot, because `/run` of a container may outlive it. There is one
//! record per network namespace, and all daemons in it share it: the last one puts everything back.
//!
//! A running spawner holds a shared lock on a file (`flock(2)`). The kernel releases it when the process ends, however it ends, so
//! a record without a lock is of a killed daemon.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Not below `/run/pilotlight`, which systemd removes with the service.
pub(super) const FOLDER: &str = "/run/pilotlight-network";

/// The record of one network namespace.
#[derive(Debug)]
pub(super) struct Records {
    folder: PathBuf,
    /// Number of the namespace.
    namespace: u64,
    /// Held while this process may change something.
    in_use: Option<File>,
}

/// Forwarding that daemons enabled: names of interfaces by index.
pub(super) type Interfaces = BTreeMap<u32, String>;

/// As it is in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// `/proc/sys/kernel/random/boot_id`.
    boot: String,
    forwarding: Interfaces,
}

impl Records {
    /// The record of the calling thread's network namespace. Creates nothing.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn here(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            namespace: pilot_sys::netlink::namespace_id()?,
            in_use: None,
        })
    }

    /// Whether there is a record.
    pub(super) fn exists(&self) -> bool {
        self.path("json").exists()
    }

    /// Locks the record and says that this process uses it.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(super) fn join(&mut self) -> Result<Locked<'_>, String> {
        let lock = self.lock()?;
        if self.in_use.is_none() {
            let path = self.path("in-use");
            let file = open(&path).and_then(|file| file.lock_shared().map(|()| file));
            self.in_use = Some(file.map_err(at(&path))?);
        }
        Ok(Locked {
            records: self,
            _lock: lock,
        })
    }

    /// Locks the record if no running process uses it any more; this one stops using it. `None`: others use it.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(super) fn leave(&mut self) -> Result<Option<Locked<'_>>, String> {
        let lock = self.lock()?;
        self.in_use = None;
        let path = self.path("in-use");
        match open(&path).map_err(at(&path))?.try_lock() {
            Ok(()) => Ok(Some(Locked {
                records: self,
                _lock: lock,
            })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(at(&path)(error)),
        }
    }

    /// Held for a few system calls at a time.
    fn lock(&self) -> Result<File, String> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)
            .map_err(at(&self.folder))?;
        let path = self.path("lock");
        let file = open(&path).and_then(|file| file.lock().map(|()| file));
        file.map_err(at(&path))
    }

    fn path(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{}.{what}", self.namespace))
    }
}

/// The record, while no other process changes it.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    records: &'a Records,
    _lock: File,
}

impl Locked<'_> {
    /// What was recorded since the machine started. A file that cannot be read counts as empty: its writer was killed on a full
    /// file system.
    pub(super) fn read(&self) -> Interfaces {
        let text = fs::read(self.records.path("json")).unwrap_or_default();
        serde_json::from_slice(&text)
            .ok()
            .filter(|record: &Record| boot().is_ok_and(|boot| boot == record.boot))
            .map(|record| record.forwarding)
            .unwrap_or_default()
    }

    /// Replaces the record.
    ///
    /// # Errors
    /// It cannot be written; the old one stays.
    pub(super) fn write(&self, forwarding: &Interfaces) -> Result<(), String> {
        let path = self.records.path("json");
        if forwarding.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
                _ => Ok(()),
            };
        }
        let new = self.records.path("new");
        let write = || {
            let record = Record {
                boot: boot()?,
                forwarding: forwarding.clone(),
            };
            fs::write(&new, serde_json::to_vec(&record)?)?;
            fs::rename(&new, &path)
        };
        write().map_err(at(&path))
    }

    /// Removes all files but the lock. Another process may wait for that one, and would then have a lock that nobody else sees.
    pub(super) fn forget(self) -> Result<(), String> {
        self.write(&Interfaces::new())?;
        let path = self.records.path("in-use");
        fs::remove_file(&path).map_err(at(&path))
    }
}

fn boot() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned())
}

fn open(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
}

fn at(path: &Path) -> impl Fn(io::Error) -> String {
    move |error| {
        format!(
            "cannot record the changes to the machine's network: {}: {error}",
            path.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interfaces(names: &[&str]) -> Interfaces {
        (1..)
            .zip(names.iter().map(|name| (*name).to_owned()))
            .collect()
    }

    #[test]
    fn the_record_is_of_all_who_use_it_and_the_last_one_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = Records::here(folder.path()).unwrap();
        let mut two = Records::here(folder.path()).unwrap();
        assert!(!one.exists());
        one.join().unwrap().write(&interfaces(&["eth0"])).unwrap();
        assert_eq!(two.join().unwrap().read(), interfaces(&["eth0"]));
        assert!(
            one.leave().unwrap().is_none(),
            "the other one still uses it"
        );
        let last = two.leave().unwrap().expect("nobody uses it");
        assert_eq!(last.read(), interfaces(&["eth0"]));
        last.forget().unwrap();
        assert!(!one.exists());
        assert!(one.join().unwrap().read().is_empty());
    }

    #[test]
    fn the_record_of_one_that_is_gone_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let mut killed = Records::here(folder.path()).unwrap();
        killed
            .join()
            .unwrap()
            .write(&interfaces(&["a", "b"]))
            .unwrap();
        drop(killed);
        let mut next = Records::here(folder.path()).unwrap();
        assert!(next.exists());
        let left = next.leave().unwrap().expect("nobody uses it");
        assert_eq!(left.read(), interfaces(&["a", "b"]));
    }

    #[test]
    fn a_record_of_another_boot_or_a_broken_one_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let mut records = Records::here(folder.path()).unwrap();
        let path = records.path("json");
        for text in [
            "",
            "{",
            r#"{"boot": "another", "forwarding": {"1": "eth0"}}"#,
        ] {
            fs::write(&path, text).unwrap();
            assert!(records.join().unwrap().read().is_empty(), "{text}");
        }
    }
}
