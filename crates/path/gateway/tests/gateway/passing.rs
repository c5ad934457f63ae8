//! Functions that are HTTP servers, behind their URLs: streams in both directions, and failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::upstream::{self, response};
use crate::support::{Client, Daemon, Function, Setup, soon};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use pilot_gateway::{Access, Door, GatewayConfig};
use pilot_model::Outcome;
use pilot_model::access::{Grant, Role};
use pilot_model::ports::{PassedRequest, PassedResponse, StreamedBody, WorkerFault};
use pilot_testkit::FixedTokens;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};

type Served = Result<PassedResponse, WorkerFault>;

/// Returns the request without its body.
async fn tell(request: PassedRequest) -> Served {
    let headers: Vec<(&str, &str)> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
        .collect();
    let told = json!({
        "method": request.method().as_str(),
        "uri": request.uri().to_string(),
        "headers": headers,
    });
    Ok(response(told.to_string()))
}

async fn echo(request: PassedRequest) -> Served {
    Ok(http::Response::new(request.into_body()))
}

fn headers(told: &Value) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> =
        serde_json::from_value(told["headers"].clone()).unwrap();
    headers.sort();
    headers
}

/// A body that the test sends.
fn sent() -> (mpsc::UnboundedSender<&'static str>, StreamedBody) {
    let (sender, parts) = mpsc::unbounded_channel();
    let parts = stream::unfold(parts, async |mut parts: mpsc::UnboundedReceiver<_>| {
        let part = parts.recv().await?;
        Some((
            Ok(Frame::data(Bytes::from_static(str::as_bytes(part)))),
            parts,
        ))
    });
    (sender, StreamedBody::new(StreamBody::new(Box::pin(parts))))
}

async fn first_part(body: &mut StreamedBody) -> Bytes {
    let frame = body.frame().await.unwrap().unwrap();
    frame.into_data().unwrap()
}

#[tokio::test]
async fn the_server_sees_the_request_as_it_was_sent_and_who_sent_it() {
    let config = GatewayConfig {
        tokens: FixedTokens::one("s3cret", Grant::of("x", Role::Invoke)),
        ..GatewayConfig::default()
    };
    let door = Door {
        calls: Access::Token,
        ..Door::default()
    };
    let functions = vec![Function::server("web", tell)];
    let daemon = Daemon::start(Setup {
        config,
        door,
        functions,
        ..Setup::default()
    })
    .await;
    let sent = "x-pilot-token: s3cret\r\nauthorization: Bearer s3cret\r\nX-A: 1\r\nX-A: 2\r\n\
                connection: keep-alive, x-private\r\nx-private: 1\r\nkeep-alive: timeout=5\r\n\
                proxy-authorization: x\r\nte: trailers, gzip\r\nexpect: 100-continue\r\n\
                x-amzn-requestid: theirs\r\nx-request-id: kept\r\nx-forwarded-host: shop.example\r\n";
    let answer = daemon
        .ask("PUT", "/fn/web/a%20b//c?x=%2F&y", sent, b"")
        .await;
    let told = answer.json();
    assert_eq!(
        (&told["method"], &told["uri"]),
        (&json!("PUT"), &json!("/a%20b//c?x=%2F&y"))
    );
    let id = answer.header("x-amzn-requestid").unwrap();
    let wanted = [
        ("connection", "te"),
        ("content-length", "0"),
        ("host", "pilot.test"),
        ("te", "trailers"),
        ("x-a", "1"),
        ("x-a", "2"),
        ("x-amzn-requestid", id),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-host", "shop.example"),
        ("x-forwarded-prefix", "/fn/web"),
        ("x-forwarded-proto", "http"),
        ("x-request-id", "kept"),
    ];
    let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(headers(&told), wanted);
    let token = "x-pilot-token: s3cret\r\n";
    for (path, uri) in [
        ("/fn/web", "/"),
        ("/fn/web/", "/"),
        ("/fn/web?", "/?"),
        ("/fn/web?x", "/?x"),
        ("/fn/web//?", "//?"),
    ] {
        let told = daemon.ask("GET", path, token, b"").await.json();
        assert_eq!(told["uri"], uri, "{path}");
    }
    assert_eq!(daemon.ask("GET", "/fn/web", "", b"").await.status, 403);
}

