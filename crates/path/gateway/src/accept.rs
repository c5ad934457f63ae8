//! Accepts connections within the limits of each listener, and drains: stop accepting, let running requests finish within a grace
//! period, then close the remaining connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use pilot_model::Seldom;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::connection::line::Usage;
use crate::connection::stream::Stream;
use crate::connection::{self, DrainPhase};
use crate::gate::Gate;
use crate::listener::{Listener, ListeningSocket, Serves, Transport};
use crate::peers::{Client, ConnectionPermit, Full, Peers};
use crate::refusal::Refusals;

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
    listeners: Vec<Listener>,
    gate: Gate,
    shutdown: impl Future<Output = ()>,
) -> Drained {
    let (phase, observed) = watch::channel(DrainPhase::Open);
    let (stop, stopping) = watch::channel(false);
    let grace = gate.config.grace;
    let accepting = listeners.into_iter().map(|listener| {
        let gate = gate.of(listener.door);
        accept_all(listener.socket, gate, observed.clone(), stopping.clone())
    });
    let stop = async {
        shutdown.await;
        stop.send_replace(true);
    };
    let (open, ()) = join(join_all(accepting), stop).await;
    phase.send_replace(DrainPhase::Draining);
    drain(open, grace, &phase).await
}

/// Accepts until it is told to stop. Returns the open connections.
async fn accept_all(
    socket: ListeningSocket,
    gate: Gate,
    phase: watch::Receiver<DrainPhase>,
    mut stopping: watch::Receiver<bool>,
) -> JoinSet<()> {
    let gate = Arc::new(gate);
    let peers = Peers::new(
        gate.door.connections_max,
        gate.door.connections_per_address_max,
    );
    let mut connections = JoinSet::new();
    let mut refusals = Refusals::default();
    let mut reported: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            // An error means that the sender is gone, and so is everything else.
            _ = stopping.wait_for(|stop| *stop) => break,
            accepted = socket.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = refusals.ended() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let usage = Arc::<Usage>::default();
                let client = Client::of(&stream, peer.ip());
                let descriptor = stream.descriptor().as_raw_fd();
                let admitted = peers.admit(client, &usage).and_then(|permit| {
                    if descriptor >= gate.door.descriptors_end {
                        peers.make_room()?;
                    }
                    Ok(permit)
                });
                match admitted {
                    Ok(permit) => {
                        let serving =
                            serve(gate.clone(), permit, stream, peer, usage, phase.clone());
                        connections.spawn(serving);
                    }
                    Err(full) => {
                        gate.refused.full(full);
                        // Not for each one: a client could fill the log.
                        if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
                            report(full, client, &socket, gate.door.serves);
                            reported = Some(Instant::now());
                        }
                        // Over TLS, an answer would cost a handshake.
                        let speaks_tls = matches!(gate.door.transport, Transport::Tls(_));
                        if !speaks_tls {
                            refusals.refuse(stream, client);
                        }
                    }
                }
            }
            Err(error) if is_the_clients(&error) => {}
            Err(error) => {
                if let Some(left_out) = NOT_ACCEPTED.admit(Instant::now()) {
                    tracing::warn!(
                        listener = %socket, %error, left_out,
                        "cannot accept a connection; if too many files are open, raise the limit of open files"
                    );
                }
                tokio::select! {
                    _ = stopping.wait_for(|stop| *stop) => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    connections
}

/// Serves one connection while it has its permit.
async fn serve(
    gate: Arc<Gate>,
    permit: ConnectionPermit,
    stream: Stream,
    peer: SocketAddr,
    usage: Arc<Usage>,
    phase: watch::Receiver<DrainPhase>,
) {
    let permit = &permit;
    let serving = connection::serve(gate.clone(), stream, peer, usage.clone(), permit, phase);
    let mut serving = pin!(serving);
    tokio::select! {
        biased;
        () = serving.as_mut() => return,
        () = permit.taken() => {}
    }
    if !usage.is_used() {
        gate.refused.too_slow();
    } else if !usage.rests() {
        // It has just sent a request, which is not interrupted.
        serving.await;
    }
}

fn report(full: Full, client: Client, socket: &ListeningSocket, serves: Serves) {
    match (full, client) {
        (Full::Client, Client::Network(address)) if serves == Serves::Control => tracing::warn!(
            listener = %socket, %address,
            "one address has reached its limit of open connections to the control API (half of limits.control_connections); its new \
             connections are answered with 503"
        ),
        (Full::Client, Client::Network(address)) => tracing::warn!(
            listener = %socket, %address,
            "one address has reached its limit of open connections (limits.connections_per_address); its new connections are \
             answered with 503"
        ),
        (Full::Client, client) => tracing::warn!(
            listener = %socket, ?client,
            "one user has reached the limit of open connections (half of limits.control_connections); its new connections are answered \
             with 503"
        ),
        (Full::Descriptors, _) => tracing::warn!(
            listener = %socket,
            "nearly all files that the daemon may have open are in use; new connections are answered with 503. Raise the limit of open \
             files (`LimitNOFILE=` of the service, or `ulimit -n`)"
        ),
        (Full::Listener, _) => {
            let key = match serves {
                Serves::Control => "limits.control_connections",
                Serves::Functions | Serves::Everything => "limits.connections",
            };
            tracing::warn!(
                listener = %socket,
                "the limit of open connections is reached ({key}); new connections are answered with 503"
            );
        }
    }
}

async fn drain(
    mut open: Vec<JoinSet<()>>,
    grace: Duration,
    phase: &watch::Sender<DrainPhase>,
) -> Drained {
    let mut connections = 0;
    for set in &mut open {
        while set.try_join_next().is_some() {}
        connections += set.len();
    }
    let finished = tokio::time::timeout(grace, async {
        for set in &mut open {
            while set.join_next().await.is_some() {}
        }
    });
    let goodbye = async {
        tokio::time::sleep(grace - GOODBYE.min(grace / 2)).await;
        phase.send_replace(DrainPhase::Ending);
        std::future::pending().await
    };
    let finished = tokio::select! {
        finished = finished => finished,
        never = goodbye => never,
    };
    let mut cut = 0;
    if finished.is_err() {
        for set in &mut open {
            while set.try_join_next().is_some() {}
            cut += set.len();
        }
        tracing::warn!(
            connections = cut,
            "requests were still running at the end of the grace period; they are cut off"
        );
    }
    for set in &mut open {
        set.shutdown().await;
    }
    Drained { connections, cut }
}

/// How long before the end of the grace period WebSockets are closed. Half of a grace period that is shorter than twice this.
const GOODBYE: Duration = Duration::from_secs(1);

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

/// Failed accepts that are logged per interval, of all listeners.
static NOT_ACCEPTED: Seldom = Seldom::new(2);

/// How often the log says that there is no room.
const REPORT_EVERY: Duration = Duration::from_secs(60);
