//! The key that encrypts secrets and signing keys at rest: systemd's credential if there is one, or else a file in the data directory,
//! which is made at the first start. Read after the spawner was forked, so that no other process has it in its memory.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use nix::libc::O_NOFOLLOW;
use pilot_admin::SecretStore;
use pilot_seal::SealingKey;

/// The key of this data directory, which is made if there is none yet.
///
/// # Errors
/// See [`existing_key`], or it cannot be made.
pub(crate) fn key(data_dir: &Path) -> anyhow::Result<Arc<SealingKey>> {
    if let Some(key) = existing_key(data_dir)? {
        return Ok(key);
    }
    let path = data_dir.join(KEY_FILE);
    make(&path).with_context(|| format!("cannot write {}", path.display()))?;
    read(&path, OpenTo::Owner)
}

/// The key of this data directory. `None`: the first start has not made it yet.
///
/// # Errors
/// It cannot be read, others may read it, or it is missing although something was encrypted with it. The error names the file.
pub(crate) fn existing_key(data_dir: &Path) -> anyhow::Result<Option<Arc<SealingKey>>> {
    // systemd.exec(5), LoadCredential=: the folder is readable by the unit's user alone.
    let folder = env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    let credential = folder.map(|folder| folder.join(CREDENTIAL));
    if let Some(credential) = credential.filter(|file| file.exists()) {
        return read(&credential, OpenTo::Anybody).map(Some);
    }
    let path = data_dir.join(KEY_FILE);
    if path.symlink_metadata().is_ok() {
        return read(&path, OpenTo::Owner).map(Some);
    }
    let secrets = data_dir.join(SECRETS);
    if secrets.exists() {
        bail!(
            "the key {} is missing, and {} was encrypted with it: restore it, or give it as systemd's credential {CREDENTIAL}; nothing was \
             changed. To give up all secrets, remove {1}",
            path.display(),
            secrets.display()
        );
    }
    Ok(None)
}

/// Whether the daemon could start with what is encrypted in this data directory. Returns the key: a random one if there is none yet.
///
/// # Errors
/// See [`existing_key`] and [`SecretStore::open`].
pub(crate) fn check(data_dir: &Path) -> anyhow::Result<Arc<SealingKey>> {
    let key = match existing_key(data_dir)? {
        Some(key) => key,
        None => Arc::new(SealingKey::parse(&SealingKey::random_text()?, KEY_FILE)?),
    };
    if data_dir.join(SECRETS).exists() {
        secrets(data_dir, &key)?;
    }
    Ok(key)
}

/// The secrets of this data directory.
///
/// # Errors
/// See [`SecretStore::open`].
pub(crate) fn secrets(data_dir: &Path, key: &Arc<SealingKey>) -> anyhow::Result<SecretStore> {
    let store = SecretStore::open(data_dir.join(SECRETS), Arc::clone(key));
    store.context("cannot read the secrets")
}

/// Who may read a key's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenTo {
    /// Its owner.
    Owner,
    /// Whoever reaches it.
    Anybody,
}

fn read(path: &Path, open_to: OpenTo) -> anyhow::Result<Arc<SealingKey>> {
    let shown = path.display();
    let flags = match open_to {
        OpenTo::Owner => O_NOFOLLOW,
        OpenTo::Anybody => 0,
    };
    let file = fs::File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .with_context(|| format!("cannot read the key {shown}"))?;
    if open_to == OpenTo::Owner && file.metadata()?.mode() & 0o077 != 0 {
        bail!(
            "other users may read the key {shown}: chmod 600 {shown}; if somebody may have read it, replace the secrets, too"
        );
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read the key {shown}"))?;
    let key = SealingKey::parse(&text, &shown.to_string())?;
    Ok(Arc::new(key))
}

/// Writes a new key under another name first, so that the file is never incomplete. It has mode 0600 from its beginning.
fn make(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut file = pilot_admin::unfinished(path)?;
    writeln!(file, "{}", SealingKey::random_text()?)?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Ok(_) => fs::File::open(folder)?.sync_all(),
        // Another daemon was faster; one of the two will find that the data directory is in use.
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.error),
    }
}

const KEY_FILE: &str = "secrets.key";
const CREDENTIAL: &str = "pilotlight.key";
const SECRETS: &str = "secrets.json";
const FILE_BYTES_MAX: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_a_lost_one_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let made = key(folder.path()).unwrap();
        let path = folder.path().join(KEY_FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(key(folder.path()).unwrap().id(), made.id());
        drop(secrets(folder.path(), &made).unwrap());
        fs::remove_file(&path).unwrap();
        for problem in [key(folder.path()), check(folder.path())] {
            let problem = problem.unwrap_err().to_string();
            assert!(
                problem.contains("secrets.key") && problem.contains("secrets.json"),
                "{problem}"
            );
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_check_makes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_key_that_others_may_read_or_that_is_a_link_or_damaged_is_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KEY_FILE);
        key(folder.path()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let problem = key(folder.path()).unwrap_err().to_string();
        assert!(problem.contains("chmod 600"), "{problem}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "not a key").unwrap();
        let problem = key(folder.path()).unwrap_err().to_string();
        assert!(problem.contains("secrets.key is not a key"), "{problem}");
        let other = folder.path().join("other");
        fs::rename(&path, &other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(key(folder.path()).is_err());
    }
}
