//! Accepts a limited number of connections, and drains: stop accepting, let running requests finish within a grace period, then
//! close the remaining connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::connection::{self, DrainPhase};
use crate::gate::Gate;

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Number of connections that were open when the drain began.
    pub connections: usize,
    /// How many of them were closed at the end of the grace period.
    pub cut: usize,
}

/// Serves until `shutdown` resolves, then drains.
pub(crate) async fn run(
    listener: TcpListener,
    gate: Arc<Gate>,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let (phase, observed) = watch::channel(DrainPhase::Open);
    let mut slots = Slots {
        free: Arc::new(Semaphore::new(gate.config.connections_max)),
        reported: false,
    };
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = shutdown.as_mut() => break,
            accepted = accept(&listener, &mut slots) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer, slot)) => {
                let serving = connection::serve(gate.clone(), stream, peer, observed.clone());
                connections.spawn(async move {
                    serving.await;
                    drop(slot);
                });
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; if too many files are open, raise the limit of open files");
                tokio::select! {
                    () = shutdown.as_mut() => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    phase.send_replace(DrainPhase::Draining);
    drain(connections, gate.config.grace).await
}

/// Permits for open connections.
struct Slots {
    free: Arc<Semaphore>,
    /// The limit is reached, and the log says so.
    reported: bool,
}

impl Slots {
    /// Waits for a slot. Meanwhile clients wait in the kernel's backlog, which is bounded.
    async fn next(&mut self) -> io::Result<OwnedSemaphorePermit> {
        if let Ok(slot) = self.free.clone().try_acquire_owned() {
            self.reported = false;
            return Ok(slot);
        }
        if !self.reported {
            tracing::warn!("the limit of open connections is reached; new connections wait");
            self.reported = true;
        }
        self.free
            .clone()
            .acquire_owned()
            .await
            .map_err(io::Error::other)
    }
}

/// Accepts one connection, when there is a slot for it.
async fn accept(
    listener: &TcpListener,
    slots: &mut Slots,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = slots.next().await?;
    let (stream, peer) = listener.accept().await?;
    // Fails only if the socket is already closed, which is noticed when it is served.
    let _ = stream.set_nodelay(true);
    Ok((stream, peer, slot))
}

async fn drain(mut connections: JoinSet<()>, grace: Duration) -> Drained {
    while connections.try_join_next().is_some() {}
    let open = connections.len();
    let finished = tokio::time::timeout(grace, async {
        while connections.join_next().await.is_some() {}
    });
    if finished.await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            "requests were still running at the end of the grace period; they are cut off"
        );
    }
    let cut = connections.len();
    connections.shutdown().await;
    Drained {
        connections: open,
        cut,
    }
}

/// Whether the connection was closed before it was accepted (accept(2), "Error handling").
fn is_the_clients(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Pause after an error of the daemon, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
