//! Servers that answer GET (RFC 9110), by the crate `reqwest`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pilot_model::BoxFuture;
use pilot_model::ports::InputFaultKind as Kind;
use reqwest::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::redirects::{REDIRECTS_MAX, same_server};
use super::s3::chain;
use super::{Got, Object, Store, StoreError, Validator};

/// A server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpConfig {
    /// What comes before the key, ending in `/`.
    pub url: String,
    /// Certificates of authorities in PEM, in addition to the system's.
    pub ca_pem: Option<Vec<u8>>,
}

/// A server.
#[derive(Debug)]
pub(crate) struct HttpStore {
    client: Client,
    base: Url,
    /// One permit for each answer that is being read.
    concurrent: Arc<Semaphore>,
}

impl HttpStore {
    /// # Errors
    /// What is wrong with the configuration.
    pub(crate) fn open(config: &HttpConfig) -> Result<Self, String> {
        let base = Url::parse(&config.url).map_err(|error| format!("url: {error}"))?;
        let mut client = Client::builder()
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .no_proxy()
            .redirect(same_server());
        if let Some(pem) = &config.ca_pem {
            let certificates = Certificate::from_pem_bundle(pem)
                .map_err(|error| format!("ca_file: {}", chain(&error)))?;
            for certificate in certificates {
                client = client.add_root_certificate(certificate);
            }
        }
        let client = client.build().map_err(|error| chain(&error))?;
        Ok(Self {
            client,
            base,
            concurrent: Arc::new(Semaphore::new(CONCURRENT_MAX)),
        })
    }

    fn url(&self, key: &str) -> Result<Url, StoreError> {
        let path = utf8_percent_encode(key, IN_PATH).to_string();
        let url = self.base.join(&format!("./{path}"));
        url.map_err(|error| StoreError::new(Kind::Key, &error.to_string()))
    }

    /// Asks, with conditions or none. A redirect takes them to another resource, whose tags say nothing about this object: if
    /// it heeds them, it is asked again without any.
    async fn ask(
        &self,
        key: &str,
        conditions: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, StoreError> {
        let answer = self.send(key, conditions).await?;
        let heeds = matches!(
            answer.response.status(),
            StatusCode::NOT_MODIFIED
                | StatusCode::PARTIAL_CONTENT
                | StatusCode::RANGE_NOT_SATISFIABLE
        );
        if conditions.is_empty() || !answer.is_redirected || !heeds {
            return Ok(answer);
        }
        drop(answer);
        self.send(key, &[]).await
    }

    async fn send(
        &self,
        key: &str,
        conditions: &[(HeaderName, HeaderValue)],
    ) -> Result<Answer, StoreError> {
        let url = self.url(key)?;
        let request = self
            .client
            .get(url.clone())
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"))
            .headers(conditions.iter().cloned().collect());
        let permit = Arc::clone(&self.concurrent).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::new(Kind::Unavailable, "it is closed"))?;
        let response = request.send().await.map_err(failed)?;
        let is_redirected = *response.url() != url;
        Ok(Answer {
            is_conditional: !conditions.is_empty() && !is_redirected,
            is_redirected,
            response,
            permit,
        })
    }
}

/// What the server answers.
struct Answer {
    response: Response,
    /// For the time until the answer is read.
    permit: OwnedSemaphorePermit,
    /// It is of another resource than the one that was asked for, and may be of yet another one the next time.
    is_redirected: bool,
    /// The resource itself was asked with conditions.
    is_conditional: bool,
}

impl Answer {
    /// The object, or a part of it. `len`: the length of all of it.
    fn object(self, len: Option<u64>) -> Result<Object, StoreError> {
        let (headers, permit) = (self.response.headers(), self.permit);
        if let Some(encoding) = encoding(headers) {
            let problem = format!(
                "the store sends it encoded ({encoding}), and was asked for the object as it is (identity)"
            );
            return Err(StoreError::new(Kind::Broken, &problem));
        }
        Ok(Object {
            len,
            validator: validator(headers).filter(|_| !self.is_redirected),
            headers: Vec::new(),
            body: self
                .response
                .bytes_stream()
                .map_err(failed)
                .inspect(move |_| {
                    let _ = &permit;
                })
                .boxed(),
        })
    }

    fn whole(self) -> Result<Object, StoreError> {
        if let Some(error) = refusal(self.response.status()) {
            return Err(error);
        }
        let len = self.response.content_length();
        self.object(len)
    }
}

impl Store for HttpStore {
    fn retries(&self) -> u32 {
        4
    }

