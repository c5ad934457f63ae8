//! The tokens: which are valid, what each permits, and the file that keeps them.
//!
//! The file has the SHA-256 of each token, not the token. A token is 256 random bits, so there is nothing to guess and no dictionary
//! to try: a slow password hash would add nothing but time to every request. A token is found by its hash, and whoever sends guesses
//! does not choose the hash, so the time of the look-up says nothing about a valid token.
//!
//! A token may have an access key, with which AWS clients sign. To check a signature, the daemon needs the secret key itself, so it is
//! sealed and not hashed.
//!
//! Tokens that the operator gives in another way (the administrator's file, the configuration) are not in the file.
//!
//! A token that is revoked is refused from then on, even if the file cannot be written. It stays in the list until the file does not
//! have it, because until then it is valid again after a restart.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Mutex, RwLock};
use pilot_model::FunctionName;
use pilot_model::access::{Grant, Role};
use pilot_model::api::{AccessKey, CreatedToken, TokenInfo, TokenRequest};
use pilot_model::ports::{Signer, Tokens};
use pilot_seal::SealingKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::durable::DurableFile;
use crate::error::Failure;

/// The valid tokens.
#[derive(Debug)]
pub struct TokenStore {
    file: DurableFile,
    key: Arc<SealingKey>,
    /// Held while the file is written.
    stored: Mutex<Vec<Stored>>,
    given: Vec<([u8; 32], Arc<Grant>)>,
    /// By hash. The lock is held for a look-up, or to replace it.
    valid: RwLock<HashMap<[u8; 32], Arc<Grant>>>,
    /// By access key id. The lock is held as the one above.
    signers: RwLock<HashMap<String, Signing>>,
    /// Those of revoked tokens that requests still have. The lock is held as the one above.
    revoked: RwLock<Vec<Weak<Grant>>>,
}

/// Who signs with an access key.
#[derive(Debug, Clone)]
struct Signing {
    grant: Arc<Grant>,
    sealed: Arc<str>,
}

/// A token that was made by a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    sha256: String,
    created_unix_s: u64,
    grant: Grant,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aws: Option<StoredKey>,
    /// Refused, although the file may still have it.
    #[serde(skip)]
    revoked: bool,
}

/// An access key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredKey {
    access_key_id: String,
    /// The secret access key, encrypted.
    sealed: String,
}

