//! Connections without functions: malformed, slow, too large and interrupted requests, and the drain.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Client, Daemon, Function, Setup, control, soon, text, upstream};
use bytes::Bytes;
use http_body_util::BodyExt;
use pilot_gateway::{Door, GatewayConfig, ReadPace};
use pilot_model::ports::PassedRequest;
use pilot_testkit::Reaction;
use tokio::sync::{Notify, mpsc};

async fn configured(config: GatewayConfig) -> Daemon {
    Daemon::start(Setup {
        config,
        ..Setup::default()
    })
    .await
}

#[tokio::test]
async fn what_is_not_on_the_data_path_goes_to_the_control_handler() {
    let daemon = Daemon::with(vec![]).await;
    let answer = daemon
        .ask("PUT", "/_pilot/v1/functions/x", "", b"body")
        .await;
    assert_eq!(
        (answer.status, answer.text()),
        (200, "PUT /_pilot/v1/functions/x body")
    );
}

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other_and_pipelined_ones_in_order() {
    let daemon = Daemon::with(vec![]).await;
    let mut client = daemon.client().await;
    assert_eq!(client.ask("GET", "/1", "", b"").await.text(), "GET /1 ");
    let request = |path| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    client.send(request("/2") + &request("/3")).await;
    assert_eq!(client.answer().await.text(), "GET /2 ");
    assert_eq!(client.answer().await.text(), "GET /3 ");
}

