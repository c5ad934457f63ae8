//! Another node, as this one calls it: one connection, which is made when it is needed, and the calls on it.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use pilot_model::FunctionName;
use pilot_model::calls::{Reason, Refusal};
use pilot_model::ports::{BoxFuture, CallAnswer, NodeCall, NodeFault, Peer, Ran};
use pilot_protocols::MemoryBudget;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::config::NodeConfig;
use crate::life::{self, Signs};
use crate::link::{self, InTurns, chain};
use crate::message;
use crate::payload::PACE_BYTES;
use crate::reach::{First, Reach};
use crate::sent::{Ahead, SentBody};
use crate::tasks::{EndTasks, Tasks};

/// Most calls to a node at the same time. One more is refused.
const CALLS_MAX: usize = 256;
/// Most connections to a node. It needs one, but one that it closes for new calls goes on with those that it has. What a connection may
/// have sent and nobody has taken is memory of this daemon.
const LINKS_MAX: usize = 4;
/// How long a node may take nothing of a call beyond the time for silence: it waits for room for the event and for the data.
const ROOM_TIME_MAX: Duration = Duration::from_secs(5);

/// A node that is called.
pub(crate) struct CalledNode {
    me: Weak<Self>,
    name: String,
    server_name: ServerName<'static>,
    address: (String, u16),
    tls: TlsConnector,
    /// Held while it connects: whoever comes meanwhile waits for the same connection.
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    reach: Reach,
    calls: Semaphore,
    links: Arc<Semaphore>,
    /// What waits to be sent.
    ahead: Ahead,
    answers: MemoryBudget,
    silence_max: Duration,
}

impl fmt::Debug for CalledNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CalledNode")
            .field("name", &self.name)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A call that failed.
enum Failure {
    /// The connection was lost before all of the call was sent. It has no answer, and has not run.
    LinkLost(NodeFault),
    Other(NodeFault),
}

impl From<Failure> for NodeFault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LinkLost(fault) | Failure::Other(fault) => fault,
        }
    }
}

/// A connection on which the other node has said that it does what this one asks for.
struct Link {
    sender: SendRequest<SentBody>,
    signs: Signs,
    _tasks: EndTasks,
    _permit: OwnedSemaphorePermit,
}

