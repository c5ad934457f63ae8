//! The configuration of environments.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use pilot_model::ports::BuildAddress;

/// Configuration of environments.
#[derive(Debug, Clone)]
pub struct EnvironmentConfig {
    /// Longest time that an installer may take.
    pub install_time_max: Duration,
    /// Whether packages may run their own code while they are installed.
    pub source_builds: SourceBuilds,
    /// The folders with interpreters, uv and npm, in the form of `PATH`.
    pub search_path: OsString,
    /// Hosts that builds may connect to, in addition to the registries.
    pub hosts: Vec<BuildAddress>,
    /// The daemon's environment variables: those about installers, certificates and compilers are passed on, and `HOME` is where the
    /// configuration of installers is looked up.
    pub variables: BTreeMap<String, String>,
}

/// Whether packages may run code while they are installed: Python packages without a wheel are built, and Node.js packages may have
/// install scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceBuilds {
    /// As pip and npm do by default.
    Allowed,
    /// Only wheels, and no scripts.
    Refused,
}

impl Default for EnvironmentConfig {
    fn default() -> Self {
        Self {
            install_time_max: Duration::from_secs(600),
            source_builds: SourceBuilds::Allowed,
            search_path: std::env::var_os("PATH").unwrap_or_default(),
            hosts: Vec::new(),
            variables: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        }
    }
}
