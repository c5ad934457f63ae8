//! Whose connection it is, where a worker shares its network with others (`network = "host"`): the Runtime API listens on a
//! loopback port, and every process of the host's network can connect to it. A secret in the path would not do, because clients
//! take apart `AWS_LAMBDA_RUNTIME_API` (the one for Node.js splits it at the colon). So the process at the other end is looked up: the
//! kernel says which socket is connected (sock_diag(7)), and that socket must be open in a process of the worker's PID namespace.
//! Another function cannot have such a process, whatever user it becomes.
//!
//! In the other direction, the socket that listens where a worker's HTTP server should be must be the worker's.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pilot_sys::netlink::diag::{Diag, Socket};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::sleep;

/// The processes of a worker in a network that others use, too: those in a PID namespace.
#[derive(Debug, Clone)]
pub struct OwnProcesses {
    pid_namespace: u64,
    /// `None`: the daemon's network.
    network: Option<Arc<File>>,
    /// Most descriptors that are looked at.
    descriptors_max: usize,
    looking: Arc<Looking>,
}

/// Keeps those who connect without end from taking the daemon's time: a look at all processes takes much longer than a connection.
#[derive(Debug)]
struct Looking {
    /// One look at a time.
    turn: Semaphore,
    /// Whether all of the processes have the same user, who is known after the first look.
    one_user: bool,
    user: OnceLock<u32>,
}

impl Looking {
    fn new(one_user: bool) -> Arc<Self> {
        Arc::new(Self {
            turn: Semaphore::new(1),
            one_user,
            user: OnceLock::new(),
        })
    }

    /// Whether the user of a socket says that it belongs to somebody else.
    fn is_of_another(&self, socket: Socket) -> bool {
        self.user.get().is_some_and(|user| *user != socket.user)
    }

    fn found(&self, socket: Socket) {
        if self.one_user {
            let _ = self.user.set(socket.user);
        }
    }
}

impl OwnProcesses {
    /// In the daemon's network. `pid_namespace` is the inode of `/proc/PID/ns/pid` (namespaces(7)). All of them have the same user, and
    /// cannot become another one.
    #[must_use]
    pub fn new(pid_namespace: u64) -> Self {
        Self {
            pid_namespace,
            network: None,
            descriptors_max: DESCRIPTORS_MAX,
            looking: Looking::new(true),
        }
    }

    /// Those in the PID namespace of a process, and in its network.
    ///
    /// # Errors
    /// There is no such process, or this one may not know.
    pub fn around(pid: u32) -> io::Result<Self> {
        let namespaces = Path::new("/proc").join(pid.to_string()).join("ns");
        let network = File::open(namespaces.join("net"))?;
        let is_ours = network.metadata()?.ino() == fs::metadata("/proc/self/ns/net")?.ino();
        Ok(Self {
            pid_namespace: fs::metadata(namespaces.join("pid"))?.ino(),
            network: (!is_ours).then(|| Arc::new(network)),
            descriptors_max: DESCRIPTORS_MAX,
            looking: Looking::new(false),
        })
    }

    /// Checks that the other end of an accepted connection is one of them.
    ///
    /// # Errors
    /// `PermissionDenied` if it is not, or nobody has it any more. The kernel's: it cannot be found out.
    pub(crate) async fn check_client(&self, stream: &TcpStream) -> io::Result<()> {
        let (here, there) = (v4(stream.local_addr()?)?, v4(stream.peer_addr()?)?);
        self.check(move |diag| diag.connected(there, here)).await
    }

    /// Checks that they listen on this port of the loopback device.
    ///
    /// # Errors
    /// As above.
    pub async fn check_server(&self, port: u16) -> io::Result<()> {
        let there = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        self.check(move |diag| diag.listening(there)).await
    }

    async fn check(
        &self,
        find: impl FnOnce(&mut Diag) -> Result<Option<Socket>, pilot_sys::netlink::NetlinkError>
        + Send
        + 'static,
    ) -> io::Result<()> {
        let own = self.clone();
        let found = blocking(move || {
            let mut diag = match &own.network {
                None => Diag::open()?,
                Some(network) => Diag::open_in(network.as_fd())?,
            };
            find(&mut diag).map_err(io::Error::other)
        });
        // Without an inode no process has it.
        let socket = found.await?.filter(|socket| socket.inode != 0);
        match socket {
            Some(socket) if !self.looking.is_of_another(socket) => self.look(socket).await,
            _ => Err(foreign()),
        }
    }