#[tokio::test]
async fn the_response_comes_back_as_it_is_with_our_headers() {
    let addr = upstream::saying(
        "HTTP/1.0 418 Short And Stout\r\nServer: mine\r\nX-A: 1\r\nX-A: 2\r\nServer-Timing: db;dur=1\r\n\
         Connection: close, x-private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n\
         X-Amzn-RequestId: forged\r\nContent-Length: 5\r\n\r\nhello",
    )
    .await;
    let function = Function::server("web", move |request| upstream::pass(addr, request));
    let daemon = Daemon::with(vec![function]).await;
    let mut client = daemon.client().await;
    for start in ["cold", "warm"] {
        let answer = client.ask("GET", "/fn/web/", "", b"").await;
        assert_eq!((answer.status, answer.text()), (418, "hello"));
        assert_eq!(answer.header("server"), Some("mine"));
        assert_eq!(answer.header("content-length"), Some("5"));
        assert_eq!(answer.header("x-pilot-start"), Some(start));
        assert_eq!(answer.header("x-amzn-requestid").map(str::len), Some(36));
        let all = |name: &str| answer.headers.iter().filter(|(it, _)| it == name).count();
        assert_eq!(
            (all("x-a"), all("server-timing"), all("x-amzn-requestid")),
            (2, 2, 1)
        );
        for gone in ["connection", "keep-alive", "x-private", "transfer-encoding"] {
            assert_eq!(answer.header(gone), None, "{gone}");
        }
    }
    assert_eq!(daemon.engine.starts(), 1);
}

#[tokio::test]
async fn a_response_without_a_body_leaves_the_connection_usable() {
    let function = Function::server("web", async |request: PassedRequest| {
        let status: u16 = request.uri().path()[1..].parse().unwrap();
        let mut answer = response("what nobody wants");
        *answer.status_mut() = http::StatusCode::from_u16(status).unwrap();
        answer
            .headers_mut()
            .insert("content-length", "17".parse().unwrap());
        Ok(answer)
    });
    let daemon = Daemon::with(vec![function]).await;
    let mut client = daemon.client().await;
    for (method, path, length) in [
        ("HEAD", "/fn/web/200", Some("17")),
        ("HEAD", "/fn/web/404", Some("17")),
        ("GET", "/fn/web/204", None),
        ("GET", "/fn/web/304", None),
    ] {
        let answer = client.ask(method, path, "", b"").await;
        assert_eq!(answer.header("content-length"), length, "{method} {path}");
        assert_eq!(answer.header("transfer-encoding"), None);
    }
    let answer = client.ask("GET", "/fn/web/200", "", b"").await;
    assert_eq!(answer.text(), "what nobody wants");
    assert_eq!(daemon.sink.records().len(), 5);
}

#[tokio::test]
async fn a_request_body_reaches_the_server_part_by_part() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let function = Function::server("web", move |request: PassedRequest| {
        let arrived = arrived.clone();
        async move {
            let mut body = request.into_body();
            while let Some(frame) = body.frame().await {
                arrived.send(frame.unwrap().into_data().unwrap()).unwrap();
            }
            Ok(response("whole"))
        }
    });
    let daemon = Daemon::with(vec![function]).await;
    let mut client = daemon.client().await;
    client
        .send("POST /fn/web HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.status, 100);
    for part in ["first", "again", "third"] {
        client.send(format!("5\r\n{part}\r\n")).await;
        assert_eq!(soon(arrivals.recv()).await.unwrap(), part);
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.answer().await.text(), "whole");
    assert_eq!(daemon.record().await.bytes_in, 15);
    // The connection can still be used.
    let next = client.ask("POST", "/fn/web", "", b"a length").await;
    assert_eq!(next.text(), "whole");
    assert_eq!(soon(arrivals.recv()).await.unwrap(), "a length");
}

