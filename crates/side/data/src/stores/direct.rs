//! HTTP servers that an initscript asks without a store, by the crate `reqwest`. Nothing of the daemon's goes along, neither
//! credentials nor a proxy. Addresses are checked when a connection is made, see `networks`.

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use pilot_model::BoxFuture;
use pilot_model::initscript::Endpoint;
use pilot_model::ports::{InputFaultKind as Kind, RemoteRequest, StoreObject};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Method, Url};
use sha2::{Digest as _, Sha256};

use super::s3::chain;
use super::{Got, Object, Store, StoreError, Validator};
use crate::networks::Networks;

/// The name under which the status of an HTTP response is kept among its headers.
pub(crate) const STATUS: &str = ":status";

/// The client of all HTTP servers.
#[derive(Debug)]
pub(crate) struct DirectHttp {
    client: Client,
    networks: Networks,
}

impl DirectHttp {
    /// # Errors
    /// The machine's certificates cannot be used.
    pub(crate) fn new(networks: Networks) -> Result<Self, String> {
        let client = builder(&networks).build().map_err(|error| chain(&error))?;
        Ok(Self { client, networks })
    }

    /// A store with one object: the response to this request.
    pub(crate) fn once(&self, request: HttpRequest) -> Arc<dyn Store> {
        Arc::new(OneResponse {
            client: self.client.clone(),
            networks: self.networks.clone(),
            request,
        })
    }
}

/// A client that reaches only these networks.
pub(super) fn builder(networks: &Networks) -> ClientBuilder {
    Client::builder()
        .connect_timeout(CONNECT_MAX)
        .read_timeout(SILENCE_MAX)
        .pool_max_idle_per_host(IDLE_MAX)
        .no_proxy()
        // Another endpoint needs another entry of `allow`: the script sees the answer and can ask there.
        .redirect(Policy::none())
        .dns_resolver(Checked(networks.clone()))
}

/// An address in a URL is not resolved, so it is checked here.
pub(super) fn check_literal(networks: &Networks, url: &Url) -> Result<(), StoreError> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let Ok(address) = host.parse() else {
        return Ok(());
    };
    let checked = networks.check(address);
    checked.map_err(|problem| StoreError::new(Kind::Forbidden, &problem))
}

/// Names have only the addresses that may be connected to.
struct Checked(Networks);

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let networks = self.0.clone();
        Box::pin(async move {
            let found = networks.resolve(name.as_str(), 0).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// A checked request.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
}

impl HttpRequest {
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn new(endpoint: &Endpoint, request: RemoteRequest) -> Result<Self, StoreError> {
        let wrong = |problem: &str| StoreError::new(Kind::Key, problem);
        let method = Method::from_bytes(request.method.as_bytes())
            .ok()
            .filter(|method| METHODS.contains(&method.as_str()))
            .ok_or_else(|| wrong("the method must be GET, HEAD, POST, PUT, PATCH or DELETE"))?;
        let url = Url::parse(&format!("{endpoint}{}", request.key))
            .map_err(|error| wrong(&format!("the target: {error}")))?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for (name, value) in &request.headers {
            let name = HeaderName::from_bytes(name.as_bytes());
            let name = name.map_err(|_| wrong("the name of a header has odd characters"))?;
            if OURS.contains(&name.as_str()) {
                return Err(wrong(&format!("the header {name} is the host's")));
            }
            let value = HeaderValue::from_str(value);
            let value = value.map_err(|_| wrong("the value of a header has odd characters"))?;
            headers.append(name, value);
        }
        Ok(Self {
            method,
            url,
            headers,
            body: request.body,
        })
    }
}

/// A store whose object is the response to one request.
#[derive(Debug)]
struct OneResponse {
    client: Client,
    networks: Networks,
    request: HttpRequest,
}

impl Store for OneResponse {
    /// A request may have changed something.
    fn retries(&self) -> u32 {
        0
    }

    fn named(&self, _: &str, headers: &[(String, String)]) -> Option<StoreObject> {
        let HttpRequest {
            method,
            url,
            headers: sent,
            body,
        } = &self.request;
        let status = headers.iter().find(|(name, _)| name == STATUS)?;
        let headers = headers.iter().filter(|(name, _)| name != STATUS).cloned();
        Some(StoreObject::Http {
            method: method.to_string(),
            url: url.to_string(),
            body_sha256: match body.is_empty() {
                true => String::new(),
                false => hex::encode(Sha256::digest(body)),
            },
            request_headers: sent_headers(sent)?,
            status: status.1.parse().ok()?,
            headers: headers.collect(),
        })
    }

    fn get<'a>(
        &'a self,
        _: &'a str,
        _: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let HttpRequest {
                method,
                url,
                headers,
                body,
            } = &self.request;
            check_literal(&self.networks, url)?;
            let sent = self
                .client
                .request(method.clone(), url.clone())
                .headers(headers.clone())
                .body(body.clone())
                .send()
                .await;
            let response = sent.map_err(failed)?;
            let status = response.status().as_str().to_owned();
            let headers = iter::once((STATUS.to_owned(), status));
            let headers = headers.chain(kept_headers(method, response.headers()));
            let headers = headers.collect();
            Ok(Got::Object(Object {
                len: response
                    .content_length()
                    .filter(|_| *method != Method::HEAD),
                validator: None,
                headers,
                body: response.bytes_stream().map_err(failed).boxed(),
            }))
        })
    }
}

