//! This node, as others call it: their connections, who they are, and their calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pilot_model::calls::{Reason, Refusal};
use pilot_model::ports::{ArrivingCall, CallAnswer, InputSource, NodeFault, NodeTarget, Ran};
use pilot_model::{Invokes, Seldom};
use pilot_protocols::MemoryBudget;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::answering::Answers;
use crate::config::NodeConfig;
use crate::link::{self, InTurns};
use crate::message;
use crate::payload::{self, Destination};
use crate::sending::CalledNode;
use crate::strangers::Strangers;
use crate::tasks::{EndTasks, Tasks};

/// Most calls of a node that run or arrive at the same time. One more is refused.
const CALLS_MAX: usize = 256;
/// Most of them on one connection. One more waits.
const STREAMS_MAX: u32 = 128;
/// Most connections of a node. It needs one, and those that broke off take a while to be noticed.
const CONNECTIONS_MAX: usize = 4;
/// Memory for the events of calls until their workers have them, and the share of one function.
const EVENTS_BYTES_MAX: usize = 64 << 20;
const EVENTS_SHARE_MAX: usize = 16 << 20;
/// Longest handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);

/// What calls of other nodes need.
pub(crate) struct Receiver {
    pub(crate) nodes: Vec<Arc<CallingNode>>,
    pub(crate) tls: TlsAcceptor,
    pub(crate) target: Arc<dyn NodeTarget>,
    pub(crate) memory: Arc<dyn InputSource>,
    pub(crate) events: MemoryBudget,
    pub(crate) strangers: Strangers,
    pub(crate) silence_max: Duration,
    pub(crate) records: bool,
    /// For messages that a stranger can cause.
    pub(crate) told: Seldom,
}

/// A node that calls.
#[derive(Debug)]
pub(crate) struct CallingNode {
    name: ServerName<'static>,
    shown: String,
    may_invoke: Invokes,
    connections: Semaphore,
    calls: Semaphore,
    /// The same node, if it is called, too.
    called: Option<Arc<CalledNode>>,
}

impl CallingNode {
    pub(crate) fn new(node: &NodeConfig, called: Option<Arc<CalledNode>>) -> Self {
        Self {
            name: node.name.clone(),
            shown: node.shown(),
            may_invoke: node.may_invoke.clone(),
            connections: Semaphore::new(CONNECTIONS_MAX),
            calls: Semaphore::new(CALLS_MAX),
            called,
        }
    }
}

/// The memory for the events of all calls.
pub(crate) fn events_memory() -> MemoryBudget {
    MemoryBudget::new(EVENTS_BYTES_MAX, EVENTS_SHARE_MAX)
}

impl Receiver {
    /// Serves a connection, until its end or until it is told to close.
    pub(crate) async fn connection(
        self: Arc<Self>,
        socket: TcpStream,
        address: SocketAddr,
        mut closing: watch::Receiver<bool>,
    ) {
        let Some(stranger) = self.strangers.admit(address.ip()) else {
            return self.tell(address, "too many TLS handshakes run at the same time");
        };
        if let Err(error) = link::prepare(&socket, self.silence_max) {
            tracing::debug!(%address, %error, "a connection of a node");
            return;
        }
        let stream = match timeout(HANDSHAKE_TIME_MAX, self.tls.accept(socket)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.tell(address, &link::chain(&error)),
            Err(_) => return self.tell(address, "the TLS handshake takes too long"),
        };
        let node = self.node_of(stream.get_ref().1.peer_certificates());
        let connection = node.as_ref().map(|node| node.connections.try_acquire());
        let is_known = match &connection {
            Some(Ok(_)) => {
                drop(stranger);
                if let Some(called) = node.as_ref().and_then(|node| node.called.as_ref()) {
                    called.hear();
                }
                true
            }
            Some(Err(_)) => return self.tell(address, "this node has too many connections"),
            None => {
                let problem = "its certificate is of our authority, but for no node of [nodes] in pilotd.toml";
                self.tell(address, problem);
                false
            }
        };
        let served = node.clone();
        let tasks = Tasks::default();
        let _ends = EndTasks(tasks.clone());
        let receiver = Arc::clone(&self);
        let answers = Answers::default();
        let given = answers.clone();
        let service = service_fn(move |request| {
            let (receiver, node, given) = (Arc::clone(&receiver), served.clone(), given.clone());
            async move {
                let response = receiver.respond(node, request).await;
                Ok::<_, Infallible>(response.map(|answer| given.give(answer)))
            }
        });
        let serving = http2::Builder::new(tasks)
            .initial_stream_window_size(link::STREAM_WINDOW)
            .initial_connection_window_size(link::CONNECTION_WINDOW)
            .max_frame_size(link::FRAME_LEN_MAX)
            .max_header_list_size(link::HEADERS_LEN_MAX)
            .max_concurrent_streams(STREAMS_MAX)
            .serve_connection(TokioIo::new(InTurns::new(stream)), service);
        let mut serving = std::pin::pin!(serving);
        let until = async {
            match is_known {
                // An error means that the sender is gone, and so is everything else.
                true => drop(closing.wait_for(|closing| *closing).await),
                // Time to be told why.
                false => tokio::time::sleep(STRANGER_TIME_MAX).await,
            }
        };
        let served = async {
            tokio::select! {
                ended = serving.as_mut() => ended,
                () = until => {
                    if !is_known {
                        return Ok(());
                    }
                    serving.as_mut().graceful_shutdown();
                    serving.await
                }
            }
        };
        let ended = tokio::select! {
            ended = served => ended,
            () = answers.too_slow(self.silence_max) => {
                return self.tell(address, "it does not take the answers to its calls");
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%address, error = link::chain(&error), "a connection of a node ended");
        }
    }

