//! The tokens that the operator gives: the administrator's, which is made at the first start, and those of the configuration. They are
//! read after the spawner was forked, so that no other process has them in its memory.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use nix::libc::O_NOFOLLOW;
use pilot_admin::TokenStore;
use pilot_model::access::{Grant, Role};
use pilot_seal::SealingKey;

use crate::daemon_config::DaemonConfig;

/// All tokens.
///
/// # Errors
/// A file cannot be read or written, or others may read the administrator's token.
pub(crate) fn all(config: &DaemonConfig, key: Arc<SealingKey>) -> anyhow::Result<TokenStore> {
    let admin = admin_token(&config.data_dir.join(ADMIN_TOKEN))?;
    opened(config, Some(admin), key)
}

/// Whether the daemon could start with these tokens. Makes nothing.
///
/// # Errors
/// As [`all`].
pub(crate) fn check(config: &DaemonConfig, key: Arc<SealingKey>) -> anyhow::Result<()> {
    let admin = existing_admin_token(&config.data_dir.join(ADMIN_TOKEN))?;
    opened(config, admin, key).map(drop)
}

fn opened(
    config: &DaemonConfig,
    admin: Option<String>,
    key: Arc<SealingKey>,
) -> anyhow::Result<TokenStore> {
    let mut given: Vec<(String, Grant)> = Vec::new();
    given.extend(admin.map(|token| (token, Grant::admin(ADMIN_TOKEN))));
    if let Some(file) = &config.file {
        let configured = crate::daemon_config::tokens_of(file)?;
        let grants = [
            (configured.control_token, Grant::admin("control_token")),
            (
                configured.invoke_token,
                Grant::of("invoke_token", Role::Invoke),
            ),
        ];
        given.extend(
            grants
                .into_iter()
                .filter_map(|(token, grant)| Some((token?, grant))),
        );
    }
    let path = config.data_dir.join("tokens.json");
    TokenStore::open(path, given, key).context("cannot read the tokens")
}

/// The administrator's token, from its file, which is made if it does not exist.
fn admin_token(path: &Path) -> anyhow::Result<String> {
    match existing_admin_token(path)? {
        Some(token) => Ok(token),
        None => make(path).with_context(|| format!("cannot write {}", path.display())),
    }
}

fn existing_admin_token(path: &Path) -> anyhow::Result<Option<String>> {
    let shown = path.display();
    let file = fs::File::options()
        .read(true)
        .custom_flags(O_NOFOLLOW)
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    if file.metadata()?.mode() & 0o077 != 0 {
        bail!(
            "other users may read {shown}: remove it, and restart the daemon, which makes a new token"
        );
    }
    let mut token = String::new();
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut token)
        .with_context(|| format!("cannot read {shown}"))?;
    let token = token.trim();
    if token.len() < TOKEN_BYTES_MIN {
        bail!("{shown} has no token: remove it, and restart the daemon, which makes a new one");
    }
    Ok(Some(token.to_owned()))
}

/// Writes a new token under another name first, so that the file is never incomplete. It has mode 0600 from its beginning.
fn make(path: &Path) -> io::Result<String> {
    let token = TokenStore::random()?;
    let mut file = pilot_admin::unfinished(path)?;
    writeln!(file, "{token}")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    Ok(token)
}

/// The file of the administrator's token, in the data directory.
const ADMIN_TOKEN: &str = "admin.token";
const FILE_BYTES_MAX: u64 = 4096;
const TOKEN_BYTES_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_administrators_token_is_made_once_and_others_may_not_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ADMIN_TOKEN);
        let token = admin_token(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(admin_token(&path).unwrap(), token);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let problem = admin_token(&path).unwrap_err();
        assert!(problem.to_string().contains("remove it"), "{problem:#}");
    }

    #[test]
    fn a_link_or_an_empty_file_is_not_taken_for_a_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ADMIN_TOKEN);
        let mut other = fs::File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(folder.path().join("other"))
            .unwrap();
        writeln!(other, "0123456789abcdef0123456789abcdef").unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), &path).unwrap();
        assert!(admin_token(&path).is_err());
        fs::remove_file(&path).unwrap();
        fs::File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .unwrap();
        let problem = admin_token(&path).unwrap_err();
        assert!(problem.to_string().contains("no token"), "{problem:#}");
    }
}
