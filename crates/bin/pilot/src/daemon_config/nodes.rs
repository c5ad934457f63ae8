//! `[nodes]` of `pilotd.toml`: this node's address and certificate for other nodes, and in `[nodes.NAME]` who they are, which functions
//! they have, and what they may invoke here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use hyper::http::uri::Authority;
use pilot_cluster::NodeConfig;
use pilot_model::{FunctionName, Invokes};
use rustls::pki_types::ServerName;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::listen;
use crate::tls::TlsFiles;

/// `[nodes]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodesSettings {
    /// This node's address for other nodes. `None`: it only calls them.
    listen: Option<SocketAddr>,
    /// This node's certificate, and its key.
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    /// The certificates of the authority of all nodes.
    ca: Option<PathBuf>,
    /// How long a link may do nothing that it should do, seconds.
    silence_s: Option<f64>,
    /// The other nodes, by name.
    others: BTreeMap<String, NodeSettings>,
}

/// `[nodes.NAME]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NodeSettings {
    /// `https://HOST:PORT`.
    url: Option<String>,
    /// The functions that it has, for example `["resize", "team-*"]`.
    functions: Vec<String>,
    /// The functions of this node that it may invoke.
    may_invoke: Vec<String>,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Address(#[serde(deserialize_with = "listen::of_key")] Option<SocketAddr>);

impl<'de> Deserialize<'de> for NodesSettings {
    fn deserialize<D: Deserializer<'de>>(table: D) -> Result<Self, D::Error> {
        table.deserialize_map(Keys)
    }
}

/// Keys of this node, and tables of others.
struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = NodesSettings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of keys")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut keys: A) -> Result<NodesSettings, A::Error> {
        let mut nodes = NodesSettings::default();
        while let Some(key) = keys.next_key::<String>()? {
            match key.as_str() {
                "listen" => nodes.listen = keys.next_value::<Address>()?.0,
                "certificate" => nodes.certificate = Some(keys.next_value()?),
                "key" => nodes.key = Some(keys.next_value()?),
                "ca" => nodes.ca = Some(keys.next_value()?),
                "silence_s" => nodes.silence_s = Some(keys.next_value()?),
                _ => {
                    let node = keys.next_value::<NodeSettings>()?;
                    check_name(&key).map_err(A::Error::custom)?;
                    nodes.others.insert(key, node);
                }
            }
        }
        Ok(nodes)
    }
}

impl NodesSettings {
    /// Refuses what cannot be used, with the key.
    pub(super) fn check(&self) -> Result<(), String> {
        for (key, file) in [
            ("certificate", &self.certificate),
            ("key", &self.key),
            ("ca", &self.ca),
        ] {
            if file.is_none() {
                return Err(format!(
                    "nodes.{key} is missing: nodes show each other certificates (nodes.certificate, nodes.key) of one authority (nodes.ca)"
                ));
            }
        }
        if !self
            .silence_s
            .is_none_or(|silence| SILENCE_S.contains(&silence))
        {
            return Err("nodes.silence_s must be from 1 to 600".to_owned());
        }
        for (name, node) in &self.others {
            node.read(name)?;
            if !node.may_invoke.is_empty() && self.listen.is_none() {
                return Err(format!(
                    "nodes.{name}.may_invoke is set, but nodes.listen is not: no node could call this one"
                ));
            }
        }
        Ok(())
    }

    /// This node's address for other nodes.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// The files of this node's certificate, and that of the authority.
    ///
    /// # Errors
    /// As at the check.
    pub(crate) fn files(&self) -> anyhow::Result<(TlsFiles, &Path)> {
        let keys = ["nodes.certificate", "nodes.key"];
        let files = TlsFiles::of(keys, self.certificate.as_deref(), self.key.as_deref())?;
        let both = files.zip(self.ca.as_deref());
        both.context("nodes.certificate, nodes.key and nodes.ca are needed")
    }

    pub(crate) fn silence_max(&self) -> Duration {
        Duration::from_secs_f64(self.silence_s.unwrap_or(SILENCE_S_DEFAULT))
    }

    /// The other nodes.
    ///
    /// # Errors
    /// As at the check.
    pub(crate) fn others(&self) -> Result<Vec<NodeConfig>, String> {
        let others = self.others.iter();
        others.map(|(name, node)| node.read(name)).collect()
    }
}

/// A node's name is one of its certificate.
fn check_name(name: &str) -> Result<(), String> {
    let is_name = matches!(ServerName::try_from(name), Ok(ServerName::DnsName(_)))
        && name.len() <= NAME_LEN_MAX
        && !name
            .bytes()
            .any(|byte| byte.is_ascii_uppercase() || byte == b'_');
    if is_name {
        return Ok(());
    }
    Err(format!(
        "the name of a node has 1 to {NAME_LEN_MAX} lower-case letters, digits, '-' and '.', as in its certificate"
    ))
}