#[tokio::test]
async fn a_server_may_refuse_a_body_before_it_is_sent_and_permits_it_with_100_continue() {
    let addr = upstream::listen(async |mut stream: tokio::net::TcpStream| {
        let head = upstream::head(&mut stream).await.to_lowercase();
        assert!(head.contains("\r\nexpect: 100-continue\r\n"), "{head}");
        let answer: &[u8] = if head.starts_with("post /no") {
            b"HTTP/1.1 417 Expectation Failed\r\ncontent-length: 0\r\n\r\n"
        } else {
            if head.starts_with("post /yes") {
                stream
                    .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                    .await
                    .unwrap();
            }
            let mut body = [0; 5];
            stream.read_exact(&mut body).await.unwrap();
            assert_eq!(&body, b"hello");
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
        };
        stream.write_all(answer).await.unwrap();
    })
    .await;
    let function = Function::server("web", move |request| upstream::pass(addr, request));
    let daemon = Daemon::with(vec![function]).await;
    let begin = |path: &str| {
        format!(
            "POST /fn/web{path} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
        )
    };
    let mut refused = daemon.client().await;
    refused.send(begin("/no")).await;
    assert_eq!(refused.answer().await.status, 417);
    // A server that does not know the header gets the body after a while.
    for path in ["/yes", "/silent"] {
        let mut client = daemon.client().await;
        client.send(begin(path)).await;
        assert_eq!(client.answer().await.status, 100, "{path}");
        client.send("hello").await;
        assert_eq!(client.answer().await.text(), "ok", "{path}");
    }
}

