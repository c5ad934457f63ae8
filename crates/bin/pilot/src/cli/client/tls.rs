//! TLS of the client: which authorities it trusts, and what its errors mean.

use std::error::Error as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::super::failure::Failure;

/// Trusts the authorities in this file (PEM) and no others; `None`: those of the system.
///
/// # Errors
/// There are none.
pub(super) fn config(authorities: Option<&Path>) -> Result<TlsConfig, Failure> {
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(crate::tls::provider())
        .root_certs(RootCerts::from(trusted(authorities)?))
        .build())
}

/// The same for a client of its own, which speaks HTTP/1.1 only.
///
/// # Errors
/// There are none.
pub(in crate::cli) fn http1_config(
    authorities: Option<&Path>,
) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    // As the other clients do: what the library cannot read is not trusted.
    roots.add_parsable_certificates(
        trusted(authorities)?
            .iter()
            .map(|one| CertificateDer::from(one.der().to_vec())),
    );
    let mut config = ClientConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .context("TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn trusted(authorities: Option<&Path>) -> Result<Vec<Certificate<'static>>, Failure> {
    match authorities {
        Some(file) => given(file),
        None => system(),
    }
}

fn given(file: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let wrong = |problem: &str| Failure::usage(format!("--cacert: {} {problem}", file.display()));
    let text = fs::read(file).map_err(|error| wrong(&format!("cannot be read: {error}")))?;
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => return Err(wrong(&format!("is not valid PEM: {error}"))),
        }
    }
    if found.is_empty() {
        return Err(wrong(
            "has no certificate (a block that begins with -----BEGIN CERTIFICATE-----)",
        ));
    }
    Ok(found)
}

fn system() -> Result<Vec<Certificate<'static>>, Failure> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return Err(Failure::usage(
            "this machine has no certificates of authorities: install them (Debian: apt-get install ca-certificates), or name the \
             file of your own authority with --cacert or PILOT_CACERT",
        ));
    }
    let certificates = found.certs.iter();
    Ok(certificates
        .map(|certificate| Certificate::from_der(certificate).to_owned())
        .collect())
}

/// What a failure of TLS means and what to do. `None`: another failure.
pub(super) fn problem(endpoint: &str, error: &ureq::Error) -> Option<String> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<TlsError>()?,
        ureq::Error::Tls(problem) => {
            return Some(format!("TLS with {endpoint} failed: {problem}"));
        }
        _ => return None,
    };
    Some(explained(endpoint, error))
}

/// What an error of TLS means and what to do.
pub(in crate::cli) fn explained(endpoint: &str, error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(error) => certificate_problem(endpoint, error),
        // An HTTP response where a TLS record should be.
        TlsError::InvalidMessage(_) => {
            format!("{endpoint} does not speak TLS: use http://, if it is meant to have none")
        }
        error => format!("TLS with {endpoint} failed: {error}"),
    }
}

fn certificate_problem(endpoint: &str, error: &CertificateError) -> String {
    match error {
        // The latter two: another authority has the same name, with a key of the same or of another kind.
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => format!(
            "the certificate of {endpoint} is from an authority that is not trusted here: name the authority's certificate with \
             --cacert FILE or PILOT_CACERT"
        ),
        CertificateError::UnsupportedSignatureAlgorithmContext { .. } => format!(
            "the certificate of {endpoint}, or one of its issuers, is signed in a way that is not supported: sign it with ECDSA, Ed25519 or \
             RSA and SHA-256 or longer, or name the authority's certificate with --cacert FILE or PILOT_CACERT if it is from another one"
        ),
        CertificateError::NotValidForName => {
            format!(
                "the certificate of {endpoint} is for another name: use that name in the endpoint"
            )
        }
        CertificateError::NotValidForNameContext { presented, .. } => format!(
            "the certificate of {endpoint} is for another name ({}): use that name in the endpoint",
            presented.join(", ")
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!(
                "the certificate of {endpoint} has expired: renew it (or correct this machine's clock)"
            )
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate of {endpoint} is not valid yet: check this machine's clock")
        }
        CertificateError::Other(other)
            if other
                .source()
                .is_some_and(|cause| format!("{cause:?}").contains("CaUsedAsEndEntity"))
                || format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            format!(
                "the certificate of {endpoint} is an authority's, which a server may not use: make it with \
                 `-addext basicConstraints=critical,CA:FALSE`, or let the authority sign another one"
            )
        }
        error => format!(
            "the certificate of {endpoint} is not accepted: {error}; if its authority is not one of the system's, name the authority's \
             certificate with --cacert FILE or PILOT_CACERT"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let problem = config(Some(&file)).unwrap_err().to_string();
        assert!(problem.contains("ca.pem cannot be read"), "{problem}");
        fs::write(&file, "no").unwrap();
        let problem = config(Some(&file)).unwrap_err().to_string();
        assert!(problem.contains("ca.pem has no certificate"), "{problem}");
    }

    /// A certificate whose authority has the name of a trusted one, and a key of another kind.
    #[test]
    fn another_authority_of_the_same_name_is_told_as_one_that_is_not_trusted() {
        let error = CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
            signature_algorithm_id: vec![6, 8],
            public_key_algorithm_id: vec![6, 9],
        };
        let same = explained("https://h", &CertificateError::UnknownIssuer.into());
        assert_eq!(explained("https://h", &error.into()), same);
        for error in [
            CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: vec![6, 8],
                supported_algorithms: Vec::new(),
            },
            CertificateError::BadEncoding,
        ] {
            let said = explained("https://h", &error.into());
            assert!(said.contains("--cacert"), "{said}");
            assert!(!said.contains("algorithm_id"), "{said}");
        }
    }
}
