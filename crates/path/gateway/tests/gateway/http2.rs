//! HTTP/2 on a real socket: its limits of time, its drain, and what differs from HTTP/1. The routes are tested end to end, in
//! `tests/e2e/http2.rs`.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use crate::support::upstream::response;
use crate::support::{Daemon, Function, Setup, soon};
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use pilot_gateway::{Door, GatewayConfig, ReadPace, Transport};
use pilot_testkit::Reaction;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

type Body = UnsyncBoxBody<Bytes, Infallible>;

struct Client {
    sender: SendRequest<Body>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl Client {
    /// `window`: how much of a response the daemon may send before it is read.
    async fn connect(daemon: &Daemon, window: u32) -> Self {
        let stream = TcpStream::connect(daemon.addr).await.unwrap();
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        Self {
            sender,
            connection: tokio::spawn(connection),
        }
    }

    async fn post(&mut self, function: &str, body: Body) -> hyper::Result<Response<Incoming>> {
        let uri = format!("http://x/2015-03-31/functions/{function}/invocations");
        let request = Request::post(uri).body(body).unwrap();
        soon(self.sender.send_request(request)).await
    }
}

fn whole(text: &'static str) -> Body {
    Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync()
}

async fn daemon(config: GatewayConfig) -> Daemon {
    let large = Bytes::from(vec![b'1'; 1_000_000]);
    let functions = vec![
        Function::event("large", move |_| {
            Reaction::Return(Duration::ZERO, large.clone(), Bytes::new())
        }),
        Function::event("slow", |_| Reaction::after(Duration::from_millis(300))),
        Function::event("slower", |_| Reaction::after(Duration::from_millis(1300))),
        Function::event("hang", |_| Reaction::Hang),
        Function::server("unread", |_request| std::future::pending()),
        Function::server("whole", |request| async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok(response(body.len().to_string()))
        }),
        Function::server("first", |request| async move {
            let first = request.into_body().frame().await.unwrap().unwrap();
            Ok(response(first.into_data().unwrap()))
        }),
    ];
    let door = Door {
        transport: Transport::PlainWithHttp2,
        ..Door::default()
    };
    Daemon::start(Setup {
        config,
        door,
        functions,
        ..Setup::default()
    })
    .await
}