#[tokio::test]
async fn interim_responses_pass_without_their_connections_headers() {
    let addr = upstream::saying(
        "HTTP/1.1 100 Continue\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nContent-Length: 5\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n\
         HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    let function = Function::server("web", move |request| upstream::pass(addr, request));
    let daemon = Daemon::with(vec![function]).await;
    let mut client = daemon.client().await;
    let request = "GET /fn/web/ HTTP/1.1\r\nhost: x\r\n\r\n";
    // Pipelined: those of the second request come after the first response.
    client.send([request, request].concat()).await;
    for _ in 0..2 {
        let hints = client.answer().await;
        let link = [("link".to_owned(), "</a.css>".to_owned())];
        assert_eq!((hints.status, &hints.headers[..]), (103, &link[..]));
        assert_eq!(client.answer().await.status, 102);
        assert_eq!(client.answer().await.text(), "ok");
    }
    // HTTP/1.0 does not know them.
    let mut old = daemon.client().await;
    old.send("GET /fn/web/ HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.answer().await.status, 200);
}

#[tokio::test]
async fn a_body_passes_whatever_the_method_and_with_one_length_only() {
    let addr = upstream::listen(async |mut stream: tokio::net::TcpStream| {
        let head = upstream::head(&mut stream).await.to_lowercase();
        let told = head
            .lines()
            .filter(|line| line.starts_with("content-length") || line.starts_with("transfer-enc"));
        let told: Vec<&str> = told.collect();
        let mut body = [0; 3];
        stream.read_exact(&mut body).await.unwrap();
        let told = format!("{told:?} {}", body.escape_ascii());
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{told}",
            told.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let function = Function::server("web", move |request| upstream::pass(addr, request));
    let daemon = Daemon::with(vec![function]).await;
    for (method, headers, body, told) in [
        (
            "GET",
            "content-length: 3",
            "abc",
            r#"["content-length: 3"] abc"#,
        ),
        (
            "GET",
            "transfer-encoding: chunked",
            "3\r\nabc\r\n0\r\n\r\n",
            r#"["transfer-encoding: chunked"] 3\r\n"#,
        ),
        // A server that interprets these headers differently would see a second request.
        (
            "POST",
            "content-length: 9\r\ntransfer-encoding: chunked",
            "3\r\nabc\r\n0\r\n\r\n",
            r#"["transfer-encoding: chunked"] 3\r\n"#,
        ),
    ] {
        let mut client = daemon.client().await;
        client
            .send(format!(
                "{method} /fn/web HTTP/1.1\r\nhost: x\r\n{headers}\r\n\r\n{body}"
            ))
            .await;
        assert_eq!(client.answer().await.text(), told);
    }
}

#[tokio::test]
async fn a_response_body_reaches_the_client_part_by_part() {
    let (parts, body) = sent();
    let body = std::sync::Mutex::new(Some(body));
    let function = Function::server("web", move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async { Ok(http::Response::new(body)) }
    });
    let daemon = Daemon::with(vec![function]).await;
    let mut client = daemon.client().await;
    client.send("GET /fn/web HTTP/1.1\r\nhost: x\r\n\r\n").await;
    // The head is received before any part of the body.
    assert_eq!(client.head().await.status, 200);
    for part in ["data: 1\n\n", "data: 2\n\n"] {
        parts.send(part).unwrap();
        assert_eq!(client.next_chunk().await.unwrap(), part.as_bytes());
        assert_eq!(daemon.workers("web").busy, 1);
    }
    drop(parts);
    assert_eq!(client.next_chunk().await, None);
    let record = daemon.record().await;
    assert_eq!((record.outcome, record.bytes_out), (Outcome::Ok, 18));
}

#[tokio::test]
async fn trailers_pass_in_both_directions() {
    let (told, tells) = oneshot::channel();
    let told = std::sync::Mutex::new(Some(told));
    let function = Function::server("web", move |request: PassedRequest| {
        let told = told.lock().unwrap().take().unwrap();
        async move {
            assert_eq!(request.headers()["trailer"], "x-sum");
            let whole = request.into_body().collect().await.unwrap();
            let trailers = whole.trailers().unwrap().clone();
            told.send(trailers["x-sum"].clone()).unwrap();
            let frames = [
                Ok(Frame::data(Bytes::from_static(b"body"))),
                Ok(Frame::trailers(trailers)),
            ];
            let body = StreamBody::new(stream::iter(frames));
            let mut answer = http::Response::new(StreamedBody::new(body));
            answer
                .headers_mut()
                .insert("trailer", "x-sum".parse().unwrap());
            Ok(answer)
        }
    });
    let daemon = Daemon::with(vec![function]).await;
    let mut client = daemon.client().await;
    client
        .send(
            "POST /fn/web HTTP/1.1\r\nhost: x\r\nte: trailers\r\ntrailer: x-sum\r\nconnection: close\r\n\
             transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-sum: 97\r\n\r\n",
        )
        .await;
    let (answer, _) = client.until_the_end().await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        answer.ends_with("4\r\nbody\r\n0\r\nx-sum: 97\r\n\r\n"),
        "{answer}"
    );
    assert_eq!(tells.await.unwrap(), "97");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn much_passes_both_ways_and_little_is_in_flight() {
    const TOTAL: usize = 128 * 1024 * 1024;
    const IN_FLIGHT_MAX: usize = 32 * 1024 * 1024;
    let taken = Arc::new(AtomicUsize::new(0));
    let takes = taken.clone();
    // Counts what it reads from the client before it answers.
    let function = Function::server("web", move |request: PassedRequest| {
        let takes = takes.clone();
        async move {
            let body = request.into_body().map_frame(move |frame| {
                takes.fetch_add(frame.data_ref().map_or(0, Bytes::len), Ordering::Relaxed);
                frame
            });
            Ok(http::Response::new(StreamedBody::new(body)))
        }
    });
    let daemon = Daemon::with(vec![function]).await;
    let (mut from, mut to) = Client::connect_small(daemon.addr).await.split();
    let sending = tokio::spawn(async move {
        let head = format!(
            "POST /fn/web HTTP/1.1\r\nhost: x\r\ncontent-length: {TOTAL}\r\nconnection: close\r\n\r\n"
        );
        to.write_all(head.as_bytes()).await.unwrap();
        let zeros = vec![0; 1024 * 1024];
        for _ in 0..TOTAL / zeros.len() {
            to.write_all(&zeros).await.unwrap();
        }
        to
    });
    let mut buffer = vec![0; 64 * 1024];
    let mut read = 0;
    while read < TOTAL {
        let more = soon(from.read(&mut buffer)).await.unwrap();
        assert!(more > 0, "it ended after {read} bytes");
        read += more;
        let in_flight = taken.load(Ordering::Relaxed).saturating_sub(read);
        assert!(in_flight < IN_FLIGHT_MAX, "{in_flight} bytes in flight");
    }
    drop(soon(sending).await.unwrap());
    let record = daemon.record().await;
    assert_eq!(
        (record.bytes_in, record.bytes_out),
        (TOTAL as u64, TOTAL as u64)
    );
}

/// A function that holds a request in the phase that the test chooses, until its guard is dropped.
struct Held {
    daemon: Daemon,
    begun: Arc<Notify>,
    dropped: mpsc::UnboundedReceiver<&'static str>,
}

struct Guard(&'static str, mpsc::UnboundedSender<&'static str>);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.1.send(self.0);
    }
}

impl Held {
    /// `/head` never sends a head, `/body` never ends its body, `/upload` reads. Other paths answer at once.
    async fn start() -> Self {
        let begun = Arc::new(Notify::new());
        let (sender, dropped) = mpsc::unbounded_channel();
        let begins = begun.clone();
        let one = |config: &mut pilot_model::FunctionConfig| config.scale.max = 1;
        let function = Function::server_with("web", one, move |request: PassedRequest| {
            let (begins, sender) = (begins.clone(), sender.clone());
            async move {
                match request.uri().path() {
                    "/head" => {
                        let _guard = Guard("head", sender);
                        begins.notify_one();
                        std::future::pending().await
                    }
                    "/body" => {
                        let guard = Guard("body", sender);
                        begins.notify_one();
                        let first = stream::once(async { Ok(Frame::data(Bytes::from("begun"))) });
                        let rest = stream::once(async move {
                            let _guard = guard;
                            std::future::pending().await
                        });
                        let body = StreamBody::new(Box::pin(stream::StreamExt::chain(first, rest)));
                        Ok(http::Response::new(StreamedBody::new(body)))
                    }
                    "/upload" => {
                        let _guard = Guard("upload", sender);
                        let mut body = request.into_body();
                        assert_eq!(first_part(&mut body).await, "half");
                        begins.notify_one();
                        let error = body.collect().await.unwrap_err();
                        Err(upstream::fault(&*error))
                    }
                    _ => Ok(response("quick")),
                }
            }
        });
        Self {
            daemon: Daemon::with(vec![function]).await,
            begun,
            dropped,
        }
    }

    async fn client_in(&self, request: &str) -> Client {
        let mut client = self.daemon.client().await;
        client.send(request).await;
        soon(self.begun.notified()).await;
        client
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_the_exchange_in_whatever_phase_and_the_worker_serves_on() {
    let mut held = Held::start().await;
    for (phase, request) in [
        ("head", "GET /fn/web/head HTTP/1.1\r\nhost: x\r\n\r\n"),
        ("body", "GET /fn/web/body HTTP/1.1\r\nhost: x\r\n\r\n"),
        (
            "upload",
            "POST /fn/web/upload HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
        ),
    ] {
        let client = held.client_in(request).await;
        drop(client);
        assert_eq!(soon(held.dropped.recv()).await, Some(phase));
        // The only slot is free again.
        let next = soon(held.daemon.ask("GET", "/fn/web/", "", b"")).await;
        assert_eq!(next.text(), "quick", "{phase}");
    }
    let outcomes: Vec<_> = held
        .daemon
        .sink
        .records()
        .iter()
        .map(|it| it.outcome)
        .collect();
    let (cancelled, ok) = (Outcome::Cancelled, Outcome::Ok);
    assert_eq!(outcomes, [cancelled, ok, cancelled, ok, cancelled, ok]);
    assert_eq!(
        (held.daemon.engine.starts(), held.daemon.engine.alive()),
        (1, 1)
    );
}

#[tokio::test]
async fn a_server_that_closes_before_its_head_is_a_502_that_names_the_function() {
    let addr = upstream::saying("").await;
    let function = Function::server("web", move |request| upstream::pass(addr, request));
    let daemon = Daemon::with(vec![function]).await;
    let answer = daemon.ask("GET", "/fn/web", "", b"").await;
    assert_eq!(
        (answer.status, answer.header("x-amzn-errortype")),
        (502, Some("FunctionError"))
    );
    assert_eq!(answer.header("x-amz-function-error"), Some("Unhandled"));
    assert!(answer.header("server-timing").is_some());
    let error = answer.json();
    assert_eq!(error["errorType"], "Runtime.ServerError");
    let message = error["errorMessage"].as_str().unwrap();
    assert!(
        message.contains("the HTTP server of function 'web' failed: "),
        "{message}"
    );
}

#[tokio::test]
async fn a_server_that_breaks_off_in_its_body_breaks_the_connection_off_behind_what_it_sent() {
    for (head, ends) in [
        ("content-length: 9", "\r\n\r\nbegun"),
        ("transfer-encoding: chunked", "\r\n\r\n5\r\nbegun\r\n"),
    ] {
        let body = if head.starts_with('c') {
            "begun"
        } else {
            "5\r\nbegun\r\n"
        };
        let said: &'static str = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").leak();
        let addr = upstream::saying(said).await;
        let function = Function::server("web", move |request| upstream::pass(addr, request));
        let daemon = Daemon::with(vec![function]).await;
        for _ in 0..2 {
            let mut client = daemon.client().await;
            client.send("GET /fn/web HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let (got, _) = client.until_the_end().await;
            let got = String::from_utf8(got).unwrap();
            assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
            assert!(got.ends_with(ends), "{got}");
        }
        assert_eq!(daemon.engine.starts(), 1, "the worker serves on");
        let mut client = daemon.client().await;
        client.send("GET /fn/web HTTP/1.0\r\n\r\n").await;
        let (_, end) = client.until_the_end().await;
        let reset = end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(reset, "to HTTP/1.0 an orderly end would look whole");
    }
}

#[tokio::test]
async fn a_timeout_is_a_502_before_the_head_and_a_cut_behind_it() {
    let short = |config: &mut pilot_model::FunctionConfig| {
        config.timeout = Duration::from_millis(50);
    };
    let head = Function::server_with("head", short, |_| std::future::pending());
    let body = Function::server_with("body", short, async |_| {
        let never = stream::pending::<Result<Frame<Bytes>, _>>();
        Ok(http::Response::new(StreamedBody::new(StreamBody::new(
            never,
        ))))
    });
    let daemon = Daemon::with(vec![head, body]).await;
    let answer = daemon.ask("GET", "/fn/head", "", b"").await;
    assert_eq!(
        (answer.status, &answer.json()["errorType"]),
        (502, &json!("Sandbox.Timedout"))
    );
    let mut client = daemon.client().await;
    client
        .send("GET /fn/body HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    assert!(client.try_answer("GET").await.is_none());
    let outcomes: Vec<_> = daemon.sink.records().iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [Outcome::Timeout, Outcome::Timeout]);
    assert_eq!(daemon.workers("body").idle, 1);
}

#[tokio::test]
async fn a_request_body_that_stops_coming_ends_in_a_408_and_the_worker_serves_on() {
    let config = GatewayConfig {
        body_timeout: Duration::from_millis(20),
        ..GatewayConfig::default()
    };
    let function = Function::server("web", async |request: PassedRequest| {
        match request.into_body().collect().await {
            Ok(whole) => Ok(response(whole.to_bytes())),
            Err(error) => Err(upstream::fault(&*error)),
        }
    });
    let functions = vec![function];
    let daemon = Daemon::start(Setup {
        config,
        functions,
        ..Setup::default()
    })
    .await;
    let mut client = daemon.client().await;
    client
        .send("POST /fn/web HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        .await;
    let answer = client.answer().await;
    assert_eq!(
        (answer.status, answer.header("x-amzn-errortype")),
        (408, Some("RequestTimeoutException"))
    );
    let message = answer.json()["Message"].to_string();
    assert!(message.contains("no data for 0.02 s"), "{message}");
    assert_eq!(
        daemon.ask("PUT", "/fn/web", "", b"whole").await.text(),
        "whole"
    );
    assert_eq!(daemon.engine.starts(), 1);
}

#[tokio::test]
async fn a_body_larger_than_any_that_is_read_passes() {
    let config = GatewayConfig {
        body_bytes_max: 10,
        bodies_bytes_max: 10,
        ..GatewayConfig::default()
    };
    let functions = vec![Function::server("web", echo)];
    let daemon = Daemon::start(Setup {
        config,
        functions,
        ..Setup::default()
    })
    .await;
    let body = vec![b'x'; 300_000];
    let answer = daemon.ask("POST", "/fn/web", "", &body).await;
    assert_eq!(answer.body.len(), body.len());
}

#[tokio::test]
async fn a_server_that_answers_early_is_heard_while_the_client_still_sends() {
    let function = Function::server("web", async |request: PassedRequest| {
        // It reads nothing.
        drop(request);
        Ok(response("enough"))
    });
    let daemon = Daemon::with(vec![function]).await;
    let body = vec![b'x'; 8 * 1024 * 1024];
    let answer = daemon.ask("POST", "/fn/web", "", &body).await;
    assert_eq!(answer.text(), "enough");
    // The next request would come behind the body.
    assert_eq!(answer.header("connection"), Some("close"));
    // A small body does no harm.
    let mut client = daemon.client().await;
    for _ in 0..2 {
        let answer = client.ask("POST", "/fn/web", "", b"small").await;
        assert_eq!(
            (answer.text(), answer.header("connection")),
            ("enough", None)
        );
    }
}

#[tokio::test]
async fn to_http_1_0_a_response_without_a_length_says_that_the_connection_ends() {
    let streaming = Function::server("streaming", async |_: PassedRequest| {
        let parts = ["a", "b"].map(|part| Ok(Frame::data(Bytes::from(part))));
        let body = StreamBody::new(stream::iter(parts));
        Ok(http::Response::new(StreamedBody::new(body)))
    });
    let whole = Function::server("whole", async |_: PassedRequest| Ok(response("ab")));
    let daemon = Daemon::with(vec![streaming, whole]).await;
    for (name, connection) in [("streaming", "close"), ("whole", "keep-alive")] {
        let mut client = daemon.client().await;
        let request = format!("GET /fn/{name} HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
        client.send(request).await;
        let head = soon(client.head()).await;
        assert_eq!(head.header("connection"), Some(connection), "{name}");
        assert_eq!(client.bytes(2).await, b"ab");
        if connection == "close" {
            assert_eq!(soon(client.closed()).await, b"");
        }
    }
}

#[tokio::test]
async fn the_invoke_api_calls_a_server_too() {
    let daemon = Daemon::with(vec![Function::server("web", tell)]).await;
    let path = "/2015-03-31/functions/web/invocations";
    let answer = daemon.ask("POST", path, "", br#"{"a": 1}"#).await;
    assert_eq!((answer.status, answer.text()), (200, r#"{"a": 1}"#));
}
