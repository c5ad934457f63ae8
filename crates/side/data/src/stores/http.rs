//! Servers that answer GET (RFC 9110), by the crate `reqwest`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pilot_model::BoxFuture;
use pilot_model::ports::InputFaultKind as Kind;
use reqwest::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, RANGE,
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

    /// Asks, with these headers. The permit is for the time until the answer is read.
    async fn ask(
        &self,
        key: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    ) -> Result<(Response, OwnedSemaphorePermit), StoreError> {
        let request = self
            .client
            .get(self.url(key)?)
            .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let request = headers.into_iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let permit = Arc::clone(&self.concurrent).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::new(Kind::Unavailable, "it is closed"))?;
        Ok((request.send().await.map_err(failed)?, permit))
    }
}

/// The object of an answer, which has `len` bytes in all.
fn object(response: Response, permit: OwnedSemaphorePermit, len: Option<u64>) -> Object {
    Object {
        len,
        validator: validator(response.headers()),
        headers: Vec::new(),
        body: response
            .bytes_stream()
            .map_err(failed)
            .inspect(move |_| {
                let _ = &permit;
            })
            .boxed(),
    }
}

impl Store for HttpStore {
    fn retries(&self) -> u32 {
        4
    }

    fn get<'a>(
        &'a self,
        key: &'a str,
        known: Option<&'a Validator>,
    ) -> BoxFuture<'a, Result<Got, StoreError>> {
        Box::pin(async move {
            let condition = known.and_then(condition);
            let is_conditional = condition.is_some();
            let (response, permit) = self.ask(key, condition).await?;
            if is_conditional && response.status() == StatusCode::NOT_MODIFIED {
                return Ok(Got::Unchanged);
            }
            if let Some(error) = refusal(response.status()) {
                return Err(error);
            }
            let len = response.content_length();
            Ok(Got::Object(object(response, permit, len)))
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
            let headers = match known {
                Validator::Tag(tag) => HeaderValue::from_str(tag).ok().map(|tag| {
                    let range = HeaderValue::from_str(&format!("bytes={at}-"));
                    let range = range.unwrap_or(HeaderValue::from_static("bytes=0-"));
                    [(RANGE, range), (IF_RANGE, tag)]
                }),
                _ => None,
            };
            let (response, permit) = self.ask(key, headers.into_iter().flatten()).await?;
            if response.status() == StatusCode::PARTIAL_CONTENT {
                let range = response.headers().get(CONTENT_RANGE);
                let range = range.and_then(|range| range.to_str().ok());
                let Some((first, len)) = range.and_then(part_of) else {
                    let problem = "the store sends a part and does not say which";
                    return Err(StoreError::new(Kind::Broken, problem));
                };
                return Ok((first, Got::Object(object(response, permit, Some(len)))));
            }
            if let Some(error) = refusal(response.status()) {
                return Err(error);
            }
            let len = response.content_length();
            Ok((0, Got::Object(object(response, permit, len))))
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
    let (name, text) = match known {
        Validator::Tag(tag) => (IF_NONE_MATCH, tag),
        Validator::Modified(date) => (IF_MODIFIED_SINCE, date),
        Validator::File(_) => return None,
    };
    Some((name, HeaderValue::from_bytes(text.as_bytes()).ok()?))
}

fn validator(headers: &HeaderMap) -> Option<Validator> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok();
    let directives = headers.get_all(CACHE_CONTROL).iter();
    let mut directives = directives.filter_map(|value| value.to_str().ok());
    if directives.any(|value| value.to_ascii_lowercase().contains("no-store")) {
        return None;
    }
    if let Some(tag) = text(ETAG) {
        return Validator::of_tag(tag);
    }
    let (modified, answered) = (text(LAST_MODIFIED)?, text(DATE)?);
    let time = |text: &str| httpdate::parse_http_date(text).ok();
    // The dates have seconds. What was modified in the second of the answer may be modified once more in it.
    let age = time(answered)?.duration_since(time(modified)?).ok()?;
    (age >= Duration::from_secs(2)).then(|| Validator::Modified(modified.to_owned()))
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
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_below_the_url() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = HttpStore::open(&HttpConfig {
            url: "https://images.example.com/base/".to_owned(),
            ca_pem: None,
        })
        .unwrap();
        for (key, url) in [
            ("a/b c.png", "base/a/b%20c.png"),
            ("http://other/x", "base/http://other/x"),
            ("a?b#c%2e", "base/a%3Fb%23c%252e"),
            ("a:b@c", "base/a:b@c"),
            ("ä", "base/%C3%A4"),
        ] {
            let found = store.url(key).unwrap();
            assert_eq!(found.as_str(), format!("https://images.example.com/{url}"));
        }
    }

    #[test]
    fn a_part_is_the_rest_of_a_known_length() {
        assert_eq!(part_of("bytes 100-199/200"), Some((100, 200)));
        for range in [
            "bytes 100-199/*",
            "bytes 100-150/200",
            "bytes 199-100/200",
            "bytes */200",
            "bytes 0-18446744073709551615/18446744073709551615",
            "items 0-1/2",
        ] {
            assert_eq!(part_of(range), None, "{range}");
        }
    }

    #[test]
    fn only_what_tells_every_content_apart_is_a_validator() {
        let validator = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            validator(&headers.collect())
        };
        let (date, before) = (
            ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
            "Sun, 06 Nov 1994 08:49:35 GMT",
        );
        assert_eq!(
            validator(&[("etag", "\"a\"")]),
            Some(Validator::Tag("\"a\"".to_owned()))
        );
        assert_eq!(validator(&[("etag", "W/\"a\"")]), None);
        assert_eq!(
            validator(&[("etag", "\"a\""), ("cache-control", "private, No-Store")]),
            None
        );
        assert_eq!(
            validator(&[date, ("last-modified", before)]),
            Some(Validator::Modified(before.to_owned()))
        );
        assert_eq!(validator(&[date, ("last-modified", date.1)]), None);
        assert_eq!(validator(&[("last-modified", before)]), None);
        assert_eq!(validator(&[date, ("last-modified", "yesterday")]), None);
    }

    #[test]
    fn statuses_say_whose_fault_it_is() {
        let kind =
            |status: u16| refusal(StatusCode::from_u16(status).unwrap()).map(|error| error.kind);
        assert_eq!(kind(200), None);
        assert_eq!(kind(404), Some(Kind::NotFound));
        assert_eq!(kind(403), Some(Kind::Denied));
        assert_eq!(kind(302), Some(Kind::Broken));
        // Nobody asked whether it has changed.
        assert_eq!(kind(304), Some(Kind::Broken));
        assert_eq!(kind(206), Some(Kind::Broken));
        assert_eq!(kind(503), Some(Kind::Unavailable));
    }
}
