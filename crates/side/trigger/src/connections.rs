//! Which sources and destinations outside of the daemon a function may use. The operator says it: who deploys a function need not be
//! trusted with every folder and queue that the daemon can reach.

use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};

use pilot_model::invokes::is_named;
use reqwest::Url;

use crate::mqtt::client::MqttAccess;
use crate::redis::client::RedisAccess;
use crate::sqs::client::SqsAccess;

/// A connection of `pilotd.toml`.
#[derive(Debug, Clone)]
pub struct ConnectionConfig {
    /// Its name.
    pub name: String,
    /// The functions that may use it: names, or `*` at the end of a beginning, or `*` for all.
    pub functions: Vec<String>,
    /// What it leads to.
    pub kind: ConnectionKind,
}

/// What a connection leads to.
#[derive(Debug, Clone)]
pub enum ConnectionKind {
    /// A folder of the machine, with those in it.
    Folder {
        /// Its path.
        path: PathBuf,
    },
    /// Queues of a server with SQS's API.
    Sqs(SqsAccess),
    /// A Redis.
    Redis(RedisAccess),
    /// An MQTT broker.
    Mqtt(MqttAccess),
    /// URLs that take records.
    Http(HttpAccess),
}

/// URLs that take records.
#[derive(Clone)]
pub struct HttpAccess {
    /// Their beginning.
    pub url: String,
    /// The value of the header `Authorization`.
    pub authorization: Option<String>,
    /// Certificates of authorities in PEM, in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
}

impl Debug for HttpAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpAccess")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Connections(Vec<ConnectionConfig>);

impl Connections {
    /// Those of the configuration.
    #[must_use]
    pub fn new(all: Vec<ConnectionConfig>) -> Self {
        Self(all)
    }

    /// Those that this function may use.
    fn of<'a>(&'a self, function: &str) -> impl Iterator<Item = &'a ConnectionConfig> {
        self.0.iter().filter(move |one| one.is_for(function))
    }

    /// The folder of the operator that contains this one, and the connection's name. The innermost one counts.
    ///
    /// # Errors
    /// There is none for this function, and what to do.
    pub(crate) fn folder(&self, function: &str, path: &Path) -> Result<(&str, &Path), String> {
        let folders = self.0.iter().filter(|one| one.is_for(function));
        let folders = folders.filter_map(|connection| match &connection.kind {
            ConnectionKind::Folder { path: root } if path.starts_with(root) => {
                Some((connection.name.as_str(), root.as_path()))
            }
            _ => None,
        });
        let found = folders.max_by_key(|(_, root)| root.as_os_str().len());
        found.ok_or_else(|| missing(function, &path.display().to_string(), "folder", "path"))
    }

    /// How a queue is reached, and the connection's name. The innermost one counts.
    ///
    /// # Errors
    /// There is no connection with it for this function, and what to do.
    pub(crate) fn sqs(&self, function: &str, queue: &str) -> Result<(&str, &SqsAccess), String> {
        let found = self.of(function).filter_map(|one| match &one.kind {
            ConnectionKind::Sqs(access) if contains(&access.url, queue) => {
                Some((one.name.as_str(), access))
            }
            _ => None,
        });
        let found = found.max_by_key(|(_, access)| access.url.len());
        found.ok_or_else(|| missing(function, queue, "sqs", "url"))
    }

    /// How the queues of a connection are reached, by its name.
    ///
    /// # Errors
    /// There is no connection of this name for this function, and what to do.
    pub(crate) fn queues(&self, function: &str, name: &str) -> Result<&SqsAccess, String> {
        let found = self.of(function).find_map(|one| match &one.kind {
            ConnectionKind::Sqs(access) if one.name == name => Some(access),
            _ => None,
        });
        found.ok_or_else(|| unknown(function, name, "sqs"))
    }

    /// How a URL is reached, and the connection's name. The innermost one counts.
    ///
    /// # Errors
    /// There is no connection with it for this function, and what to do.
    pub(crate) fn http(&self, function: &str, url: &str) -> Result<(&str, &HttpAccess), String> {
        let found = self.of(function).filter_map(|one| match &one.kind {
            ConnectionKind::Http(access) if contains(&access.url, url) => {
                Some((one.name.as_str(), access))
            }
            _ => None,
        });
        let found = found.max_by_key(|(_, access)| access.url.len());
        found.ok_or_else(|| missing(function, url, "http", "url"))
    }

    /// How a Redis is reached.
    ///
    /// # Errors
    /// There is no connection of this name for this function, and what to do.
    pub(crate) fn redis(&self, function: &str, name: &str) -> Result<&RedisAccess, String> {
        let found = self.of(function).find_map(|one| match &one.kind {
            ConnectionKind::Redis(access) if one.name == name => Some(access),
            _ => None,
        });
        found.ok_or_else(|| unknown(function, name, "redis"))
    }

    /// # Errors
    /// There is no connection of this name for this function, and what to do.
    pub(crate) fn mqtt(&self, function: &str, name: &str) -> Result<&MqttAccess, String> {
        let found = self.of(function).find_map(|one| match &one.kind {
            ConnectionKind::Mqtt(access) if one.name == name => Some(access),
            _ => None,
        });
        found.ok_or_else(|| unknown(function, name, "mqtt"))
    }
}

