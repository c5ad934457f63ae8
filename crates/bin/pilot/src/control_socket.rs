//! Where the control socket is.

use std::io;
use std::path::{Path, PathBuf};

/// Where the control socket is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ControlSocket {
    pub(crate) path: PathBuf,
    /// Members of [`GROUP`] may open it.
    pub(crate) is_for_group: bool,
    /// The operator chose the path, and nobody makes its folder.
    pub(crate) is_chosen: bool,
}

impl ControlSocket {
    /// At `given`; otherwise in the service's runtime directory (`RuntimeDirectory=pilotlight`, systemd.exec(5)), otherwise in the data
    /// directory, which only its owner can enter.
    pub(crate) fn resolve(
        given: Option<PathBuf>,
        runtime_directory: Option<&str>,
        data_dir: &Path,
    ) -> io::Result<Self> {
        // Another service may have started this process; then the variable is about that one.
        let ours = |folder: &&Path| folder.is_absolute() && folder.ends_with(SERVICE);
        let folders = runtime_directory.unwrap_or_default().split(':');
        let is_chosen = given.is_some();
        let (path, is_for_group) = match (given, folders.map(Path::new).find(ours)) {
            (Some(path), _) if path.as_os_str().is_empty() => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "control_socket is empty: leave it out, or name a path",
                ));
            }
            (Some(path), _) => (std::path::absolute(path)?, true),
            (None, Some(folder)) => (folder.join(SOCKET_NAME), true),
            (None, None) => (data_dir.join(SOCKET_NAME), false),
        };
        Ok(Self {
            path,
            is_for_group,
            is_chosen,
        })
    }
}

/// The service's folder in a runtime directory.
pub(crate) const SERVICE: &str = "pilotlight";
/// The file name of the control socket.
pub(crate) const SOCKET_NAME: &str = "control.sock";
/// The group whose members may use the control socket of the service.
pub(crate) const GROUP: &str = "pilotlight";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_path_is_refused_with_the_key() {
        let refused = ControlSocket::resolve(Some(PathBuf::new()), None, Path::new("/d"));
        let problem = refused.unwrap_err().to_string();
        assert!(problem.starts_with("control_socket is empty"), "{problem}");
    }

    #[test]
    fn the_service_has_its_socket_in_its_runtime_directory() {
        let data = Path::new("/d");
        let path = |given: Option<&str>, runtime| {
            let found = ControlSocket::resolve(given.map(PathBuf::from), runtime, data).unwrap();
            (found.path.display().to_string(), found.is_for_group)
        };
        for none in [None, Some(""), Some("/run/ci-runner"), Some("pilotlight")] {
            assert_eq!(path(None, none), ("/d/control.sock".to_owned(), false));
        }
        assert_eq!(
            path(None, Some("/run/x:/run/pilotlight")),
            ("/run/pilotlight/control.sock".to_owned(), true)
        );
        assert_eq!(
            path(Some("/srv/c.sock"), Some("/run/pilotlight")),
            ("/srv/c.sock".to_owned(), true)
        );
    }
}
