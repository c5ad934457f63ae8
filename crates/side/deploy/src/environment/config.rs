//! How environments are built: the settings of the daemon.

use std::ffi::OsString;
use std::time::Duration;

/// How environments are built.
#[derive(Debug, Clone)]
pub struct EnvironmentConfig {
    /// Longest that an installer may take.
    pub install_time_max: Duration,
    /// Whether packages may run code of their own while they are installed, as the daemon's user, in no sandbox.
    pub source_builds: SourceBuilds,
    /// Where interpreters, uv and npm are looked for, in the form of `PATH`.
    pub search_path: OsString,
}

/// Whether packages may run code while they are installed: Python's without a wheel are built, Node's have install scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceBuilds {
    /// As pip and npm do by themselves.
    Allowed,
    /// Wheels alone, and no scripts.
    Refused,
}

impl Default for EnvironmentConfig {
    fn default() -> Self {
        Self {
            install_time_max: Duration::from_secs(600),
            source_builds: SourceBuilds::Allowed,
            search_path: std::env::var_os("PATH").unwrap_or_default(),
        }
    }
}
