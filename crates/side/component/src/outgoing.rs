//! Requests that components send. What they can reach is decided by the function's network: `none` nothing; `outbound` what the sandbox's
//! network lets through, which are no addresses that serve a machine's credentials; `host` everything but those. HTTP/1.1, over TCP or
//! TLS. Redirects are the component's affair.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use http_body_util::BodyExt;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pilot_model::Network;
use pilot_sys::netlink::credentials;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, spawn};
use wasmtime_wasi_http::bindings::http::types::{DnsErrorPayload, ErrorCode};
use wasmtime_wasi_http::body::HyperOutgoingBody;
use wasmtime_wasi_http::types::{
    HostFutureIncomingResponse, IncomingResponse, OutgoingRequestConfig,
};
use wasmtime_wasi_http::{HttpResult, hyper_request_error};

/// Connections of one worker at the same time.
const CONNECTIONS_MAX: usize = 256;

/// Sends requests of all instances.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    network: Network,
    places: Arc<Semaphore>,
    tls: Arc<OnceLock<Option<Arc<ClientConfig>>>>,
}

impl Outgoing {
    pub(crate) fn new(network: Network) -> Self {
        Self {
            network,
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            tls: Arc::default(),
        }
    }

    /// Begins a request. Dropping the result ends it.
    pub(crate) fn send(
        &self,
        request: Request<HyperOutgoingBody>,
        config: OutgoingRequestConfig,
    ) -> HttpResult<HostFutureIncomingResponse> {
        if self.network == Network::None {
            return Err(ErrorCode::HttpRequestDenied.into());
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| ErrorCode::ConnectionLimitReached)?;
        let client = self.clone();
        let exchange = spawn(async move { Ok(client.exchange(request, config, place).await) });
        Ok(HostFutureIncomingResponse::pending(exchange))
    }

    async fn exchange(
        self,
        mut request: Request<HyperOutgoingBody>,
        config: OutgoingRequestConfig,
        place: OwnedSemaphorePermit,
    ) -> Result<IncomingResponse, ErrorCode> {
        let uri = std::mem::take(request.uri_mut());
        let host = uri.host().ok_or(ErrorCode::HttpRequestUriInvalid)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = uri
            .port_u16()
            .unwrap_or(if config.use_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = path.parse().map_err(|_| ErrorCode::HttpRequestUriInvalid)?;

        let opening = async {
            let stream = self.connect(host, port).await?;
            if !config.use_tls {
                return handshake(stream, place).await;
            }
            let name = ServerName::try_from(host.to_owned());
            let name = name.map_err(|_| ErrorCode::HttpRequestUriInvalid)?;
            let stream = self.tls().await?.connect(name, stream).await;
            handshake(stream.map_err(|error| tls_error(&error))?, place).await
        };
        let opened = timeout(config.connect_timeout, opening).await;
        let (mut sender, driver) = opened.map_err(|_| ErrorCode::ConnectionTimeout)??;
        let answer = timeout(config.first_byte_timeout, sender.send_request(request)).await;
        let response = answer
            .map_err(|_| ErrorCode::ConnectionReadTimeout)?
            .map_err(hyper_request_error)?;
        Ok(IncomingResponse {
            resp: response.map(|body| body.map_err(hyper_request_error).boxed()),
            worker: Some(driver),
            between_bytes_timeout: config.between_bytes_timeout,
        })
    }

    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, ErrorCode> {
        let found = lookup_host((host, port)).await.map_err(|_| {
            ErrorCode::DnsError(DnsErrorPayload {
                rcode: Some("the name is unknown, or no resolver answers".to_owned()),
                info_code: None,
            })
        })?;
        let mut error = ErrorCode::DestinationNotFound;
        for address in found {
            if !self.allows(address) {
                error = ErrorCode::DestinationIpProhibited;
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Without it, small requests wait for acknowledgements.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(_) => error = ErrorCode::ConnectionRefused,
            }
        }
        Err(error)
    }

    fn allows(&self, address: SocketAddr) -> bool {
        let ip: IpAddr = address.ip().to_canonical();
        let is_own = ip.is_loopback() || ip.is_unspecified();
        // On its own loopback there is only the worker itself.
        !credentials::is_one(ip) && (self.network == Network::Host || !is_own)
    }

    /// The certificates of the machine are read once, at the first request that needs them.
    async fn tls(&self) -> Result<TlsConnector, ErrorCode> {
        let tls = Arc::clone(&self.tls);
        let read = tokio::task::spawn_blocking(move || tls.get_or_init(tls_config).clone());
        let config = read.await.ok().flatten();
        config.map(TlsConnector::from).ok_or_else(|| {
            ErrorCode::InternalError(Some(
                "TLS cannot be set up: the machine has no certificates of authorities".to_owned(),
            ))
        })
    }
}

fn tls_config() -> Option<Arc<ClientConfig>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return None;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Some(Arc::new(config))
}

type Opened = (
    http1::SendRequest<HyperOutgoingBody>,
    AbortOnDropJoinHandle<()>,
);

/// The connection's task ends with the response, or when nobody waits for it any more.
async fn handshake(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    place: OwnedSemaphorePermit,
) -> Result<Opened, ErrorCode> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(hyper_request_error)?;
    let driver = spawn(async move {
        let _place = place;
        // Whoever waits for the response, or reads its body, has the error.
        let _ = connection.await;
    });
    Ok((sender, driver))
}

fn tls_error(error: &std::io::Error) -> ErrorCode {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(_)) => ErrorCode::TlsCertificateError,
        _ => ErrorCode::TlsProtocolError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_serve_credentials_and_its_own_loopback_are_refused() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 80);
        for network in [Network::Outbound, Network::Host] {
            let outgoing = Outgoing::new(network);
            for refused in ["169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254"] {
                assert!(!outgoing.allows(address(refused)), "{refused}");
            }
            assert!(outgoing.allows(address("93.184.215.14")));
            let is_hosts = network == Network::Host;
            assert_eq!(outgoing.allows(address("127.0.0.1")), is_hosts);
            assert_eq!(outgoing.allows(address("::1")), is_hosts);
        }
    }
}