impl CalledNode {
    /// `None`: the node is not called.
    pub(crate) fn new(
        node: &NodeConfig,
        client: &Arc<ClientConfig>,
        answers: &MemoryBudget,
        silence_max: Duration,
    ) -> Option<Arc<Self>> {
        let address = node.address.clone()?;
        Some(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            name: node.shown(),
            server_name: node.name.clone(),
            address,
            tls: TlsConnector::from(Arc::clone(client)),
            link: tokio::sync::Mutex::default(),
            reach: Reach::default(),
            calls: Semaphore::new(CALLS_MAX),
            links: Arc::new(Semaphore::new(LINKS_MAX)),
            ahead: Ahead::default(),
            answers: answers.clone(),
            silence_max,
        }))
    }

    /// Whether it could not be reached, and has not been since.
    pub(crate) fn is_avoided(&self) -> bool {
        self.reach.is_lost()
    }

    /// It has connected to this node. If it could not be reached, that is tried now.
    pub(crate) fn hear(&self) {
        self.reach.hear();
    }

    /// Avoids it until it can be reached, which a probe finds out.
    fn lose(&self, first: First) {
        let me = Weak::clone(&self.me);
        let attempt = move || Self::is_reached(Weak::clone(&me));
        self.reach.lose(first, Box::new(attempt));
    }

    /// One attempt of a probe. A node that is gone from this daemon needs no further one.
    fn is_reached(me: Weak<Self>) -> BoxFuture<'static, bool> {
        Box::pin(async move {
            let Some(node) = me.upgrade() else {
                return true;
            };
            let link = node.link(node.silence_max, None).await;
            link.is_ok()
        })
    }

    /// The connection, which may have to be made, and whether it was there before. `lost` is not taken again.
    async fn link(
        &self,
        patience: Duration,
        lost: Option<&Arc<Link>>,
    ) -> Result<(Arc<Link>, bool), Refusal> {
        let found = self.kept_or_made(patience, lost).await;
        match &found {
            Ok(_) => self.reach.find(),
            Err(_) => self.lose(First::AfterPause),
        }
        found
    }

    /// Whoever waits while another one connects has its result, so that nobody waits for one attempt after the other.
    async fn kept_or_made(
        &self,
        patience: Duration,
        lost: Option<&Arc<Link>>,
    ) -> Result<(Arc<Link>, bool), Refusal> {
        let came = Instant::now();
        let deadline = came + patience;
        let too_slow = |_| {
            let ((host, port), waited_s) = (&self.address, patience.as_secs_f64());
            let problem = format!("no connection to {host}:{port} within {waited_s:.1} s");
            Refusal::new(Reason::Unavailable, problem)
        };
        let link = timeout_at(deadline, self.link.lock()).await;
        let mut link = link.map_err(too_slow)?;
        let is_usable = |link: &&Arc<Link>| {
            let is_lost = lost.is_some_and(|lost| Arc::ptr_eq(link, lost));
            !is_lost && !link.sender.is_closed() && !link.signs.is_silent()
        };
        if let Some(open) = link.as_ref().filter(is_usable) {
            return Ok((Arc::clone(open), true));
        }
        if let Some(problem) = self.reach.failure_since(came) {
            return Err(Refusal::new(Reason::Unavailable, problem));
        }
        *link = None;
        let began = Instant::now();
        let made = timeout_at(deadline, self.connect()).await;
        // One that was given up early says nothing to those who have more time.
        let was_given_up = made.is_err() && began.elapsed() < self.silence_max;
        let made = made.unwrap_or_else(|elapsed| Err(too_slow(elapsed)));
        if let Err(refusal) = &made
            && !was_given_up
        {
            self.reach.note_failure(&refusal.problem);
        }
        let fresh = Arc::new(made?);
        *link = Some(Arc::clone(&fresh));
        Ok((fresh, false))
    }

    async fn connect(&self) -> Result<Link, Refusal> {
        let (host, port) = &self.address;
        let cannot = |problem: &str| {
            let problem = format!("cannot connect to {host}:{port}: {problem}");
            Refusal::new(Reason::Unavailable, problem)
        };
        let permit = Arc::clone(&self.links).try_acquire_owned().map_err(|_| {
            cannot("calls still run on connections that it has closed for new ones")
        })?;
        let socket = TcpStream::connect((host.as_str(), *port));
        let socket = socket.await.map_err(|error| cannot(&error.to_string()))?;
        link::prepare(&socket, self.silence_max).map_err(|error| cannot(&error.to_string()))?;
        let stream = self.tls.connect(self.server_name.clone(), socket).await;
        let stream = stream
            .map_err(|error| cannot(&format!("{} (TLS, as '{}')", chain(&error), self.name)))?;
        let tasks = Tasks::default();
        let ends = EndTasks(tasks.clone());
        let signs = Signs::default();
        let mut builder = http2::Builder::new(tasks.clone());
        builder
            .initial_stream_window_size(link::ANSWER_WINDOW)
            .initial_connection_window_size(link::ANSWERS_WINDOW)
            .max_frame_size(link::FRAME_LEN_MAX)
            .max_header_list_size(link::HEADERS_LEN_MAX);
        life::with_pings(&mut builder, self.silence_max);
        let (mut sender, connection) = builder
            .handshake(TokioIo::new(InTurns::noting(stream, signs.clone())))
            .await
            .map_err(|error| cannot(&chain(&error)))?;
        let me = Weak::clone(&self.me);
        tasks.execute(async move {
            // Without an error, the other node has closed it.
            if connection.await.is_err()
                && let Some(node) = me.upgrade()
            {
                node.lose(First::AtOnce);
            }
        });
        tasks.execute(self.end_when_silent(&signs, &tasks));
        // Only the answer shows that the other node has accepted our certificate (RFC 8446 §4.4.2.4), and that it knows us.
        let (body, _) = SentBody::new(Bytes::new(), 0, &self.ahead);
        let hello = Request::get(format!("https://{}{}", self.name, message::HELLO)).body(body);
        let hello = hello.map_err(|error| cannot(&error.to_string()))?;
        let answer = sender.send_request(hello).await;
        let answer = answer.map_err(|error| {
            cannot(&format!(
                "{}: does it accept our certificate, and its network us?",
                chain(&error)
            ))
        })?;
        if answer.status() != StatusCode::OK {
            let (parts, body) = answer.into_parts();
            let body = self.refusal(body).await;
            let body = body.map_err(|problem| cannot(&problem))?;
            let refused = message::answer(parts.status, &parts.headers, body);
            let problem = refused.err().map(|fault| fault.refusal.problem);
            return Err(cannot(&problem.unwrap_or_default()));
        }
        Ok(Link {
            sender,
            signs,
            _tasks: ends,
            _permit: permit,
        })
    }

    /// Ends a connection on which the other node is silent, and avoids the node.
    fn end_when_silent(
        &self,
        signs: &Signs,
        tasks: &Tasks,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (me, silence_max) = (Weak::clone(&self.me), self.silence_max);
        let signs = signs.clone();
        signs.end_when_silent(silence_max, tasks.clone(), move || {
            let Some(node) = me.upgrade() else { return };
            tracing::warn!(
                node = node.name,
                silence_s = silence_max.as_secs_f64(),
                "a node does not answer pings: the link to it is closed"
            );
            node.lose(First::AtOnce);
        })
    }

    async fn call(&self, call: &NodeCall) -> Result<CallAnswer, NodeFault> {
        let not_run = NodeFault::not_run;
        let Ok(_permit) = self.calls.try_acquire() else {
            let problem = format!("{CALLS_MAX} calls are on their way to it: try again");
            return Err(not_run(Refusal::new(Reason::Throttled, problem)));
        };
        // The half: so there is time for another node.
        let patience = (call.head.left / 2).min(self.silence_max);
        let deadline = Instant::now() + patience;
        let (link, is_kept) = self.link(patience, None).await.map_err(not_run)?;
        match self.call_over(&link, call).await {
            // A kept connection may have ended a moment ago, for example because the other node was started again.
            Err(Failure::LinkLost(lost)) if is_kept && Instant::now() < deadline => {
                let patience = deadline.saturating_duration_since(Instant::now());
                match self.link(patience, Some(&link)).await {
                    Ok((link, _)) => self.call_over(&link, call).await.map_err(NodeFault::from),
                    Err(refusal) => {
                        let problem = format!("{}; {}", lost.refusal.problem, refusal.problem);
                        Err(not_run(Refusal::new(refusal.reason, problem)))
                    }
                }
            }
            answer => answer.map_err(NodeFault::from),
        }
    }

    async fn call_over(&self, link: &Link, call: &NodeCall) -> Result<CallAnswer, Failure> {
        let not_run = |refusal| Failure::Other(NodeFault::not_run(refusal));
        let data_len = call.data.as_ref().map_or(0, |data| data.bytes());
        let (body, feeder) = SentBody::new(call.event.clone(), data_len, &self.ahead);
        let is_given = feeder.is_given();
        let request = message::request(&self.name, call, body).map_err(|error| {
            let problem = format!("the call cannot be sent: {error}");
            not_run(Refusal::new(Reason::Invalid, problem))
        })?;
        let answer = self.answer(link, request, &is_given, &call.head.caller);
        let mut answer = std::pin::pin!(answer);
        let silence_max = self.silence_max + ROOM_TIME_MAX;
        tokio::select! {
            // An early refusal, before all was sent.
            answer = &mut answer => answer,
            fed = feeder.feed(call.data.as_deref(), silence_max) => match fed {
                Err(refusal) if !is_given.load(Ordering::Acquire) => Err(not_run(refusal)),
                _ => answer.await,
            },
        }
    }

    async fn answer(
        &self,
        link: &Link,
        request: Request<SentBody>,
        is_given: &AtomicBool,
        caller: &FunctionName,
    ) -> Result<CallAnswer, Failure> {
        let has_run = |problem: String| {
            Failure::Other(NodeFault {
                refusal: Refusal::new(Reason::Unavailable, problem),
                ran: Ran::Perhaps,
            })
        };
        let silence_s = self.silence_max.as_secs_f64();
        let lost = |problem: &str| {
            let silent = format!("it answered no ping within {silence_s} s");
            let problem = match link.signs.is_silent() {
                true => silent.as_str(),
                false => problem,
            };
            if is_given.load(Ordering::Acquire) {
                let problem = format!(
                    "the link was lost after the call was sent, so the function may have run: {problem}"
                );
                return has_run(problem);
            }
            let problem = format!("the link was lost while the call was sent: {problem}");
            let refusal = Refusal::new(Reason::Unavailable, problem);
            Failure::LinkLost(NodeFault::not_run(refusal))
        };
        let mut sender = link.sender.clone();
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| lost(&chain(&error)))?;
        let (parts, body) = response.into_parts();
        if !message::is_answer(&parts.headers) {
            let body = self.refusal(body).await;
            let body = body.map_err(|problem| Failure::Other(lost(&problem).into()))?;
            return message::answer(parts.status, &parts.headers, body).map_err(Failure::Other);
        }
        let len = body.size_hint().exact();
        let Some(len) = len.filter(|len| *len <= message::ANSWER_LEN_MAX) else {
            return Err(has_run("its answer is too long".to_owned()));
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let reserved = self.answers.of(caller).reserve(len).await;
        // hyper counts what came as read now, and sends its next ping later.
        link.signs.sign();
        // The memory is not held for a node that only says what it will send.
        let body = read_at_pace(body, len, self.silence_max).await;
        let body = body.map_err(|problem| {
            has_run(format!("the link was lost while it answered: {problem}"))
        })?;
        message::answer(parts.status, &parts.headers, reserved.keep(body)).map_err(Failure::Other)
    }

    /// All of a refusal. It is short, and nothing is computed for it.
    async fn refusal(&self, body: Incoming) -> Result<Bytes, String> {
        let whole = Limited::new(body, message::REFUSAL_LEN_MAX).collect();
        let whole = timeout(self.silence_max, whole).await.map_err(|_| {
            let silence_s = self.silence_max.as_secs_f64();
            format!("its refusal did not come within {silence_s} s")
        })?;
        let whole = whole.map_err(|error| {
            let error: &(dyn Error + 'static) = &*error;
            chain(error)
        })?;
        Ok(whole.to_bytes())
    }
}