    /// The node that has this certificate, which is one of our authority.
    fn node_of(&self, certificates: Option<&[CertificateDer<'_>]>) -> Option<Arc<CallingNode>> {
        let certificate = ParsedCertificate::try_from(certificates?.first()?).ok()?;
        let mut nodes = self.nodes.iter();
        let node = nodes.find(|node| verify_server_name(&certificate, &node.name).is_ok());
        node.cloned()
    }

    fn tell(&self, address: SocketAddr, problem: &str) {
        if let Some(left_out) = self.told.admit(std::time::Instant::now()) {
            tracing::warn!(%address, left_out, "refused a connection to nodes.listen: {problem}");
        }
    }

    async fn respond(
        &self,
        node: Option<Arc<CallingNode>>,
        request: Request<Incoming>,
    ) -> Response<Bytes> {
        let Some(node) = node else {
            let problem = "the certificate's name is none of [nodes] in its pilotd.toml";
            let refusal = Refusal::new(Reason::Forbidden, problem);
            return message::response(Err(NodeFault::not_run(refusal)));
        };
        if request.uri().path() == message::HELLO {
            return Response::new(Bytes::new());
        }
        message::response(self.call(&node, request).await)
    }

    async fn call(
        &self,
        node: &CallingNode,
        request: Request<Incoming>,
    ) -> Result<CallAnswer, NodeFault> {
        let not_run = NodeFault::not_run;
        let (parts, body) = request.into_parts();
        let (head, lengths) = message::read(&parts, self.records).map_err(not_run)?;
        if !node.may_invoke.names(head.function.as_str()) {
            let problem = format!(
                "'{}' may not invoke '{}' here: add it to may_invoke of [nodes.{}] in pilotd.toml",
                node.shown, head.function, node.shown
            );
            return Err(not_run(Refusal::new(Reason::Forbidden, problem)));
        }
        let Ok(_permit) = node.calls.try_acquire() else {
            let problem = format!("{CALLS_MAX} calls of '{}' run here: try again", node.shown);
            return Err(not_run(Refusal::new(Reason::Throttled, problem)));
        };
        let destination = Destination {
            function: head.function.clone(),
            memory: Arc::clone(&self.memory),
            events: self.events.of(&head.function),
            silence_max: self.silence_max,
        };
        let left = head.left;
        let call = self.target.call(ArrivingCall {
            node: node.shown.clone(),
            head,
            has_data: lengths.data.is_some(),
            payload: Box::pin(payload::take(body, lengths, destination)),
        });
        timeout(left, call).await.unwrap_or_else(|_| {
            let problem = "it was not done before the caller's deadline";
            Err(NodeFault {
                refusal: Refusal::new(Reason::Unavailable, problem),
                ran: Ran::Perhaps,
            })
        })
    }
}

/// How long a node that is not known is told so.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(2);
