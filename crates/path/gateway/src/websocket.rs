//! WebSockets of ASGI applications (RFC 6455): the handshake, and the messages between the client and the worker's socket. The
//! application accepts or rejects the handshake with its response; the invocation lasts until the application returns.
//!
//! Functions that are HTTP servers speak the protocol themselves: see `tunnel`.

mod frames;
mod metered;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, Bytes};
use futures_util::future::poll_immediate;
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _, stream};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use pilot_invoke::{HttpBody, InvokeError, TunnelTraffic};
use pilot_model::ports::HttpHead;
use pilot_protocols::{FunctionBudget, PiecePace};
use pilot_sys::seqpacket;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

use self::metered::{Gauge, Metered};
use crate::errors::{RequestError, WEBSOCKET_VERSION};
use crate::headers;
use crate::list_headers;
use crate::reply::{Reply, ReplyBody};

/// A client's handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    client: OnUpgrade,
    /// The value of `Sec-WebSocket-Accept`.
    accept: String,
    ours: StdUnixStream,
}

/// An accepted WebSocket.
#[derive(Debug)]
pub(crate) struct WebSocket {
    client: OnUpgrade,
    worker: StdUnixStream,
    /// The rest of the application's answer: its end is the end of the invocation.
    body: HttpBody,
    /// Holds long messages of the client.
    memory: FunctionBudget,
}

impl Handshake {
    /// The handshake of a request, and the worker's end of its messages. `None`: the request is not a handshake.
    ///
    /// # Errors
    /// [`RequestError::Malformed`] and [`RequestError::WebSocketVersion`] if it is not a valid one (RFC 6455 §4.2.1),
    /// [`RequestError::NoDescriptors`] if the daemon has no descriptors left.
    pub(crate) fn of(head: &mut Parts) -> Result<Option<(Self, OwnedFd)>, RequestError> {
        if !list_headers::wants_websocket(&head.headers) {
            return Ok(None);
        }
        let accept = derive_accept_key(key_of(head)?.as_bytes());
        let Some(client) = head.extensions.remove::<OnUpgrade>() else {
            return Err(malformed("HTTP/1.0 has no upgrades"));
        };
        let pair = || {
            let (ours, theirs) = seqpacket::stream_pair_with_untrusted()?;
            let ours = StdUnixStream::from(ours);
            ours.set_nonblocking(true)?;
            Ok((ours, theirs))
        };
        let (ours, theirs) = pair().map_err(|error: io::Error| RequestError::NoDescriptors {
            problem: error.to_string(),
        })?;
        let handshake = Self {
            client,
            accept,
            ours,
        };
        Ok(Some((handshake, theirs)))
    }

