//! Secrets: their names, how a function uses them, and the values that a worker gets. The values are never part of a version.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Where workers see secrets that are files.
pub const SECRETS_INSIDE: &str = "/run/secrets";

/// Longest value, bytes.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;

/// Longest values of one function that are environment variables, all together, bytes.
pub const ENVIRONMENT_BYTES_MAX: usize = 16 * 1024;

/// Longest values of one function that are files, all together, bytes. They lie in memory for each worker, beside its limit.
pub const FILES_BYTES_MAX: usize = 256 * 1024;

/// Most secrets of one function.
pub const SECRETS_MAX: usize = 64;

/// A secret's name, which is unique for its owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String))]
pub struct SecretName(String);

impl SecretName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for SecretName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_plain(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "'{}' is not a secret's name: a name has 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', and does not begin with '.'",
            text.escape_debug().take(100).collect::<String>()
        ))
    }
}

impl TryFrom<String> for SecretName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0
    }
}

/// Which secret: secrets of different owners may have the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SecretId {
    /// The owner of the functions that may use it. Empty: it is shared by all owners.
    pub owner: String,
    /// Its name.
    pub name: SecretName,
}

impl SecretId {
    /// The command that sets it.
    #[must_use]
    pub fn command(&self) -> String {
        let owner = match self.owner.as_str() {
            "" => String::new(),
            owner => format!(" --owner {owner}"),
        };
        format!("pilot secret set {}{owner}", self.name)
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner.as_str() {
            "" => write!(f, "'{}'", self.name),
            owner => write!(f, "'{}' of '{owner}'", self.name),
        }
    }
}

/// `DB_PASSWORD = "db-password"`, or `TLS_KEY = { secret = "tls-key", file = "tls.key" }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(
    untagged,
    expecting = "a secret is its name, \"db-password\", or { secret = \"tls-key\", file = \"tls.key\" }"
)]
pub enum SecretSpec {
    /// The variable has the value.
    Name(String),
    /// With a file.
    Table(SecretTable),
}

/// A secret as a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SecretTable {
    /// The secret's name.
    pub secret: String,
    /// The value is in this file below [`SECRETS_INSIDE`], and the variable has the file's path. Left out: the variable has the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// How a function uses a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretUse {
    /// The secret's name.
    pub secret: SecretName,
    /// The secret's owner. Empty: it is shared by all owners.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// The name of its file below [`SECRETS_INSIDE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl SecretUse {
    /// Which secret.
    #[must_use]
    pub fn id(&self) -> SecretId {
        SecretId {
            owner: self.owner.clone(),
            name: self.secret.clone(),
        }
    }

    /// The path of its file, as the function sees it.
    #[must_use]
    pub fn path(&self) -> Option<String> {
        Some(format!("{SECRETS_INSIDE}/{}", self.file.as_ref()?))
    }
}

/// A function's `[secrets]`, checked. `owner`: of the function.
pub(crate) fn check(
    secrets: &BTreeMap<String, SecretSpec>,
    environment: &BTreeMap<String, String>,
    owner: &str,
) -> Result<BTreeMap<String, SecretUse>, String> {
    if secrets.len() > SECRETS_MAX {
        return Err(format!(
            "has {} secrets, must have at most {SECRETS_MAX}",
            secrets.len()
        ));
    }
    let mut checked: BTreeMap<String, SecretUse> = BTreeMap::new();
    for (variable, spec) in secrets {
        crate::checks::check_variable(variable, "")?;
        if environment.contains_key(variable) {
            return Err(format!(
                "has {variable}, which is in environment, too: remove one of them"
            ));
        }
        let (secret, file) = match spec {
            SecretSpec::Name(secret) => (secret, None),
            SecretSpec::Table(table) => (&table.secret, table.file.clone()),
        };
        if let Some(file) = &file {
            check_file(file).map_err(|problem| format!("{variable}: {problem}"))?;
            let same = |other: &SecretUse| other.file.as_ref() == Some(file);
            if let Some((other, _)) = checked.iter().find(|(_, other)| same(other)) {
                return Err(format!(
                    "has the file \"{file}\" twice, in {other} and {variable}"
                ));
            }
        }
        let secret = secret
            .parse()
            .map_err(|problem| format!("{variable}: {problem}"))?;
        let used = SecretUse {
            secret,
            owner: owner.to_owned(),
            file,
        };
        checked.insert(variable.clone(), used);
    }
    Ok(checked)
}

