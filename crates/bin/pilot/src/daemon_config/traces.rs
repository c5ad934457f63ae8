//! `[traces]` of `pilotd.toml`: where spans are sent, and of which requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use pilot_model::Traces;
use pilot_model::ports::EventSink;
use pilot_model::sampling::{Callers, Ratio};
use pilot_traces::{Authorities, Compression, Endpoint, ExporterConfig, TransportConfig};
use serde::Deserialize;

use super::remote::{ca_pem, read_secret};

/// `[traces]`. Without this table, nothing is recorded.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceSettings {
    /// The collector, `http://HOST:PORT`. `/v1/traces` is added.
    endpoint: String,
    /// How spans are sent.
    #[serde(default)]
    protocol: Protocol,
    /// The share of the requests that are recorded if their callers do not say it, from 0 to 1.
    #[serde(default = "sample_default")]
    sample: f64,
    /// Whether a caller's decision counts.
    #[serde(default)]
    callers: Callers,
    /// How requests to the collector are compressed.
    #[serde(default)]
    compression: CompressionWord,
    /// The attribute `service.name`.
    #[serde(default = "service_default")]
    service: String,
    /// Headers of the requests to the collector.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// A file with more of them, which nobody else may read: lines of `NAME: VALUE`.
    headers_file: Option<PathBuf>,
    /// A file with certificates of authorities, PEM, instead of the system's.
    ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
enum Protocol {
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CompressionWord {
    #[default]
    Gzip,
    None,
}

impl TraceSettings {
    /// Refuses what cannot be used, with the key.
    pub(super) fn check(&self) -> Result<(), String> {
        Endpoint::parse(&self.endpoint).map_err(|error| format!("traces.{error}"))?;
        if Ratio::new(self.sample).is_none() {
            return Err(format!(
                "traces.sample is {}, must be from 0 to 1",
                self.sample
            ));
        }
        if self.service.is_empty() || self.service.len() > SERVICE_LEN_MAX {
            return Err(format!(
                "traces.service must have 1 to {SERVICE_LEN_MAX} bytes"
            ));
        }
        Ok(())
    }

    /// What the gateway needs.
    pub(crate) fn recording(&self, sink: Arc<dyn EventSink>) -> anyhow::Result<Traces> {
        Ok(Traces {
            sample: Ratio::new(self.sample).context("traces.sample")?,
            callers: self.callers,
            sink,
        })
    }

    /// What the exporter needs. Reads files with secrets, so it must be called after the spawner was forked.
    ///
    /// # Errors
    /// A file cannot be read, or others may read a secret.
    pub(crate) fn exporter(&self) -> anyhow::Result<ExporterConfig> {
        let mut headers: Vec<_> = self.headers.clone().into_iter().collect();
        if let Some(path) = &self.headers_file {
            let text = read_secret(path).context("traces.headers_file")?;
            for line in text.lines().filter(|line| !line.trim().is_empty()) {
                let Some((name, value)) = line.split_once(':') else {
                    bail!(
                        "traces.headers_file: {} has a line that is not NAME: VALUE",
                        path.display()
                    );
                };
                headers.push((name.trim().to_owned(), value.trim().to_owned()));
            }
        }
        let pem = ca_pem(self.ca_file.as_deref(), || "traces.ca_file".to_owned())?;
        let authorities = pem.map_or(Authorities::System, Authorities::Pem);
        let Protocol::HttpProtobuf = self.protocol;
        let host = nix::unistd::gethostname().ok();
        Ok(ExporterConfig {
            transport: TransportConfig {
                endpoint: Endpoint::parse(&self.endpoint)?,
                headers,
                compression: match self.compression {
                    CompressionWord::Gzip => Compression::Gzip,
                    CompressionWord::None => Compression::None,
                },
                authorities,
                provider: crate::tls::provider(),
            },
            service: self.service.clone(),
            version: env!("CARGO_PKG_VERSION"),
            instance: pilot_model::trace::SpanId::random().to_string(),
            host: host.and_then(|host| host.into_string().ok()),
        })
    }
}

/// Enough to see what happens, and little enough for a busy machine.
fn sample_default() -> f64 {
    0.01
}

fn service_default() -> String {
    "pilotlight".to_owned()
}

const SERVICE_LEN_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings(text: &str) -> Result<TraceSettings, String> {
        let settings: TraceSettings =
            toml::from_str(text).map_err(|error| error.message().to_owned())?;
        settings.check().map(|()| settings)
    }

    #[test]
    fn a_setting_that_cannot_be_used_names_its_key() {
        let endpoint = "endpoint = \"http://127.0.0.1:4318\"\n";
        assert!(settings(endpoint).is_ok());
        for (text, problem) in [
            ("sample = 1.0", "missing field `endpoint`"),
            ("endpoint = \"localhost:4318\"", "traces.endpoint is"),
            ("endpoint = \"http://h:99999\"", "traces.endpoint is"),
            (&format!("{endpoint}sample = 1.5"), "traces.sample is 1.5"),
            (&format!("{endpoint}protocol = \"json\""), "http/protobuf"),
            (&format!("{endpoint}callers = \"all\""), "follow"),
            (&format!("{endpoint}ratio = 1"), "ratio"),
        ] {
            let found = settings(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }

    #[test]
    fn secret_headers_lie_in_a_file_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("headers");
        let text = format!(
            "endpoint = \"http://c\"\nheaders_file = \"{}\"\n[headers]\na = \"b\"",
            path.display()
        );
        let settings = settings(&text).unwrap();
        fs::write(&path, "authorization: Bearer x:y\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let problem = format!("{:#}", settings.exporter().unwrap_err());
        assert!(problem.contains("chmod 600"), "{problem}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let headers = settings.exporter().unwrap().transport.headers;
        assert_eq!(
            headers,
            [
                ("a".to_owned(), "b".to_owned()),
                ("authorization".to_owned(), "Bearer x:y".to_owned())
            ]
        );
        fs::write(&path, "nonsense").unwrap();
        let problem = settings.exporter().unwrap_err().to_string();
        assert!(problem.contains("is not NAME: VALUE"), "{problem}");
    }
}
