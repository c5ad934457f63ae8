//! The secrets: their values, encrypted, and the file that keeps them.
//!
//! A value is sealed with the daemon's key, bound to the secret's owner and name: a sealed value that is moved to another name does
//! not open. Values are decrypted when a worker starts, and kept nowhere. The file says with which key it was written, so a wrong key
//! is noticed at the daemon's start, before anything is changed.
//!
//! Workers that start ask for values on the threads that serve invocations, so nobody who reads waits for the disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use pilot_model::ports::Secrets;
use pilot_model::secret::{
    ENVIRONMENT_BYTES_MAX, FILES_BYTES_MAX, SecretError, VALUE_BYTES_MAX, as_variable,
};
use pilot_model::size::Size;
use pilot_model::{SecretId, SecretName, SecretUse, SecretValues};
use pilot_seal::SealingKey;
use serde::{Deserialize, Serialize};

use crate::durable::DurableFile;
use crate::error::Failure;

/// The stored secrets.
#[derive(Debug)]
pub struct SecretStore {
    file: DurableFile,
    key: Arc<SealingKey>,
    /// Held while the secrets are changed and the file is written, so that changes happen one after the other.
    change: Mutex<()>,
    /// What the file has. The lock is held to copy or replace the pointer.
    stored: RwLock<Arc<BTreeMap<SecretId, Stored>>>,
}

/// One secret.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) created_unix_s: u64,
    pub(crate) changed_unix_s: u64,
    sealed: Arc<str>,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    /// Identifies the key, without saying anything about it.
    key: String,
    secrets: Vec<SecretForm>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretForm {
    owner: String,
    name: SecretName,
    created_unix_s: u64,
    changed_unix_s: u64,
    sealed: String,
}

impl SecretStore {
    /// Reads the file, or makes an empty one.
    ///
    /// # Errors
    /// The file cannot be read or written, is not what this wrote, or was written with another key. The error names it.
    pub fn open(path: PathBuf, key: Arc<SealingKey>) -> io::Result<Self> {
        let store = Self {
            file: DurableFile::new(path),
            key,
            change: Mutex::default(),
            stored: RwLock::default(),
        };
        match File::open(store.file.path()) {
            Ok(file) => *store.stored.write() = Arc::new(store.read(file)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // From now on, a key that is lost is not replaced by a new one.
                let none = BTreeMap::new();
                let written = store.file.replace(&store.form(&none));
                written.map_err(|error| store.named(&error))?;
            }
            Err(error) => return Err(store.named(&error)),
        }
        Ok(store)
    }

    /// `release` frees room that is kept on the disk, and returns whether there was some. A secret can then be removed on a full disk.
    #[must_use]
    pub fn with_reserve(mut self, release: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.file = self.file.with_reserve(release);
        self
    }

    fn read(&self, file: File) -> io::Result<BTreeMap<SecretId, Stored>> {
        let mut text = Vec::new();
        let read = file.take(FILE_BYTES_MAX).read_to_end(&mut text);
        read.map_err(|error| self.named(&error))?;
        let form: FileForm =
            serde_json::from_slice(&text).map_err(|error| self.named(&io::Error::other(error)))?;
        if form.key != self.key.id() {
            return Err(io::Error::other(format!(
                "{} was written with another key (it has the id {}) than the one in {} (it has the id {}): put that key back; nothing was \
                 changed. To give up all secrets, remove {0}",
                self.file.path().display(),
                form.key.escape_debug().take(32).collect::<String>(),
                self.key.origin(),
                self.key.id()
            )));
        }
        let stored = form.secrets.into_iter().map(|one| {
            let stored = Stored {
                created_unix_s: one.created_unix_s,
                changed_unix_s: one.changed_unix_s,
                sealed: one.sealed.into(),
            };
            let id = SecretId {
                owner: one.owner,
                name: one.name,
            };
            (id, stored)
        });
        Ok(stored.collect())
    }