impl TokenStore {
    /// Reads the file, which need not exist. `given`: further tokens, which cannot be revoked by a request.
    ///
    /// # Errors
    /// The file cannot be read, or is not what this wrote, or `key` does not open its access keys. The error names it.
    pub fn open(
        path: PathBuf,
        given: Vec<(String, Grant)>,
        key: Arc<SealingKey>,
    ) -> io::Result<Self> {
        let stored = match File::open(&path) {
            Ok(file) => read(file).map_err(|error| named(&path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(named(&path, &error)),
        };
        let given = given
            .into_iter()
            .map(|(token, grant)| (hash(token.as_bytes()), Arc::new(grant)))
            .collect();
        for one in &stored {
            if let Some(aws) = &one.aws
                && let Err(error) = key.open(&context(&aws.access_key_id), &aws.sealed)
            {
                return Err(io::Error::other(format!(
                    "{}: the access key of the token '{}': {error}; put that key back (nothing was changed), or remove the token there",
                    path.display(),
                    one.grant.name
                )));
            }
        }
        let store = Self {
            file: DurableFile::new(path),
            key,
            stored: Mutex::new(stored),
            given,
            valid: RwLock::default(),
            signers: RwLock::default(),
            revoked: RwLock::default(),
        };
        store.renew(&store.stored.lock());
        Ok(store)
    }

    /// `release` frees room that is kept on the disk, and returns whether there was some. A token can then be revoked on a full disk.
    #[must_use]
    pub fn with_reserve(mut self, release: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.file = self.file.with_reserve(release);
        self
    }

    /// A new random token: 256 bits of the kernel's generator, as text.
    ///
    /// # Errors
    /// `/dev/urandom` cannot be read.
    pub fn random() -> io::Result<String> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(format!("{PREFIX}{}", hex::encode(bytes)))
    }

    /// Makes a token. Only its hash is kept, and its access key, sealed.
    pub(crate) fn create(&self, request: TokenRequest) -> Result<CreatedToken, Failure> {
        let wants_key = request.aws;
        let grant = checked(request)?;
        let token = Self::random().map_err(|error| unwritten(&error))?;
        let aws = wants_key.then(access_key).transpose();
        let aws = aws.map_err(|error| unwritten(&error))?;
        let name = grant.name.clone();
        let mut stored = self.stored.lock();
        let valid = valid_of(&stored);
        if valid.iter().any(|one| one.grant.name == grant.name) {
            let problem = format!(
                "there is a token named '{}': revoke it, or choose another name",
                grant.name
            );
            return Err(Failure::new("bad_request", problem));
        }
        if valid.len() >= TOKENS_MAX {
            let problem = format!("there are {TOKENS_MAX} tokens: revoke unused ones");
            return Err(Failure::new("bad_request", problem));
        }
        stored.push(Stored {
            sha256: hex::encode(hash(token.as_bytes())),
            created_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            grant,
            aws: match &aws {
                Some(aws) => Some(self.sealed(aws)?),
                None => None,
            },
            revoked: false,
        });
        if let Err(error) = self.file.replace(&valid_of(&stored)) {
            stored.pop();
            return Err(unwritten(&error));
        }
        stored.retain(|one| !one.revoked);
        self.renew(&stored);
        Ok(CreatedToken { name, token, aws })
    }

    fn sealed(&self, aws: &AccessKey) -> Result<StoredKey, Failure> {
        let context = context(&aws.access_key_id);
        let sealed = self.key.seal(&context, aws.secret_access_key.as_bytes());
        Ok(StoredKey {
            access_key_id: aws.access_key_id.clone(),
            sealed: sealed.map_err(|error| unwritten(&error))?,
        })
    }

    /// All tokens that were made by requests.
    pub(crate) fn list(&self) -> Vec<TokenInfo> {
        let stored = self.stored.lock();
        let info = stored.iter().map(|one| TokenInfo {
            grant: one.grant.clone(),
            created_unix_s: one.created_unix_s,
            access_key_id: one.aws.as_ref().map(|aws| aws.access_key_id.clone()),
            revoked: one.revoked,
        });
        info.collect()
    }

    /// Makes a token invalid at once. `Ok(false)`: there is none with this name. After an error it is refused until the daemon ends,
    /// and can be revoked again.
    pub(crate) fn revoke(&self, name: &str) -> Result<bool, Failure> {
        let mut stored = self.stored.lock();
        let mut is_known = false;
        for one in stored.iter_mut().filter(|one| one.grant.name == name) {
            one.revoked = true;
            is_known = true;
        }
        if !is_known {
            return Ok(false);
        }
        // First in memory: the file may take long, or fail.
        self.renew(&stored);
        let written = self.file.replace_by_less(&valid_of(&stored));
        written.map_err(|error| revoked_in_memory(name, &error))?;
        stored.retain(|one| !one.revoked);
        Ok(true)
    }

    /// Whether this was given out for a token that has been revoked since.
    pub(crate) fn is_revoked(&self, grant: &Arc<Grant>) -> bool {
        let revoked = self.revoked.read();
        revoked.iter().any(|one| one.as_ptr() == Arc::as_ptr(grant))
    }

    fn renew(&self, stored: &[Stored]) {
        let before = self.valid.read().clone();
        let mut valid: HashMap<_, _> = self.given.iter().cloned().collect();
        let mut signers = HashMap::new();
        for one in stored.iter().filter(|one| !one.revoked) {
            let hash = unhex(&one.sha256);
            // The same one as before, so that it can be recognised when it is revoked.
            let known = hash.and_then(|hash| before.get(&hash).cloned());
            let grant = known.unwrap_or_else(|| Arc::new(one.grant.clone()));
            if let Some(aws) = &one.aws {
                let signing = Signing {
                    grant: Arc::clone(&grant),
                    sealed: aws.sealed.as_str().into(),
                };
                signers.insert(aws.access_key_id.clone(), signing);
            }
            if let Some(hash) = hash {
                valid.insert(hash, grant);
            }
        }
        let gone = before.iter().filter(|(hash, _)| !valid.contains_key(*hash));
        let mut revoked = self.revoked.write();
        revoked.retain(|one| one.strong_count() > 0);
        revoked.extend(gone.map(|(_, grant)| Arc::downgrade(grant)));
        drop(revoked);
        *self.valid.write() = valid;
        *self.signers.write() = signers;
    }
}

impl Tokens for TokenStore {
    fn grant(&self, shown: &[u8]) -> Option<Arc<Grant>> {
        if shown.is_empty() || shown.len() > TOKEN_BYTES_MAX {
            return None;
        }
        self.valid.read().get(&hash(shown)).cloned()
    }