/// What the function's own request must have, too, to be the same one. `None`: it is no text, or too long, so there is no same one.
fn sent_headers(headers: &HeaderMap) -> Option<Vec<(String, String)>> {
    let mut room = HEADERS_LEN_MAX;
    let own = headers.iter().filter(|(name, _)| *name != ACCEPT_ENCODING);
    let texts = own.map(|(name, value)| {
        let value = value.to_str().ok()?;
        room = room.checked_sub(name.as_str().len() + value.len())?;
        Some((name.as_str().to_owned(), value.to_owned()))
    });
    texts.collect()
}

/// What a client of the function may need of a response: all but what frames the body, as far as it is text and not long. There is no
/// body after HEAD: `content-length` is what was asked for.
fn kept_headers(method: &Method, headers: &HeaderMap) -> Vec<(String, String)> {
    let mut room = HEADERS_LEN_MAX;
    let texts = headers.iter().filter_map(|(name, value)| {
        let is_framing = OURS.contains(&name.as_str()) || name == "keep-alive";
        let is_framing = is_framing && !(*method == Method::HEAD && *name == CONTENT_LENGTH);
        let value = value.to_str().ok().filter(|_| !is_framing)?;
        room = room.checked_sub(name.as_str().len() + value.len())?;
        Some((name.as_str().to_owned(), value.to_owned()))
    });
    texts.collect()
}

pub(super) fn failed(error: reqwest::Error) -> StoreError {
    StoreError::new(Kind::Unavailable, &chain(&error.without_url()))
}

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
/// Headers that frame the request or say where it goes.
pub(super) const OURS: [&str; 8] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "accept-encoding",
];
/// Headers of one response that are kept.
const HEADERS_LEN_MAX: usize = 8 << 10;
const CONNECT_MAX: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Idle connections to one server that are kept for the next start.
const IDLE_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, headers: &[(&str, &str)]) -> HttpRequest {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let request = RemoteRequest {
            method: method.to_owned(),
            key: "/a".to_owned(),
            headers: headers.collect(),
            body: Bytes::new(),
        };
        HttpRequest::new(&"http://here".parse().unwrap(), request).unwrap()
    }

    #[test]
    fn a_response_to_head_has_the_length_that_the_server_said() {
        let headers = [
            ("content-length", "7"),
            ("connection", "close"),
            ("etag", "1"),
        ];
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        let names = |method| {
            let kept = kept_headers(&method, &headers).into_iter();
            kept.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(Method::HEAD), ["content-length", "etag"]);
        assert_eq!(names(Method::GET), ["etag"]);
    }

    #[test]
    fn a_response_is_named_with_the_headers_of_its_request() {
        // Each test may be a process of its own.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = DirectHttp::new(Networks::new(Vec::new())).unwrap();
        let named = |headers: &[(&str, &str)]| {
            let store = client.once(request("GET", headers));
            store.named("", &[(STATUS.to_owned(), "200".to_owned())])
        };
        let Some(StoreObject::Http {
            request_headers, ..
        }) = named(&[("X-Api-Key", "k1"), ("accept", "text/csv")])
        else {
            panic!("it has no name");
        };
        let expected = [("x-api-key", "k1"), ("accept", "text/csv")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(request_headers, expected);
        // What cannot be compared is no answer.
        assert_eq!(named(&[("x-api-key", &"x".repeat(HEADERS_LEN_MAX))]), None);
        assert_eq!(named(&[("x-api-key", "\u{e4}")]), None);
    }
}
