//! The daemon's address: its control socket, or HTTP over TCP, with TLS or without.
//!
//! Without an address, the sockets of the usual places are tried. A token is never read from a file for an address over TCP: while the
//! daemon is not running, any user of the machine may listen on its port, and would be sent the token. Nobody else can create a socket
//! in the daemon's folders.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use ureq::http::uri::Authority;

use super::super::failure::Failure;
use crate::control_socket::{SERVICE, SOCKET_NAME};
use crate::daemon_config::default_data_dir;
use crate::unix_path;

/// Where a daemon answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `http://HOST:PORT` or `https://HOST:PORT`, without a slash at the end.
    Http(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// An address as it was given.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            // As in unix:///path, which other programs write.
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err(Failure::usage(
                    "the endpoint \"unix:\" has no path: write unix:/PATH/control.sock",
                ));
            }
            let path = PathBuf::from(path);
            return Ok(Self::Unix(if path.is_dir() {
                path.join(SOCKET_NAME)
            } else {
                path
            }));
        }
        let trimmed = text.trim_end_matches('/');
        let authority = trimmed
            .strip_prefix("http://")
            .or_else(|| trimmed.strip_prefix("https://"))
            .unwrap_or_default();
        if !is_authority(authority) {
            return Err(Failure::usage(format!(
                "the endpoint \"{trimmed}\" is neither unix:PATH nor http://HOST:PORT nor https://HOST:PORT, for example \
                 unix:/var/lib/pilotlight/control.sock or https://pilot.example.com:8443"
            )));
        }
        Ok(Self::Http(trimmed.to_owned()))
    }

    /// The socket of a daemon on this machine: in the user's data directory, or that of the user's or the system's service. If
    /// nobody listens on either, the first one.
    pub(super) fn find() -> Result<Self, Failure> {
        let candidates: Vec<PathBuf> = default_data_dir()
            .into_iter()
            .map(|folder| folder.join(SOCKET_NAME))
            .chain(runtime_directory().map(|folder| folder.join(SERVICE).join(SOCKET_NAME)))
            .chain([Path::new("/run").join(SERVICE).join(SOCKET_NAME)])
            .collect();
        let answers = candidates.iter().find(|path| listens(path));
        let chosen = answers.or(candidates.first());
        chosen
            .map(|path| Self::Unix(path.clone()))
            .ok_or_else(|| Failure::usage("name the daemon with --endpoint"))
    }

    /// Whether it needs certificates.
    pub(super) fn is_https(&self) -> bool {
        matches!(self, Self::Http(base) if base.starts_with("https://"))
    }

    /// What precedes the path of a request.
    pub(super) fn base(&self) -> &str {
        match self {
            Self::Http(base) => base,
            Self::Unix(_) => "http://localhost",
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(base) => f.write_str(base),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Whether this is `HOST` or `HOST:PORT`.
fn is_authority(text: &str) -> bool {
    let Ok(authority) = text.parse::<Authority>() else {
        return false;
    };
    let host = authority.host();
    let port = text
        .strip_prefix(host)
        .and_then(|rest| rest.strip_prefix(':'));
    !host.is_empty() && (text == host || port.is_some_and(|port| port.parse::<u16>().is_ok()))
}

/// Whether somebody listens there, or would if this user were allowed to ask.
fn listens(path: &Path) -> bool {
    match unix_path::short(path, |path| UnixStream::connect(path)) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied && path.exists(),
    }
}

/// The runtime directory of the user, where a service of the user has its socket.
fn runtime_directory() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    folder.is_absolute().then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_socket_or_an_http_address_without_a_path() {
        assert_eq!(
            Endpoint::parse("http://127.0.0.1:8080/").unwrap(),
            Endpoint::Http("http://127.0.0.1:8080".to_owned())
        );
        for text in ["http://[::1]:8080", "http://localhost", "https://[::1]"] {
            assert_eq!(Endpoint::parse(text).unwrap().to_string(), text);
        }
        let https = Endpoint::parse("https://pilot.example:8443").unwrap();
        assert!(https.is_https());
        assert_eq!(https.base(), "https://pilot.example:8443");
        for text in ["unix:/d/control.sock", "unix:///d/control.sock"] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint, Endpoint::Unix(PathBuf::from("/d/control.sock")));
            assert_eq!(endpoint.to_string(), "unix:/d/control.sock");
        }
        let folder = tempfile::tempdir().unwrap();
        let text = format!("unix:{}", folder.path().display());
        assert_eq!(
            Endpoint::parse(&text).unwrap(),
            Endpoint::Unix(folder.path().join("control.sock"))
        );
        for wrong in [
            "",
            "127.0.0.1:8080",
            "https://",
            "http://",
            "http://a/b",
            "http://a b",
            "http://[::1",
            "http://a:b",
            "http://a:",
            "http://a:70000",
            "http://user@a",
            "unix:",
        ] {
            let problem = Endpoint::parse(wrong).unwrap_err().to_string();
            assert!(problem.contains("unix:"), "{wrong}: {problem}");
        }
    }
}