    fn signer(&self, access_key_id: &str) -> Option<Signer> {
        let signing = self.signers.read().get(access_key_id).cloned()?;
        // It opened when the daemon started, or was sealed since.
        let secret = self.key.open(&context(access_key_id), &signing.sealed);
        Some(Signer {
            grant: signing.grant,
            secret: secret.ok()?,
        })
    }
}

/// A new access key in AWS's form: 20 letters and digits, and 40 characters.
fn access_key() -> io::Result<AccessKey> {
    let mut random = [0; 16 + 30];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let (id, secret) = random.split_at(16);
    // 32 of the letters and digits, as in base32.
    let letter =
        |byte: &u8| char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::from(byte & 31)]);
    Ok(AccessKey {
        access_key_id: id.iter().fold(KEY_PREFIX.to_owned(), |mut text, byte| {
            text.push(letter(byte));
            text
        }),
        secret_access_key: STANDARD.encode(secret),
    })
}

fn context(access_key_id: &str) -> [&str; 2] {
    ["access key", access_key_id]
}

fn read(file: File) -> io::Result<Vec<Stored>> {
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    let stored: Vec<Stored> = serde_json::from_slice(&text)?;
    match stored.iter().find(|one| unhex(&one.sha256).is_none()) {
        Some(one) => Err(io::Error::other(format!(
            "the token '{}' has no valid sha256",
            one.grant.name
        ))),
        None => Ok(stored),
    }
}

/// What a request asks for, if it makes sense.
fn checked(request: TokenRequest) -> Result<Grant, Failure> {
    let refused = |problem: String| Err(Failure::new("bad_request", problem));
    let name_fits = (1..=NAME_BYTES_MAX).contains(&request.name.len())
        && request
            .name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !name_fits {
        return refused(format!(
            "a token's name has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"
        ));
    }
    let roles: BTreeSet<Role> = request.roles.into_iter().collect();
    let functions: BTreeSet<FunctionName> = request.functions.into_iter().collect();
    if roles.is_empty() {
        return refused("a token needs a role: invoke, deploy or admin".to_owned());
    }
    if functions.len() > FUNCTIONS_MAX {
        return refused(format!("a token is for at most {FUNCTIONS_MAX} functions"));
    }
    if roles.contains(&Role::Admin) && (!functions.is_empty() || request.owner.is_some()) {
        let problem = "the role admin is for all functions and owners: leave them out, or use the roles invoke and deploy";
        return refused(problem.to_owned());
    }
    if let Some(owner) = &request.owner
        && let Err(problem) = pilot_model::access::check_owner(owner)
    {
        return refused(format!("owner: {problem}"));
    }
    Ok(Grant {
        name: request.name,
        roles,
        functions,
        owner: request.owner,
    })
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "{}: {error}; repair it, or remove it and make the tokens again",
            path.display()
        ),
    )
}

fn unwritten(error: &io::Error) -> Failure {
    Failure::new(
        "internal",
        format!("the tokens could not be written to the data directory: {error}"),
    )
}

fn revoked_in_memory(name: &str, error: &io::Error) -> Failure {
    Failure::new(
        "internal",
        format!(
            "the token '{name}' is refused from now on, but that could not be written to the data directory: {error}. After a restart of \
             the daemon it is valid again, until `pilot token revoke {name}` succeeds: correct this, and run it again"
        ),
    )
}

/// What the file has.
fn valid_of(stored: &[Stored]) -> Vec<&Stored> {
    stored.iter().filter(|one| !one.revoked).collect()
}

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