    fn places(&self) -> Option<usize> {
        Some(CONCURRENT_MAX)
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let condition = known.and_then(condition);
            let answer = self.ask(key, condition.as_slice()).await?;
            if answer.is_conditional && answer.response.status() == StatusCode::NOT_MODIFIED {
                return Ok(Got::Unchanged(None));
            }
            answer.whole().map(Got::Object)
        })
    }

    /// By a range, which the server answers with the whole object if that is another one, or if it knows no ranges (RFC 9110, sections
    /// 13.1.5 and 14.2).
    fn rest<'a>(
        &'a self,
        key: &'a str,
        known: &'a Validator,
        at: u64,
    ) -> BoxFuture<'a, Result<(u64, Got), StoreError>> {
        Box::pin(async move {
            let conditions = rest_of(known, at);
            let answer = self.ask(key, conditions.as_slice()).await?;
            if answer.is_conditional && answer.response.status() == StatusCode::PARTIAL_CONTENT {
                let range = answer.response.headers().get(CONTENT_RANGE);
                let range = range.and_then(|range| range.to_str().ok());
                let Some((first, len)) = range.and_then(part_of) else {
                    let problem = "the store sends a part and does not say which";
                    return Err(StoreError::new(Kind::Broken, problem));
                };
                return Ok((first, Got::Object(answer.object(Some(len))?)));
            }
            Ok((0, Got::Object(answer.whole()?)))
        })
    }
}

/// The first byte of a part, and the length of the whole: `bytes 100-199/200`.
fn part_of(range: &str) -> Option<(u64, u64)> {
    let (span, len) = range.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = span.split_once('-')?;
    let (first, last, len): (u64, u64, u64) =
        (first.parse().ok()?, last.parse().ok()?, len.parse().ok()?);
    // What it says is the rest must be the rest.
    (first <= last && last.checked_add(1)? == len).then_some((first, len))
}

/// The header that asks for the object only if it has changed.
fn condition(known: &Validator) -> Option<(HeaderName, HeaderValue)> {
    Some((IF_NONE_MATCH, tag(known)?))
}

/// The headers that ask for the object from `at` on, if it is still this one. None: there is no asking for that.
fn rest_of(known: &Validator, at: u64) -> Vec<(HeaderName, HeaderValue)> {
    let range = HeaderValue::from_str(&format!("bytes={at}-")).ok();
    let headers = range.zip(tag(known));
    headers.map_or_else(Vec::new, |(range, tag)| {
        vec![(RANGE, range), (IF_RANGE, tag)]
    })
}

fn tag(known: &Validator) -> Option<HeaderValue> {
    match known {
        Validator::Tag(tag) => HeaderValue::from_str(tag).ok(),
        Validator::Described(..) | Validator::File(_) => None,
    }
}

/// How the bytes are encoded, if they are (RFC 9110, section 8.4).
fn encoding(headers: &HeaderMap) -> Option<String> {
    let codings = headers.get_all(CONTENT_ENCODING).iter();
    let mut codings = codings.map(|coding| String::from_utf8_lossy(coding.as_bytes()).into_owned());
    codings.find(|coding| !matches!(coding.to_ascii_lowercase().as_str(), "" | "identity"))
}

/// Only a tag: `If-Modified-Since` is no comparison for equality (RFC 9110, section 13.1.3), so an older file that took the
/// place of a newer one would go unnoticed.
fn validator(headers: &HeaderMap) -> Option<Validator> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let directives = headers.get_all(CACHE_CONTROL).iter();
    let mut directives = directives.filter_map(|value| value.to_str().ok());
    if directives.any(|value| value.to_ascii_lowercase().contains("no-store")) {
        return None;
    }
    Validator::of_tag(text(ETAG)?)
}

/// The URL is not part of it: the location says it. An answer that ends before its length is not [`Kind::Broken`]: the end of a server or a
/// proxy looks the same, and what is asked for again may arrive whole.
fn failed(error: reqwest::Error) -> StoreError {
    StoreError::new(Kind::Unavailable, &chain(&error.without_url()))
}

fn refusal(status: StatusCode) -> Option<StoreError> {
    let (kind, problem) = match status {
        StatusCode::OK => return None,
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            (Kind::NotFound, "there is no such object".to_owned())
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => (
            Kind::Denied,
            format!("the store refuses the daemon: {status}"),
        ),
        status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => (
            Kind::Broken,
            format!(
                "the store refers to another server, which the daemon was not given, or more than {REDIRECTS_MAX} times to itself"
            ),
        ),
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            (Kind::Unavailable, format!("the store answers {status}"))
        }
        status => (Kind::Broken, format!("the store answers {status}")),
    };
    Some(StoreError::new(kind, &problem))
}

/// What must be encoded in a path (RFC 3986, section 3.3), and `%`.
const IN_PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');
/// Concurrent requests to one server.
const CONCURRENT_MAX: usize = 128;
const CONNECT_MAX: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests;
