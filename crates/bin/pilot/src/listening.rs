//! The daemon's listeners: the control socket, the address for functions, and the control API's address if it has one.
//!
//! The control socket is a Unix socket that only its owner and group can open, so it needs no token.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Group, chown};
use pilot_gateway::{Access, Door, Listener, Serves, Transport};
use pilot_model::access::Grant;
use tokio::net::{TcpListener, UnixListener};

use crate::control_socket::{ControlSocket, GROUP};
use crate::daemon_config::DaemonConfig;
use crate::daemon_config::nodes::NodesSettings;
use crate::invalid::OrInvalid;
use crate::listen;
use crate::room;
use crate::supervisor::GivenSockets;
use crate::tls::{Certificate, TlsFiles};
use crate::unix_path;

/// The daemon's listeners. The control socket's file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) listeners: Vec<Listener>,
    /// Where other nodes call this one.
    pub(crate) nodes: Option<TcpListener>,
    /// Where functions are called, as bound.
    pub(crate) functions: SocketAddr,
    pub(crate) socket: SocketFile,
    /// The certificates of the listeners with TLS.
    pub(crate) certificates: Vec<Arc<Certificate>>,
}

/// Binds everything, except what the supervisor has bound.
///
/// # Errors
/// An address or the socket cannot be used; the error says what to do.
pub(crate) async fn bind_all(
    config: &DaemonConfig,
    given: &mut GivenSockets,
) -> anyhow::Result<Listening> {
    let limits = &config.limits;
    let (connections_max, control_max) =
        (limits.connections_max(), limits.control_connections_max());
    if let Some(problem) = limits.few_files() {
        tracing::warn!("{problem}");
    }
    let mut certificates = Vec::new();
    // Before anything is bound.
    let functions_transport = transport(config, config.tls.as_ref(), &mut certificates)?;
    let control_transport = transport(config, config.control_tls.as_ref(), &mut certificates)?;
    let (socket, file) = bind_socket(&config.control_socket)?;
    let mut listeners = vec![Listener::unix(
        socket,
        Door {
            serves: Serves::Control,
            transport: Transport::Plain,
            calls: Access::Open,
            metrics: Access::Open,
            everyone: Some(Arc::new(Grant::admin("the control socket"))),
            connections_max: control_max,
            connections_per_address_max: control_max.div_ceil(2),
            ..Door::default()
        },
    )];
    let is_local = config.listen.ip().to_canonical().is_loopback();
    let is_shared = config.control_listen == Some(config.listen);
    let functions = bind_tcp(config.listen, "--listen", given).await?;
    let address = functions.local_addr()?;
    listeners.push(Listener::tcp(
        functions,
        Door {
            serves: if is_shared {
                Serves::Everything
            } else {
                Serves::Functions
            },
            transport: functions_transport,
            calls: config.calls,
            metrics: if is_local {
                Access::Open
            } else {
                Access::Token
            },
            everyone: None,
            connections_max,
            connections_per_address_max: limits.connections_per_address(connections_max),
            descriptors_end: room::first_kept_descriptor(room::open_files()),
        },
    ));
    if let Some(control) = config.control_listen.filter(|_| !is_shared) {
        listeners.push(Listener::tcp(
            bind_tcp(control, "control_listen", given).await?,
            Door {
                serves: Serves::Control,
                transport: control_transport,
                calls: Access::Token,
                metrics: Access::Token,
                everyone: None,
                connections_max: control_max,
                connections_per_address_max: control_max.div_ceil(2),
                ..Door::default()
            },
        ));
    }
    let nodes = config.nodes.as_ref().and_then(NodesSettings::listen);
    let nodes = match nodes {
        Some(address) => Some(bind_tcp(address, "nodes.listen", given).await?),
        None => None,
    };
    given.all_used()?;
    Ok(Listening {
        listeners,
        nodes,
        functions: address,
        socket: file,
        certificates,
    })
}

/// What an address over TCP speaks. Its certificate is added to `certificates`.
fn transport(
    config: &DaemonConfig,
    files: Option<&TlsFiles>,
    certificates: &mut Vec<Arc<Certificate>>,
) -> anyhow::Result<Transport> {
    match files {
        Some(files) => {
            let certificate = Certificate::load(files).or_invalid()?;
            let transport = certificate.transport()?;
            certificates.push(certificate);
            Ok(transport)
        }
        None if config.h2c => Ok(Transport::PlainWithHttp2),
        None => Ok(Transport::Plain),
    }
}

/// Binds this address, or takes over the supervisor's socket of it.
async fn bind_tcp(
    address: SocketAddr,
    option: &str,
    given: &mut GivenSockets,
) -> anyhow::Result<TcpListener> {
    if let Some(socket) = given.at(address) {
        socket.set_nonblocking(true)?;
        return Ok(TcpListener::from_std(socket)?);
    }
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| anyhow::anyhow!(listen::refusal(address, option, &error)))
}

/// The file of a Unix socket that is listened on.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode, so that the socket of a later daemon is not removed.
    identity: (u64, u64),
}

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).ok() == Some(self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Binds the control socket: mode 0660, and the group [`GROUP`] if it exists and the socket is not in the data directory. Replaces the
/// socket of a daemon that has ended.
fn bind_socket(at: &ControlSocket) -> anyhow::Result<(UnixListener, SocketFile)> {
    let path = &at.path;
    let shown = path.display();
    check_socket(path)?;
    // Another name first, and then a rename: clients find either the old socket or a complete new one.
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let listener = bind_at(&fresh).with_context(|| format!("cannot create the socket {shown}"))?;
    let ready = || -> io::Result<(u64, u64)> {
        if at.is_for_group
            && let Ok(Some(group)) = Group::from_name(GROUP)
            && group.gid != Gid::effective()
        {
            chown(&fresh, None, Some(group.gid))?;
        }
        // Only now, because the umask may have removed rights of the group, and its group was another one.
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o660))?;
        fs::rename(&fresh, path)?;
        identity(path)
    };
    let identity = ready().inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    });
    let identity = identity.with_context(|| format!("cannot create the socket {shown}"))?;
    let listener = std::os::unix::net::UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let file = SocketFile {
        path: path.clone(),
        identity,
    };
    Ok((UnixListener::from_std(listener)?, file))
}