    /// Looks for the process that has this socket. It reads as many links in `/proc` as the worker has descriptors.
    async fn look(&self, socket: Socket) -> io::Result<()> {
        let _turn = self.looking.turn.acquire().await;
        // Meanwhile it may be known.
        if self.looking.is_of_another(socket) {
            return Err(foreign());
        }
        let own = self.clone();
        let is_own = {
            let _one_of_all = LOOKS.acquire().await;
            blocking(move || own.have(socket.inode)).await?
        };
        if is_own {
            self.looking.found(socket);
            return Ok(());
        }
        sleep(PAUSE).await;
        Err(foreign())
    }

    /// Whether one of them has this socket open. Processes and descriptors that are gone meanwhile do not have it.
    fn have(&self, inode: u32) -> io::Result<bool> {
        let wanted = format!("socket:[{inode}]");
        let mut looked_at = 0;
        for process in fs::read_dir("/proc")?.flatten() {
            let name = process.file_name();
            let is_process = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
            if !is_process || !self.has(&process.path()) {
                continue;
            }
            for file in fs::read_dir(process.path().join("fd"))
                .into_iter()
                .flatten()
            {
                looked_at += 1;
                let link = file.and_then(|file| fs::read_link(file.path()));
                if link.is_ok_and(|link| link.as_os_str() == wanted.as_str()) {
                    return Ok(true);
                }
                if looked_at >= self.descriptors_max {
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    fn has(&self, process: &Path) -> bool {
        let namespace = fs::metadata(process.join("ns/pid"));
        namespace.is_ok_and(|namespace| namespace.ino() == self.pid_namespace)
    }
}

/// Runs what waits for the kernel on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work);
    done.await.map_err(io::Error::other)?
}

fn foreign() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the other end of the connection belongs to a process outside of the function",
    )
}

fn v4(address: SocketAddr) -> io::Result<SocketAddrV4> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A function that opens more than this only keeps itself from its own Runtime API. Looking at them takes about 20 ms.
const DESCRIPTORS_MAX: usize = 16_384;

/// Looks of all workers at the same time.
static LOOKS: Semaphore = Semaphore::const_new(2);

/// After a connection of somebody else whom his user did not give away, so that such connections take a small share of a processor.
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use tokio::net::TcpListener;

    use super::*;

    /// Those in this PID namespace: all processes of the machine, which may have any number of descriptors.
    fn everybody() -> OwnProcesses {
        let mut own = OwnProcesses::around(std::process::id()).unwrap();
        own.descriptors_max = usize::MAX;
        own
    }

    #[tokio::test]
    async fn a_client_and_a_server_are_those_of_the_own_processes_only() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let mut own = everybody();
        own.check_client(&accepted).await.unwrap();
        own.check_server(address.port()).await.unwrap();
        // Who has more descriptors than are looked at keeps himself out.
        own.descriptors_max = 0;
        assert!(own.check_client(&accepted).await.is_err());
        let others = OwnProcesses::new(own.pid_namespace + 1);
        for checked in [
            others.check_client(&accepted).await,
            others.check_server(address.port()).await,
        ] {
            let error = checked.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        }
    }

    #[tokio::test]
    async fn who_has_another_user_is_refused_without_a_look_at_all_processes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (accepted, _) = listener.accept().await.unwrap();
        let mut own = OwnProcesses::new(everybody().pid_namespace);
        own.descriptors_max = usize::MAX;
        own.check_client(&accepted).await.unwrap();
        let user = *own.looking.user.get().unwrap();
        let stranger = Socket {
            inode: 1,
            user: user + 1,
        };
        assert!(own.looking.is_of_another(stranger));

        // So it is for whoever connects to a worker of another user: nobody takes a turn.
        let other = OwnProcesses::new(own.pid_namespace);
        other.looking.found(stranger);
        let _turn = other.looking.turn.acquire().await.unwrap();
        let error = other.check_client(&accepted).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn a_connection_that_its_client_has_closed_is_nobodys() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (accepted, _) = listener.accept().await.unwrap();
        drop(client.unwrap());
        let own = everybody();
        let error = own.check_client(&accepted).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn a_process_of_another_pid_namespace_is_not_one_of_them() {
        if !nix_is_root() {
            eprintln!(
                "SKIPPED a_process_of_another_pid_namespace_is_not_one_of_them: it needs root"
            );
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut stranger = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "bash", "-c"])
            .arg(format!("exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let own = everybody();
        let checked = own.check_client(&accepted).await;
        drop(accepted);
        stranger.wait().unwrap();
        let error = checked.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }

    fn nix_is_root() -> bool {
        fs::metadata("/proc/self").unwrap().uid() == 0
    }
}
