//! The engine's address.

use std::fmt;

/// An address that is not a socket of this machine.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the container engine's address is '{address}', must be a socket on this machine, for example unix:///var/run/docker.sock: \
     folders of the daemon are mounted in containers"
)]
pub(crate) struct InvalidAddress {
    address: String,
}

/// The path of an engine's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address(String);

impl Address {
    /// Parses the value of the configuration or of `DOCKER_HOST`: `unix:///run/docker.sock`, or a path.
    ///
    /// # Errors
    /// It is not the address of a Unix socket.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidAddress> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        if path.starts_with('/') {
            Ok(Self(path.to_owned()))
        } else {
            Err(InvalidAddress {
                address: text.to_owned(),
            })
        }
    }

    pub(crate) fn socket(&self) -> &str {
        &self.0
    }
}

impl Default for Address {
    fn default() -> Self {
        Self("/var/run/docker.sock".to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_written_as_a_url_or_as_a_path() {
        let address = Address::parse("unix:///run/docker.sock").unwrap();
        assert_eq!(address, Address::parse("/run/docker.sock").unwrap());
        assert_eq!(address.to_string(), "unix:///run/docker.sock");
    }

    #[test]
    fn an_engine_elsewhere_is_refused_with_the_reason() {
        let error = Address::parse("tcp://10.0.0.1:2375").unwrap_err();
        assert!(error.to_string().contains("on this machine"), "{error}");
    }
}
