//! Servers that answer GET (RFC 9110), by the crate `reqwest`.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pilot_model::BoxFuture;
use pilot_model::ports::InputFaultKind as Kind;
use reqwest::header::{ACCEPT_ENCODING, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};

use super::s3::chain;
use super::{Object, Store, StoreError};

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
            .redirect(Policy::custom(|attempt| {
                // The operator chose this server and no other one.
                let is_same = attempt
                    .previous()
                    .first()
                    .is_some_and(|first| first.origin() == attempt.url().origin());
                if is_same && attempt.previous().len() <= REDIRECTS_MAX {
                    attempt.follow()
                } else {
                    attempt.stop()
                }
            }));
        if let Some(pem) = &config.ca_pem {
            let certificates = Certificate::from_pem_bundle(pem)
                .map_err(|error| format!("ca_file: {}", chain(&error)))?;
            for certificate in certificates {
                client = client.add_root_certificate(certificate);
            }
        }
        let client = client.build().map_err(|error| chain(&error))?;
        Ok(Self { client, base })
    }

    fn url(&self, key: &str) -> Result<Url, StoreError> {
        let path = utf8_percent_encode(key, IN_PATH).to_string();
        let url = self.base.join(&format!("./{path}"));
        url.map_err(|error| StoreError::new(Kind::Key, &error.to_string()))
    }
}

impl Store for HttpStore {
    fn retries(&self) -> u32 {
        4
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        Box::pin(async move {
            let request = self
                .client
                .get(self.url(key)?)
                .header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            let response = request.send().await.map_err(failed)?;
            if let Some(error) = refusal(response.status()) {
                return Err(error);
            }
            Ok(Object {
                len: response.content_length(),
                headers: Vec::new(),
                body: response.bytes_stream().map_err(failed).boxed(),
            })
        })
    }
}

/// The URL is not part of it: the location says it.
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
        status if status.is_redirection() => (
            Kind::Broken,
            "the store refers to another server, which the daemon was not given".to_owned(),
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
const REDIRECTS_MAX: usize = 5;
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
    fn statuses_say_whose_fault_it_is() {
        let kind =
            |status: u16| refusal(StatusCode::from_u16(status).unwrap()).map(|error| error.kind);
        assert_eq!(kind(200), None);
        assert_eq!(kind(404), Some(Kind::NotFound));
        assert_eq!(kind(403), Some(Kind::Denied));
        assert_eq!(kind(302), Some(Kind::Broken));
        assert_eq!(kind(206), Some(Kind::Broken));
        assert_eq!(kind(503), Some(Kind::Unavailable));
    }
}