    /// Sets a value, which the next workers get. Durable when it returns.
    pub(crate) fn set(&self, id: SecretId, value: &[u8]) -> Result<Stored, Failure> {
        if value.is_empty() || value.len() > VALUE_BYTES_MAX {
            let problem = format!(
                "the value has {} bytes: a secret has from 1 to {VALUE_BYTES_MAX}",
                value.len()
            );
            return Err(Failure::new("bad_request", problem));
        }
        let sealed = self
            .key
            .seal(&context(&id), value)
            .map_err(|error| unwritten(&error))?;
        let now = now_unix_s();
        let _change = self.change.lock();
        let before = self.stored();
        let room = StoredSizes::beside(&before, &id);
        if !room.has(sealed.len()) {
            let problem = format!(
                "there is no room for another secret: an owner has at most {PER_OWNER_MAX} with {} together, and all owners have {ALL_MAX} \
                 with {}; remove those that nobody uses",
                Size(OWNER_BYTES_MAX as u64),
                Size(ALL_BYTES_MAX as u64)
            );
            return Err(Failure::new("bad_request", problem));
        }
        let new = Stored {
            created_unix_s: before.get(&id).map_or(now, |before| before.created_unix_s),
            changed_unix_s: now,
            sealed: sealed.into(),
        };
        let mut after = (*before).clone();
        after.insert(id, new.clone());
        let written = self.file.replace(&self.form(&after));
        written.map_err(|error| unwritten(&error))?;
        *self.stored.write() = Arc::new(after);
        Ok(new)
    }

    /// Removes a secret. `Ok(false)`: there is none.
    pub(crate) fn remove(&self, id: &SecretId) -> Result<bool, Failure> {
        let _change = self.change.lock();
        let mut after = (*self.stored()).clone();
        if after.remove(id).is_none() {
            return Ok(false);
        }
        let written = self.file.replace_by_less(&self.form(&after));
        written.map_err(|error| unwritten(&error))?;
        *self.stored.write() = Arc::new(after);
        Ok(true)
    }

    pub(crate) fn list(&self) -> Vec<(SecretId, Stored)> {
        let stored = self.stored();
        stored
            .iter()
            .map(|(id, one)| (id.clone(), one.clone()))
            .collect()
    }

    pub(crate) fn has(&self, id: &SecretId) -> bool {
        self.stored.read().contains_key(id)
    }

    /// All secrets, as the file has them.
    fn stored(&self) -> Arc<BTreeMap<SecretId, Stored>> {
        Arc::clone(&self.stored.read())
    }

    fn value(&self, id: &SecretId, variable: &str) -> Result<Vec<u8>, SecretError> {
        let stored = self.stored();
        let one = stored.get(id).ok_or_else(|| SecretError::Missing {
            id: id.clone(),
            variable: variable.to_owned(),
        })?;
        let opened = self.key.open(&context(id), &one.sealed);
        opened.map_err(|error| SecretError::Unreadable {
            id: id.clone(),
            problem: error.to_string(),
        })
    }

    fn form(&self, stored: &BTreeMap<SecretId, Stored>) -> FileForm {
        FileForm {
            key: self.key.id().to_owned(),
            secrets: stored
                .iter()
                .map(|(id, one)| SecretForm {
                    owner: id.owner.clone(),
                    name: id.name.clone(),
                    created_unix_s: one.created_unix_s,
                    changed_unix_s: one.changed_unix_s,
                    sealed: one.sealed.to_string(),
                })
                .collect(),
        }
    }

    fn named(&self, error: &io::Error) -> io::Error {
        let path = self.file.path().display();
        io::Error::new(
            error.kind(),
            format!("{path}: {error}; restore it, or remove it to give up all secrets"),
        )
    }
}

impl Secrets for SecretStore {
    fn values(&self, wanted: &BTreeMap<String, SecretUse>) -> Result<SecretValues, SecretError> {
        let mut values = SecretValues::default();
        let (mut bytes, mut file_bytes) = (0, 0);
        for (variable, used) in wanted {
            let id = used.id();
            let value = self.value(&id, variable)?;
            if let (Some(file), Some(path)) = (&used.file, used.path()) {
                file_bytes += value.len();
                values.files.push((file.clone(), value));
                values.environment.insert(variable.clone(), path);
                continue;
            }
            let text = as_variable(&value).map_err(|problem| SecretError::NotText {
                id,
                variable: variable.clone(),
                problem,
            })?;
            bytes += variable.len() + text.len() + 2;
            values.environment.insert(variable.clone(), text.to_owned());
        }
        if bytes > ENVIRONMENT_BYTES_MAX {
            return Err(SecretError::TooLong);
        }
        if file_bytes > FILES_BYTES_MAX {
            return Err(SecretError::FilesTooLong);
        }
        Ok(values)
    }
}