    /// The application has accepted with this head.
    pub(crate) fn accepted(
        self,
        head: &HttpHead,
        body: HttpBody,
        memory: FunctionBudget,
    ) -> (Reply, WebSocket) {
        let mut reply = Reply::new(ReplyBody::empty());
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let into = reply.headers_mut();
        for (name, text) in head.headers.iter().take(headers::COUNT_MAX) {
            let parsed = name.parse().ok().zip(headers::application_value(text));
            if let Some((name, value)) = parsed.filter(|(name, _)| !headers::is_ours(name)) {
                into.append(name, value);
            }
        }
        into.insert(headers::CONNECTION, HeaderValue::from_static("upgrade"));
        into.insert(headers::UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = HeaderValue::from_str(&self.accept) {
            into.insert(headers::WEBSOCKET_ACCEPT, accept);
        }
        let websocket = WebSocket {
            client: self.client,
            worker: self.ours,
            body,
            memory,
        };
        (reply, websocket)
    }
}

/// The key of a valid handshake.
fn key_of(head: &Parts) -> Result<&HeaderValue, RequestError> {
    if head.method != Method::GET {
        return Err(malformed("its method is not GET"));
    }
    let version = only(&head.headers, &headers::WEBSOCKET_VERSION);
    if version.is_none_or(|version| version != WEBSOCKET_VERSION) {
        return Err(RequestError::WebSocketVersion);
    }
    let key = only(&head.headers, &headers::WEBSOCKET_KEY);
    let is_nonce = |key: &&HeaderValue| {
        let nonce = STANDARD.decode(key.as_bytes());
        nonce.is_ok_and(|nonce| nonce.len() == NONCE_LEN)
    };
    key.filter(is_nonce)
        .ok_or_else(|| malformed("it needs one Sec-WebSocket-Key of 16 bytes in base64"))
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

fn malformed(problem: &str) -> RequestError {
    RequestError::Malformed {
        problem: format!("the WebSocket handshake is malformed: {problem}"),
    }
}

impl WebSocket {
    /// Passes messages until both sides have closed, or until `ending` resolves: then the client is told that the server goes away
    /// (RFC 6455 §7.4.1), and the application that its client has gone. Dropping the future ends the worker.
    pub(crate) async fn run(self, idle_max: Duration, ending: impl Future<Output = ()>) {
        let mut body = self.body;
        let (Ok(client), Ok(worker)) = (self.client.await, UnixStream::from_std(self.worker))
        else {
            return;
        };
        let config = WebSocketConfig::default()
            .max_message_size(Some(RECEIVED_LEN_MAX))
            .max_frame_size(Some(RECEIVED_LEN_MAX))
            // Who writes flushes.
            .write_buffer_size(UNFLUSHED_LEN_MAX)
            .max_write_buffer_size(UNSENT_LEN_MAX);
        let (client, gauge) = Metered::new(TokioIo::new(client), self.memory.nothing());
        let client = WebSocketStream::from_raw_socket(client, Role::Server, Some(config)).await;
        let (mut to_client, mut from_client) = client.split();
        let (from_worker, to_worker) = worker.into_split();
        let traffic = Traffic::default();
        body.counts(Arc::clone(&traffic.messages));
        // Shared, because its worker does not answer a second one.
        let ended = to_end(&mut body).map(|ended| ended.is_ok()).shared();
        let goes_away = {
            let application = async {
                let (said, is_ended_well) = tokio::join!(
                    outbound(from_worker, &mut to_client, &traffic),
                    ended.clone()
                );
                if said == Said::Nothing {
                    let code = match (traffic.broken_with(), is_ended_well) {
                        (Some(code), _) => code,
                        (None, true) => CloseCode::Normal,
                        (None, false) => CloseCode::Error,
                    };
                    close(&mut to_client, code).await;
                }
            };
            let mut application = std::pin::pin!(application);
            let mut client = std::pin::pin!(inbound(&mut from_client, to_worker, &traffic, &gauge));
            tokio::select! {
                () = &mut application => {
                    let _ = timeout(CLOSE_TIME_MAX, client).await;
                    false
                }
                () = &mut client => {
                    // The application hears of it, and ends in its own time.
                    let _ = timeout(END_TIME_MAX, application).await;
                    false
                }
                () = traffic.silence(idle_max) => false,
                () = ending => true,
            }
        };
        if goes_away {
            close(&mut to_client, CloseCode::Away).await;
            let heard = async { while let Some(Ok(_)) = from_client.next().await {} };
            // Both ends of the worker's socket are closed by now.
            tokio::join!(heard, ended);
        }
        // Ends a client that the application has not.
        drop(timeout(CLOSE_TIME_MAX, to_client.close()).await);
        // It may still be sending what cannot be read, and has to read why.
        if traffic.broken_with().is_some()
            && let Ok(client) = to_client.reunite(from_client)
        {
            // Without the buffers of its messages.
            client.into_inner().discard().await;
        }
    }
}

type Client = WebSocketStream<Metered<TokioIo<Upgraded>>>;
type Worker = BufReader<OwnedReadHalf>;

/// Whether the application has closed the WebSocket.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Close,
    Nothing,
}

/// From the worker to the client, until the worker closes. Messages that have arrived together are sent together: each read and each write
/// takes the daemon longer than a short message takes the worker.
async fn outbound(
    worker: OwnedReadHalf,
    client: &mut stream::SplitSink<Client, Message>,
    traffic: &Traffic,
) -> Said {
    let mut worker = BufReader::with_capacity(UNFLUSHED_LEN_MAX, worker);
    let mut rest = Rest::default();
    let pace = PiecePace::default();
    while let Ok(Some(message)) = read(&mut worker, &mut rest).await {
        pace.came(PiecePace::cost(message.len().max(1)));
        let closes = message.is_close();
        traffic
            .messages
            .bytes_out
            .fetch_add(payload_len(&message), Ordering::Relaxed);
        let waits = pace.next().is_some();
        let more = rest.len == 0 && has_whole(worker.buffer());
        let sent = match more && !closes && !waits {
            true => client.feed(message).await,
            false => client.send(message).await,
        };
        if sent.is_err() {
            // It has hung up, which the other direction notices. The application must not block.
            while let Ok(Some(message)) = read(&mut worker, &mut rest).await {
                pace.came(PiecePace::cost(message.len().max(1)));
                pace.rest().await;
            }
            return Said::Close;
        }
        if closes {
            return Said::Close;
        }
        if waits {
            pace.rest().await;
        }
    }
    Said::Nothing
}

/// From the client to the worker, until the client closes. The worker's end then reads as closed. Messages that have arrived together are
/// passed on together: each write takes the daemon longer than a short message takes the client.
async fn inbound(
    client: &mut stream::SplitStream<Client>,
    worker: OwnedWriteHalf,
    traffic: &Traffic,
    gauge: &Gauge,
) {
    let mut worker = BufWriter::with_capacity(UNFLUSHED_LEN_MAX, worker);
    // Either the connection or the worker has ended. What was not written then has nobody to read it.
    let _ = pass_on(client, &mut worker, traffic, gauge).await;
    let _ = worker.flush().await;
}

async fn pass_on(
    client: &mut stream::SplitStream<Client>,
    worker: &mut BufWriter<OwnedWriteHalf>,
    traffic: &Traffic,
    gauge: &Gauge,
) -> io::Result<()> {
    loop {
        let message = match poll_immediate(client.next()).await {
            Some(message) => message,
            None => {
                worker.flush().await?;
                client.next().await
            }
        };
        let Some(message) = message else {
            return Ok(());
        };
        // Many can have come with one read.
        tokio::task::coop::consume_budget().await;
        if let Ok(Message::Ping(bytes) | Message::Pong(bytes)) = &message {
            // tungstenite answers pings. They may come between the fragments of a message, which is as unfinished as before.
            gauge.between(CONTROL_HEADER_LEN + bytes.len());
            traffic.alive.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        gauge.finished();
        let (kind, bytes) = match message {
            Ok(Message::Text(text)) => (TEXT, Bytes::from(text)),
            Ok(Message::Binary(bytes)) => (BINARY, bytes),
            Ok(Message::Close(frame)) => (CLOSE, close_bytes(frame)),
            // Those that are read have no frames, and pings and pongs were before.
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Err(tungstenite::Error::Capacity(_)) => (CLOSE, traffic.breaks(CloseCode::Size)),
            Err(tungstenite::Error::Utf8(_)) => (CLOSE, traffic.breaks(CloseCode::Invalid)),
            Err(tungstenite::Error::Protocol(
                tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
            ))
            | Err(tungstenite::Error::Io(_))
                if !gauge.has_refused() =>
            {
                return Ok(());
            }
            Err(tungstenite::Error::Io(_)) => (CLOSE, traffic.breaks(CloseCode::Again)),
            Err(_) => (CLOSE, traffic.breaks(CloseCode::Protocol)),
        };
        traffic
            .messages
            .bytes_in
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let Ok(len) = u32::try_from(bytes.len()) else {
            return Ok(());
        };
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4] = kind;
        worker.write_all(&header).await?;
        worker.write_all(&bytes).await?;
        if kind == CLOSE {
            return Ok(());
        }
    }
}

/// Whether the bytes begin with a whole message.
fn has_whole(bytes: &[u8]) -> bool {
    bytes
        .split_first_chunk::<HEADER_LEN>()
        .is_some_and(|([a, b, c, d, _], rest)| {
            u32::from_le_bytes([*a, *b, *c, *d]) as usize <= rest.len()
        })
}

/// What is left of a message of the worker.
#[derive(Debug, Default)]
struct Rest {
    len: usize,
}

/// The next message of the worker, or the next piece of a long one, as a fragment (RFC 6455 §5.4); `None` at the end. What the worker
/// says is not trusted.
async fn read(worker: &mut Worker, rest: &mut Rest) -> io::Result<Option<Message>> {
    if rest.len > 0 {
        return fragment(worker, rest, Data::Continue).await;
    }
    let mut header = [0; HEADER_LEN];
    match worker.read_exact(&mut header).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if len > MESSAGE_LEN_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if len > PIECE_LEN_MAX {
        rest.len = len;
        let kind = match header[4] {
            TEXT => Data::Text,
            BINARY => Data::Binary,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        return fragment(worker, rest, kind).await;
    }
    let Some(bytes) = whole(worker, len).await? else {
        return Ok(None);
    };
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
    Ok(Some(match header[4] {
        TEXT => Message::Text(Utf8Bytes::try_from(bytes).map_err(invalid)?),
        BINARY => Message::Binary(bytes.into()),
        CLOSE => Message::Close(close_frame(&bytes)),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }))
}

/// The next piece of a long message. The client checks its text.
async fn fragment(worker: &mut Worker, rest: &mut Rest, kind: Data) -> io::Result<Option<Message>> {
    let len = rest.len.min(PIECE_LEN_MAX);
    let Some(bytes) = whole(worker, len).await? else {
        return Ok(None);
    };
    rest.len -= len;
    let frame = Frame::message(bytes, OpCode::Data(kind), rest.len == 0);
    Ok(Some(Message::Frame(frame)))
}

/// So many bytes; `None`: the worker ended before.
async fn whole(worker: &mut Worker, len: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; len];
    match worker.read_exact(&mut bytes).await {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn payload_len(message: &Message) -> u64 {
    let len = match message {
        Message::Frame(frame) => frame.payload().len(),
        other => other.len(),
    };
    len as u64
}

/// Waits until the application has returned.
async fn to_end(body: &mut HttpBody) -> Result<(), InvokeError> {
    while let Some(part) = body.next().await {
        part?;
    }
    Ok(())
}

async fn close(client: &mut stream::SplitSink<Client, Message>, code: CloseCode) {
    let frame = CloseFrame {
        code,
        reason: Utf8Bytes::from_static(""),
    };
    // Fails only if the client is gone.
    let _ = client.send(Message::Close(Some(frame))).await;
}

/// The payload of a close frame (RFC 6455 §5.5.1). A code that must not be sent becomes 1000.
fn close_frame(bytes: &[u8]) -> Option<CloseFrame> {
    let (code, reason) = bytes.split_at_checked(2)?;
    let code = CloseCode::from(u16::from_be_bytes([code[0], code[1]]));
    let mut reason = String::from_utf8_lossy(reason).into_owned();
    if let Some(end) = (0..=REASON_LEN_MAX)
        .rev()
        .find(|end| reason.is_char_boundary(*end))
    {
        // Does nothing to a shorter one.
        reason.truncate(end);
    }
    Some(CloseFrame {
        code: if code.is_allowed() || u16::from(code) == BAD_GATEWAY {
            code
        } else {
            CloseCode::Normal
        },
        reason: reason.into(),
    })
}

fn close_bytes(frame: Option<CloseFrame>) -> Bytes {
    let Some(frame) = frame else {
        return Bytes::new();
    };
    let mut bytes = Vec::with_capacity(2 + frame.reason.len());
    bytes.put_u16(frame.code.into());
    bytes.put_slice(frame.reason.as_bytes());
    bytes.into()
}

/// What has passed.
#[derive(Debug, Default)]
struct Traffic {
    messages: Arc<TunnelTraffic>,
    /// Pings and pongs.
    alive: AtomicU64,
    /// The code of a close frame that says what is wrong with the client's messages; 0: nothing.
    broken: AtomicU16,
}

impl Traffic {
    /// The client's messages cannot be read any more. Returns the payload of a close frame for the application.
    fn breaks(&self, code: CloseCode) -> Bytes {
        self.broken.store(code.into(), Ordering::Relaxed);
        close_bytes(Some(CloseFrame {
            code,
            reason: Utf8Bytes::from_static(""),
        }))
    }

    /// What the client is told, unless the application says something else.
    fn broken_with(&self) -> Option<CloseCode> {
        let code = self.broken.load(Ordering::Relaxed);
        (code != 0).then(|| CloseCode::from(code))
    }

    fn count(&self) -> [u64; 3] {
        let counts = [
            &self.messages.bytes_in,
            &self.messages.bytes_out,
            &self.alive,
        ];
        counts.map(|count| count.load(Ordering::Relaxed))
    }

    /// Resolves after `idle_max` without traffic, with the precision of a third of it.
    async fn silence(&self, idle_max: Duration) {
        let mut silent = 0;
        let mut known = [0; 3];
        while silent < TICKS {
            sleep(idle_max / TICKS).await;
            let now = self.count();
            silent = if now == known { silent + 1 } else { 0 };
            known = now;
        }
    }
}

/// Of a message on the worker's socket: its length (u32, little-endian) and its opcode.
const HEADER_LEN: usize = 5;

/// Opcodes (RFC 6455 §5.2).
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;

/// Longest message to a client, as in uvicorn. It is passed on in pieces.
const MESSAGE_LEN_MAX: usize = 16 << 20;

/// Longest message from a client. It is held until it is complete, and the memory for it as long as the connection lasts.
const RECEIVED_LEN_MAX: usize = 4 << 20;

/// Longest fragment of a message to a client.
const PIECE_LEN_MAX: usize = 64 * 1024;

/// What is read of the worker, and gathered for the client, before it is sent.
const UNFLUSHED_LEN_MAX: usize = 4 * 1024;

/// What waits to be sent while a client does not read: a piece of a message, and answers to pings. Beyond it, only the newest ping is
/// answered (RFC 6455 §5.5.3), and a message finds that the client is gone.
const UNSENT_LEN_MAX: usize = PIECE_LEN_MAX + (16 << 10);

/// Of a client's ping: opcode, length and mask (RFC 6455 §5.2).
const CONTROL_HEADER_LEN: usize = 6;

/// A code that IANA has registered since RFC 6455, and that the library does not know: the application is a gateway whose server
/// failed.
const BAD_GATEWAY: u16 = 1014;

/// Longest reason in a close frame: a control frame has at most 125 bytes (RFC 6455 §5.5).
const REASON_LEN_MAX: usize = 123;

/// The bytes of a client's key (RFC 6455 §4.1).
const NONCE_LEN: usize = 16;

/// How long a client may take to answer a close.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// How long an application may run after its client has left.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// How often the traffic is looked at within the longest time without any.
const TICKS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_has_one_version_and_one_key_of_16_bytes() {
        const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
        for (method, versions, keys, status) in [
            ("GET", vec!["13"], vec![KEY], None),
            ("POST", vec!["13"], vec![KEY], Some(400)),
            ("GET", vec![], vec![KEY], Some(426)),
            ("GET", vec!["8"], vec![KEY], Some(426)),
            ("GET", vec!["13", "8"], vec![KEY], Some(426)),
            ("GET", vec!["13"], vec![], Some(400)),
            ("GET", vec!["13"], vec![KEY, KEY], Some(400)),
            ("GET", vec!["13"], vec!["k"], Some(400)),
            ("GET", vec!["13"], vec!["dGhlIHNhbXBsZQ=="], Some(400)),
            ("GET", vec!["13"], vec!["not base64 at all"], Some(400)),
        ] {
            let mut request = http::Request::builder().method(method);
            for version in &versions {
                request = request.header("sec-websocket-version", *version);
            }
            for key in &keys {
                request = request.header("sec-websocket-key", *key);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            let reply = key_of(&head).err().map(crate::dispatch::refusal);
            let refused = reply.as_ref().map(|reply| reply.status().as_u16());
            assert_eq!(refused, status, "{method} {versions:?} {keys:?}");
            if let Some(reply) = reply.filter(|reply| reply.status() == 426) {
                assert_eq!(reply.headers()["sec-websocket-version"], "13");
                assert_eq!(reply.headers()["upgrade"], "websocket");
            }
        }
    }

    #[test]
    fn registered_codes_of_a_close_pass_and_others_become_1000() {
        for (code, passed) in [
            (1000, 1000),
            (1011, 1011),
            (1012, 1012),
            (1013, 1013),
            (1014, 1014),
            (1015, 1000),
            (1006, 1000),
            (4000, 4000),
            (999, 1000),
        ] {
            let frame = close_frame(&[&u16::to_be_bytes(code)[..], b"why"].concat());
            let bytes = close_bytes(frame);
            assert_eq!(bytes[..2], u16::to_be_bytes(passed), "{code}");
            assert_eq!(&bytes[2..], b"why");
        }
    }

    #[test]
    fn whole_messages_are_found() {
        let message = [3, 0, 0, 0, TEXT, b'a', b'b', b'c'];
        assert!(has_whole(&message));
        assert!(has_whole(&[&message[..], &[9]].concat()));
        assert!(has_whole(&[0, 0, 0, 0, BINARY]));
        for end in 0..message.len() {
            assert!(!has_whole(&message[..end]), "{end}");
        }
        assert!(!has_whole(&[0xff, 0xff, 0xff, 0xff, TEXT]));
    }
}
