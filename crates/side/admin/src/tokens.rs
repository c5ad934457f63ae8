//! The tokens: which are valid, what each permits, and the file that keeps them.
//!
//! The file has the SHA-256 of each token, not the token. A token is 256 random bits, so there is nothing to guess and no dictionary
//! to try: a slow password hash would add nothing but time to every request. A token is found by its hash, and whoever sends guesses
//! does not choose the hash, so the time of the look-up says nothing about a valid token.
//!
//! Tokens that the operator gives in another way (the administrator's file, the configuration) are not in the file.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use pilot_model::FunctionName;
use pilot_model::access::{Grant, Role};
use pilot_model::api::{TokenInfo, TokenRequest};
use pilot_model::ports::Tokens;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Failure;

/// The valid tokens.
#[derive(Debug)]
pub struct TokenStore {
    path: PathBuf,
    /// Held while the file is written.
    stored: Mutex<Vec<Stored>>,
    given: Vec<([u8; 32], Arc<Grant>)>,
    /// By hash. The lock is held for a look-up, or to replace it.
    valid: RwLock<HashMap<[u8; 32], Arc<Grant>>>,
}

/// A token that was made by a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    sha256: String,
    created_unix_s: u64,
    grant: Grant,
}

impl TokenStore {
    /// Reads the file, which need not exist. `given`: further tokens, which cannot be revoked by a request.
    ///
    /// # Errors
    /// The file cannot be read, or is not what this wrote. The error names it.
    pub fn open(path: PathBuf, given: Vec<(String, Grant)>) -> io::Result<Self> {
        let stored = match File::open(&path) {
            Ok(file) => read(file).map_err(|error| named(&path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(named(&path, &error)),
        };
        let given = given
            .into_iter()
            .map(|(token, grant)| (hash(token.as_bytes()), Arc::new(grant)))
            .collect();
        let store = Self {
            path,
            stored: Mutex::new(stored),
            given,
            valid: RwLock::default(),
        };
        store.renew(&store.stored.lock());
        Ok(store)
    }

    /// A new random token: 256 bits of the kernel's generator, as text.
    ///
    /// # Errors
    /// `/dev/urandom` cannot be read.
    pub fn random() -> io::Result<String> {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(format!("{PREFIX}{}", hex(&bytes)))
    }

    /// Makes a token. Only its hash is kept.
    pub(crate) fn create(&self, request: TokenRequest) -> Result<String, Failure> {
        let grant = checked(request)?;
        let token = Self::random().map_err(|error| unwritten(&error))?;
        let mut stored = self.stored.lock();
        if stored.iter().any(|one| one.grant.name == grant.name) {
            let problem = format!(
                "there is a token named '{}': revoke it, or choose another name",
                grant.name
            );
            return Err(Failure::new("bad_request", problem));
        }
        if stored.len() >= TOKENS_MAX {
            let problem = format!("there are {TOKENS_MAX} tokens: revoke those that nobody uses");
            return Err(Failure::new("bad_request", problem));
        }
        stored.push(Stored {
            sha256: hex(&hash(token.as_bytes())),
            created_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            grant,
        });
        if let Err(error) = self.write(&stored) {
            stored.pop();
            return Err(unwritten(&error));
        }
        self.renew(&stored);
        Ok(token)
    }

    /// All tokens that were made by requests.
    pub(crate) fn list(&self) -> Vec<TokenInfo> {
        let stored = self.stored.lock();
        let info = stored.iter().map(|one| TokenInfo {
            grant: one.grant.clone(),
            created_unix_s: one.created_unix_s,
        });
        info.collect()
    }

    /// Makes a token invalid at once. `Ok(false)`: there is none with this name.
    pub(crate) fn revoke(&self, name: &str) -> Result<bool, Failure> {
        let mut stored = self.stored.lock();
        let left: Vec<Stored> = stored
            .iter()
            .filter(|one| one.grant.name != name)
            .cloned()
            .collect();
        if left.len() == stored.len() {
            return Ok(false);
        }
        // First in memory: if the file cannot be written, the token is at least invalid until the daemon ends, and the error says
        // that it will be valid again.
        self.renew(&left);
        let written = self.write(&left);
        *stored = left;
        written.map_err(|error| unwritten(&error))?;
        Ok(true)
    }

    fn renew(&self, stored: &[Stored]) {
        let mut valid: HashMap<_, _> = self.given.iter().cloned().collect();
        for one in stored {
            if let Some(hash) = unhex(&one.sha256) {
                valid.insert(hash, Arc::new(one.grant.clone()));
            }
        }
        *self.valid.write() = valid;
    }

    /// Replaces the file. It has mode 0600 from its beginning.
    fn write(&self, stored: &[Stored]) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer_pretty(&mut file, stored)?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        Ok(())
    }
}

impl Tokens for TokenStore {
    fn grant(&self, shown: &[u8]) -> Option<Arc<Grant>> {
        if shown.is_empty() || shown.len() > TOKEN_BYTES_MAX {
            return None;
        }
        self.valid.read().get(&hash(shown)).cloned()
    }
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

fn hash(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// The beginning of every token, so that people and secret scanners recognise one.
const PREFIX: &str = "pilot_";
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
        let store = TokenStore::open(path.clone(), vec![]).unwrap();
        let token = store.create(request("ci", &[Role::Deploy])).unwrap();
        let other = store.create(request("app", &[Role::Invoke])).unwrap();
        assert_ne!(token, other);
        assert_eq!(store.grant(token.as_bytes()).unwrap().name, "ci");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&token[PREFIX.len()..]), "{text}");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let again = TokenStore::open(path.clone(), vec![]).unwrap();
        assert_eq!(again.grant(token.as_bytes()).unwrap().name, "ci");
        assert!(again.revoke("ci").unwrap());
        assert!(again.grant(token.as_bytes()).is_none());
        assert!(again.grant(other.as_bytes()).is_some());
        assert!(!again.revoke("ci").unwrap());
        let last = TokenStore::open(path, vec![]).unwrap();
        assert!(last.grant(token.as_bytes()).is_none());
        assert_eq!(last.list().len(), 1);
    }

    #[test]
    fn only_the_same_token_is_it() {
        let folder = tempfile::tempdir().unwrap();
        let given = vec![("geheim".to_owned(), Grant::admin("config"))];
        let store = TokenStore::open(folder.path().join("t"), given).unwrap();
        assert!(store.grant(b"geheim").unwrap().is_admin());
        for other in ["", "g", "geheimx", "Geheim", "geheim\0", &"x".repeat(300)] {
            assert!(store.grant(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn a_token_that_makes_no_sense_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = TokenStore::open(folder.path().join("t"), vec![]).unwrap();
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
            let problem = TokenStore::open(path.clone(), vec![]).unwrap_err();
            assert!(problem.to_string().contains("tokens.json"), "{problem}");
        }
    }
}
