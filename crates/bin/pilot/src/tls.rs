//! The certificates of the listeners, from their files: read at the start, after the spawner was forked, which must not have the keys in
//! its memory; and again when the files change or the daemon gets SIGHUP. If the new files cannot be used, the old certificate stays.

pub(crate) mod nodes;
mod validity;

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use arc_swap::ArcSwap;
use nix::libc::O_NONBLOCK;
use pilot_gateway::Transport;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, ServerConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use self::validity::Validity;

/// The files of a listener's certificate, and the keys of the configuration that name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The certificate, followed by those of its issuers (PEM).
    certificate: PathBuf,
    /// Its private key (PEM).
    key: PathBuf,
    keys: [&'static str; 2],
}

impl TlsFiles {
    /// `keys`: the configuration's keys of the certificate and of the key. `None`: neither is given.
    ///
    /// # Errors
    /// Only one of them is given.
    pub(crate) fn of(
        keys: [&'static str; 2],
        certificate: Option<&Path>,
        key: Option<&Path>,
    ) -> anyhow::Result<Option<Self>> {
        let absolute = |path: &Path| std::path::absolute(path).context("the current directory");
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => Ok(Some(Self {
                certificate: absolute(certificate)?,
                key: absolute(key)?,
                keys,
            })),
            (Some(_), None) => bail!("{} is set, but {} is not: TLS needs both", keys[0], keys[1]),
            (None, Some(_)) => bail!("{} is set, but {} is not: TLS needs both", keys[1], keys[0]),
        }
    }

    /// Reads both files.
    ///
    /// # Errors
    /// A file cannot be used; the error names the key and the file.
    fn load(&self) -> anyhow::Result<CertifiedKey> {
        let [certificate_key, key_key] = self.keys;
        let chain = self
            .certificates()
            .with_context(|| format!("{certificate_key}: {}", self.certificate.display()))?;
        let key = self
            .private_key()
            .with_context(|| format!("{key_key}: {}", self.key.display()))?;
        CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => anyhow::anyhow!(
                "{key_key}: {} is not the key of the certificate in {} ({certificate_key})",
                self.key.display(),
                self.certificate.display()
            ),
            rustls::Error::InvalidCertificate(error) => anyhow::anyhow!(
                "{certificate_key}: {} has an invalid certificate: {error}",
                self.certificate.display()
            ),
            error => anyhow::anyhow!("{key_key}: {} cannot be used: {error}", self.key.display()),
        })
    }

    fn certificates(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let text = read(&self.certificate, |_| Ok(()))?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| anyhow::anyhow!("is not valid PEM: {error}"))?;
        if chain.is_empty() {
            bail!("has no certificate (a block that begins with -----BEGIN CERTIFICATE-----)");
        }
        Ok(chain)
    }

    fn private_key(&self) -> anyhow::Result<PrivateKeyDer<'static>> {
        let mut text = read(&self.key, |found| {
            if found.mode() & 0o007 != 0 {
                bail!(
                    "other users may read it, and whoever has the key can pose as this daemon: chmod o= it"
                );
            }
            Ok(())
        })?;
        let key = PrivateKeyDer::from_pem_slice(&text);
        text.fill(0);
        std::hint::black_box(&text);
        key.map_err(|error| match error {
            rustls::pki_types::pem::Error::NoItemsFound => anyhow::anyhow!(
                "has no private key that can be used (PEM, not encrypted: -----BEGIN PRIVATE KEY-----)"
            ),
            error => anyhow::anyhow!("is not valid PEM: {error}"),
        })
    }

    /// What changes when the files do. A file that cannot be looked at has none.
    fn state(&self) -> [Option<[i64; 4]>; 2] {
        [&self.certificate, &self.key].map(|path| {
            let found = fs::metadata(path).ok()?;
            Some([
                found.dev().cast_signed(),
                found.ino().cast_signed(),
                // Of any change: its content, its mode, or another name of the same file.
                found.ctime(),
                found.ctime_nsec(),
            ])
        })
    }
}