fn unknown(function: &str, name: &str, kind: &str) -> String {
    format!(
        "no connection of the kind {kind} is called \"{name}\" and lets '{function}' use it: the operator adds [connections.{name}] \
         with kind = \"{kind}\", url and functions to pilotd.toml"
    )
}

fn missing(function: &str, what: &str, kind: &str, key: &str) -> String {
    format!(
        "no connection lets '{function}' use {what}: the operator adds [connections.NAME] with kind = \"{kind}\", {key} and functions to \
         pilotd.toml"
    )
}

/// Whether a URL is this one, or below it. Both are compared as they are sent: `..` and the like are resolved.
pub(crate) fn contains(base: &str, url: &str) -> bool {
    let (Ok(base), Ok(url)) = (Url::parse(base), Url::parse(url)) else {
        return false;
    };
    let has_user = !url.username().is_empty() || url.password().is_some();
    let (base, url) = (base.as_str(), url.as_str());
    let below = url.strip_prefix(base.trim_end_matches('/'));
    !has_user && below.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
}

impl ConnectionConfig {
    fn is_for(&self, function: &str) -> bool {
        is_named(&self.functions, function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(name: &str, functions: &str, kind: ConnectionKind) -> ConnectionConfig {
        ConnectionConfig {
            name: name.to_owned(),
            functions: vec![functions.to_owned()],
            kind,
        }
    }

    #[test]
    fn a_folder_is_for_the_functions_that_its_connection_names() {
        let folder = |path: &str| ConnectionKind::Folder { path: path.into() };
        let connections = Connections::new(vec![
            connection("all", "*", folder("/srv/all")),
            connection("team", "team-*", folder("/srv/all/team")),
        ]);
        let found = |function: &str, path: &str| {
            let found = connections.folder(function, Path::new(path));
            found.map(|(name, _)| name.to_owned())
        };
        assert_eq!(found("team-a", "/srv/all/team/in").unwrap(), "team");
        assert_eq!(found("other", "/srv/all/team").unwrap(), "all");
        let refused = found("other", "/srv/allowed").unwrap_err();
        assert!(refused.contains("[connections.NAME]"), "{refused}");
    }

    #[test]
    fn a_url_is_below_the_operators_and_nowhere_else() {
        let base = "https://hooks.example.com/team";
        for url in [
            "https://hooks.example.com/team",
            "https://hooks.example.com/team/a?b=1",
            "https://HOOKS.example.com:443/team/",
            "https://hooks.example.com/other/../team/x",
        ] {
            assert!(contains(base, url), "{url}");
        }
        for url in [
            "https://hooks.example.com/teams",
            "http://hooks.example.com/team/a",
            "https://hooks.example.com/team/../admin",
            "https://hooks.example.com/team/%2e%2e/admin",
            "https://hooks.example.com.evil.org/team",
            "https://u:p@hooks.example.com/team",
            "https://hooks.example.com:8443/team",
        ] {
            assert!(!contains(base, url), "{url}");
        }
        assert!(contains("https://h", "https://h/any"));
        assert!(!contains("https://h", "https://h.evil/any"));
    }
}
