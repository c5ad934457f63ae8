//! The blocking client of the daemon's control API and Invoke API, over the control socket, HTTP or HTTPS. It handles addresses, tokens and
//! errors. The commands interpret the bodies.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use pilot_model::api::{ApiError, VersionInfo};
use pilot_model::deployment::FunctionSummary;
use pilot_model::nearest::nearest;
use pilot_model::ports::UsageRecords;
use pilot_model::{FunctionName, LayerId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Method, Request, StatusCode};
use ureq::{Agent, Body};

use self::content::Content;
use self::endpoint::Endpoint;
use super::connection::Connection;
use super::failure::Failure;
use super::multipart::Multipart;
use super::output::{self, WARN};
use super::pack::Archive;

mod content;
mod endpoint;
mod refusal;
pub(super) mod tls;
mod unix;

/// A client of one daemon.
#[derive(Debug, Clone)]
pub(super) struct Client {
    agent: Agent,
    endpoint: Endpoint,
    /// The endpoint, for people.
    shown: String,
    token: Option<String>,
}

/// A response with its whole body.
#[derive(Debug)]
pub(super) struct Answer {
    /// HTTP status.
    pub(super) status: StatusCode,
    /// Its headers.
    pub(super) headers: HeaderMap,
    /// Its body.
    pub(super) body: Vec<u8>,
}

impl Client {
    /// A client of the given daemon. Does not connect yet.
    ///
    /// # Errors
    /// The endpoint is neither a socket nor an `http://` or `https://` address, or there are no authorities.
    pub(super) fn new(connection: &Connection) -> anyhow::Result<Self> {
        let authorities = connection.authorities();
        let endpoint = connection.endpoint();
        Self::at(
            endpoint.as_deref(),
            connection.token(),
            authorities.as_deref(),
        )
    }

    /// A client of the daemon at this address; `None`: of the daemon of this machine. `authorities`: the file of those that are trusted
    /// for `https://`; `None`: the system's. Does not connect yet.
    ///
    /// # Errors
    /// The endpoint is neither a socket nor an `http://` or `https://` address, the token cannot be sent, or there are no authorities.
    pub(super) fn at(
        endpoint: Option<&str>,
        token: Option<String>,
        authorities: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let endpoint = match endpoint {
            Some(given) => Endpoint::parse(given)?,
            None => Endpoint::find()?,
        };
        if let Some(token) = &token {
            check_token(token)?;
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .max_redirects(0)
            .user_agent(concat!("pilot/", env!("CARGO_PKG_VERSION")));
        let config = if endpoint.is_https() {
            config.tls_config(tls::config(authorities)?).build()
        } else {
            config.build()
        };
        let agent = match &endpoint {
            Endpoint::Http(_) => config.new_agent(),
            Endpoint::Unix(socket) => unix::agent(config, socket.clone()),
        };
        Ok(Self {
            agent,
            shown: endpoint.to_string(),
            endpoint,
            token,
        })
    }

    /// The daemon's address, for people.
    pub(super) fn endpoint(&self) -> &str {
        &self.shown
    }

    /// Where functions are called: `http://…` or `https://…`, without a slash at the end. The daemon knows it. If it cannot be
    /// asked, this is the endpoint.
    pub(super) fn functions_url(&self) -> String {
        let told = self.told_functions_url();
        told.unwrap_or_else(|| self.endpoint.base().to_owned())
    }

    /// The same, as the daemon says it. `None`: it does not answer.
    pub(super) fn told_functions_url(&self) -> Option<String> {
        let info: VersionInfo = self.fetch("/_pilot/v1/version").ok()?;
        Some(info.functions).filter(|told| !told.is_empty())
    }

    /// GET with a JSON response.
    pub(super) fn fetch<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let answer = self.call(Method::GET, path, Content::Nothing, &[])?;
        self.json(path, &answer)
    }

