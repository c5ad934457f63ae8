//! The keys of a profile in AWS's shared files, `credentials` and `config` (AWS SDKs and Tools Reference Guide, "Shared config and
//! credentials files"). Only keys that are in the files: nothing is asked of a server or a program.
//!
//! Temporary keys are put into the files again and again, so they are read again when one of the files has changed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use super::{ProfileConfig, usable};

/// What a profile says, but for its keys.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
}

/// The keys of a profile.
#[derive(Debug)]
pub(super) struct ProfileKeys {
    profile: ProfileConfig,
    /// The last ones. Guarded for one look or one change.
    keys: Arc<Mutex<Arc<AwsCredential>>>,
    /// Who looks at the files has it: one request, and the others use the last keys.
    looked: Arc<tokio::sync::Mutex<Looked>>,
}

/// What the files were like when they were read, and when somebody looked.
#[derive(Debug)]
struct Looked {
    state: [Option<FileIdentity>; 2],
    at: Instant,
}

/// Changes with the content of a file.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl ProfileKeys {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with the profile, and in which file.
    pub(super) fn open(profile: &ProfileConfig) -> Result<(Self, Said), String> {
        let looked = Looked {
            state: states(profile),
            at: Instant::now(),
        };
        let (keys, said) = read(profile)?;
        let opened = Self {
            profile: profile.clone(),
            keys: Arc::new(Mutex::new(Arc::new(keys))),
            looked: Arc::new(tokio::sync::Mutex::new(looked)),
        };
        Ok((opened, said))
    }

    /// The keys of now. What cannot be read is perhaps being written, and a file system may not answer: then the last ones are used.
    async fn keys(&self) -> Arc<AwsCredential> {
        if let Ok(mut looked) = Arc::clone(&self.looked).try_lock_owned()
            && looked.at.elapsed() >= LOOK_EVERY
        {
            let (profile, keys) = (self.profile.clone(), Arc::clone(&self.keys));
            let look = spawn_blocking(move || looked.look(&profile, &keys));
            let _ = tokio::time::timeout(LOOK_MAX, look).await;
        }
        Arc::clone(&self.keys.lock())
    }
}

impl Looked {
    /// Reads the keys again if a file has changed.
    fn look(&mut self, profile: &ProfileConfig, keys: &Mutex<Arc<AwsCredential>>) {
        let state = states(profile);
        if state != self.state {
            match read(profile) {
                Ok((read, _)) => {
                    *keys.lock() = Arc::new(read);
                    self.state = state;
                }
                Err(problem) => {
                    tracing::warn!(problem, "the keys of a profile cannot be read again");
                }
            }
        }
        self.at = Instant::now();
    }
}

impl CredentialProvider for ProfileKeys {
    type Credential = AwsCredential;

    fn get_credential<'a, 'b>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<AwsCredential>>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async { Ok(self.keys().await) })
    }
}

