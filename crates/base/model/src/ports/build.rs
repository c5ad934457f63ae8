//! Builds: commands that install packages or compile code, and may run code of strangers. They run apart from the daemon, and write
//! to one folder only.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{BoxFuture, MemoryShortage};

/// Runs the commands of builds.
pub trait BuildHost: Send + Sync + Debug {
    /// Makes the sandbox of one build.
    fn open(
        &self,
        spec: BuildSpec,
    ) -> BoxFuture<'static, Result<Box<dyn BuildSandbox>, BuildError>>;
}

/// The sandbox of one build. Dropping it ends every command in it.
pub trait BuildSandbox: Send + Sync + Debug {
    /// The path at which commands see a path of the host that is in [`BuildSpec::folder`] or [`BuildSpec::shown`].
    fn inside(&self, host: &Path) -> PathBuf;

    /// Runs a command. `on_output` gets what it prints to both streams, as it is printed.
    fn run<'a>(
        &'a self,
        command: BuildCommand,
        on_output: &'a mut (dyn FnMut(&[u8]) + Send),
    ) -> BoxFuture<'a, Result<BuildEnd, BuildError>>;

    /// The hosts that a command wanted and did not reach, and why.
    fn unreached(&self) -> Vec<Unreached>;

    /// Ends every process of the build. Then the files in its folder belong to the daemon, and nobody can change them.
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), BuildError>>;
}

/// What a build needs.
#[derive(Debug, Clone, Default)]
pub struct BuildSpec {
    /// A folder of the daemon. The build sees it elsewhere, and can write to `writable` only.
    pub folder: PathBuf,
    /// Folders in it, as absolute paths of the host.
    pub writable: Vec<PathBuf>,
    /// Other files and folders that it sees, read-only: (host, inside).
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// The hosts that it may connect to, through an HTTP proxy. Empty: no network.
    pub hosts: Vec<BuildAddress>,
    /// Longest time of all its commands together.
    pub time_max: Duration,
}

/// A host that a build may connect to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BuildAddress {
    /// Its name or address, lower case.
    pub host: String,
    /// `None`: the ports of HTTP and HTTPS.
    pub port: Option<u16>,
}

impl BuildAddress {
    /// Whether it covers this host and port.
    #[must_use]
    pub fn covers(&self, host: &str, port: u16) -> bool {
        let port_fits = match self.port {
            Some(own) => own == port,
            None => matches!(port, 80 | 443),
        };
        port_fits && self.host.eq_ignore_ascii_case(host)
    }

    /// Reads `host` or `host:port`. `None`: it is neither.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address without brackets has more than one colon.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                (host, Some(port.parse().ok().filter(|port| *port != 0)?))
            }
            _ => (text, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        let fits = !host.is_empty() && host.len() <= 253 && host.chars().all(plain);
        fits.then(|| Self {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

/// One command of a build. Its paths are as the build sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// All its environment variables, except those for the proxy.
    pub environment: Vec<(String, String)>,
    /// Its working folder.
    pub cwd: PathBuf,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildEnd {
    /// It exited with this status; 0 is success.
    Exited(i32),
    /// A signal ended it.
    Signalled(i32),
    /// It, or a process that it started, was ended at the memory limit of builds, bytes.
    OutOfMemory(u64),
    /// It was ended because memory was short, but not because of its own limit.
    OutOfMemoryAround(MemoryShortage),
    /// The time of the build was over.
    OutOfTime,
    /// The build has written more than its limit, bytes.
    OutOfDisk(u64),
    /// It has printed more than its limit, bytes.
    TooMuchOutput(u64),
}

/// A host that a build did not reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// `host:port`.
    pub address: String,
    /// Why; `None`: builds may not connect to it.
    pub problem: Option<String>,
}

/// A build that this machine could not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the build could not be run: {problem}")]
pub struct BuildError {
    /// The step and the error.
    pub problem: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_covers_its_host_and_ports_alone() {
        let plain = BuildAddress::parse("Index.example").unwrap();
        assert!(plain.covers("index.example", 443) && plain.covers("INDEX.example", 80));
        assert!(!plain.covers("index.example", 22));
        assert!(!plain.covers("x.index.example", 443));
        let with_port = BuildAddress::parse("127.0.0.1:3141").unwrap();
        assert!(with_port.covers("127.0.0.1", 3141));
        assert!(!with_port.covers("127.0.0.1", 443));
        assert_eq!(BuildAddress::parse("[::1]:80").unwrap().host, "::1");
        for text in ["", ":80", "a b", "a:0", "a:x", "https://a", "a/b"] {
            assert_eq!(BuildAddress::parse(text), None, "{text}");
        }
    }
}
