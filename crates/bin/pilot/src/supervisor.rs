//! What a supervisor such as systemd gives the daemon, and what it is told: sockets that are already listened on (sd_listen_fds(3)), and
//! that the daemon is ready, lives or stops (sd_notify(3)). Without a supervisor nothing of it happens.
//!
//! A socket of the supervisor outlives the daemon. So clients that connect while one daemon ends and the next one begins wait, and are not
//! refused.

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::time::Duration;

use anyhow::{Context, bail};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// The sockets that the supervisor gave.
#[derive(Debug, Default)]
pub(crate) struct GivenSockets(Vec<(SocketAddr, TcpListener)>);

impl GivenSockets {
    /// Takes them. Must be called once, while the process has one thread: it changes the environment.
    ///
    /// # Errors
    /// One of them is not a TCP socket.
    pub(crate) fn take() -> anyhow::Result<Self> {
        // They are another process's unless it says ours: the variables are inherited.
        let own = std::process::id().to_string();
        if std::env::var("LISTEN_PID").ok() != Some(own) {
            return Ok(Self::default());
        }
        let mut given = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..given.len() {
            let number = index + 1;
            let socket = given.take_tcp_listener(index);
            let socket = socket.with_context(|| {
                format!("socket {number} of the supervisor: only addresses of TCP can be given (ListenStream=HOST:PORT)")
            })?;
            if let Some(socket) = socket {
                sockets.push((socket.local_addr()?, socket));
            }
        }
        Ok(Self(sockets))
    }

    /// The socket of this address, if there is one.
    pub(crate) fn at(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let found = self.0.iter().position(|(bound, _)| *bound == address)?;
        Some(self.0.swap_remove(found).1)
    }

    /// # Errors
    /// A socket is left: the address that the daemon would listen on is another one, with other rules.
    pub(crate) fn all_used(&self) -> anyhow::Result<()> {
        let Some((address, _)) = self.0.first() else {
            return Ok(());
        };
        bail!(
            "the supervisor listens on {address}, which is neither listen nor control_listen: use the same address in pilotd.toml and in \
             the socket unit (ListenStream=)"
        )
    }
}

/// Tells the supervisor, if there is one.
pub(crate) fn tell(states: &[NotifyState<'_>]) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(&socket, states) {
        tracing::warn!(%error, "cannot send the daemon's state to the supervisor (NOTIFY_SOCKET)");
    }
}

/// Sends states to a socket: a path, or `@` and the name of an abstract one (sd_notify(3)), which `sd_notify` takes for a path.
fn send(socket: &OsStr, states: &[NotifyState<'_>]) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => UnixAddr::from_abstract_name(name)?,
        None => UnixAddr::from_pathname(socket)?,
    };
    let lines: Vec<String> = states.iter().map(NotifyState::to_string).collect();
    let message = lines.join("\n");
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

/// Tells the supervisor that the daemon is ready, and again and again that it lives, if it wants to hear that. It is told only if the
/// daemon's threads work: a task and a blocking job must have run. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    _task: JoinSet<()>,
}

impl Watchdog {
    pub(crate) fn start() -> Self {
        tell(&[NotifyState::Ready]);
        let mut task = JoinSet::new();
        if let Some(time_max) = sd_notify::watchdog_enabled().filter(|time| !time.is_zero()) {
            task.spawn(keep_telling(time_max / 3));
        }
        Self { _task: task }
    }
}

async fn keep_telling(every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if works().await.is_ok() {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

/// Resolves when another thread of the runtime and one for blocking work have done something.
async fn works() -> io::Result<()> {
    let mut job = JoinSet::new();
    job.spawn(async { tokio::task::spawn_blocking(|| {}).await });
    match job.join_next().await {
        Some(Ok(Ok(()))) => Ok(()),
        _ => Err(io::Error::other("the runtime ends")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_used_for_its_own_address_alone() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let mut given = GivenSockets(vec![(address, socket)]);
        let everywhere = SocketAddr::from(([0, 0, 0, 0], address.port()));
        assert!(given.at(everywhere).is_none());
        let refused = given.all_used().unwrap_err().to_string();
        assert!(refused.contains(&address.to_string()), "{refused}");
        assert!(given.at(address).is_some());
        given.all_used().unwrap();
    }

    #[test]
    fn the_supervisor_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("pilotlight-test-{}", folder.path().display());
        let addresses = [
            (
                path.clone().into_os_string(),
                UnixAddr::from_pathname(&path),
            ),
            (
                format!("@{name}").into(),
                UnixAddr::from_abstract_name(&name),
            ),
        ];
        for (named, address) in addresses {
            let supervisor = UnixDatagram::bind_addr(&address.unwrap()).unwrap();
            send(&named, &[NotifyState::Ready, NotifyState::Watchdog]).unwrap();
            let mut told = [0; 64];
            let len = supervisor.recv(&mut told).unwrap();
            assert_eq!(&told[..len], b"READY=1\nWATCHDOG=1");
        }
    }
}
