//! What `[stores.NAME]` and `[connections.NAME]` have in common: names, URLs, and the files that they name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use pilot_model::invokes::check_entries;
use serde::Deserialize;

/// A Redis.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisSettings {
    /// `redis://HOST:PORT/DATABASE` or `rediss://…`.
    pub(super) url: String,
    /// Default: Redis's default user.
    pub(super) user: Option<String>,
    /// A file with the password and nothing else, which nobody else may read.
    pub(super) password_file: Option<PathBuf>,
    /// A file with certificates of authorities, PEM, instead of the system's.
    pub(super) ca_file: Option<PathBuf>,
}

impl RedisSettings {
    pub(super) fn check(&self) -> Result<(), String> {
        check_url(".url", &self.url, ["redis://", "rediss://"])?;
        let path = self.url.splitn(4, '/').nth(3).unwrap_or_default();
        if !path.is_empty() && path.parse::<u32>().is_err() {
            return Err(format!(
                ".url is \"{}\": what follows HOST:PORT/ must be the number of a database",
                pilot_dial::shown_url(&self.url)
            ));
        }
        check_user(self.user.as_ref())
    }
}

/// Where the credentials for an API of AWS come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Credentials {
    Environment,
    Anonymous,
    Key,
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_name = (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if is_name {
        return Ok(());
    }
    Err(": a name has 1 to 63 letters, digits, '.', '_' or '-'".to_owned())
}

/// The functions that may use it. None is permitted: nobody may use it for now.
pub(super) fn check_functions(functions: &[String]) -> Result<(), String> {
    check_entries(functions).map_err(|problem| format!(".functions {problem}"))
}

/// `schemes` are the one without TLS and the one with it.
pub(super) fn check_url(key: &str, url: &str, schemes: [&str; 2]) -> Result<(), String> {
    pilot_dial::check_url(url, schemes).map_err(|problem| format!("{key} {problem}"))
}

/// A word that is sent in a header or a URL.
pub(super) fn check_word(key: &str, word: Option<&String>) -> Result<(), String> {
    let is_word =
        |word: &String| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    match word {
        Some(word) if !is_word(word) => Err(format!(
            "{key} is \"{}\", must be visible ASCII characters without spaces, and not empty",
            word.escape_debug().take(200).collect::<String>()
        )),
        _ => Ok(()),
    }
}

/// A user of a server. To leave the key out is not the same as to send an empty name.
pub(super) fn check_user(user: Option<&String>) -> Result<(), String> {
    match user {
        Some(user) if user.is_empty() => {
            Err(".user is empty: leave it out, or name a user".to_owned())
        }
        _ => Ok(()),
    }
}

/// The content of a file that a key names.
///
/// # Errors
/// It cannot be read, is empty, or others may read it.
pub(super) fn secret(
    path: Option<&Path>,
    key: impl Fn() -> String,
) -> anyhow::Result<Option<String>> {
    path.map(|path| read_secret(path).with_context(&key))
        .transpose()
}

/// The content of this file.
///
/// # Errors
/// As [`secret`].
pub(super) fn read_secret(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {shown}"))?;
    if metadata.mode() & 0o077 != 0 {
        bail!("other users may read {shown}: chmod 600 {shown}");
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let secret = text.trim();
    if secret.is_empty() {
        bail!("{shown} is empty");
    }
    Ok(secret.to_owned())
}

/// Certificates of authorities, PEM.
///
/// # Errors
/// The file cannot be read, or has no certificate.
pub(super) fn ca_pem(
    path: Option<&Path>,
    key: impl Fn() -> String,
) -> anyhow::Result<Option<Vec<u8>>> {
    let read = |path: &Path| {
        let shown = path.display();
        let pem = fs::read(path).with_context(|| format!("{}: cannot read {shown}", key()))?;
        // Most clients take a file without a certificate, and then trust only the system's.
        let checked = pilot_dial::check_authorities(&pem);
        checked.map_err(|problem| anyhow::anyhow!("{}: {shown}: {problem}", key()))?;
        Ok(pem)
    };
    path.map(read).transpose()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_of_authorities_without_a_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let read = || ca_pem(Some(&path), || "stores.x.ca_file".to_owned());
        for text in [
            "",
            "a host\n",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            fs::write(&path, text).unwrap();
            let problem = read().unwrap_err().to_string();
            assert!(
                problem.starts_with("stores.x.ca_file: /") && problem.contains("ca.pem: "),
                "{problem}"
            );
        }
        let authority = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
        fs::write(&path, authority.cert.pem()).unwrap();
        assert!(read().unwrap().is_some());
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "s3cret\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(
            read_secret(&path)
                .unwrap_err()
                .to_string()
                .contains("other users may read")
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secret(&path).unwrap(), "s3cret");
        assert!(read_secret(&folder.path().join("none")).is_err());
    }
}
