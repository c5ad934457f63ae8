//! What is asked of whom: a function of the daemon, through the Invoke API or its URL, or any other server.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use pilot_loadgen::request::Site;
use pilot_model::FunctionName;
use serde_json::Value;

use super::super::Connection;
use super::super::client::{Client, FUNCTIONS};
use super::super::failure::Failure;

/// How the request looks.
#[derive(Debug, Args)]
pub(super) struct RequestArgs {
    /// Call the function through its URL, at this path below /fn/NAME, in place of the Invoke API
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// The request's body [default: {} for the Invoke API, none elsewhere]
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    data: Option<String>,
    /// A file with the request's body
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// The method, where it is not the Invoke API [default: POST with a body, GET without]
    #[arg(short = 'X', long, value_name = "METHOD", value_parser = check_method)]
    method: Option<String>,
    /// One more header; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = check_header)]
    headers: Vec<(String, String)>,
}

/// Who is measured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject<'a> {
    /// A function of the daemon.
    Function(&'a FunctionName),
    /// Whatever answers at this URL.
    Url(&'a str),
}

/// A request that is ready to be sent.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) site: Site,
    pub(super) request: Vec<u8>,
    /// Retires the function's idle workers.
    pub(super) retire: Option<Vec<u8>>,
}

impl Subject<'_> {
    /// As it is told.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Function(name) => name.as_str(),
            Self::Url(url) => url,
        }
    }
}

impl RequestArgs {
    /// The request. Of a function it is asked first whether it is there.
    pub(super) fn target(
        &self,
        client: &Client,
        connection: &Connection,
        subject: Subject<'_>,
    ) -> anyhow::Result<Target> {
        let body = self.body()?;
        let mut headers = self.headers.clone();
        let (url, name) = match subject {
            Subject::Url(url) => {
                if self.path.is_some() {
                    return Err(Failure::usage(
                        "--path goes with a function; write the path into --url",
                    )
                    .into());
                }
                (url.to_owned(), None)
            }
            Subject::Function(name) => {
                let _: Value = client.fetch_function(name, "")?;
                if let Some(token) = &connection.token {
                    headers.push(("authorization".to_owned(), format!("Bearer {token}")));
                }
                let path = match &self.path {
                    Some(path) => format!("/fn/{name}/{}", path.trim_start_matches('/')),
                    None => invoke_path(name.as_str()),
                };
                (format!("{}{path}", client.endpoint()), Some(name))
            }
        };
        let (site, path) = Site::of(&url).map_err(|error| Failure::usage(error.to_string()))?;
        let invokes = name.is_some() && self.path.is_none();
        let request = self.encode(&site, &path, invokes, &headers, body.as_deref())?;
        let retire = name.map(|name| {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
            let path = format!("{FUNCTIONS}/{name}/scale");
            site.encode("POST", &path, &headers, br#"{"workers":0}"#)
        });
        Ok(Target {
            site,
            request,
            retire,
        })
    }

    /// The bytes of a request; `invokes`: it goes to the Invoke API.
    pub(super) fn encode(
        &self,
        site: &Site,
        path: &str,
        invokes: bool,
        headers: &[(String, String)],
        body: Option<&[u8]>,
    ) -> anyhow::Result<Vec<u8>> {
        if invokes && self.method.is_some() {
            return Err(Failure::usage(
                "the Invoke API knows POST alone; --method goes with --path or a URL",
            )
            .into());
        }
        let method = match &self.method {
            Some(method) => method,
            None if invokes || body.is_some() => "POST",
            None => "GET",
        };
        let body = body.unwrap_or(if invokes { b"{}" } else { b"" });
        Ok(site.encode(method, path, headers, body))
    }

    /// The body, if one was given.
    pub(super) fn body(&self) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(path) = &self.file else {
            return Ok(self.data.clone().map(String::into_bytes));
        };
        let read = fs::read(path);
        Ok(Some(read.map_err(|error| {
            Failure::usage(format!("{}: {error}", path.display()))
        })?))
    }
}

/// The Invoke API's path of a function.
pub(super) fn invoke_path(name: &str) -> String {
    format!("/2015-03-31/functions/{name}/invocations")
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
