//! Upgraded connections, with a real server on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::upstream::{self, head, listen};
use crate::support::{Client, Daemon, Function, Setup, soon};
use pilot_gateway::GatewayConfig;
use pilot_model::Outcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

const ASKS: &str = "GET /fn/web/chat HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\n\
                    upgrade: websocket\r\nsec-websocket-key: k\r\n\r\n";
const SWITCHES: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade, x-private\r\n\
                        X-Private: 1\r\nSec-WebSocket-Accept: a\r\n\r\n";

/// What the server received through a tunnel, up to its end.
type Heard = mpsc::UnboundedReceiver<Vec<u8>>;

/// A server that switches protocols, sends a greeting, echoes until the client closes its direction, and then says goodbye.
async fn echoing() -> (SocketAddr, Heard) {
    let (sender, heard) = mpsc::unbounded_channel();
    let addr = listen(move |mut stream: TcpStream| {
        let sender = sender.clone();
        async move {
            let asked = head(&mut stream).await;
            assert!(asked.starts_with("GET /chat HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains("upgrade: websocket\r\n"), "{asked}");
            assert!(asked.contains("connection: upgrade\r\n"), "{asked}");
            assert!(asked.contains("sec-websocket-key: k\r\n"), "{asked}");
            let begin = [SWITCHES, "greeting"].concat();
            stream.write_all(begin.as_bytes()).await.unwrap();
            let mut all = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                all.extend_from_slice(&buffer[..read]);
                if stream.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
            let _ = stream.write_all(b"goodbye").await;
            let _ = sender.send(all);
        }
    })
    .await;
    (addr, heard)
}

async fn daemon(addr: SocketAddr, config: GatewayConfig) -> Daemon {
    let functions = vec![Function::server("web", move |request| {
        upstream::pass(addr, request)
    })];
    Daemon::start(Setup {
        config,
        functions,
        ..Setup::default()
    })
    .await
}

async fn open(daemon: &Daemon) -> Client {
    let mut client = daemon.client().await;
    client.send(ASKS).await;
    let switched = client.head().await;
    assert_eq!(switched.status, 101);
    assert_eq!(switched.header("upgrade"), Some("websocket"));
    assert_eq!(switched.header("connection"), Some("upgrade"));
    assert_eq!(switched.header("sec-websocket-accept"), Some("a"));
    assert_eq!(switched.header("x-private"), None);
    assert_eq!(switched.header("x-pilot-start"), Some("cold"));
    assert_eq!(client.bytes(8).await, b"greeting");
    client
}

#[tokio::test]
async fn what_either_side_says_reaches_the_other_and_each_closes_for_itself() {
    let (addr, mut heard) = echoing().await;
    let daemon = daemon(addr, GatewayConfig::default()).await;
    let mut client = open(&daemon).await;
    for said in ["ping", "a longer message"] {
        client.send(said).await;
        assert_eq!(client.bytes(said.len()).await, said.as_bytes());
    }
    assert_eq!(daemon.workers("web").busy, 1);
    assert!(daemon.sink.records().is_empty());
    // The client closes its direction, and still receives the last bytes.
    client.finish().await;
    assert_eq!(client.closed().await, b"goodbye");
    assert_eq!(soon(heard.recv()).await.unwrap(), b"pinga longer message");
    let record = daemon.record().await;
    assert_eq!(record.outcome, Outcome::Ok);
    assert_eq!((record.bytes_in, record.bytes_out), (20, 20 + 8 + 7));
    assert!(record.timeline.first_byte < record.timeline.finished);
    assert_eq!((daemon.workers("web").idle, daemon.engine.alive()), (1, 1));
}

#[tokio::test]
async fn what_the_client_says_along_with_its_request_is_not_lost() {
    let (addr, mut heard) = echoing().await;
    let daemon = daemon(addr, GatewayConfig::default()).await;
    let mut client = daemon.client().await;
    client.send([ASKS, "early"].concat()).await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(client.bytes(13).await, b"greetingearly");
    client.finish().await;
    assert_eq!(client.closed().await, b"goodbye");
    assert_eq!(soon(heard.recv()).await.unwrap(), b"early");
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_tunnel_for_the_server() {
    let (addr, mut heard) = echoing().await;
    let daemon = daemon(addr, GatewayConfig::default()).await;
    let mut client = open(&daemon).await;
    client.send("last").await;
    assert_eq!(client.bytes(4).await, b"last");
    drop(client);
    assert_eq!(soon(heard.recv()).await.unwrap(), b"last");
    let record = daemon.record().await;
    assert!(matches!(record.outcome, Outcome::Ok | Outcome::Cancelled));
    assert_eq!((daemon.workers("web").idle, daemon.engine.alive()), (1, 1));
}

#[tokio::test]
async fn a_server_that_closes_ends_the_tunnel_for_the_client() {
    let addr = upstream::saying(SWITCHES).await;
    let daemon = daemon(addr, GatewayConfig::default()).await;
    let mut client = daemon.client().await;
    client.send(ASKS).await;
    assert_eq!(client.head().await.status, 101);
    assert_eq!(client.closed().await, b"");
    assert_eq!(daemon.record().await.bytes_out, 0);
}

#[tokio::test]
async fn a_tunnel_in_which_nothing_passes_is_closed() {
    let (addr, mut heard) = echoing().await;
    let config = GatewayConfig {
        tunnel_idle: Duration::from_millis(60),
        ..GatewayConfig::default()
    };
    let daemon = daemon(addr, config).await;
    let client = open(&daemon).await;
    assert_eq!(client.closed().await, b"");
    assert_eq!(soon(heard.recv()).await.unwrap(), b"");
    let record = daemon.record().await;
    assert_eq!(record.outcome, Outcome::Timeout);
    let told = String::from_utf8(record.output.to_vec()).unwrap();
    assert!(told.contains("Nothing passed"), "{told}");
}

#[tokio::test]
async fn a_drain_waits_for_tunnels_and_cuts_them_at_the_end_of_the_grace_period() {
    for (grace, outcome) in [(30_000, Outcome::Ok), (20, Outcome::Cancelled)] {
        let (addr, mut heard) = echoing().await;
        let config = GatewayConfig {
            grace: Duration::from_millis(grace),
            ..GatewayConfig::default()
        };
        let daemon = daemon(addr, config).await;
        let mut client = open(&daemon).await;
        let sink = daemon.sink.clone();
        let draining = daemon.stop();
        let cut = match outcome {
            Outcome::Ok => {
                client.send("still").await;
                assert_eq!(client.bytes(5).await, b"still");
                client.finish().await;
                assert_eq!(client.closed().await, b"goodbye");
                0
            }
            _ => {
                assert_eq!(client.closed().await, b"");
                1
            }
        };
        let drained = soon(draining).await.unwrap();
        assert_eq!((drained.connections, drained.cut), (1, cut));
        soon(heard.recv()).await.unwrap();
        assert_eq!(sink.records()[0].outcome, outcome);
    }
}

#[tokio::test]
async fn a_server_that_does_not_switch_answers_as_ever() {
    let addr = listen(async |mut stream: TcpStream| {
        head(&mut stream).await;
        let plain =
            b"HTTP/1.1 426 Upgrade Required\r\nupgrade: other\r\ncontent-length: 2\r\n\r\nno";
        stream.write_all(plain).await.unwrap();
    })
    .await;
    let daemon = daemon(addr, GatewayConfig::default()).await;
    let mut client = daemon.client().await;
    for _ in 0..2 {
        client.send(ASKS).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.text()), (426, "no"));
        assert_eq!(answer.header("upgrade"), Some("other"));
        assert_eq!(answer.header("connection"), Some("upgrade"));
    }
    assert_eq!(daemon.sink.records().len(), 2);
}

#[tokio::test]
async fn http_2_in_the_clear_is_not_passed_and_neither_is_what_nobody_asked_for() {
    let addr = listen(async |mut stream: TcpStream| {
        let asked = head(&mut stream).await.to_lowercase();
        let odd = asked.contains("upgrade") || asked.contains("http2-settings");
        let status = if odd { "500 No" } else { "200 OK" };
        let plain = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(plain.as_bytes()).await.unwrap();
    })
    .await;
    let daemon = daemon(addr, GatewayConfig::default()).await;
    let h2c = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n";
    let unnamed = "upgrade: websocket\r\n";
    for headers in [h2c, unnamed] {
        let answer = daemon.ask("GET", "/fn/web", headers, b"").await;
        assert_eq!(answer.status, 200, "{headers}");
    }
    let mut old = daemon.client().await;
    old.send("GET /fn/web HTTP/1.0\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    assert!(old.closed().await.starts_with(b"HTTP/1.0 200"));
}

#[tokio::test]
async fn a_switch_that_nobody_asked_for_is_a_502() {
    let addr = upstream::saying(SWITCHES).await;
    let daemon = daemon(addr, GatewayConfig::default()).await;
    let answer = daemon.ask("GET", "/fn/web", "", b"").await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["errorType"], "Runtime.ServerError");
}

/// The client would read bytes of a protocol that it does not know.
#[tokio::test]
async fn a_switch_to_what_the_client_did_not_offer_is_a_502() {
    for switches in [
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\r\nraw",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nraw",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket, other\r\nConnection: upgrade\r\n\r\nraw",
    ] {
        let addr = upstream::saying(switches).await;
        let daemon = daemon(addr, GatewayConfig::default()).await;
        let mut client = daemon.client().await;
        client.send(ASKS).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 502, "{switches}");
        assert_eq!(daemon.sink.records().len(), 1);
    }
}
