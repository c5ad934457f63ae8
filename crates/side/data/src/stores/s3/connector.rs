//! How `object_store` reaches a server: by a client that follows no redirect to another server, and that reads only the beginning of a
//! refusal. `object_store` itself keeps a refusal as a whole, and reserves memory for as much of it as the server announces.
//!
//! What `object_store` does not look at is looked at here. It takes every status of success for the whole object. And it goes
//! on with an object that broke off if the tags are alike, also weak ones, which versions that differ may share.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use http::header::{ETAG, RANGE};
use http::{Method, StatusCode};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::{Certificate, Client};
use tokio::time::timeout;

use super::checksum::Announced;
use super::described::Learns;
use crate::stores::redirects::same_server;

/// Makes clients. The settings are those of stores; of the options, it is only asked whether HTTP without TLS is allowed.
#[derive(Debug)]
pub(super) struct Connector {
    /// Certificates of authorities, in addition to the system's.
    pub(super) certificates: Vec<Certificate>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let mut client = Client::builder()
            .https_only(allows_http.as_deref() != Some("true"))
            .http1_only()
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            .pool_max_idle_per_host(CONCURRENT_MAX)
            .user_agent("pilotlight")
            .no_proxy()
            .redirect(same_server());
        for certificate in &self.certificates {
            client = client.add_root_certificate(certificate.clone());
        }
        let client = client.build();
        let client = client.map_err(|error| object_store::Error::Generic {
            store: "S3",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(Service(client)))
    }
}

#[derive(Debug)]
struct Service(Client);

impl HttpService for Service {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let wants = Wants::of(&request);
            let learns = request.extensions().get::<Learns>().cloned();
            let mut response = HttpService::call(&self.0, request).await?;
            if response.status().is_success() {
                wants
                    .check(response.status())
                    .map_err(|odd| HttpError::new(HttpErrorKind::Unknown, odd))?;
                if let Some(tag) = weak_tag(&response) {
                    response.headers_mut().remove(ETAG);
                    response.extensions_mut().insert(tag);
                }
                // `object_store` passes on no header that it does not know.
                if let Some(announced) = Announced::of(response.headers()) {
                    response.extensions_mut().insert(announced);
                }
                if let Some(learns) = learns {
                    learns.object(response.headers());
                }
                return Ok(response);
            }
            if let (Some(learns), StatusCode::NOT_MODIFIED) = (learns, response.status()) {
                learns.unchanged(response.headers());
            }
            let (parts, body) = response.into_parts();
            let text = beginning(body).await;
            Ok(HttpResponse::from_parts(parts, text.into()))
        })
    }
}

/// What a request is for.
#[derive(Debug, Clone, Copy)]
enum Wants {
    Whole,
    Part,
    /// No object.
    Other,
}

impl Wants {
    fn of(request: &HttpRequest) -> Self {
        match (request.method(), request.headers().contains_key(RANGE)) {
            (&Method::GET, false) => Self::Whole,
            (&Method::GET, true) => Self::Part,
            _ => Self::Other,
        }
    }

    fn check(self, status: StatusCode) -> Result<(), OddStatus> {
        match (self, status) {
            (Self::Whole, StatusCode::OK)
            | (Self::Part, StatusCode::PARTIAL_CONTENT)
            | (Self::Other, _) => Ok(()),
            // It knows no ranges, or has another object by now.
            (Self::Part, StatusCode::OK) => Err(OddStatus::NoPart),
            _ => Err(OddStatus::NoObject(status)),
        }
    }
}

/// A success that is not what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum OddStatus {
    /// All, instead of a part.
    #[error("the transfer broke off, and the store does not send the rest alone")]
    NoPart,
    /// Something else.
    #[error("the store answers {0}, which is no object")]
    NoObject(StatusCode),
}

/// A weak entity tag, which was taken out of an answer.
#[derive(Debug, Clone)]
pub(super) struct WeakTag(pub(super) String);

fn weak_tag(response: &HttpResponse) -> Option<WeakTag> {
    let tag = response.headers().get(ETAG)?.to_str().ok()?;
    tag.starts_with("W/").then(|| WeakTag(tag.to_owned()))
}

/// The first bytes of a refusal, as far as they come in time.
async fn beginning(body: HttpResponseBody) -> String {
    let mut parts = body.bytes_stream();
    let mut read = Vec::new();
    let reading = async {
        while let Some(Ok(part)) = parts.next().await {
            let left = REFUSAL_BYTES_MAX.saturating_sub(read.len());
            read.extend(part.iter().take(left));
            if read.len() == REFUSAL_BYTES_MAX {
                return;
            }
        }
    };
    // What has come says enough.
    let _ = timeout(SILENCE_MAX, reading).await;
    String::from_utf8_lossy(&read).into_owned()
}

/// Requests to one store at the same time.
pub(super) const CONCURRENT_MAX: usize = 128;
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A store that sends nothing for this long is asked again.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// An error of S3 has some hundred bytes.
const REFUSAL_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests;
