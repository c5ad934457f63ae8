//! Clients of HTTP: no redirects, no proxy, and no answer beyond a limit.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Response};

/// Whose certificates are accepted, besides the system's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust(Vec<Certificate>);

impl Trust {
    /// # Errors
    /// The text is not PEM.
    pub(crate) fn of(pem: Option<&[u8]>) -> Result<Self, String> {
        let certificates = pem.map(Certificate::from_pem_bundle).transpose();
        let certificates = certificates.map_err(|error| format!("ca_file: {}", chain(&error)))?;
        Ok(Self(certificates.unwrap_or_default()))
    }
}

/// A client whose requests take at most this long, their answers included.
///
/// # Errors
/// The certificates of the system cannot be read.
pub(crate) fn client(trust: &Trust, time_max: Duration) -> Result<Client, String> {
    let built = builder(trust, time_max).build();
    built.map_err(|error| chain(&error))
}

/// The same, before it is built.
pub(crate) fn builder(trust: &Trust, time_max: Duration) -> ClientBuilder {
    let builder = Client::builder()
        .connect_timeout(CONNECT_MAX)
        .timeout(time_max)
        .no_proxy()
        .redirect(Policy::none());
    let certificates = trust.0.iter().cloned();
    certificates.fold(builder, ClientBuilder::add_root_certificate)
}

/// Reads an answer.
///
/// # Errors
/// The connection failed, or the answer is too long.
pub(crate) async fn read(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut whole = Vec::new();
    while let Some(part) = response
        .chunk()
        .await
        .map_err(|error| chain(&error.without_url()))?
    {
        if whole.len() + part.len() > bytes_max {
            return Err(format!("the answer has more than {bytes_max} bytes"));
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole)
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

const CONNECT_MAX: Duration = Duration::from_secs(5);