impl NodeSettings {
    fn read(&self, name: &str) -> Result<NodeConfig, String> {
        let at = |problem: String| format!("nodes.{name}.{problem}");
        let address = self.url.as_deref().map(address).transpose().map_err(at)?;
        match (&address, self.functions.is_empty()) {
            (None, false) => {
                return Err(at("functions is set, but url is not".to_owned()));
            }
            (Some(_), true) => {
                return Err(at(
                    "url is set, but functions is not: nothing would ever be sent there".to_owned(),
                ));
            }
            _ => {}
        }
        let functions = names("functions", &self.functions).map_err(at)?;
        let may_invoke = names("may_invoke", &self.may_invoke).map_err(at)?;
        let name = ServerName::try_from(name.to_owned());
        let name = name.map_err(|error| at(format!("is not a valid name: {error}")))?;
        Ok(NodeConfig {
            name,
            address,
            functions,
            may_invoke,
        })
    }
}

/// Host and port.
fn address(url: &str) -> Result<(String, u16), String> {
    let wrong = || format!("url is \"{url}\", must be https://HOST:PORT");
    let rest = url.strip_prefix("https://").ok_or_else(wrong)?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let authority: Authority = rest.parse().map_err(|_| wrong())?;
    let host = authority.host();
    if rest.contains('@') || host.is_empty() {
        return Err(wrong());
    }
    let port = authority.port_u16().ok_or_else(wrong)?;
    // Brackets are for URLs.
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((host.to_owned(), port))
}

fn names(key: &str, entries: &[String]) -> Result<Invokes, String> {
    for entry in entries {
        let beginning = entry.strip_suffix('*');
        let is_all = beginning == Some("");
        if !is_all && beginning.unwrap_or(entry).parse::<FunctionName>().is_err() {
            return Err(format!(
                "{key} has \"{entry}\": an entry is a function's name, or the beginning of names and *"
            ));
        }
    }
    Ok(Invokes {
        names: entries.to_vec(),
        own_only: false,
    })
}

const SILENCE_S: std::ops::RangeInclusive<f64> = 1.0..=600.0;
const SILENCE_S_DEFAULT: f64 = 10.0;
const NAME_LEN_MAX: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &str = "certificate = \"c\"\nkey = \"k\"\nca = \"a\"\n";

    fn read(text: &str) -> Result<NodesSettings, String> {
        let read: Result<NodesSettings, _> = toml::from_str(text);
        let nodes = read.map_err(|error| error.message().to_owned())?;
        nodes.check().map(|()| nodes)
    }

    #[test]
    fn keys_of_this_node_and_tables_of_others_are_read() {
        let text = format!(
            "listen = \"10.0.0.1:7443\"\n{FILES}[b]\nurl = \"https://[fd00::2]:7443/\"\nfunctions = [\"next\", \"team-*\"]\n\
             [c-1]\nmay_invoke = [\"*\"]\n"
        );
        let nodes = read(&text).unwrap();
        assert_eq!(nodes.listen().unwrap().port(), 7443);
        assert_eq!(nodes.silence_max(), Duration::from_secs(10));
        let others = nodes.others().unwrap();
        let [b, c] = others.as_slice() else {
            panic!("{others:?}");
        };
        assert_eq!(b.address, Some(("fd00::2".to_owned(), 7443)));
        assert!(b.functions.names("team-x") && !b.may_invoke.names("x"));
        assert!(c.address.is_none() && c.may_invoke.names("x"));
    }

    #[test]
    fn what_cannot_be_used_names_its_key() {
        let b = |keys: &str| format!("listen = \"10.0.0.1:1\"\n{FILES}[b]\n{keys}");
        for (text, problem) in [
            (
                "listen = \"10.0.0.1:1\"\n".to_owned(),
                "nodes.certificate is missing",
            ),
            (
                format!("{FILES}silence_s = 0.1\n"),
                "nodes.silence_s must be",
            ),
            (
                format!("{FILES}[b]\nmay_invoke = [\"x\"]\n"),
                "nodes.listen is not",
            ),
            (format!("{FILES}[B_1]\n"), "the name of a node"),
            (format!("{FILES}[\"10.0.0.1\"]\n"), "the name of a node"),
            (
                b("url = \"http://h:1\"\nfunctions = [\"x\"]\n"),
                "nodes.b.url is",
            ),
            (
                b("url = \"https://h\"\nfunctions = [\"x\"]\n"),
                "nodes.b.url is",
            ),
            (
                b("url = \"https://u@h:1\"\nfunctions = [\"x\"]\n"),
                "nodes.b.url is",
            ),
            (
                b("url = \"https://h:1\"\n"),
                "nodes.b.url is set, but functions is not",
            ),
            (
                b("functions = [\"x\"]\n"),
                "nodes.b.functions is set, but url is not",
            ),
            (
                b("may_invoke = [\"a b\"]\n"),
                "nodes.b.may_invoke has \"a b\"",
            ),
            (b("uri = \"x\"\n"), "unknown field `uri`"),
        ] {
            let found = read(&text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
