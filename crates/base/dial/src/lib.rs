//! Connections to servers outside of the daemon: TCP, and TLS with the certificates that the operator chose. Such a server may be
//! hostile: [`Capped`] ends a connection on which more comes than an answer may have.
//!
//! Not here: what is spoken over a connection, which servers may be connected to, and how long that may take.

mod address;
mod capped;

use std::io;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub use address::{check_url, names_server, shown_url};
pub use capped::Capped;

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Whether a connection is encrypted, and who may be at its other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// TCP.
    Plain,
    /// TLS. The server's name must be in its certificate.
    Tls {
        /// Certificates of authorities in PEM. `None`: the machine's.
        ca_pem: Option<Vec<u8>>,
    },
}

impl Security {
    /// Whether the certificates that the operator named can be used.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Tls { ca_pem: Some(pem) } => {
                check_authorities(pem).map_err(|problem| format!("ca_file: {problem}"))
            }
            Self::Tls { ca_pem: None } | Self::Plain => Ok(()),
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no address, or nobody answers there.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The host is nothing that a certificate can name.
    #[error("the host's name is not valid in a certificate")]
    Name,
    /// The certificates of authorities cannot be used.
    #[error("{0}")]
    Trust(String),
    /// The server's certificate is not accepted, or it does not speak TLS.
    #[error("TLS: {0}")]
    Tls(io::Error),
}

/// Connects to a server. Takes as long as the server wants: the caller has a limit.
///
/// # Errors
/// [`DialError`].
pub async fn dial(
    host: &str,
    port: u16,
    security: &Security,
) -> Result<Box<dyn Stream>, DialError> {
    let tcp = TcpStream::connect((host, port)).await;
    let tcp = tcp.map_err(DialError::Connect)?;
    // What is written is a whole request.
    let _ = tcp.set_nodelay(true);
    let Security::Tls { ca_pem } = security else {
        return Ok(Box::new(tcp));
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| DialError::Name)?;
    let ca_pem = ca_pem.clone();
    // The machine's certificates are files.
    let config = tokio::task::spawn_blocking(move || trust(ca_pem.as_deref())).await;
    let config = config
        .map_err(|error| DialError::Trust(error.to_string()))?
        .map_err(DialError::Trust)?;
    let connector = TlsConnector::from(Arc::new(config));
    let tls = connector.connect(name, tcp).await;
    Ok(Box::new(tls.map_err(DialError::Tls)?))
}

/// Whether these certificates of authorities, PEM, can be used, and there is at least one.
///
/// # Errors
/// What is wrong with them.
pub fn check_authorities(pem: &[u8]) -> Result<(), String> {
    authorities(pem).map(drop)
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("it has no certificate".to_owned());
    }
    Ok(roots)
}

fn trust(ca_pem: Option<&[u8]>) -> Result<ClientConfig, String> {
    let roots = match ca_pem {
        Some(pem) => authorities(pem).map_err(|problem| format!("ca_file: {problem}"))?,
        None => system_authorities()?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn system_authorities() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(
            "this machine has no certificates of authorities: install them (Debian: apt-get install ca-certificates), or set ca_file"
                .to_owned(),
        );
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused() {
        let security = Security::Tls {
            ca_pem: Some(Vec::new()),
        };
        assert!(security.check().unwrap_err().contains("no certificate"));
    }
}