#[tokio::test]
async fn whoever_sends_many_requests_ahead_takes_turns_with_everybody_else() {
    let turns = Arc::new(AtomicUsize::new(0));
    let answered_in = Arc::new(Mutex::new(Vec::new()));
    let (seen, now) = (Arc::clone(&answered_in), Arc::clone(&turns));
    let daemon = Daemon::start(Setup {
        control: control(move |_| {
            seen.lock().unwrap().push(now.load(Ordering::Relaxed));
            Box::pin(async { text("") })
        }),
        ..Setup::default()
    })
    .await;
    let mut client = daemon.client().await;
    client
        .send("GET /1 HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200))
        .await;
    // All tasks are on this thread.
    let others = tokio::spawn(async move {
        loop {
            turns.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..200 {
        assert_eq!(client.answer().await.status, 200);
    }
    others.abort();
    let answered_in = answered_in.lock().unwrap();
    let most = answered_in.chunk_by(|a, b| a == b).map(<[_]>::len).max();
    assert!(most <= Some(3), "{answered_in:?}");
}

#[tokio::test]
async fn the_body_of_a_refused_request_does_not_break_the_connection_without_a_word() {
    let daemon = Daemon::with(vec![]).await;
    let head = |rest: &str| {
        format!("POST /2015-03-31/functions/nobody/invocations HTTP/1.1\r\nhost: x\r\n{rest}\r\n")
    };
    // A small body that comes after its head is read.
    let mut client = daemon.client().await;
    for _ in 0..3 {
        client.send(head("content-length: 2\r\n")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.send("{}").await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("connection")), (404, None));
    }
    // A large one, one that does not come, and one that waits to be asked for end the connection, and the response says so.
    for rest in [
        "content-length: 1000000\r\n",
        "content-length: 2\r\n",
        "content-length: 2\r\nexpect: 100-continue\r\n",
    ] {
        let mut client = daemon.client().await;
        client.send(head(rest)).await;
        if rest.contains("1000000") {
            client.send(vec![b'x'; 100_000]).await;
        }
        let answer = client.answer().await;
        let told = (answer.status, answer.header("connection"));
        assert_eq!(told, (404, Some("close")), "{rest}");
    }
}

#[tokio::test]
async fn malformed_requests_are_refused_and_the_connection_closed() {
    let daemon = Daemon::with(vec![]).await;
    let huge = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(1_000_000));
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
    let cases = [
        ("GE(T / HTTP/1.1\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/9.9\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nx\x01: 1\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400),
        ("CONNECT example.org:80 HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n", 400),
        ("GET / HTTP/1.0\r\n\r\n", 200),
        (huge.as_str(), 431),
        (many.as_str(), 431),
    ];
    for (request, status) in cases {
        let mut client = daemon.client().await;
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{:.60}", request);
        // RFC 9110, section 15.5.6.
        assert_eq!(answer.header("allow").is_some(), status == 405);
    }
}

#[tokio::test]
async fn a_client_that_never_finishes_its_head_is_cut_off() {
    let config = GatewayConfig {
        header_timeout: Duration::from_millis(20),
        ..GatewayConfig::default()
    };
    let daemon = configured(config).await;
    let mut client = daemon.client().await;
    client.send("GET / HTTP/1.1\r\nhost:").await;
    assert_eq!(client.closed().await, b"");
}

#[tokio::test]
async fn a_client_gets_its_refusal_even_while_it_still_sends() {
    let control = control(|_| Box::pin(async { text("no") }));
    let daemon = Daemon::start(Setup {
        control,
        ..Setup::default()
    })
    .await;
    let mut client = daemon.client().await;
    let body = vec![b'x'; 8 * 1024 * 1024];
    assert_eq!(client.ask("PUT", "/upload", "", &body).await.text(), "no");
}

#[tokio::test]
async fn a_client_that_does_not_take_its_response_is_cut_off() {
    let config = GatewayConfig {
        // Long enough that the drain finds the connection.
        read_pace: ReadPace {
            patience: Duration::from_secs(1),
            bytes_per_s: 1,
        },
        ..GatewayConfig::default()
    };
    let control = control(|_| Box::pin(async { text(vec![b'x'; 64 * 1024 * 1024]) }));
    let setup = Setup {
        config,
        control,
        ..Setup::default()
    };
    let daemon = Daemon::start(setup).await;
    let mut client = daemon.client().await;
    client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    // The kernel buffers a part of it. The head was received, so the rest is under way.
    client.begun().await;
    let drained = soon(daemon.stop()).await.unwrap();
    assert_eq!((drained.connections, drained.cut), (1, 0));
    assert!(client.closed().await.len() < 64 * 1024 * 1024);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_to_come_back() {
    let config = GatewayConfig::default();
    let refused = Arc::clone(&config.refused);
    let door = Door {
        connections_max: 1,
        ..Door::default()
    };
    let daemon = Daemon::start(Setup {
        config,
        door,
        ..Setup::default()
    })
    .await;
    let mut first = daemon.client().await;
    assert_eq!(first.ask("GET", "/1", "", b"").await.text(), "GET /1 ");
    let second = daemon.ask("GET", "/2", "", b"").await;
    assert_eq!(
        (second.status, second.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(first.ask("GET", "/3", "", b"").await.text(), "GET /3 ");
    assert_eq!(refused.counts()[0], ("listener_full", 1));
    drop(first);
    soon(async {
        while daemon.ask("GET", "/4", "", b"").await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn connections_without_a_request_make_room_when_there_is_none() {
    let door = Door {
        connections_max: 2,
        connections_per_address_max: 3,
        ..Door::default()
    };
    let daemon = Daemon::start(Setup {
        door,
        ..Setup::default()
    })
    .await;
    let mut idle = daemon.client().await;
    assert_eq!(idle.ask("GET", "/1", "", b"").await.text(), "GET /1 ");
    let mut silent = daemon.client().await;
    silent.send("GET / HTTP/1.1\r\n").await;
    // It has a second to send its request.
    soon(async {
        while daemon.ask("GET", "/2", "", b"").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(silent.closed().await, b"");
    assert_eq!(idle.ask("GET", "/3", "", b"").await.text(), "GET /3 ");
}

#[tokio::test]
async fn the_last_descriptors_are_for_other_listeners() {
    // As if all others were in use.
    let door = Door {
        descriptors_end: 0,
        ..Door::default()
    };
    let daemon = Daemon::start(Setup {
        door,
        ..Setup::default()
    })
    .await;
    let refused = daemon.ask("GET", "/1", "", b"").await;
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1"))
    );
}

#[tokio::test]
async fn kept_connections_without_a_next_request_make_room_when_there_is_none() {
    let door = Door {
        connections_max: 2,
        connections_per_address_max: 3,
        ..Door::default()
    };
    let daemon = Daemon::start(Setup {
        door,
        ..Setup::default()
    })
    .await;
    let mut idle = daemon.client().await;
    assert_eq!(idle.ask("GET", "/1", "", b"").await.text(), "GET /1 ");
    let mut used = daemon.client().await;
    soon(async {
        while daemon.ask("GET", "/2", "", b"").await.status != 200 {
            assert_eq!(used.ask("GET", "/3", "", b"").await.text(), "GET /3 ");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(idle.closed().await, b"");
    assert_eq!(used.ask("GET", "/3", "", b"").await.text(), "GET /3 ");
}

#[tokio::test]
async fn a_head_that_trickles_is_cut_off_and_an_idle_connection_is_not() {
    let config = GatewayConfig {
        head_time_max: Duration::from_millis(200),
        ..GatewayConfig::default()
    };
    let refused = Arc::clone(&config.refused);
    let daemon = configured(config).await;
    let mut idle = daemon.client().await;
    assert_eq!(idle.ask("GET", "/1", "", b"").await.text(), "GET /1 ");
    // Also after a request, and in the middle of a head.
    for before in [false, true] {
        let mut slow = daemon.client().await;
        if before {
            slow.ask("GET", "/", "", b"").await;
        }
        slow.send("GET / HTTP/1.1\r\nhost:").await;
        assert_eq!(slow.closed().await, b"");
    }
    assert_eq!(refused.counts()[2], ("too_slow", 2));
    assert_eq!(idle.ask("GET", "/2", "", b"").await.text(), "GET /2 ");
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_its_request() {
    struct Dropped(mpsc::UnboundedSender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (sender, mut dropped) = mpsc::unbounded_channel();
    let begun = Arc::new(Notify::new());
    let began = begun.clone();
    let control = control(move |_| {
        let guard = Dropped(sender.clone());
        let began = began.clone();
        Box::pin(async move {
            began.notify_one();
            std::future::pending::<()>().await;
            drop(guard);
            text("")
        })
    });
    let daemon = Daemon::start(Setup {
        control,
        ..Setup::default()
    })
    .await;
    let mut client = daemon.client().await;
    client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    soon(begun.notified()).await;
    drop(client);
    assert_eq!(soon(dropped.recv()).await, Some(()));
}

#[tokio::test]
async fn a_client_that_has_closed_its_direction_is_answered_and_asked_whether_it_waits() {
    let ended = Arc::new(Notify::new());
    let end = ended.clone();
    let control = control(move |request| {
        let ended = ended.clone();
        Box::pin(async move {
            if request.uri().path() == "/slow" {
                ended.notified().await;
            }
            text("done")
        })
    });
    let daemon = Daemon::start(Setup {
        control,
        ..Setup::default()
    })
    .await;
    let quick = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    for request in [quick, &[quick, quick].concat(), "GET / HTTP/1.0\r\n\r\n"] {
        let mut client = daemon.client().await;
        client.send(request).await;
        client.finish().await;
        let answers = client.closed().await;
        let answers = String::from_utf8(answers).unwrap();
        let wanted = request.matches("GET").count();
        assert_eq!(answers.matches(" 200 OK").count(), wanted, "{answers}");
        assert!(answers.ends_with("done"), "{answers}");
    }
    let mut client = daemon.client().await;
    client.send("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
    client.finish().await;
    assert_eq!(client.answer().await.status, 100);
    end.notify_one();
    let last = client.answer().await;
    assert_eq!(
        (last.text(), last.header("connection")),
        ("done", Some("close"))
    );
    assert_eq!(client.closed().await, b"");
}

#[tokio::test]
async fn requests_that_arrive_together_with_the_end_of_the_clients_direction_are_answered() {
    let daemon = Daemon::start(Setup::default()).await;
    let get = "GET /a HTTP/1.1\r\nhost: x\r\n\r\n";
    let post = "POST /b HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";
    let chunked =
        "POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (requests, answers) in [
        (vec![get], vec!["GET /a "]),
        (vec![post], vec!["POST /b hello"]),
        (vec![chunked], vec!["POST /c hello"]),
        (vec!["GET /d HTTP/1.0\r\n\r\n"], vec!["GET /d "]),
        (
            vec![get, post, chunked, get],
            vec!["GET /a ", "POST /b hello", "POST /c hello", "GET /a "],
        ),
    ] {
        let mut client = Client::connect_with_all(daemon.addr, requests.concat());
        for wanted in answers {
            let answer = soon(client.answer()).await;
            assert_eq!(answer.text(), wanted, "{requests:?}");
        }
        assert_eq!(soon(client.closed()).await, b"");
    }
    // A body of several pieces.
    let body = "x".repeat(3_000_000);
    let head = "POST /e HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n";
    let mut client = daemon.client().await;
    client.send(head).await;
    client.send(&body).await;
    client.finish().await;
    assert_eq!(soon(client.answer()).await.body.len(), 8 + body.len());
}

#[tokio::test]
async fn a_client_that_leaves_without_a_whole_request_is_noticed_at_once() {
    let daemon = Daemon::start(Setup::default()).await;
    let get = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let more = format!("{get}{get}GET / HTTP/1.1\r\nhost: x\r\n");
    let begun = std::time::Instant::now();
    for (sent, answers) in [
        ("", 0),
        ("\r\n\r\n", 0),
        ("GET / HTTP/1.1\r\nhost:", 0),
        (more.as_str(), 2),
    ] {
        let client = Client::connect_with_all(daemon.addr, sent);
        let bytes = soon(client.closed()).await;
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.matches("200 OK").count(), answers, "{sent:?}");
    }
    // Also after a request whose body came behind its head.
    let mut client = daemon.client().await;
    client
        .send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
        .await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.send("{}").await;
    assert_eq!(client.answer().await.text(), "POST / {}");
    client.finish().await;
    assert_eq!(soon(client.closed()).await, b"");
    // The limits of time are ten seconds and more.
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn the_end_of_the_clients_direction_does_not_cut_off_a_large_response() {
    const LEN: usize = 16 * 1024 * 1024;
    let control = control(|_| Box::pin(async { text(vec![b'x'; LEN]) }));
    let daemon = Daemon::start(Setup {
        control,
        ..Setup::default()
    })
    .await;
    let mut client = Client::connect_small(daemon.addr).await;
    client.send("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    // The head has come, so the rest is under way.
    client.begun().await;
    client.finish().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(soon(client.answer()).await.body.len(), LEN);
    assert_eq!(soon(client.closed()).await, b"");
}

#[tokio::test]
async fn a_kept_connection_may_rest_after_a_body_that_came_behind_its_head() {
    let config = GatewayConfig {
        head_time_max: Duration::from_millis(100),
        ..GatewayConfig::default()
    };
    let daemon = configured(config).await;
    let mut client = daemon.client().await;
    for _ in 0..2 {
        client
            .send("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
            .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.send("{}").await;
        assert_eq!(client.answer().await.text(), "POST / {}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_malformed_body_is_a_400() {
    let echo = Function::event("echo", |call| {
        Reaction::Return(Duration::ZERO, call.payload.clone(), Bytes::new())
    });
    let server = Function::server("web", async |request: PassedRequest| {
        let body = request.into_body().collect().await;
        match body {
            Ok(body) => Ok(upstream::response(body.to_bytes())),
            Err(error) => Err(upstream::fault(&*error)),
        }
    });
    let daemon = Daemon::with(vec![echo, server]).await;
    for path in [
        "/2015-03-31/functions/echo/invocations",
        "/fn/echo/",
        "/fn/web/",
    ] {
        for (framing, body) in [
            ("transfer-encoding: chunked", "5\r\nhello\r\nzz\r\n"),
            ("transfer-encoding: chunked", "5\r\nhelloXX\r\n0\r\n\r\n"),
            ("transfer-encoding: chunked", "ffffffffffffffffff\r\nhello"),
            ("transfer-encoding: chunked", "5\r\nhel"),
            ("content-length: 20", "hello"),
        ] {
            let request = format!("POST {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n{body}");
            let mut later = daemon.client().await;
            later.send(request.as_str()).await;
            later.finish().await;
            let together = Client::connect_with_all(daemon.addr, request.as_str());
            for mut client in [later, together] {
                let answer = soon(client.answer()).await;
                assert_eq!(answer.status, 400, "{path} {framing} {body}");
                let message = answer.text().to_owned();
                assert!(message.contains("malformed"), "{message}");
            }
        }
    }
}

/// A daemon with a route `/held` that reports its beginning, and ends when the test says so.
struct Held {
    daemon: Daemon,
    begun: Arc<Notify>,
    end: Arc<Notify>,
}

impl Held {
    async fn start(grace: Duration) -> Self {
        let (begun, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (began, ended) = (begun.clone(), end.clone());
        let control = control(move |request| {
            let (began, ended) = (began.clone(), ended.clone());
            Box::pin(async move {
                if request.uri().path() == "/held" {
                    began.notify_one();
                    ended.notified().await;
                }
                text("done")
            })
        });
        let config = GatewayConfig {
            grace,
            ..GatewayConfig::default()
        };
        let setup = Setup {
            config,
            control,
            ..Setup::default()
        };
        let daemon = Daemon::start(setup).await;
        Self { daemon, begun, end }
    }

    async fn client_in_a_request(&self) -> Client {
        let mut client = self.daemon.client().await;
        client.send("GET /held HTTP/1.1\r\nhost: x\r\n\r\n").await;
        soon(self.begun.notified()).await;
        client
    }
}

#[tokio::test]
async fn a_drain_lets_requests_finish_and_closes_the_rest() {
    let held = Held::start(Duration::from_secs(30)).await;
    let addr = held.daemon.addr;
    let silent = held.daemon.client().await;
    let mut late = held.daemon.client().await;
    let mut idle = held.daemon.client().await;
    assert_eq!(idle.ask("GET", "/", "", b"").await.text(), "done");
    let mut busy = held.client_in_a_request().await;
    let draining = held.daemon.stop();
    // A request that was on its way is answered, the first one of a connection as well as the next one. It has a second.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let first = late.ask("GET", "/", "", b"").await;
    let next = idle.ask("GET", "/", "", b"").await;
    for answer in [&first, &next] {
        assert_eq!(
            (answer.text(), answer.header("connection")),
            ("done", Some("close"))
        );
    }
    assert_eq!(silent.closed().await, b"");
    assert!(tokio::net::TcpStream::connect(addr).await.is_err());
    held.end.notify_one();
    let last = busy.answer().await;
    assert_eq!(
        (last.text(), last.header("connection")),
        ("done", Some("close"))
    );
    let drained = soon(draining).await.unwrap();
    assert_eq!((drained.connections, drained.cut), (4, 0));
}

#[tokio::test]
async fn what_outlasts_the_grace_period_is_cut_off() {
    let held = Held::start(Duration::from_millis(20)).await;
    let client = held.client_in_a_request().await;
    let drained = soon(held.daemon.stop()).await.unwrap();
    assert_eq!((drained.connections, drained.cut), (1, 1));
    assert_eq!(client.closed().await, b"");
}