/// What the other secrets take. All of them are written whenever one is set, so their size is bounded.
#[derive(Debug, Default)]
struct StoredSizes {
    of_owner: (usize, usize),
    of_all: (usize, usize),
}

impl StoredSizes {
    fn beside(stored: &BTreeMap<SecretId, Stored>, id: &SecretId) -> Self {
        let mut room = Self::default();
        for (other, one) in stored.iter().filter(|(other, _)| *other != id) {
            let mut sums = vec![&mut room.of_all];
            if other.owner == id.owner {
                sums.push(&mut room.of_owner);
            }
            for (count, bytes) in sums {
                *count += 1;
                *bytes += one.sealed.len();
            }
        }
        room
    }

    fn has(&self, bytes: usize) -> bool {
        self.of_owner.0 < PER_OWNER_MAX
            && self.of_all.0 < ALL_MAX
            && self.of_owner.1 + bytes <= OWNER_BYTES_MAX
            && self.of_all.1 + bytes <= ALL_BYTES_MAX
    }
}

fn context(id: &SecretId) -> [&str; 3] {
    ["secret", &id.owner, id.name.as_str()]
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::new(
        "internal",
        format!("the secrets could not be written to the data directory: {error}"),
    )
}

fn now_unix_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

const PER_OWNER_MAX: usize = 200;
const ALL_MAX: usize = 2_000;
/// Of what is encrypted, as text.
const OWNER_BYTES_MAX: usize = 2 << 20;
const ALL_BYTES_MAX: usize = 32 << 20;
/// More than all secrets can have.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn key() -> Arc<SealingKey> {
        let text = SealingKey::random_text().unwrap();
        Arc::new(SealingKey::parse(&text, "/data/secrets.key").unwrap())
    }

    fn id(owner: &str, name: &str) -> SecretId {
        SecretId {
            owner: owner.to_owned(),
            name: name.parse().unwrap(),
        }
    }

    fn wants(id: &SecretId, file: Option<&str>) -> BTreeMap<String, SecretUse> {
        let used = SecretUse {
            secret: id.name.clone(),
            owner: id.owner.clone(),
            file: file.map(str::to_owned),
        };
        [("DB".to_owned(), used)].into()
    }

    #[test]
    fn a_value_is_there_after_a_restart_and_the_file_does_not_show_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.json");
        let key = key();
        let store = SecretStore::open(path.clone(), Arc::clone(&key)).unwrap();
        let (shared, own) = (id("", "db"), id("shop", "db"));
        store.set(shared.clone(), b"hunter2").unwrap();
        store.set(own.clone(), b"hunter3\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains("hunter") && text.contains("\"shop\""),
            "{text}"
        );
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = SecretStore::open(path, key).unwrap();
        assert_eq!(
            again.values(&wants(&shared, None)).unwrap().environment["DB"],
            "hunter2"
        );
        let file = again.values(&wants(&own, Some("db"))).unwrap();
        assert_eq!(file.files, [("db".to_owned(), b"hunter3\n".to_vec())]);
        assert_eq!(file.environment["DB"], "/run/secrets/db");
        assert!(again.remove(&shared).unwrap() && !again.remove(&shared).unwrap());
        let missing = again.values(&wants(&shared, None)).unwrap_err().to_string();
        assert!(missing.contains("pilot secret set db`"), "{missing}");
    }

    #[test]
    fn values_are_read_while_others_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = SecretStore::open(folder.path().join("secrets.json"), key()).unwrap();
        let secret = id("", "db");
        store.set(secret.clone(), b"hunter2").unwrap();
        // As while a disk takes its time.
        let _change = store.change.lock();
        let values = store.values(&wants(&secret, None)).unwrap();
        assert_eq!(values.environment["DB"], "hunter2");
        assert!(store.has(&secret) && store.list().len() == 1);
    }

    #[test]
    fn what_could_not_be_written_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (data, away) = (folder.path().join("data"), folder.path().join("away"));
        std::fs::create_dir(&data).unwrap();
        let store = SecretStore::open(data.join("secrets.json"), key()).unwrap();
        let secret = id("", "db");
        store.set(secret.clone(), b"hunter2").unwrap();
        std::fs::rename(&data, &away).unwrap();
        assert!(store.set(secret.clone(), b"hunter3").is_err());
        assert!(store.set(id("", "new"), b"hunter3").is_err());
        assert!(store.remove(&secret).is_err());
        let values = store.values(&wants(&secret, None)).unwrap();
        assert_eq!(values.environment["DB"], "hunter2");
        assert_eq!(store.list().len(), 1);
    }

    #[test]
    fn another_key_opens_nothing_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.json");
        let store = SecretStore::open(path.clone(), key()).unwrap();
        store.set(id("", "db"), b"hunter2").unwrap();
        let before = std::fs::read(&path).unwrap();
        let problem = SecretStore::open(path.clone(), key())
            .unwrap_err()
            .to_string();
        assert!(
            problem.contains("secrets.json") && problem.contains("/data/secrets.key"),
            "{problem}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_sealed_value_under_another_name_or_owner_does_not_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.json");
        let key = key();
        let store = SecretStore::open(path.clone(), Arc::clone(&key)).unwrap();
        store.set(id("a", "mine"), b"hunter2").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [("\"mine\"", "\"other\""), ("\"a\"", "\"b\"")] {
            std::fs::write(&path, text.replace(from, to)).unwrap();
            let store = SecretStore::open(path.clone(), Arc::clone(&key)).unwrap();
            let (id, _) = store.list().remove(0);
            let problem = store.values(&wants(&id, None)).unwrap_err();
            assert!(
                matches!(problem, SecretError::Unreadable { .. }),
                "{problem}"
            );
            assert!(
                problem.to_string().contains("/data/secrets.key"),
                "{problem}"
            );
        }
    }

    #[test]
    fn what_is_not_text_cannot_be_a_variable_and_all_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let store = SecretStore::open(folder.path().join("secrets.json"), key()).unwrap();
        let secret = id("", "k");
        for value in [&b"a\0b"[..], b"\xff\xfe"] {
            store.set(secret.clone(), value).unwrap();
            let problem = store.values(&wants(&secret, None)).unwrap_err();
            assert!(matches!(problem, SecretError::NotText { .. }), "{problem}");
            assert_eq!(
                store.values(&wants(&secret, Some("k"))).unwrap().files[0].1,
                value
            );
        }
        store.set(secret.clone(), &[b'x'; VALUE_BYTES_MAX]).unwrap();
        let problem = store.values(&wants(&secret, None)).unwrap_err();
        assert_eq!(problem, SecretError::TooLong);
        let wanted = (0..5).map(|number| {
            let mut wanted = wants(&secret, Some("k"));
            (format!("V{number}"), wanted.remove("DB").unwrap())
        });
        let problem = store.values(&wanted.collect()).unwrap_err();
        assert_eq!(problem, SecretError::FilesTooLong);
        for value in [&[][..], &[b'x'; VALUE_BYTES_MAX + 1]] {
            assert!(store.set(secret.clone(), value).is_err());
        }
        for number in 0..PER_OWNER_MAX {
            store
                .set(id("greedy", &format!("s{number}")), b"x")
                .unwrap();
        }
        assert!(store.set(id("greedy", "more"), b"x").is_err());
        store.set(id("greedy", "s0"), b"y").unwrap();
        store.set(id("modest", "more"), b"x").unwrap();
        let large = [b'x'; VALUE_BYTES_MAX];
        let kept = (0..PER_OWNER_MAX).take_while(|number| {
            let id = id("large", &format!("s{number}"));
            store.set(id, &large).is_ok()
        });
        assert_eq!(kept.count(), 23, "2 MiB of base64");
        store.set(id("large", "s0"), &large).unwrap();
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.json");
        for text in ["", "[]", "{\"key\": 1}"] {
            std::fs::write(&path, text).unwrap();
            let problem = SecretStore::open(path.clone(), key())
                .unwrap_err()
                .to_string();
            assert!(problem.contains("secrets.json"), "{problem}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
