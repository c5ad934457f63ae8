//! `[connections.NAME]` of `pilotd.toml`: which sources of triggers and which destinations a function may use.

use std::collections::BTreeMap;
use std::path::{Component, PathBuf};

use pilot_trigger::{
    ConnectionConfig, ConnectionKind, HttpAccess, MqttAccess, RedisAccess, SqsAccess,
    SqsCredentials,
};
use serde::{Deserialize, Deserializer};

use super::kinds::{Keys, unknown};
use super::remote::{
    Credentials, RedisSettings, ca_pem, check_functions, check_name, check_url, check_user,
    check_word, secret,
};

/// `[connections.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionSettings {
    /// The functions that may use it, for example `["import", "team-*"]`; `["*"]` for all.
    functions: Vec<String>,
    kind: Kind,
}

/// What belongs to each kind.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Folder(FolderSettings),
    Sqs(SqsSettings),
    Redis(RedisSettings),
    Mqtt(MqttSettings),
    Http(HttpSettings),
}

/// A folder of the machine, with those in it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct FolderSettings {
    path: PathBuf,
}

/// Queues of a server with SQS's API.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SqsSettings {
    /// The beginning of their URLs.
    url: String,
    /// Default: `us-east-1`.
    region: Option<String>,
    /// Default: `environment`, or `key` with `access_key_id`.
    credentials: Option<Credentials>,
    access_key_id: Option<String>,
    /// A file with the secret and nothing else, which nobody else may read.
    secret_access_key_file: Option<PathBuf>,
    /// A file with certificates of authorities, PEM.
    ca_file: Option<PathBuf>,
}

/// An MQTT broker.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct MqttSettings {
    /// `mqtt://HOST:PORT` or `mqtts://HOST:PORT`.
    url: String,
    /// Default: none.
    user: Option<String>,
    /// A file with the password and nothing else, which nobody else may read.
    password_file: Option<PathBuf>,
    /// A file with certificates of authorities, PEM, instead of the system's.
    ca_file: Option<PathBuf>,
}

/// URLs that take records.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpSettings {
    /// Their beginning.
    url: String,
    /// A file with the value of the header `Authorization`, which nobody else may read.
    authorization_file: Option<PathBuf>,
    /// A file with certificates of authorities, PEM.
    ca_file: Option<PathBuf>,
}

/// Refuses what cannot be used, with the key.
pub(super) fn check(all: &BTreeMap<String, ConnectionSettings>) -> Result<(), String> {
    for (name, connection) in all {
        connection
            .check(name)
            .map_err(|problem| format!("connections.{name}{problem}"))?;
    }
    Ok(())
}

impl<'de> Deserialize<'de> for ConnectionSettings {
    fn deserialize<D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        let mut keys = Keys::deserialize(table)?;
        let functions = keys.take("functions")?;
        let kind: String = keys.take("kind")?;
        let kind = match kind.as_str() {
            "folder" => Kind::Folder(keys.rest()?),
            "sqs" => Kind::Sqs(keys.rest()?),
            "redis" => Kind::Redis(keys.rest()?),
            "mqtt" => Kind::Mqtt(keys.rest()?),
            "http" => Kind::Http(keys.rest()?),
            other => return Err(unknown(other, &["folder", "sqs", "redis", "mqtt", "http"])),
        };
        Ok(Self { functions, kind })
    }
}

impl ConnectionSettings {
    fn check(&self, name: &str) -> Result<(), String> {
        check_name(name)?;
        check_functions(&self.functions)?;
        match &self.kind {
            Kind::Folder(folder) => folder.check(),
            Kind::Sqs(sqs) => sqs.check(),
            Kind::Redis(redis) => redis.check(),
            Kind::Mqtt(mqtt) => {
                MqttAccess::check_url(&mqtt.url).map_err(|problem| format!(".url {problem}"))?;
                check_user(mqtt.user.as_ref())
            }
            Kind::Http(http) => check_url(".url", &http.url, ["http://", "https://"]),
        }
    }

    /// With the contents of the files that it names.
    fn read(&self, name: &str) -> anyhow::Result<ConnectionConfig> {
        let kind = match &self.kind {
            Kind::Folder(folder) => ConnectionKind::Folder {
                path: folder.path.clone(),
            },
            Kind::Sqs(sqs) => ConnectionKind::Sqs(SqsAccess {
                url: sqs.url.clone(),
                region: sqs.region.clone(),
                credentials: sqs.read(name)?,
                ca_pem: ca_pem(sqs.ca_file.as_deref(), || key(name, "ca_file"))?,
            }),
            Kind::Redis(redis) => ConnectionKind::Redis(RedisAccess {
                url: redis.url.clone(),
                user: redis.user.clone(),
                password: secret(redis.password_file.as_deref(), || {
                    key(name, "password_file")
                })?,
                ca_pem: ca_pem(redis.ca_file.as_deref(), || key(name, "ca_file"))?,
            }),
            Kind::Mqtt(mqtt) => ConnectionKind::Mqtt(MqttAccess {
                url: mqtt.url.clone(),
                user: mqtt.user.clone(),
                password: secret(mqtt.password_file.as_deref(), || key(name, "password_file"))?,
                ca_pem: ca_pem(mqtt.ca_file.as_deref(), || key(name, "ca_file"))?,
            }),
            Kind::Http(http) => ConnectionKind::Http(HttpAccess {
                url: http.url.clone(),
                authorization: secret(http.authorization_file.as_deref(), || {
                    key(name, "authorization_file")
                })?,
                ca_pem: ca_pem(http.ca_file.as_deref(), || key(name, "ca_file"))?,
            }),
        };
        Ok(ConnectionConfig {
            name: name.to_owned(),
            functions: self.functions.clone(),
            kind,
        })
    }
}

