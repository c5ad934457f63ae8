//! DNS rebinding: a name leads to an address that may be connected to when it is checked, and to another one at the next question.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use pilot_model::BoxFuture;
use pilot_model::ports::{RawConnection as _, RemoteRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::networks::{Names, Networks};
use crate::raw::{Raw, Relays};
use crate::stores::direct::{DirectHttp, HttpRequest};
use crate::stores::direct_redis::DirectRedis;

/// As a public address: the operator has named it.
const CHECKED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// As a private one.
const REFUSED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

/// Leads to the first address once, and then to the other one.
#[derive(Debug, Default)]
struct Rebinding {
    asked: AtomicUsize,
}

impl Names for Rebinding {
    fn addresses<'a>(
        &'a self,
        _: &'a str,
        port: u16,
    ) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let address = match self.asked.fetch_add(1, Ordering::Relaxed) {
            0 => CHECKED,
            _ => REFUSED,
        };
        Box::pin(async move { Ok(vec![SocketAddr::new(address, port)]) })
    }
}

fn networks() -> (Networks, Arc<Rebinding>) {
    let names = Arc::new(Rebinding::default());
    let named = vec!["127.0.0.2/32".parse().unwrap()];
    (Networks::with_names(named, Arc::clone(&names) as _), names)
}

/// A server at all addresses of the machine. Says which one somebody has connected to, and closes the connection after an answer.
async fn server() -> (u16, mpsc::UnboundedReceiver<IpAddr>) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (connected, connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = connected.send(stream.local_addr().unwrap().ip());
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream
                .write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
                .await;
        }
    });
    (port, connections)
}

fn request(method: &str, key: &str) -> RemoteRequest {
    RemoteRequest {
        method: method.to_owned(),
        key: key.to_owned(),
        headers: Vec::new(),
        body: Bytes::from_static(b"x"),
    }
}

#[tokio::test]
async fn a_connection_goes_to_the_address_that_was_checked() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (port, mut connections) = server().await;
    for kind in ["http", "redis", "tcp"] {
        let (networks, names) = networks();
        let http = DirectHttp::new(networks.clone()).unwrap();
        let redis = DirectRedis::new(networks.clone());
        let relays = Arc::new(Relays::default());
        let place = || {
            format!("{kind}://rebinding.example:{port}")
                .parse()
                .unwrap()
        };
        for is_checked in [true, false] {
            let problem = match kind {
                "http" => {
                    let request = HttpRequest::new(&place(), request("POST", "/a")).unwrap();
                    let got = http.once(request).get("", None).await;
                    got.err().map(|error| error.problem)
                }
                "redis" => {
                    let got = redis.at(&place()).get("key", None).await;
                    got.err().map(|error| error.problem)
                }
                _ => {
                    let function = "resize".parse().unwrap();
                    let raw = Raw::open(networks.clone(), Arc::clone(&relays), function, place());
                    let got = raw.exchange(request("READ", "1")).await;
                    got.err().map(|fault| fault.problem)
                }
            };
            if is_checked {
                // One question, and the connection leads to its answer. What this server says is no Redis.
                assert_eq!(names.asked.load(Ordering::Relaxed), 1, "{kind}");
                assert_eq!(connections.try_recv(), Ok(CHECKED), "{kind}: {problem:?}");
            } else {
                let problem = problem.unwrap();
                assert!(
                    problem.contains("127.0.0.3 is a private address"),
                    "{kind}: {problem}"
                );
            }
            assert!(connections.try_recv().is_err(), "{kind}");
        }
    }
}
