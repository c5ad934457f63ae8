//! [`Cluster`]: the other nodes of the configuration. It is the port [`Placement`], and serves the address for other nodes.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pilot_model::ports::{InputSource, NodeTarget, Peer, Placement};
use pilot_model::{Invokes, Seldom};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::config::ClusterConfig;
use crate::receiving::{CallingNode, Receiver, events_memory};
use crate::sending::CalledNode;
use crate::strangers::Strangers;

/// The other nodes, as the configuration names them.
#[derive(Debug)]
pub struct Cluster {
    called: Vec<(Invokes, Arc<CalledNode>)>,
    calling: Vec<Arc<CallingNode>>,
    server: Arc<ServerConfig>,
    /// Which of the nodes that have a function is the first to be tried.
    turn: AtomicUsize,
    silence_max: Duration,
    records: bool,
}

impl Cluster {
    /// It connects to no node yet.
    #[must_use]
    pub fn new(config: &ClusterConfig) -> Self {
        let nodes = config.nodes.iter();
        let called = nodes.filter_map(|node| {
            let (client, silence_max) = (&config.client, config.silence_max);
            let called = CalledNode::new(node, client, &config.answers, silence_max)?;
            Some((node, called))
        });
        let called: Vec<_> = called.collect();
        let calling = config.nodes.iter().map(|node| {
            let called = called.iter().find(|(other, _)| *other == node);
            Arc::new(CallingNode::new(
                node,
                called.map(|(_, node)| Arc::clone(node)),
            ))
        });
        Self {
            calling: calling.collect(),
            called: called
                .iter()
                .map(|(node, called)| (node.functions.clone(), Arc::clone(called)))
                .collect(),
            server: Arc::clone(&config.server),
            turn: AtomicUsize::new(0),
            silence_max: config.silence_max,
            records: config.records,
        }
    }

    /// Serves other nodes until `stop` resolves; then lets calls finish within `grace`. `memory` makes the memory for their data.
    /// Dropping the future ends everything at once.
    pub async fn serve(
        &self,
        listener: TcpListener,
        target: Arc<dyn NodeTarget>,
        memory: Arc<dyn InputSource>,
        stop: impl Future<Output = ()>,
        grace: Duration,
    ) {
        let receiver = Arc::new(Receiver {
            nodes: self.calling.clone(),
            tls: TlsAcceptor::from(Arc::clone(&self.server)),
            target,
            memory,
            events: events_memory(),
            strangers: Strangers::default(),
            silence_max: self.silence_max,
            records: self.records,
            told: Seldom::new(MESSAGES_MAX),
        });
        let (close, closing) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((socket, address)) => {
                        let receiver = Arc::clone(&receiver);
                        connections.spawn(receiver.connection(socket, address, closing.clone()));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept a connection of a node");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        close.send_replace(true);
        let finished = timeout(grace, async {
            while connections.join_next().await.is_some() {}
        });
        if finished.await.is_err() {
            tracing::warn!(
                "calls of other nodes still ran at the end of the grace period: they are cut off"
            );
            connections.shutdown().await;
        }
    }
}

impl Placement for Cluster {
    /// The nodes that have the function take turns. One that could not be reached comes last, until it can be.
    fn place(&self, function: &str) -> Vec<Arc<dyn Peer>> {
        let nodes = self.called.iter();
        let mut nodes: Vec<_> = nodes
            .filter(|(functions, _)| functions.names(function))
            .map(|(_, node)| Arc::clone(node))
            .collect();
        if nodes.len() > 1 {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let first = turn % nodes.len();
            nodes.rotate_left(first);
            nodes.sort_by_key(|node| node.is_avoided());
        }
        nodes.into_iter().map(|node| node as _).collect()
    }
}

/// After an error such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Messages of the log in ten seconds that strangers can cause.
const MESSAGES_MAX: u32 = 3;