#[tokio::test]
async fn a_response_that_is_not_taken_is_cancelled_and_the_others_go_on() {
    let daemon = daemon(GatewayConfig {
        read_pace: ReadPace {
            patience: Duration::from_millis(1500),
            bytes_per_s: 1,
        },
        ..GatewayConfig::default()
    })
    .await;
    let mut client = Client::connect(&daemon, 65_535).await;
    let response = client.post("large", whole("1")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let begun = Instant::now();
    // One that is read, while the other is not.
    let other = client.post("large", whole("1")).await.unwrap();
    let read = soon(other.into_body().collect()).await.unwrap().to_bytes();
    assert_eq!(read.len(), 1_000_000);
    tokio::time::sleep(Duration::from_millis(3000).saturating_sub(begun.elapsed())).await;
    let unread = soon(response.into_body().collect()).await;
    assert!(unread.is_err(), "it was reset");
    let again = client.post("slow", whole("1")).await.unwrap();
    assert_eq!(again.status(), StatusCode::OK, "the connection goes on");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    let daemon = daemon(GatewayConfig {
        body_timeout: Duration::from_millis(200),
        ..GatewayConfig::default()
    })
    .await;
    let mut client = Client::connect(&daemon, 65_535).await;
    let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"[1")))]);
    let never = StreamBody::new(futures_util::StreamExt::chain(first, stream::pending()));
    let response = client.post("slow", never.boxed_unsync()).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    let response = client.post("slow", whole("1")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_is_told_that_it_does_not_come() {
    let daemon = daemon(GatewayConfig {
        body_timeout: Duration::from_millis(1500),
        ..GatewayConfig::default()
    })
    .await;
    let mut client = Client::connect(&daemon, 65_535).await;
    let post = |body: Body| {
        let uri = "http://x/2015-03-31/functions/slow/invocations";
        let request = Request::post(uri).header("expect", "100-continue");
        request.body(body).unwrap()
    };
    let never = StreamBody::new(stream::pending()).boxed_unsync();
    let response = soon(client.sender.send_request(post(never))).await.unwrap();
    assert_eq!(response.status(), StatusCode::EXPECTATION_FAILED);
    assert_eq!(
        response.headers()["x-amzn-errortype"],
        "ExpectationFailedException"
    );
    let response = soon(client.sender.send_request(post(whole("1")))).await;
    assert_eq!(
        response.unwrap().status(),
        StatusCode::OK,
        "it did not wait"
    );
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_and_one_with_a_request_is_not() {
    let daemon = daemon(GatewayConfig {
        header_timeout: Duration::from_millis(1000),
        ..GatewayConfig::default()
    })
    .await;
    let idle = Client::connect(&daemon, 65_535).await;
    let mut busy = Client::connect(&daemon, 65_535).await;
    let response = busy.post("slower", whole("1")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(soon(idle.connection).await.unwrap().is_ok(), "in order");
    assert!(soon(busy.connection).await.unwrap().is_ok(), "later");
    drop(idle.sender);
}

#[tokio::test]
async fn a_drain_waits_for_the_requests_of_a_connection() {
    let daemon = daemon(GatewayConfig::default()).await;
    let mut client = Client::connect(&daemon, 65_535).await;
    let idle = Client::connect(&daemon, 65_535).await;
    let mut sender = client.sender.clone();
    let uri = "http://x/2015-03-31/functions/slow/invocations";
    let request = Request::post(uri).body(whole("1")).unwrap();
    let running = tokio::spawn(async move { sender.send_request(request).await });
    soon(async {
        while daemon.workers("slow").busy == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let drained = daemon.stop();
    assert_eq!(
        soon(running).await.unwrap().unwrap().status(),
        StatusCode::OK
    );
    let drained = soon(drained).await.unwrap();
    assert_eq!((drained.connections, drained.cut), (2, 0));
    assert!(client.sender.ready().await.is_err());
    drop(idle);
}

#[tokio::test]
async fn requests_that_are_cut_off_at_the_end_of_a_drain_are_cancelled() {
    let daemon = daemon(GatewayConfig {
        grace: Duration::from_millis(200),
        ..GatewayConfig::default()
    })
    .await;
    let mut client = Client::connect(&daemon, 65_535).await;
    let engine = daemon.engine.clone();
    let running = tokio::spawn(async move { client.post("hang", whole("1")).await.is_err() });
    soon(async {
        while daemon.workers("hang").busy == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let drained = soon(daemon.stop()).await.unwrap();
    assert_eq!((drained.connections, drained.cut), (1, 1));
    assert!(soon(running).await.unwrap());
    drop(engine);
}

/// A frame of HTTP/2 (RFC 9113 §4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(payload.len()).unwrap();
    [&[0, 0, len, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The beginning of a connection, and the head of a POST request as its first stream. `path` has its length before it.
fn post(path: &[u8]) -> Vec<u8> {
    let [headers, settings, end_headers] = [1, 4, 4];
    // POST, http, `:path` and `:authority: x` (RFC 7541 §6.1, §6.2.2).
    let head = [b"\x83\x86\x04", path, b"\x01\x01x"].concat();
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(settings, 0, 0, b""),
        frame(headers, end_headers, 1, &head),
    ]
    .concat()
}

/// Reads frames until one of this kind has come with these flags. Returns their kinds.
async fn frames_until(stream: &mut TcpStream, kind: u8, flags: u8) -> Vec<u8> {
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        soon(stream.read_exact(&mut head)).await.unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; len as usize];
        soon(stream.read_exact(&mut payload)).await.unwrap();
        kinds.push(head[3]);
        if (head[3], head[4]) == (kind, flags) {
            return kinds;
        }
    }
}

#[tokio::test]
async fn a_small_body_that_nobody_reads_is_no_cause_of_a_reset() {
    let [data, headers, rst_stream, ping] = [0, 1, 3, 6];
    let [ack, end_stream] = [1, 1];
    let daemon = daemon(GatewayConfig::default()).await;
    let mut stream = TcpStream::connect(daemon.addr).await.unwrap();
    let ping_frame = frame(ping, 0, 0, b"12345678");
    let begin = [post(b"\x09/fn/nope/"), ping_frame.clone()];
    stream.write_all(&begin.concat()).await.unwrap();
    let before = frames_until(&mut stream, ping, ack).await;
    assert!(!before.contains(&rst_stream), "{before:?}");
    let body = frame(data, end_stream, 1, b"body");
    stream.write_all(&body).await.unwrap();
    let mut frames = frames_until(&mut stream, data, end_stream).await;
    assert!(frames.contains(&headers), "{frames:?}");
    stream.write_all(&ping_frame).await.unwrap();
    frames.extend(frames_until(&mut stream, ping, ack).await);
    assert!(!frames.contains(&rst_stream), "{frames:?}");
}

#[tokio::test]
async fn bodies_that_nobody_reads_yet_hold_up_no_other_body_of_the_connection() {
    let daemon = daemon(GatewayConfig::default()).await;
    let mut client = Client::connect(&daemon, 65_535).await;
    let large = || Full::new(Bytes::from(vec![b'x'; 70_000])).boxed_unsync();
    for _ in 0..99 {
        let uri = "http://x/fn/unread/";
        let request = Request::post(uri).body(large()).unwrap();
        let unanswered = client.sender.send_request(request);
        tokio::spawn(async move { unanswered.await.is_err() });
    }
    let request = Request::post("http://x/fn/whole/").body(large()).unwrap();
    let response = soon(client.sender.send_request(request)).await.unwrap();
    let len = soon(response.into_body().collect()).await.unwrap();
    assert_eq!(len.to_bytes(), "70000");
}

#[tokio::test]
async fn a_stream_whose_end_comes_after_its_response_is_not_reset() {
    let [data, rst_stream, ping] = [0, 3, 6];
    let [ack, end_stream] = [1, 1];
    let daemon = daemon(GatewayConfig::default()).await;
    let mut stream = TcpStream::connect(daemon.addr).await.unwrap();
    let begin = [post(b"\x0a/fn/first/"), frame(data, 0, 1, b"body")];
    stream.write_all(&begin.concat()).await.unwrap();
    let mut frames = frames_until(&mut stream, data, end_stream).await;
    let end = [
        frame(data, end_stream, 1, b""),
        frame(ping, 0, 0, b"12345678"),
    ];
    stream.write_all(&end.concat()).await.unwrap();
    frames.extend(frames_until(&mut stream, ping, ack).await);
    assert!(!frames.contains(&rst_stream), "{frames:?}");
}

#[tokio::test]
async fn a_health_check_needs_no_authority_and_a_ping_of_the_server_is_answered() {
    let daemon = daemon(GatewayConfig::default()).await;
    let mut client = Client::connect(&daemon, 65_535).await;
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/other", 400)] {
        let request = Request::get(path).body(whole("")).unwrap();
        let response = soon(client.sender.send_request(request)).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
    }
    let ping = daemon.ask("OPTIONS", "*", "", b"").await;
    assert_eq!((ping.status, &*ping.body), (200, &b""[..]));
    assert!(ping.header("allow").is_some());
}