impl FolderSettings {
    fn check(&self) -> Result<(), String> {
        let mut parts = self.path.components();
        let is_plain = parts.next() == Some(Component::RootDir)
            && parts.all(|part| matches!(part, Component::Normal(_)));
        if is_plain {
            return Ok(());
        }
        Err(format!(
            ".path is \"{}\", must begin with / and have no ..",
            self.path.display()
        ))
    }
}

impl SqsSettings {
    fn check(&self) -> Result<(), String> {
        check_url(".url", &self.url, ["http://", "https://"])?;
        check_word(".region", self.region.as_ref())?;
        check_word(".access_key_id", self.access_key_id.as_ref())?;
        let given = (
            self.access_key_id.is_some(),
            self.secret_access_key_file.is_some(),
        );
        let is_key = matches!(self.credentials, None | Some(Credentials::Key));
        match given {
            (true, true) if is_key => Ok(()),
            (false, false) if self.credentials != Some(Credentials::Key) => Ok(()),
            (true, true) => Err(
                ".credentials: leave out access_key_id and secret_access_key_file, or set credentials = \"key\""
                    .to_owned(),
            ),
            _ => Err(
                ".credentials: a key needs access_key_id and secret_access_key_file".to_owned(),
            ),
        }
    }

    fn read(&self, name: &str) -> anyhow::Result<SqsCredentials> {
        let secret = secret(self.secret_access_key_file.as_deref(), || {
            key(name, "secret_access_key_file")
        })?;
        Ok(match (&self.access_key_id, secret, self.credentials) {
            (Some(id), Some(secret), _) => SqsCredentials::Key {
                id: id.clone(),
                secret,
            },
            (_, _, Some(Credentials::Anonymous)) => SqsCredentials::Anonymous,
            _ => SqsCredentials::Environment,
        })
    }
}

fn key(connection: &str, key: &str) -> String {
    format!("connections.{connection}.{key}")
}

/// A connection. Reads files with secrets, so it must be called after the spawner was forked.
///
/// # Errors
/// A file cannot be read, or others may read a secret.
pub(crate) fn connection(
    name: &str,
    settings: &ConnectionSettings,
) -> anyhow::Result<ConnectionConfig> {
    settings.read(name)
}

/// The connections. Reads files with secrets, so it must be called after the spawner was forked.
///
/// # Errors
/// A file cannot be read, or others may read a secret.
pub(crate) fn connections(
    all: &BTreeMap<String, ConnectionSettings>,
) -> anyhow::Result<Vec<ConnectionConfig>> {
    all.iter()
        .map(|(name, settings)| connection(name, settings))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_cannot_be_used_names_its_key() {
        let checked = |text: &str| {
            let read: Result<ConnectionSettings, _> = toml::from_str(text);
            read.map_err(|error| error.message().to_owned())?
                .check("in")
        };
        for (text, problem) in [
            (
                "kind = \"folder\"\npath = \"/srv\"",
                "missing field `functions`",
            ),
            ("kind = \"ftp\"\nfunctions = []", "folder"),
            (
                "kind = \"folder\"\nfunctions = []\npath = \"srv\"",
                ".path is",
            ),
            (
                "kind = \"folder\"\nfunctions = []\npath = \"/a/../b\"",
                "no ..",
            ),
            ("kind = \"sqs\"\nfunctions = []\nurl = \"sqs\"", ".url is"),
            (
                "kind = \"sqs\"\nfunctions = []\nurl = \"https://h\"\naccess_key_id = \"a\"",
                "needs access_key_id and",
            ),
            (
                "kind = \"redis\"\nfunctions = []\nurl = \"redis://u:p@h\"",
                ".url is",
            ),
            (
                "kind = \"mqtt\"\nfunctions = []\nurl = \"mqtts://u:p@h\"",
                ".url is",
            ),
            (
                "kind = \"folder\"\nfunctions = []\npath = \"/a\"\nurl = \"b\"",
                "url",
            ),
            (
                "kind = \"sqs\"\nfunctions = []\nurl = \"http://h:99999/1\"",
                ".url is",
            ),
            (
                "kind = \"sqs\"\nfunctions = []\nurl = \"http://h\"\nregion = \"\"",
                ".region is",
            ),
            (
                "kind = \"http\"\nfunctions = []\nurl = \"https://:1/\"",
                ".url is",
            ),
            (
                "kind = \"redis\"\nfunctions = []\nurl = \"redis://h:65536\"",
                ".url is",
            ),
            (
                "kind = \"redis\"\nfunctions = []\nurl = \"redis://h/first\"",
                "the number of a database",
            ),
            (
                "kind = \"redis\"\nfunctions = []\nurl = \"redis://h/0\"\nuser = \"\"",
                ".user is empty",
            ),
            (
                "kind = \"mqtt\"\nfunctions = []\nurl = \"mqtt://h\"\nuser = \"\"",
                ".user is empty",
            ),
        ] {
            let found = checked(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
        assert!(checked("kind = \"folder\"\nfunctions = [\"*\"]\npath = \"/srv\"").is_ok());
    }
}