    /// POST of JSON, with a JSON response.
    pub(super) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let content = Content::Bytes(serde_json::to_vec(body)?);
        let headers = [("content-type", "application/json")];
        let answer = self.call(Method::POST, path, content, &headers)?;
        self.json(path, &answer)
    }

    /// PUT of bytes, with a JSON response.
    pub(super) fn put_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &[u8],
    ) -> anyhow::Result<T> {
        let content = Content::Bytes(body.to_vec());
        let headers = [("content-type", "application/octet-stream")];
        let answer = self.call(Method::PUT, path, content, &headers)?;
        self.json(path, &answer)
    }

    /// DELETE.
    pub(super) fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.call(Method::DELETE, path, Content::Nothing, &[])
            .map(drop)
    }

    /// GET about one function. If it does not exist, the error suggests the nearest name.
    pub(super) fn fetch_function<T: DeserializeOwned>(
        &self,
        name: &FunctionName,
        below: &str,
    ) -> anyhow::Result<T> {
        self.fetch(&function_path(name, below))
            .map_err(|error| self.name_nearest(name, error))
    }

    /// POST of JSON about one function, with a JSON response.
    pub(super) fn post_function<T: DeserializeOwned>(
        &self,
        name: &FunctionName,
        below: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.post(&function_path(name, below), body)
            .map_err(|error| self.name_nearest(name, error))
    }

    /// DELETE of one function.
    pub(super) fn delete_function(&self, name: &FunctionName) -> anyhow::Result<()> {
        self.delete(&function_path(name, ""))
            .map_err(|error| self.name_nearest(name, error))
    }

    /// GET of a stream of lines.
    pub(super) fn stream_function(
        &self,
        name: &FunctionName,
        below: &str,
    ) -> anyhow::Result<impl BufRead + use<>> {
        let path = function_path(name, below);
        self.open(Method::GET, &path, Content::Nothing, &[])
            .map(BufReader::new)
            .map_err(|error| self.name_nearest(name, error))
    }

    /// The usage records of a function, or of all, as CSV.
    pub(super) fn usage(
        &self,
        name: Option<&FunctionName>,
        since_unix_ms: Option<u64>,
        records: UsageRecords,
    ) -> anyhow::Result<impl Read + use<>> {
        let path = match name {
            Some(name) => function_path(name, "/usage"),
            None => "/_pilot/v1/usage".to_owned(),
        };
        let workers = match records {
            UsageRecords::Invocations => None,
            UsageRecords::Workers => Some("workers=true".to_owned()),
        };
        let since = since_unix_ms.map(|at| format!("since_unix_ms={at}"));
        let parameters: Vec<String> = workers.into_iter().chain(since).collect();
        let query = if parameters.is_empty() {
            String::new()
        } else {
            format!("?{}", parameters.join("&"))
        };
        let records = self.open(
            Method::GET,
            &format!("{path}{query}"),
            Content::Nothing,
            &[],
        );
        match name {
            Some(name) => records.map_err(|error| self.name_nearest(name, error)),
            None => records,
        }
    }

    /// PUT of a form, with a stream of lines as response.
    pub(super) fn upload(
        &self,
        name: &FunctionName,
        form: Multipart,
    ) -> anyhow::Result<impl BufRead + use<>> {
        let content_type = form.content_type();
        let headers = [("content-type", content_type.as_str())];
        let path = function_path(name, "");
        self.open(Method::PUT, &path, Content::Form(form), &headers)
            .map(BufReader::new)
    }

    /// Whether a layer is on the daemon. It stays there for the deployment that follows.
    pub(super) fn has_layer(&self, id: &LayerId) -> anyhow::Result<bool> {
        let found = self.call(Method::GET, &layer_path(id), Content::Nothing, &[]);
        match found {
            Ok(_) => Ok(true),
            Err(error) => match error.downcast_ref::<Failure>() {
                Some(Failure::Refused {
                    status: 404,
                    error: told,
                }) if told.code == "not_found" => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// PUT of a layer.
    pub(super) fn upload_layer(&self, id: &LayerId, archive: Archive) -> anyhow::Result<()> {
        let headers = [("content-type", "application/gzip")];
        let content = Content::File(archive.file, archive.bytes);
        self.call(Method::PUT, &layer_path(id), content, &headers)
            .map(drop)
    }

    /// Invokes a function. No status is an error here: the caller interprets it.
    pub(super) fn invoke(
        &self,
        target: &str,
        event: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Answer> {
        let path = format!("/2015-03-31/functions/{target}/invocations");
        let (status, headers, mut body) =
            self.send(Method::POST, &path, Content::Bytes(event), headers)?;
        let body = read_whole(&mut body).context("the response was interrupted")?;
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    /// Replaces a 404 by an error that suggests the nearest name. Other errors stay as they are.
    pub(super) fn name_nearest(&self, name: &FunctionName, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref::<Failure>() {
            Some(Failure::Refused {
                status: 404,
                error: told,
            }) if told.code == "not_found" => self.missing(name.as_str()),
            _ => error,
        }
    }

    /// Warns of functions that are not deployed, where that is no error: they may be deployed later, or have been removed.
    pub(super) fn warn_of_unknown<'a>(
        &self,
        functions: impl IntoIterator<Item = &'a FunctionName>,
    ) {
        let mut functions = functions.into_iter().peekable();
        if functions.peek().is_none() {
            return;
        }
        // Without the list, there is no warning: the command itself has succeeded.
        let Ok(known) = self.fetch::<Vec<FunctionSummary>>(FUNCTIONS) else {
            return;
        };
        let names = || known.iter().map(|function| function.name.as_str());
        for function in functions {
            if names().any(|name| name == function.as_str()) {
                continue;
            }
            let hint = nearest(function.as_str(), names())
                .map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
            output::prose(&format!(
                "{WARN}warning:{WARN:#} function '{function}' is not deployed{hint}"
            ));
        }
    }

    /// The error for a function that does not exist.
    pub(super) fn missing(&self, name: &str) -> anyhow::Error {
        let all: Option<Vec<FunctionSummary>> = self.fetch(FUNCTIONS).ok();
        let mut functions = all.iter().flatten();
        let broken = functions.find(|function| function.name.as_str() == name);
        if let Some(problem) = broken.and_then(|function| function.problem.as_deref()) {
            return anyhow::anyhow!("function '{name}' is broken: {problem}");
        }
        let names = all.iter().flatten().map(|function| function.name.as_str());
        let names = names.filter(|known| *known != name);
        let hint = match (nearest(name, names), &all) {
            (Some(near), _) => format!("did you mean '{near}'?"),
            (None, Some(all)) if all.is_empty() => {
                "no function is deployed; `pilot deploy DIR` deploys one".to_owned()
            }
            (None, _) => "`pilot list` lists all functions".to_owned(),
        };
        Failure::Refused {
            status: 404,
            error: ApiError {
                code: "not_found".to_owned(),
                message: format!("there is no function '{name}': {hint}"),
                detail: String::new(),
            },
        }
        .into()
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        content: Content,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Answer> {
        let (status, headers, mut body) = self.send(method, path, content, headers)?;
        let body = read_whole(&mut body)
            .with_context(|| format!("the response to {path} was interrupted"))?;
        if status.is_success() {
            Ok(Answer {
                status,
                headers,
                body,
            })
        } else {
            Err(refusal::refused(&self.shown, status, &body).into())
        }
    }

    fn open(
        &self,
        method: Method,
        path: &str,
        content: Content,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<impl Read + use<>> {
        let (status, _, mut body) = self.send(method, path, content, headers)?;
        if status.is_success() {
            Ok(body.into_reader())
        } else {
            let body = read_whole(&mut body).unwrap_or_default();
            Err(refusal::refused(&self.shown, status, &body).into())
        }
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        content: Content,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<(StatusCode, HeaderMap, Body)> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.base()));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        // Without a length, the body would be chunked, which not every proxy supports.
        if let Some(length) = content.length_bytes() {
            request = request.header("content-length", length);
        }
        let request = request
            .body(content.into_body())
            .map_err(|error| Failure::usage(format!("cannot ask for {path}: {error}")))?;
        let response = self
            .agent
            .run(request)
            .map_err(|error| refusal::not_sent(&self.shown, error))?;
        let (parts, body) = response.into_parts();
        Ok((parts.status, parts.headers, body))
    }

    fn json<T: DeserializeOwned>(&self, path: &str, answer: &Answer) -> anyhow::Result<T> {
        serde_json::from_slice(&answer.body).with_context(|| {
            format!(
                "this version of pilot does not understand the response of {} to {path}; \
                 `pilot version` shows both versions",
                self.shown
            )
        })
    }
}

/// # Errors
/// No header can have this token.
fn check_token(token: &str) -> Result<(), Failure> {
    match token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(Failure::usage(
            "the token (--token or PILOT_TOKEN) has a space, a line break or another character that no token has: copy it again",
        )),
    }
}

/// The control API's path of a function. A valid name needs no escaping.
fn function_path(name: &FunctionName, below: &str) -> String {
    format!("{FUNCTIONS}/{name}{below}")
}

fn layer_path(id: &LayerId) -> String {
    format!("{LAYERS}/{id}")
}

fn read_whole(body: &mut Body) -> Result<Vec<u8>, ureq::Error> {
    body.with_config().limit(BODY_BYTES_MAX).read_to_vec()
}

/// The control API's path of all functions.
pub(super) const FUNCTIONS: &str = "/_pilot/v1/functions";

/// The control API's path of all layers.
const LAYERS: &str = "/_pilot/v1/layers";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest response body that is read whole.
const BODY_BYTES_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests;