/// The beginning of every token, so that people and secret scanners recognise one.
const PREFIX: &str = "pilot_";
/// The beginning of every access key id. AWS's own begin with AKIA or ASIA.
const KEY_PREFIX: &str = "PLKA";
/// The longest token; ours have 70 bytes.
const TOKEN_BYTES_MAX: usize = 256;
const TOKENS_MAX: usize = 1_000;
const FUNCTIONS_MAX: usize = 1_000;
const NAME_BYTES_MAX: usize = 64;
const FILE_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key() -> Arc<SealingKey> {
        let text = "07".repeat(32);
        Arc::new(SealingKey::parse(&text, "/data/secrets.key").unwrap())
    }

    fn request(name: &str, roles: &[Role]) -> TokenRequest {
        TokenRequest {
            name: name.to_owned(),
            roles: roles.to_vec(),
            ..TokenRequest::default()
        }
    }

    #[test]
    fn a_token_is_valid_until_it_is_revoked_and_the_file_does_not_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        let store = TokenStore::open(path.clone(), vec![], key()).unwrap();
        let token = store.create(request("ci", &[Role::Deploy])).unwrap().token;
        let other = store.create(request("app", &[Role::Invoke])).unwrap().token;
        assert_ne!(token, other);
        assert_eq!(store.grant(token.as_bytes()).unwrap().name, "ci");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&token[PREFIX.len()..]), "{text}");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let again = TokenStore::open(path.clone(), vec![], key()).unwrap();
        assert_eq!(again.grant(token.as_bytes()).unwrap().name, "ci");
        assert!(again.revoke("ci").unwrap());
        assert!(again.grant(token.as_bytes()).is_none());
        assert!(again.grant(other.as_bytes()).is_some());
        assert!(!again.revoke("ci").unwrap());
        let last = TokenStore::open(path, vec![], key()).unwrap();
        assert!(last.grant(token.as_bytes()).is_none());
        assert_eq!(last.list().len(), 1);
    }

    #[test]
    fn a_revocation_that_could_not_be_written_is_listed_and_can_be_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let (data, away) = (folder.path().join("data"), folder.path().join("away"));
        std::fs::create_dir(&data).unwrap();
        let path = data.join("tokens.json");
        let store = TokenStore::open(path.clone(), vec![], key()).unwrap();
        let token = store.create(request("ci", &[Role::Deploy])).unwrap().token;
        store.create(request("app", &[Role::Invoke])).unwrap();
        std::fs::rename(&data, &away).unwrap();
        for _ in 0..2 {
            let problem = format!("{:?}", store.revoke("ci").unwrap_err());
            assert!(
                problem.contains("After a restart") && problem.contains("`pilot token revoke ci`"),
                "{problem}"
            );
            assert!(store.grant(token.as_bytes()).is_none());
            let listed = store.list().into_iter();
            let listed: Vec<_> = listed.map(|one| (one.grant.name, one.revoked)).collect();
            assert_eq!(listed, [("ci".to_owned(), true), ("app".to_owned(), false)]);
        }
        assert!(store.create(request("ci", &[Role::Deploy])).is_err());
        assert!(store.grant(token.as_bytes()).is_none());
        std::fs::rename(&away, &data).unwrap();
        assert!(store.revoke("ci").unwrap() && !store.revoke("ci").unwrap());
        let again = TokenStore::open(path, vec![], key()).unwrap();
        assert!(again.grant(token.as_bytes()).is_none());
        assert_eq!(again.list(), store.list());
        assert_eq!(again.list().len(), 1);
    }

    #[test]
    fn a_new_token_takes_the_name_of_a_revoked_one_and_writes_that_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (data, away) = (folder.path().join("data"), folder.path().join("away"));
        std::fs::create_dir(&data).unwrap();
        let path = data.join("tokens.json");
        let store = TokenStore::open(path.clone(), vec![], key()).unwrap();
        let old = store.create(request("ci", &[Role::Deploy])).unwrap().token;
        std::fs::rename(&data, &away).unwrap();
        store.revoke("ci").unwrap_err();
        std::fs::rename(&away, &data).unwrap();
        let new = store.create(request("ci", &[Role::Invoke])).unwrap().token;
        for store in [&store, &TokenStore::open(path, vec![], key()).unwrap()] {
            assert!(store.grant(old.as_bytes()).is_none());
            assert!(store.grant(new.as_bytes()).is_some());
            assert_eq!(store.list().len(), 1);
        }
    }

    #[test]
    fn only_the_same_token_is_it() {
        let folder = tempfile::tempdir().unwrap();
        let given = vec![("geheim".to_owned(), Grant::admin("config"))];
        let store = TokenStore::open(folder.path().join("t"), given, key()).unwrap();
        assert!(store.grant(b"geheim").unwrap().is_admin());
        for other in ["", "g", "geheimx", "Geheim", "geheim\0", &"x".repeat(300)] {
            assert!(store.grant(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn a_token_that_makes_no_sense_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::open(folder.path().join("t"), vec![], key()).unwrap();
        store.create(request("one", &[Role::Invoke])).unwrap();
        let mut limited_admin = request("x", &[Role::Admin]);
        limited_admin.functions = vec!["web".parse().unwrap()];
        let mut bad_owner = request("x", &[Role::Deploy]);
        bad_owner.owner = Some("a b".to_owned());
        for wrong in [
            request("one", &[Role::Invoke]),
            request("", &[Role::Invoke]),
            request("a\x1b[2J", &[Role::Invoke]),
            request("x", &[]),
            limited_admin,
            bad_owner,
        ] {
            assert!(store.create(wrong.clone()).is_err(), "{wrong:?}");
        }
        assert_eq!(store.list().len(), 1);
    }

    #[test]
    fn a_damaged_file_is_named_and_not_taken_for_no_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        for text in [
            "",
            "[{]",
            "[{\"sha256\": \"zz\", \"created_unix_s\": 0, \"grant\": {\"name\": \"a\", \"roles\": []}}]",
        ] {
            std::fs::write(&path, text).unwrap();
            let problem = TokenStore::open(path.clone(), vec![], key()).unwrap_err();
            assert!(problem.to_string().contains("tokens.json"), "{problem}");
        }
    }

    #[test]
    fn an_access_key_signs_until_its_token_is_revoked_and_the_file_does_not_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        let store = TokenStore::open(path.clone(), vec![], key()).unwrap();
        let wanted = TokenRequest {
            aws: true,
            ..request("sdk", &[Role::Invoke])
        };
        let created = store.create(wanted).unwrap();
        let aws = created.aws.unwrap();
        assert_eq!(aws.access_key_id.len(), 20);
        assert_eq!(aws.secret_access_key.len(), 40);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&aws.access_key_id), "{text}");
        assert!(!text.contains(&aws.secret_access_key), "{text}");
        let listed = serde_json::to_string(&store.list()).unwrap();
        assert!(listed.contains(&aws.access_key_id) && !listed.contains(&aws.secret_access_key));
        let again = TokenStore::open(path.clone(), vec![], key()).unwrap();
        let signer = again.signer(&aws.access_key_id).unwrap();
        assert_eq!(signer.secret, aws.secret_access_key.as_bytes());
        assert_eq!(signer.grant.name, "sdk");
        assert!(!format!("{signer:?}").contains(&aws.secret_access_key));
        assert!(again.signer("PLKA").is_none());
        assert!(again.revoke("sdk").unwrap());
        assert!(again.signer(&aws.access_key_id).is_none());
    }

    #[test]
    fn another_key_does_not_open_the_access_keys_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        let store = TokenStore::open(path.clone(), vec![], key()).unwrap();
        let wanted = TokenRequest {
            aws: true,
            ..request("sdk", &[Role::Invoke])
        };
        store.create(wanted).unwrap();
        let before = std::fs::read(&path).unwrap();
        let other = SealingKey::parse(&"08".repeat(32), "/data/secrets.key").unwrap();
        let problem = TokenStore::open(path.clone(), vec![], Arc::new(other)).unwrap_err();
        let problem = problem.to_string();
        assert!(
            problem.contains("tokens.json") && problem.contains("/data/secrets.key"),
            "{problem}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