fn states(profile: &ProfileConfig) -> [Option<FileIdentity>; 2] {
    [&profile.credentials_file, &profile.config_file].map(|path| {
        let metadata = fs::metadata(path).ok()?;
        Some(FileIdentity {
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    })
}

fn read(profile: &ProfileConfig) -> Result<(AwsCredential, Said), String> {
    let name = &profile.name;
    let in_credentials = Sections::of(&profile.credentials_file, Kind::Credentials)?;
    let in_config = Sections::of(&profile.config_file, Kind::Config)?;
    let (credentials, config) = (in_credentials.0.get(name), in_config.0.get(name));
    if credentials.is_none() && config.is_none() {
        let known = in_credentials.0.keys().chain(in_config.0.keys());
        let mut known: Vec<_> = known.map(String::as_str).collect();
        known.sort_unstable();
        known.dedup();
        return Err(format!(
            "there is no profile \"{name}\" in {} or {}: {}",
            profile.credentials_file.display(),
            profile.config_file.display(),
            match known.as_slice() {
                [] => "they have none".to_owned(),
                known => format!("they have {}", known.join(", ")),
            }
        ));
    }
    let in_files = [
        (credentials, &profile.credentials_file),
        (config, &profile.config_file),
    ];
    let value = |key: &str| {
        let found = in_files
            .into_iter()
            .find_map(|(section, _)| section?.get(key));
        found.filter(|value| !value.is_empty()).cloned()
    };
    for (key, what) in NOT_SUPPORTED {
        if value(key).is_some() {
            return Err(not_supported(name, key, what));
        }
    }
    // Of the file with the keys, all: half of one pair and half of another would be none.
    let has_keys = |section: Option<&Section>| section.is_some_and(|it| it.contains_key(KEY_ID));
    let Some((Some(section), path)) = in_files.into_iter().find(|(it, _)| has_keys(*it)) else {
        if value(PROCESS.0).is_some() {
            return Err(not_supported(name, PROCESS.0, PROCESS.1));
        }
        return Err(format!("the profile \"{name}\" has no {KEY_ID}"));
    };
    let Some(secret) = section.get(SECRET).filter(|secret| !secret.is_empty()) else {
        return Err(format!(
            "the profile \"{name}\" has {KEY_ID} and no {SECRET} in {}",
            path.display()
        ));
    };
    check_private(path)?;
    let keys = AwsCredential {
        key_id: section.get(KEY_ID).cloned().unwrap_or_default(),
        secret_key: secret.clone(),
        token: section.get(TOKEN).filter(|it| !it.is_empty()).cloned(),
    };
    for (key, value) in [(KEY_ID, Some(&keys.key_id)), (TOKEN, keys.token.as_ref())] {
        if !value.is_none_or(|value| usable::is_word(value)) {
            return Err(format!(
                "the profile \"{name}\" has a value of {key} in {} that is not visible ASCII characters without spaces",
                path.display()
            ));
        }
    }
    let said = Said {
        region: value("region"),
        endpoint: value("endpoint_url"),
    };
    Ok((keys, said))
}

fn not_supported(profile: &str, key: &str, what: &str) -> String {
    format!(
        "the profile \"{profile}\" has {key}: {what} is not supported; use a profile with {KEY_ID} and {SECRET} (and {TOKEN})"
    )
}

/// As for every file with a secret.
fn check_private(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    match metadata.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(format!("other users may read {shown}: chmod 600 {shown}")),
    }
}

/// Which of the two files: the names of sections differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Credentials,
    Config,
}

type Section = BTreeMap<String, String>;

/// The profiles of a file.
#[derive(Debug, Default)]
struct Sections(BTreeMap<String, Section>);

impl Sections {
    /// A file that does not exist has none.
    fn of(path: &Path, kind: Kind) -> Result<Self, String> {
        match fs::read_to_string(path) {
            Ok(text) => Ok(Self::parse(&text, kind)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("cannot read {}: {error}", path.display())),
        }
    }

    fn parse(text: &str, kind: Kind) -> Self {
        let mut sections = Self::default();
        let mut current: Option<String> = None;
        // `[profile default]` comes before `[default]`, wherever it is.
        let has_default = text
            .lines()
            .any(|line| heading(line).is_some_and(|it| named(it, kind, false) == Some("default")));
        for line in text.lines() {
            if let Some(heading) = heading(line) {
                let name = named(heading, kind, !has_default).map(str::to_owned);
                if let Some(name) = &name {
                    sections.0.entry(name.clone()).or_default();
                }
                current = name;
                continue;
            }
            // A line that is indented belongs to the key before it, which has settings of its own.
            if line.starts_with([' ', '\t', '#', ';']) {
                continue;
            }
            let section = current.as_ref().and_then(|name| sections.0.get_mut(name));
            if let (Some(section), Some((key, value))) = (section, line.split_once('=')) {
                let value = without_comment(value).trim();
                section.insert(key.trim().to_ascii_lowercase(), value.to_owned());
            }
        }
        sections
    }
}

/// What is between the brackets of a line that begins a section.
fn heading(line: &str) -> Option<&str> {
    let (inside, _) = line.strip_prefix('[')?.split_once(']')?;
    Some(inside.trim())
}

/// The profile that a section is. `None`: it is something else.
fn named(heading: &str, kind: Kind, takes_default: bool) -> Option<&str> {
    let name = match kind {
        Kind::Credentials => heading,
        Kind::Config if heading == "default" && takes_default => heading,
        Kind::Config => heading
            .strip_prefix("profile")
            .filter(|name| name.starts_with([' ', '\t']))?,
    };
    Some(name.trim().trim_matches(['"', '\'']))
}

