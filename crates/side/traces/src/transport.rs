//! One request to the collector: OTLP over HTTP with Protobuf bodies (OTLP 1, "OTLP/HTTP"). Blocking; it is called by the sender's thread
//! alone.
//!
//! The collector is trusted with spans and with nothing else: its answers are bounded, and redirects are not followed.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flate2::write::GzEncoder;
use prost::Message as _;
use rustls::crypto::CryptoProvider;
use ureq::Agent;
use ureq::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::otlp::{ExportTraceServiceRequest, ExportTraceServiceResponse};

/// Where spans are sent, and how.
#[derive(Clone)]
pub struct TransportConfig {
    /// The collector.
    pub endpoint: Endpoint,
    /// Added to every request. May have secrets.
    pub headers: Vec<(String, String)>,
    /// How bodies are compressed.
    pub compression: Compression,
    /// Who is trusted for `https://`.
    pub authorities: Authorities,
    /// The cryptography of TLS.
    pub provider: Arc<CryptoProvider>,
}

impl fmt::Debug for TransportConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportConfig")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// The address of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
}

impl Endpoint {
    /// `http://HOST:PORT` or `https://…`, with or without a path. `/v1/traces` is added unless the path ends with it.
    ///
    /// # Errors
    /// [`TransportError::Endpoint`].
    pub fn parse(text: &str) -> Result<Self, TransportError> {
        let wrong = || TransportError::Endpoint {
            given: pilot_dial::shown_url(text),
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_user = uri
            .authority()
            .is_none_or(|name| name.as_str().contains('@'));
        if !is_http || has_user || !has_server(&uri) || uri.query().is_some() {
            return Err(wrong());
        }
        let base = text.trim_end_matches('/');
        Ok(Self {
            url: if base.ends_with(TRACES) {
                base.to_owned()
            } else {
                format!("{base}{TRACES}")
            },
        })
    }

    fn is_https(&self) -> bool {
        self.url.starts_with("https://")
    }
}

/// Whether it has a host, and no port that does not exist: such a port is skipped, and the scheme's is used.
fn has_server(uri: &Uri) -> bool {
    let (Some(name), Some(host)) = (uri.authority(), uri.host()) else {
        return false;
    };
    !host.is_empty() && (name.as_str() == host || uri.port_u16().is_some_and(|port| port != 0))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// How bodies are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// With gzip.
    #[default]
    Gzip,
    /// Not at all.
    None,
}

/// Who is trusted for `https://`.
#[derive(Debug, Clone, Default)]
pub enum Authorities {
    /// Those of the system.
    #[default]
    System,
    /// Those of this text, PEM.
    Pem(Vec<u8>),
}

/// Why there is no transport.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address of the collector is none.
    #[error(
        "endpoint is \"{given}\", must be http://HOST:PORT or https://HOST:PORT, without a user and a query"
    )]
    Endpoint {
        /// As given, shortened, and without a password.
        given: String,
    },
    /// A header cannot be sent.
    #[error(
        "headers: '{name}' is not a header name, or its value has a line break or a control character"
    )]
    Header {
        /// Its name.
        name: String,
    },
    /// There is no certificate to trust.
    #[error("{problem}")]
    Authorities {
        /// Why, and what to do.
        problem: String,
    },
}

/// What the collector took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Spans that it did not want.
    pub(crate) rejected: u64,
    /// Why.
    pub(crate) message: String,
}

/// Why the collector took nothing.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// It may take the same request later (OTLP, "Failures").
    Later {
        problem: String,
        /// What it asks for.
        after: Option<Duration>,
    },
    /// It will not.
    Never { problem: String },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Transport {
    agent: Agent,
    url: String,
    headers: HeaderMap,
    compression: Compression,
}