impl Peer for CalledNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn call<'a>(&'a self, call: &'a NodeCall) -> BoxFuture<'a, Result<CallAnswer, NodeFault>> {
        Box::pin(self.call(call))
    }
}

/// All of a body of `len` bytes, of which a part must come within this time, again and again.
async fn read_at_pace<B>(body: B, len: usize, silence_max: Duration) -> Result<Bytes, String>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Error + Send + Sync + 'static,
{
    let mut body = Limited::new(body, len);
    let mut whole = BytesMut::new();
    let (mut since, mut came) = (Instant::now(), 0);
    while let Some(frame) = timeout_at(since + silence_max, body.frame())
        .await
        .map_err(|_| {
            let kib = PACE_BYTES >> 10;
            let silence_s = silence_max.as_secs_f64();
            format!("less than {kib} KiB came within {silence_s} s")
        })?
    {
        let frame = frame.map_err(|error| {
            let error: &(dyn Error + 'static) = &*error;
            chain(error)
        })?;
        let part = frame.into_data().unwrap_or_default();
        whole.extend_from_slice(&part);
        came += part.len();
        if came >= PACE_BYTES {
            (since, came) = (Instant::now(), 0);
        }
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use pilot_model::Invokes;
    use rustls::RootCertStore;
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(3);

    /// A body of parts with this pause before each.
    fn slow(
        part_len: usize,
        pause: Duration,
        count: usize,
    ) -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let parts = stream::unfold(count, move |left| async move {
            let left = left.checked_sub(1)?;
            sleep(pause).await;
            Some((Ok(Frame::data(Bytes::from(vec![7; part_len]))), left))
        });
        StreamBody::new(Box::pin(parts))
    }

    /// A node that accepts connections and says nothing.
    async fn silent_node() -> (TcpListener, Arc<CalledNode>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let config = NodeConfig {
            name: "b".try_into().unwrap(),
            address: Some(("127.0.0.1".to_owned(), port)),
            functions: Invokes::default(),
            may_invoke: Invokes::default(),
        };
        let answers = MemoryBudget::default();
        let node = CalledNode::new(&config, &Arc::new(client), &answers, SILENCE);
        (listener, node.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_does_not_answer_is_avoided_as_long_as_it_does_not() {
        let (_listener, node) = silent_node().await;
        assert!(!node.is_avoided());
        assert!(node.link(SILENCE, None).await.is_err());
        for _ in 0..100 {
            assert!(node.is_avoided());
            sleep(SILENCE / 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_an_attempt_that_fails_has_its_result() {
        let (listener, node) = silent_node().await;
        let first = Arc::clone(&node);
        let first = tokio::spawn(async move { first.link(SILENCE, None).await.is_err() });
        let _held = listener.accept().await.unwrap();
        let came = Instant::now();
        assert!(node.link(SILENCE * 10, None).await.is_err());
        assert!(came.elapsed() <= SILENCE, "{:?}", came.elapsed());
        assert!(first.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_was_given_up_early_is_not_the_result_of_others() {
        let (listener, node) = silent_node().await;
        let hasty = Arc::clone(&node);
        let hasty = tokio::spawn(async move { hasty.link(SILENCE / 10, None).await.is_err() });
        let _held = listener.accept().await.unwrap();
        let came = Instant::now();
        assert!(node.link(SILENCE, None).await.is_err());
        assert_eq!(came.elapsed().as_secs(), SILENCE.as_secs());
        assert!(hasty.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_comes_at_a_pace_or_its_memory_is_given_back() {
        let part = PACE_BYTES;
        let body = slow(part, SILENCE / 2, 8);
        let whole = read_at_pace(body, 8 * part, SILENCE).await.unwrap();
        assert_eq!(whole.len(), 8 * part);
        for body in [slow(part, SILENCE * 2, 8), slow(1, SILENCE / 2, 100)] {
            let problem = read_at_pace(body, 8 * part, SILENCE).await.unwrap_err();
            assert!(problem.contains("less than 64 KiB came within 3 s"));
        }
        let longer = slow(part, SILENCE / 2, 9);
        assert!(read_at_pace(longer, 8 * part, SILENCE).await.is_err());
    }
}