fn check_file(file: &str) -> Result<(), String> {
    if is_plain(file) {
        return Ok(());
    }
    Err(format!(
        "file is \"{}\", must be a name below {SECRETS_INSIDE} with 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'",
        file.escape_default().take(100).collect::<String>()
    ))
}

fn is_plain(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// What a worker gets. Its `Debug` form shows no value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretValues {
    /// Variables with the values, and those with the paths of files.
    pub environment: BTreeMap<String, String>,
    /// Names below [`SECRETS_INSIDE`], and the contents.
    pub files: Vec<(String, Vec<u8>)>,
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<&String> = self.files.iter().map(|(name, _)| name).collect();
        f.debug_struct("SecretValues")
            .field("environment", &self.environment.keys())
            .field("files", &files)
            .finish()
    }
}

/// Why a function's secrets cannot be given to a worker. No message has a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// There is no such secret.
    #[error("the secret {id}, which {variable} needs, does not exist: make it with `{}`", .id.command())]
    Missing {
        /// Which secret.
        id: SecretId,
        /// The variable.
        variable: String,
    },
    /// It cannot be decrypted.
    #[error("the secret {id} cannot be read: {problem}")]
    Unreadable {
        /// Which secret.
        id: SecretId,
        /// Why.
        problem: String,
    },
    /// It cannot be a variable.
    #[error(
        "the secret {id} cannot be the variable {variable}: {problem}; give it to the function as a file"
    )]
    NotText {
        /// Which secret.
        id: SecretId,
        /// The variable.
        variable: String,
        /// Why.
        problem: &'static str,
    },
    /// All variables together are too long.
    #[error(
        "the secrets that are variables have more than {ENVIRONMENT_BYTES_MAX} bytes: give long ones to the function as files"
    )]
    TooLong,
    /// All files together are too long.
    #[error("the secrets that are files have more than {FILES_BYTES_MAX} bytes")]
    FilesTooLong,
}

/// What is wrong with a value as a variable.
///
/// # Errors
/// It is not text, or has a NUL.
pub fn as_variable(value: &[u8]) -> Result<&str, &'static str> {
    match std::str::from_utf8(value) {
        Ok(text) if text.contains('\0') => Err("its value has a NUL byte"),
        Ok(text) => Ok(text),
        Err(_) => Err("its value is not UTF-8 text"),
    }
}

const NAME_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(json: &str) -> BTreeMap<String, SecretSpec> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_secret_is_a_name_or_a_table_with_a_file() {
        let spec = spec(
            r#"{"DB": "db-password", "KEY": {"secret": "tls", "file": "tls.key"}, "X": {"secret": "x"}}"#,
        );
        let checked = check(&spec, &BTreeMap::new(), "shop").unwrap();
        assert_eq!(checked["DB"].secret.as_str(), "db-password");
        assert_eq!(checked["DB"].owner, "shop");
        assert_eq!(checked["KEY"].path().unwrap(), "/run/secrets/tls.key");
        assert_eq!(checked["X"].path(), None);
    }

    #[test]
    fn what_is_not_a_secret_is_refused_with_what_is_allowed() {
        let environment = BTreeMap::from([("DB".to_owned(), "x".to_owned())]);
        for (json, words) in [
            (r#"{"DB": "db"}"#, "in environment, too"),
            (r#"{"A B": "db"}"#, "a name is a letter"),
            (r#"{"A": ""}"#, "A: '' is not a secret's name"),
            (r#"{"A": "a/b"}"#, "is not a secret's name"),
            (r#"{"A": {"secret": "a", "file": "../x"}}"#, "A: file is"),
            (r#"{"A": {"secret": "a", "file": ".."}}"#, "A: file is"),
            (
                r#"{"A": {"secret": "a", "file": "f"}, "B": {"secret": "b", "file": "f"}}"#,
                "twice, in A and B",
            ),
        ] {
            let problem = check(&spec(json), &environment, "shop").unwrap_err();
            assert!(problem.contains(words), "{json}: {problem}");
        }
        let problem = serde_json::from_str::<SecretSpec>("7").unwrap_err();
        assert!(
            problem.to_string().contains("a secret is its name"),
            "{problem}"
        );
    }

    #[test]
    fn values_are_not_printed() {
        let values = SecretValues {
            environment: [("DB".to_owned(), "hunter2".to_owned())].into(),
            files: vec![("key".to_owned(), b"hunter3".to_vec())],
        };
        let text = format!("{values:?}");
        assert!(text.contains("DB") && text.contains("key"), "{text}");
        assert!(!text.contains("hunter"), "{text}");
    }
}