impl Transport {
    /// Does not connect yet.
    pub(crate) fn new(config: TransportConfig) -> Result<Self, TransportError> {
        let mut headers = HeaderMap::new();
        for (name, value) in config.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes())
                .ok()
                .zip(HeaderValue::from_str(&value).ok());
            let Some((key, mut value)) = parsed else {
                return Err(TransportError::Header { name });
            };
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        headers.insert("content-type", HeaderValue::from_static(PROTOBUF));
        if config.compression == Compression::Gzip {
            headers.insert("content-encoding", HeaderValue::from_static("gzip"));
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .user_agent(concat!("pilotlight/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_global(Some(REQUEST_TIME_MAX));
        let agent = if config.endpoint.is_https() {
            let tls = TlsConfig::builder()
                .unversioned_rustls_crypto_provider(config.provider)
                .root_certs(RootCerts::from(trusted(&config.authorities)?));
            agent.tls_config(tls.build())
        } else {
            agent
        };
        Ok(Self {
            agent: agent.build().new_agent(),
            url: config.endpoint.url,
            headers,
            compression: config.compression,
        })
    }

    /// The body of a request.
    pub(crate) fn encode(&self, request: &ExportTraceServiceRequest) -> Vec<u8> {
        let plain = request.encode_to_vec();
        match self.compression {
            Compression::None => plain,
            Compression::Gzip => {
                let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
                // Writing to a vector cannot fail.
                let _ = gzip.write_all(&plain);
                gzip.finish().unwrap_or_default()
            }
        }
    }

    /// Sends one body. `patience`: a shorter limit than the usual one.
    pub(crate) fn send(&self, body: &[u8], patience: Option<Duration>) -> Result<Taken, NotTaken> {
        let later = |problem: String| NotTaken::Later {
            problem,
            after: None,
        };
        let mut request = self.agent.post(&self.url);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
        }
        let limit = patience.map_or(REQUEST_TIME_MAX, |limit| limit.min(REQUEST_TIME_MAX));
        let request = request.config().timeout_global(Some(limit)).build();
        let mut response = request
            .send(body)
            .map_err(|error| later(error.to_string()))?;
        let status = response.status();
        let after = retry_after(response.headers());
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let answer = answer.read_to_vec();
        if status.is_success() {
            // Whatever it says, it has the spans: they are not sent again.
            let answer = answer.unwrap_or_default();
            let answer = ExportTraceServiceResponse::decode(&*answer).unwrap_or_default();
            let partial = answer.partial_success.unwrap_or_default();
            return Ok(Taken {
                rejected: u64::try_from(partial.rejected_spans).unwrap_or(0),
                message: partial.error_message.chars().take(TEXT_CHARS_MAX).collect(),
            });
        }
        let problem = format!("it answered {status}");
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => NotTaken::Later { problem, after },
            _ => NotTaken::Never { problem },
        })
    }
}

/// `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3). Not more than [`AFTER_MAX`].
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds).min(AFTER_MAX));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    let after = at.duration_since(SystemTime::now()).unwrap_or_default();
    Some(after.min(AFTER_MAX))
}

fn trusted(authorities: &Authorities) -> Result<Vec<Certificate<'static>>, TransportError> {
    let wrong = |problem: &str| TransportError::Authorities {
        problem: problem.to_owned(),
    };
    let found: Vec<_> = match authorities {
        Authorities::System => {
            let found = rustls_native_certs::load_native_certs().certs;
            let found = found.iter();
            found
                .map(|one| Certificate::from_der(one).to_owned())
                .collect()
        }
        Authorities::Pem(text) => parse_pem(text)
            .filter_map(|item| match item {
                Ok(PemItem::Certificate(one)) => Some(Ok(one)),
                Ok(_) => None,
                Err(error) => Some(Err(wrong(&format!("ca_file is not valid PEM: {error}")))),
            })
            .collect::<Result<_, _>>()?,
    };
    match (found.is_empty(), authorities) {
        (false, _) => Ok(found),
        (true, Authorities::Pem(_)) => Err(wrong("ca_file has no certificate")),
        (true, Authorities::System) => Err(wrong(
            "this machine has no certificates of authorities: install them (Debian: apt-get install ca-certificates), or name the file \
             of your own authority with ca_file",
        )),
    }
}

const TRACES: &str = "/v1/traces";
const PROTOBUF: &str = "application/x-protobuf";
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// As OpenTelemetry's own senders.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest wait that a collector is granted.
const AFTER_MAX: Duration = Duration::from_secs(600);
const ANSWER_BYTES_MAX: u64 = 64 << 10;
const TEXT_CHARS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_base_or_the_whole_address() {
        let url = |text| Endpoint::parse(text).map(|endpoint| endpoint.to_string());
        for text in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces"] {
            assert_eq!(url(text).unwrap(), "http://c:4318/v1/traces");
        }
        assert_eq!(url("https://c/otlp").unwrap(), "https://c/otlp/v1/traces");
        assert_eq!(url("http://[::1]").unwrap(), "http://[::1]/v1/traces");
        for wrong in [
            "",
            "c:4318",
            "ftp://c",
            "http://u:p@c",
            "http://c/?a=1",
            "http://c:65536",
            "http://127.0.0.1:99999",
            "http://c:0",
            "http://c:",
            "http://:4318",
            "http://[::1]:99999",
        ] {
            let problem = url(wrong).unwrap_err().to_string();
            assert!(problem.contains("http://HOST:PORT"), "{problem}");
        }
    }

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        let read = |text: &str| {
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static("retry-after"),
                HeaderValue::from_str(text).unwrap(),
            )]);
            retry_after(&headers)
        };
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(read(&date).unwrap() > Duration::from_secs(90));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(read("soon"), None);
        assert_eq!(read("18446744073709551615"), Some(AFTER_MAX));
        assert_eq!(read("Fri, 31 Dec 9999 23:59:59 GMT"), Some(AFTER_MAX));
    }
}