/// The content of a regular file that passes the check. A FIFO would never end, and other files may never either.
fn read(
    path: &Path,
    check: impl FnOnce(&Metadata) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<u8>> {
    let cannot = |error: io::Error| anyhow::anyhow!("cannot be read: {error}");
    let file = File::options()
        .read(true)
        .custom_flags(O_NONBLOCK)
        .open(path)
        .map_err(cannot)?;
    let found = file.metadata().map_err(cannot)?;
    if !found.is_file() {
        bail!("is not a file");
    }
    if found.len() > FILE_BYTES_MAX {
        bail!("is larger than {FILE_BYTES_MAX} bytes");
    }
    check(&found)?;
    let mut content = Vec::with_capacity(usize::try_from(found.len()).unwrap_or_default() + 1);
    file.take(FILE_BYTES_MAX)
        .read_to_end(&mut content)
        .map_err(cannot)?;
    Ok(content)
}

/// The cryptography of TLS, for the daemon and for the client.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificate of a listener, which may change while it serves.
#[derive(Debug)]
pub(crate) struct Certificate {
    files: TlsFiles,
    current: ArcSwap<CertifiedKey>,
    /// Of the files when they were read last. Held for a comparison.
    read: Mutex<[Option<[i64; 4]>; 2]>,
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// They cannot be used.
    pub(crate) fn load(files: &TlsFiles) -> anyhow::Result<Arc<Self>> {
        // Before they are read: a change in the meantime is noticed then.
        let read = files.state();
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(files.load()?),
            read: Mutex::new(read),
            files: files.clone(),
        }))
    }

    /// The configuration's key that names it.
    pub(crate) fn key(&self) -> &'static str {
        self.files.keys[0]
    }

    /// When it ends, seconds since 1970-01-01; `None` if that cannot be read.
    pub(crate) fn ends(&self) -> Option<u64> {
        u64::try_from(self.validity()?.ends).ok()
    }

    /// When it can be used, in words.
    ///
    /// # Errors
    /// Clients refuse it now, or will soon, or it cannot be read; in words.
    pub(crate) fn tell_validity(&self) -> Result<String, String> {
        match self.validity() {
            Some(validity) => validity.tell(SystemTime::now()),
            None => Err("it cannot be read when it ends".to_owned()),
        }
    }

    fn validity(&self) -> Option<Validity> {
        Validity::of(&self.current.load().cert)
    }

    /// Logs when it ends.
    pub(crate) fn log_validity(&self) {
        let file = self.files.certificate.display();
        match self.tell_validity() {
            Ok(ends) => tracing::info!(%file, "the certificate {ends}"),
            Err(problem) => tracing::warn!(%file, "the certificate: {problem}; renew it"),
        }
    }

    /// What a listener with this certificate speaks.
    ///
    /// # Errors
    /// Never with this cryptography.
    pub(crate) fn transport(self: &Arc<Self>) -> anyhow::Result<Transport> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .context("TLS")?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = Transport::ALPN.map(<[u8]>::to_vec).to_vec();
        Ok(Transport::Tls(Arc::new(config)))
    }

    /// Reads the files again, if they have changed or `wanted` says so.
    fn reload(&self, wanted: Reload) {
        let now = self.files.state();
        {
            let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            if *read == now && wanted == Reload::IfChanged {
                return;
            }
            *read = now;
        }
        let file = self.files.certificate.display();
        match self.files.load() {
            Ok(new) if new.cert == self.current.load().cert => {
                tracing::info!(%file, "the certificate was read again and is the same");
            }
            Ok(new) => {
                self.current.store(Arc::new(new));
                tracing::info!(%file, "new connections get the new certificate");
                self.log_validity();
            }
            Err(error) => tracing::warn!(
                "the certificate was not replaced, and the old one stays in use: {error:#}"
            ),
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reload {
    IfChanged,
    Always,
}

/// Keeps certificates as their files are. Does not end.
pub(crate) struct Renewal {
    certificates: Vec<Arc<Certificate>>,
    hangup: Option<Signal>,
}

impl Renewal {
    /// Without certificates, SIGHUP ends the process, as it does by default.
    ///
    /// # Errors
    /// SIGHUP cannot be handled.
    pub(crate) fn of(certificates: Vec<Arc<Certificate>>) -> anyhow::Result<Self> {
        let hangup = match certificates.is_empty() {
            true => None,
            false => Some(signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?),
        };
        Ok(Self {
            certificates,
            hangup,
        })
    }

    /// Looks at the files every [`LOOK_EVERY`], because links and mounts on the way to them may change, which inotify(7) does not
    /// show. Reads all of them on SIGHUP.
    pub(crate) async fn run(self) {
        let Some(mut hangup) = self.hangup else {
            return std::future::pending().await;
        };
        let certificates: Arc<[_]> = self.certificates.into();
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wanted = tokio::select! {
                _ = ticks.tick() => Reload::IfChanged,
                _ = hangup.recv() => Reload::Always,
            };
            let certificates = Arc::clone(&certificates);
            let reading = tokio::task::spawn_blocking(move || {
                for certificate in certificates.iter() {
                    certificate.reload(wanted);
                }
            });
            // Fails only if it panicked.
            let _ = reading.await;
        }
    }
}

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const FILE_BYTES_MAX: u64 = 1024 * 1024;

#[cfg(test)]
mod tests;