/// A comment in a line begins after white space.
fn without_comment(value: &str) -> &str {
    let comments = [" #", " ;", "\t#", "\t;"];
    let begins = comments.iter().filter_map(|comment| value.find(comment));
    begins.min().and_then(|at| value.get(..at)).unwrap_or(value)
}

/// Where AWS's tools have the two files: what the environment says, or the home folder.
///
/// # Errors
/// There is no home folder.
pub(super) fn files(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(PathBuf, PathBuf), String> {
    let home = variable("HOME").filter(|home| !home.is_empty());
    let one = |name: &str, default: &str| -> Result<PathBuf, String> {
        let given = variable(name).filter(|path| !path.is_empty());
        let in_home = match &given {
            None => Some(default),
            Some(path) => path.strip_prefix("~/"),
        };
        match (in_home, &home, &given) {
            (Some(path), Some(home), _) => Ok(Path::new(home).join(path)),
            (None, _, Some(path)) => Ok(PathBuf::from(path)),
            _ => Err(format!(
                "the daemon has no HOME: set {name} in its environment to the path of the file"
            )),
        }
    };
    Ok((
        one("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")?,
        one("AWS_CONFIG_FILE", ".aws/config")?,
    ))
}

const KEY_ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";
const TOKEN: &str = "aws_session_token";
/// What AWS's tools would use before keys, which would be somebody else's then.
const NOT_SUPPORTED: [(&str, &str); 6] = [
    ("role_arn", "assuming a role"),
    ("web_identity_token_file", "a web identity"),
    ("sso_session", "single sign-on (SSO)"),
    ("sso_start_url", "single sign-on (SSO)"),
    ("sso_account_id", "single sign-on (SSO)"),
    ("login_session", "signing in by a browser"),
];
const PROCESS: (&str, &str) = ("credential_process", "a program that prints keys");
/// Requests in this time use the same keys.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a request waits for the files.
const LOOK_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn written(credentials: &str, config: &str) -> (tempfile::TempDir, ProfileConfig) {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            path
        };
        let profile = ProfileConfig {
            name: "work".to_owned(),
            credentials_file: put("credentials", credentials),
            config_file: put("config", config),
        };
        (folder, profile)
    }

    fn keys(credentials: &str, config: &str) -> Result<(AwsCredential, Said), String> {
        let (_folder, profile) = written(credentials, config);
        read(&profile)
    }

    const PLAIN: &str = "aws_access_key_id = AKIA1\naws_secret_access_key=a/b+c=\n";

    #[test]
    fn keys_come_from_the_credentials_file_and_then_from_the_other_one() {
        let (found, said) = keys(
            &format!("# keys\n[default]\naws_access_key_id = no\n[work]\n{PLAIN}AWS_SESSION_TOKEN = t=1 # for a day\n"),
            "[profile work]\nregion = eu-central-1\naws_access_key_id = other\ns3 =\n  region = nested\n\
             endpoint_url = http://127.0.0.1:9\n[sso-session work]\nsso_start_url = x\n",
        )
        .unwrap();
        assert_eq!((&*found.key_id, &*found.secret_key), ("AKIA1", "a/b+c="));
        assert_eq!(found.token.as_deref(), Some("t=1"));
        assert_eq!(said.region.as_deref(), Some("eu-central-1"));
        assert_eq!(said.endpoint.as_deref(), Some("http://127.0.0.1:9"));
        let (found, _) = keys("", &format!("[work]\nx = y\n[profile \"work\"]\n{PLAIN}")).unwrap();
        assert_eq!((&*found.key_id, found.token), ("AKIA1", None));
    }

    #[test]
    fn the_default_profile_has_two_names() {
        for (config, region) in [
            ("[default]\nregion = a", "a"),
            ("[profile default]\nregion = a", "a"),
            ("[default]\nregion = b\n[profile default]\nregion = a", "a"),
        ] {
            let (_folder, mut profile) = written(&format!("[default]\n{PLAIN}"), config);
            profile.name = "default".to_owned();
            assert_eq!(read(&profile).unwrap().1.region.as_deref(), Some(region));
        }
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (credentials, config, said) in [
            ("", "", "they have none"),
            ("[b]\n[a]\n", "[profile c]\n[work]", "they have a, b, c"),
            ("[work]\n", "", "has no aws_access_key_id"),
            (
                "[work]\naws_access_key_id = a\n",
                "[profile work]\naws_secret_access_key = b",
                "has aws_access_key_id and no aws_secret_access_key in ",
            ),
            (
                "[work]\naws_access_key_id = a b\naws_secret_access_key = c",
                "",
                "has a value of aws_access_key_id in ",
            ),
            (
                "",
                "[profile work]\nsso_session = s",
                "has sso_session: single sign-on (SSO) is not supported",
            ),
            (
                "",
                "[profile work]\ncredential_process = /bin/x",
                "has credential_process: a program that prints keys is not supported",
            ),
        ] {
            let found = keys(credentials, config).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
        // AWS's tools would assume the role, and not use the keys.
        let role = keys(
            &format!("[work]\n{PLAIN}"),
            "[profile work]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = y",
        );
        let found = role.unwrap_err();
        assert!(
            found.contains("has role_arn: assuming a role is not supported"),
            "{found}"
        );
        // They use keys of the credentials file before a program.
        let process = "[profile work]\ncredential_process = /bin/x";
        assert!(keys(&format!("[work]\n{PLAIN}"), process).is_ok());
    }

    #[test]
    fn a_file_with_keys_that_others_may_read_is_refused() {
        let (_folder, profile) = written(&format!("[work]\n{PLAIN}"), "[profile work]\n");
        let set =
            |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(&profile.config_file, 0o644);
        read(&profile).unwrap();
        set(&profile.credentials_file, 0o640);
        let found = read(&profile).unwrap_err();
        assert!(found.contains("chmod 600"), "{found}");
    }

    #[tokio::test]
    async fn keys_are_read_again_when_a_file_has_changed() {
        let (_folder, profile) = written(&format!("[work]\n{PLAIN}"), "");
        let (provider, _) = ProfileKeys::open(&profile).unwrap();
        let later = async || {
            let mut looked = provider.looked.lock().await;
            looked.at = looked.at.checked_sub(2 * LOOK_EVERY).unwrap();
            drop(looked);
            provider.keys().await.key_id.clone()
        };
        assert_eq!(later().await, "AKIA1");
        let put = |text: &str| fs::write(&profile.credentials_file, text).unwrap();
        // It is being written.
        put("[work]\naws_access_key_id = AKIA22\n");
        assert_eq!(later().await, "AKIA1");
        put(&format!("[work]\n{}", PLAIN.replace("AKIA1", "AKIA22")));
        assert_eq!(later().await, "AKIA22");
    }

    #[tokio::test]
    async fn files_that_do_not_answer_leave_requests_with_the_last_keys() {
        let (_folder, profile) = written(&format!("[work]\n{PLAIN}"), "");
        let (provider, _) = ProfileKeys::open(&profile).unwrap();
        // The open of a pipe waits for somebody who writes.
        fs::remove_file(&profile.credentials_file).unwrap();
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&profile.credentials_file, mode).unwrap();
        let mut looked = provider.looked.lock().await;
        looked.at = looked.at.checked_sub(2 * LOOK_EVERY).unwrap();
        drop(looked);
        for _ in 0..3 {
            assert_eq!(provider.keys().await.key_id, "AKIA1");
        }
        fs::write(
            &profile.credentials_file,
            format!("[work]\n{}", PLAIN.replace("AKIA1", "AKIA22")),
        )
        .unwrap();
        while provider.keys().await.key_id != "AKIA22" {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn the_files_are_where_the_environment_says() {
        let of = |variables: &[(&str, &str)]| {
            files(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let paths = |one: &str, other: &str| Ok((PathBuf::from(one), PathBuf::from(other)));
        assert_eq!(
            of(&[("HOME", "/root")]),
            paths("/root/.aws/credentials", "/root/.aws/config")
        );
        assert_eq!(
            of(&[
                ("HOME", "/h"),
                ("AWS_SHARED_CREDENTIALS_FILE", "/etc/keys"),
                ("AWS_CONFIG_FILE", "~/c")
            ]),
            paths("/etc/keys", "/h/c")
        );
        let found = of(&[("AWS_CONFIG_FILE", "/c")]).unwrap_err();
        assert!(found.contains("set AWS_SHARED_CREDENTIALS_FILE"), "{found}");
    }
}
