//! The TLS of links between nodes: both sides show a certificate of one authority. TLS 1.3 alone, because both sides are ours, and
//! without resumption, so that each connection shows the certificates of now.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};

use super::{Certificate, provider, read};

/// What both sides of a link need.
#[derive(Debug, Clone)]
pub(crate) struct NodeTls {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl NodeTls {
    /// `ca`: the file with the certificates of the authority of all nodes, PEM.
    ///
    /// # Errors
    /// The file cannot be used.
    pub(crate) fn new(certificate: &Arc<Certificate>, ca: &Path) -> anyhow::Result<Self> {
        let roots = roots(ca).with_context(|| format!("nodes.ca: {}", ca.display()))?;
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider());
        let verifier = verifier.build().context("nodes.ca")?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .context("TLS")?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(certificate) as Arc<dyn ResolvesServerCert>);
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .context("TLS")?
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(certificate) as Arc<dyn ResolvesClientCert>);
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }
}

fn roots(ca: &Path) -> anyhow::Result<RootCertStore> {
    let text = read(ca, |_| Ok(()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate =
            certificate.map_err(|error| anyhow::anyhow!("is not valid PEM: {error}"))?;
        roots
            .add(certificate)
            .map_err(|error| anyhow::anyhow!("has an invalid certificate: {error}"))?;
    }
    if roots.is_empty() {
        bail!("has no certificate (a block that begins with -----BEGIN CERTIFICATE-----)");
    }
    Ok(roots)
}

impl ResolvesClientCert for Certificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
/// HTTP/2.
const ALPN: &[u8] = b"h2";