/// A socket that listens at this path, which only this user may open so far: bind(2) gives the file the mode of the socket's inode,
/// so there is no moment in which others can connect.
fn bind_at(path: &Path) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(socket.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR)?;
    unix_path::short(path, |path| {
        bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(())
    })?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(socket)
}

/// Whether the control socket could be made at this path. Its folder must exist.
///
/// # Errors
/// The name is too long, others may write to the folder, or something is at the path.
pub(crate) fn check_socket(path: &Path) -> anyhow::Result<()> {
    check_name(path).or_invalid()?;
    check_folder(path).or_invalid()?;
    check_old(path)
}

/// A folder's path may have any length, but the name is a part of the socket's address.
fn check_name(path: &Path) -> anyhow::Result<()> {
    let name_bytes = path.file_name().map_or(0, std::ffi::OsStr::len);
    let fits_as_a_whole = path.as_os_str().len() + FRESH_BYTES_MAX <= unix_path::PATH_BYTES_MAX;
    if fits_as_a_whole || name_bytes <= NAME_BYTES_MAX {
        return Ok(());
    }
    bail!(
        "control_socket: the name of the socket {} has {name_bytes} bytes, and may have at most {NAME_BYTES_MAX}: choose a shorter one",
        path.display()
    )
}

/// Whoever may write to the folder could put a socket of his own there, and receive code and secrets.
fn check_folder(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let found = fs::metadata(folder).with_context(|| {
        format!(
            "control_socket: cannot use the folder {}, which must exist",
            folder.display()
        )
    })?;
    let ours = found.uid() == nix::unistd::geteuid().as_raw() || found.uid() == 0;
    if !ours || found.mode() & 0o022 != 0 {
        bail!(
            "other users may write to {}, so they could replace the control socket there: choose a folder of your own with \
             control_socket",
            folder.display()
        );
    }
    Ok(())
}

/// What is at the path may be replaced only if it is a socket on which nobody listens.
fn check_old(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot look at {shown}")),
    };
    if !found.file_type().is_socket() {
        return Err(anyhow::anyhow!(
            "{shown} exists and is not a socket: remove it, or choose another path with control_socket"
        ))
        .or_invalid();
    }
    match unix_path::short(path, |path| UnixStream::connect(path)) {
        Ok(_) => bail!(
            "another daemon listens on {shown}: stop it, or choose another data directory or control_socket"
        ),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("cannot tell whether a daemon listens on {shown}"))
        }
    }
}

const BACKLOG: i32 = 128;
/// What a socket's name has in addition until it listens: `.PID.new`.
const FRESH_BYTES_MAX: usize = ".4194304.new".len();
/// What is left of a socket's address beside [`unix_path::short`]'s folder and [`FRESH_BYTES_MAX`].
const NAME_BYTES_MAX: usize =
    unix_path::PATH_BYTES_MAX - "/proc/self/fd/2147483647/".len() - FRESH_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: PathBuf) -> ControlSocket {
        ControlSocket {
            path,
            is_for_group: false,
            is_chosen: false,
        }
    }

    #[tokio::test]
    async fn a_dead_daemons_socket_is_replaced_and_a_live_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let (listener, file) = bind_socket(&at(path.clone())).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let problem = bind_socket(&at(path.clone())).unwrap_err();
        assert!(
            problem.to_string().contains("another daemon listens"),
            "{problem:#}"
        );
        // As after kill -9: the file stays.
        drop(listener);
        let (_second, second) = bind_socket(&at(path.clone())).unwrap();
        drop(file);
        assert!(path.exists(), "the socket of the second daemon stays");
        drop(second);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn something_else_at_the_path_or_a_folder_of_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        fs::write(&path, "mine").unwrap();
        let problem = bind_socket(&at(path.clone())).unwrap_err();
        assert!(
            problem.to_string().contains("is not a socket"),
            "{problem:#}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();
        for mode in [0o777, 0o1777, 0o770] {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let problem = bind_socket(&at(path.clone())).unwrap_err();
            assert!(
                problem.to_string().contains("control_socket"),
                "{problem:#}"
            );
        }
    }

    #[test]
    fn a_name_longer_than_a_socket_address_and_a_missing_folder_name_the_key() {
        let folder = tempfile::tempdir().unwrap();
        for path in [
            folder.path().join("a".repeat(120)),
            folder.path().join("missing/control.sock"),
        ] {
            let problem = format!("{:#}", check_socket(&path).unwrap_err());
            assert!(problem.starts_with("control_socket: "), "{problem}");
        }
        assert!(check_socket(&folder.path().join("a".repeat(NAME_BYTES_MAX))).is_ok());
    }

    #[tokio::test]
    async fn a_path_longer_than_a_socket_address_works() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a-long-name-".repeat(12));
        fs::create_dir(&deep).unwrap();
        let path = deep.join("control.sock");
        assert!(path.as_os_str().len() > 108);
        let (_listener, _file) = bind_socket(&at(path.clone())).unwrap();
        unix_path::short(&path, |path| UnixStream::connect(path)).unwrap();
    }
}
