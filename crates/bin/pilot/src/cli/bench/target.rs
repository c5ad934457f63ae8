//! The target of a measurement: a function of the daemon, through the Invoke API or its URL, or any other server.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use pilot_loadgen::LoadError;
use pilot_loadgen::request::Site;
use pilot_loadgen::stream::{Peer, Tls};
use pilot_model::FunctionName;
use serde_json::Value;

use super::super::client::{Client, tls};
use super::super::connection::Connection;
use super::super::failure::Failure;

/// The options of a request, except its body.
#[derive(Debug, Args)]
pub(super) struct CallArgs {
    /// Call the function through its URL, at this path below /fn/NAME, instead of the Invoke API
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// The method, except for the Invoke API [default: POST with a body, GET without]
    #[arg(short = 'X', long, value_name = "METHOD", value_parser = check_method)]
    method: Option<String>,
    /// An additional header; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = check_header)]
    headers: Vec<(String, String)>,
}

/// The options of a request.
#[derive(Debug, Args)]
pub(super) struct RequestArgs {
    #[command(flatten)]
    call: CallArgs,
    /// The request body [default: {} for the Invoke API, none otherwise]
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    data: Option<String>,
    /// A file with the request body
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    /// A function of the daemon.
    Function(&'a FunctionName),
    /// The server at this URL.
    Url(&'a str),
}

/// A request that is ready to send.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) peer: Peer,
    pub(super) request: Vec<u8>,
    /// The function whose idle workers can be retired.
    pub(super) retires: Option<FunctionName>,
}

impl Subject<'_> {
    /// Its name in the result.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Function(name) => name.as_str(),
            Self::Url(url) => url,
        }
    }
}

impl CallArgs {
    /// How to call the subject. Checks first that a function exists.
    pub(super) fn site(
        &self,
        client: &Client,
        connection: &Connection,
        subject: Subject<'_>,
    ) -> anyhow::Result<Call> {
        let mut headers = self.headers.clone();
        let url = match subject {
            Subject::Url(url) => {
                if self.path.is_some() {
                    let problem = "--path is only for functions; a URL contains its path";
                    return Err(Failure::usage(problem).into());
                }
                url.to_owned()
            }
            Subject::Function(name) => {
                let _: Value = client.fetch_function(name, "")?;
                if let Some(token) = connection.token() {
                    headers.push(("authorization".to_owned(), format!("Bearer {token}")));
                }
                let path = match &self.path {
                    Some(path) => format!("/fn/{name}/{}", path.trim_start_matches('/')),
                    None => format!("/2015-03-31/functions/{name}/invocations"),
                };
                format!("{}{path}", client.functions_url())
            }
        };
        let invokes = matches!(subject, Subject::Function(_)) && self.path.is_none();
        if invokes && self.method.is_some() {
            let problem = "the Invoke API accepts only POST; use --method with --path or a URL";
            return Err(Failure::usage(problem).into());
        }
        let (site, path) = Site::of(&url).map_err(|error| match error {
            LoadError::UnknownHost { .. } => Failure::NoServer {
                problem: error.to_string(),
            },
            error => Failure::usage(error.to_string()),
        })?;
        Ok(Call {
            site,
            path,
            method: self.method.clone(),
            headers,
            invokes,
        })
    }
}

/// How to call a subject.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) site: Site,
    path: String,
    method: Option<String>,
    headers: Vec<(String, String)>,
    /// Whether it uses the Invoke API.
    invokes: bool,
}

impl Call {
    /// The bytes of a request with this body.
    pub(super) fn request(&self, body: Option<&[u8]>) -> Vec<u8> {
        let method = match &self.method {
            Some(method) => method,
            None if self.invokes || body.is_some() => "POST",
            None => "GET",
        };
        let body = body.unwrap_or(if self.invokes { b"{}" } else { b"" });
        self.site.encode(method, &self.path, &self.headers, body)
    }
}

impl RequestArgs {
    /// The request.
    pub(super) fn target(
        &self,
        client: &Client,
        connection: &Connection,
        subject: Subject<'_>,
    ) -> anyhow::Result<Target> {
        let body = match &self.file {
            Some(path) => Some(body_of(path)?),
            None => self.data.clone().map(String::into_bytes),
        };
        let call = self.call.site(client, connection, subject)?;
        Ok(Target {
            request: call.request(body.as_deref()),
            retires: match subject {
                Subject::Function(name) => Some(name.clone()),
                Subject::Url(_) => None,
            },
            peer: peer_of(&call.site, connection)?,
        })
    }
}

/// How to connect to a server. It trusts the same authorities as all commands.
pub(super) fn peer_of(site: &Site, connection: &Connection) -> anyhow::Result<Peer> {
    let tls = match &site.certificate_of {
        Some(name) => Some(Tls {
            config: tls::http1_config(connection.authorities().as_deref())?,
            name: name.clone(),
        }),
        None => None,
    };
    Ok(Peer {
        address: site.address,
        tls,
    })
}

/// A body from a file.
pub(super) fn body_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = fs::read(path);
    Ok(read.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?)
}

/// Why a measurement ended, with the exit code of a server that is not there.
pub(super) fn not_measured(error: LoadError) -> anyhow::Error {
    let problem = error.to_string();
    match error {
        LoadError::Connect { .. } | LoadError::UnknownHost { .. } => {
            Failure::NoServer { problem }.into()
        }
        LoadError::Tls { address, source } => {
            let problem = tls::explained(&format!("https://{address}"), &source);
            Failure::NoServer { problem }.into()
        }
        _ => anyhow::anyhow!(problem),
    }
}

fn check_method(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        Ok(text.to_ascii_uppercase())
    } else {
        Err("a method is a word, such as PUT".to_owned())
    }
}

fn check_header(text: &str) -> Result<(String, String), String> {
    let is_token = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    match text.split_once(':') {
        Some((name, value)) if is_token(name) && !value.contains(['\r', '\n']) => {
            Ok((name.to_owned(), value.trim().to_owned()))
        }
        _ => Err("a header is 'NAME: VALUE'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_cannot_end_the_head() {
        assert_eq!(
            check_header("a-b: c: d").unwrap(),
            ("a-b".to_owned(), "c: d".to_owned())
        );
        for wrong in ["", ": b", "a b: c", "a", "a: b\r\nc: d"] {
            assert!(check_header(wrong).is_err(), "{wrong:?}");
        }
        assert!(check_method("GET / HTTP/1.1").is_err());
    }
}
