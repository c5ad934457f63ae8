//! Requests that are passed through.

use std::time::Duration;

use futures_util::StreamExt;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use pilot_model::Stop;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::End;

/// A body whose frames a test sends; an `Err` breaks it.
fn piecewise() -> (
    mpsc::Sender<Result<&'static str, pilot_model::ports::BodyError>>,
    StreamedBody,
) {
    let (send, receive) = mpsc::channel(1);
    let frames = futures_util::stream::unfold(receive, |mut receive| async move {
        Some((receive.recv().await?, receive))
    });
    let frames = frames.map(|frame: Result<&'static str, _>| {
        frame.map(|text| Frame::data(Bytes::from_static(text.as_bytes())))
    });
    (send, StreamedBody::new(StreamBody::new(frames)))
}

#[tokio::test]
async fn requests_follow_one_another_on_one_connection() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    for path in ["/a%20b?x=1", "/second"] {
        let response = rig.pass(get(path));
        let request = server.read().await;
        assert_eq!(request.line, format!("GET {path} HTTP/1.1"));
        assert_eq!(request.header("host"), Some("example.com"));
        server
            .write("HTTP/1.1 201 Created\r\nx-a: 1\r\nkeep-alive: timeout=5\r\nContent-Length: 5\r\n\r\nhello")
            .await;
        let response = response.await.unwrap().unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers()["x-a"], "1");
        assert!(!response.headers().contains_key("keep-alive"));
        assert_eq!(text(response).await, "hello");
    }
    // Only the connection of the readiness check.
    assert_eq!(rig.reach.connects(), 1);
}

#[tokio::test]
async fn responses_without_a_body_give_their_connection_back_too() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    for answer in [
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let response = rig.pass(get("/"));
        server.read().await;
        server.write(answer).await;
        assert_eq!(text(response.await.unwrap().unwrap()).await, "");
    }
    assert_eq!(rig.reach.connects(), 1);
}

#[tokio::test]
async fn a_request_without_a_host_gets_one_and_goes_as_http_1_1() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let mut request = Request::get("/").body(streamed("")).unwrap();
    *request.version_mut() = Version::HTTP_10;
    drop(rig.pass(request));
    let request = server.read().await;
    assert_eq!(request.line, "GET / HTTP/1.1");
    assert_eq!(request.header("host"), Some("localhost:8080"));
}

/// The server answers with `ok`, which arrives.
async fn is_ok(server: &mut Peer, response: JoinHandle<Result<PassedResponse, WorkerFault>>) {
    server
        .write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await;
    assert_eq!(text(response.await.unwrap().unwrap()).await, "ok");
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_not_used_again() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    for _ in 0..3 {
        let response = rig.pass(get("/"));
        server.read().await;
        is_ok(&mut server, response).await;
        drop(server);
        closes_arrive().await;
        let response = rig.pass(get("/"));
        server = rig.accept().await;
        server.read().await;
        is_ok(&mut server, response).await;
    }
    assert!(rig.worker.is_alive());
}

#[tokio::test]
async fn a_request_to_a_port_on_which_nobody_listens_is_given_back() {
    let rig = rig().await;
    rig.reach.listens_no_more();
    // The connection of the readiness check is closed, too: the server is gone, and a program around it runs.
    drop(rig.accept().await);
    closes_arrive().await;
    let request = Request::post("/orders").body(streamed("an order")).unwrap();
    let unpassed = rig.worker.pass(request).await.unwrap_err();
    let WorkerFault::Protocol { problem, .. } = unpassed.fault else {
        panic!("{unpassed:?}");
    };
    assert!(problem.contains("connection refused"), "{problem}");
    let request = unpassed.unsent.unwrap();
    assert_eq!(
        (request.method(), request.uri().path()),
        (&http::Method::POST, "/orders")
    );
    let body = request.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "an order");
}

#[tokio::test]
async fn a_request_that_may_have_been_read_is_not_given_back() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let response = rig.worker.pass(get("/"));
    let crash = async {
        server.read().await;
        rig.reach.listens_no_more();
        drop(server);
    };
    let (response, ()) = tokio::join!(response, crash);
    let unpassed = response.unwrap_err();
    assert!(unpassed.unsent.is_none(), "{unpassed:?}");
}

#[tokio::test]
async fn no_more_connections_are_kept_than_invocations_run_at_once() {
    let rig = rig().await;
    let mut servers = vec![rig.accept().await];
    let mut responses = Vec::new();
    for index in 0..3 {
        responses.push(rig.pass(get("/")));
        if index > 0 {
            servers.push(rig.accept().await);
        }
        servers[index].read().await;
    }
    for server in &mut servers {
        server
            .write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await;
    }
    for response in responses {
        text(response.await.unwrap().unwrap()).await;
    }
    assert_eq!(rig.worker.site.idle.lock().as_ref().unwrap().len(), 2);
}

#[tokio::test]
async fn bodies_stream_both_ways_at_once() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let (send, body) = piecewise();
    let response = rig.pass(Request::post("/").body(body).unwrap());
    let request = server.read_head().await;
    assert_eq!(request.header("transfer-encoding"), Some("chunked"));
    server
        .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    let mut response = response.await.unwrap().unwrap();
    for word in ["one", "two"] {
        // Reading the response drives the request.
        let (frame, ()) = tokio::join!(response.body_mut().frame(), async {
            send.send(Ok(word)).await.unwrap();
            let mut chunk = [0; 8];
            server.stream.read_exact(&mut chunk).await.unwrap();
            assert_eq!(&chunk, format!("3\r\n{word}\r\n").as_bytes());
            server.write(chunk).await;
        });
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), word);
    }
    drop(send);
    let (end, ()) = tokio::join!(response.body_mut().frame(), async {
        let mut last = [0; 5];
        server.stream.read_exact(&mut last).await.unwrap();
        server.write(last).await;
    });
    assert!(end.is_none());
    drop(response);
    assert_eq!(rig.worker.site.idle.lock().as_ref().unwrap().len(), 1);
}

#[tokio::test]
async fn dropping_the_future_or_the_body_closes_the_connection_and_the_worker_serves_on() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let waiting = rig.pass(get("/"));
    server.read().await;
    waiting.abort();
    assert!(server.read_to_end().await.is_empty());

    let response = rig.pass(get("/"));
    let mut server = rig.accept().await;
    server.read().await;
    server
        .write("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nthe beginning")
        .await;
    drop(response.await.unwrap().unwrap());
    assert!(server.read_to_end().await.is_empty());
    assert!(rig.worker.is_alive());
    assert_eq!(rig.instance.let_go(), [""; 0]);
}

#[tokio::test]
async fn an_upgraded_connection_becomes_a_tunnel() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let request = Request::get("/ws")
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .body(streamed(""))
        .unwrap();
    let response = rig.pass(request);
    let request = server.read().await;
    assert_eq!(request.header("upgrade"), Some("websocket"));
    server
        .write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nearly")
        .await;
    let mut response = response.await.unwrap().unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "websocket");
    let upgrade = response.extensions_mut().remove::<OnUpgrade>().unwrap();
    let mut tunnel = TokioIo::new(upgrade.await.unwrap());
    let mut early = [0; 5];
    tunnel.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    tunnel.write_all(b"ping").await.unwrap();
    let mut ping = [0; 4];
    server.stream.read_exact(&mut ping).await.unwrap();
    assert_eq!(&ping, b"ping");
    drop(tunnel);
    assert!(server.read_to_end().await.is_empty());
}

#[tokio::test]
async fn a_failure_in_the_middle_of_a_body_is_an_error_of_the_body() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    server
        .write("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nsome")
        .await;
    drop(server);
    let response = response.await.unwrap().unwrap();
    assert!(response.into_body().collect().await.is_err());
    assert!(rig.worker.is_alive());
}

#[tokio::test]
async fn a_server_that_goes_before_it_answers_is_a_fault() {
    let rig = rig().await;
    let Rig {
        worker, listener, ..
    } = rig;
    let pass = tokio::spawn(async move { worker.pass(get("/")).await });
    // The first connection was kept since the worker was ready.
    let kept = listener.accept().await.unwrap();
    drop(kept);
    let mut server = Peer::over(listener.accept().await.unwrap().0);
    server.read().await;
    // Nobody listens any more.
    drop(listener);
    drop(server);
    let fault = pass.await.unwrap().unwrap_err().fault;
    assert!(
        matches!(&fault, WorkerFault::Protocol { problem, .. } if problem.contains("before it answered")),
        "{fault}"
    );

    let rig = self::rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    rig.instance.print("panic");
    rig.instance.end(End::Exited(101));
    // Another process still holds the socket: the end is reported anyway.
    let fault = response.await.unwrap().unwrap_err();
    let expected = WorkerFault::Exited {
        code: 101,
        output: Bytes::new(),
    };
    assert_eq!(fault, expected);
    // Whoever follows the output gets it.
    assert!(rig.worker.printed().await);
    assert_eq!(rig.worker.take_output(), "panic");
    assert!(!rig.worker.is_alive());
    drop(server);
}

/// What a server does after a panic of a handler, or for `return 444`.
#[tokio::test]
async fn a_server_that_closes_connections_serves_on_until_it_does_so_three_times_in_a_row() {
    let rig = rig().await;
    let post = || Request::post("/").body(streamed("")).unwrap();
    for (is_answered, serves_on) in [
        (false, true),
        (false, true),
        (true, true),
        (false, true),
        (false, true),
        (false, false),
    ] {
        // The request takes a new one.
        drop(rig.accept().await);
        closes_arrive().await;
        let response = rig.pass(post());
        let mut server = rig.accept().await;
        server.read().await;
        if is_answered {
            is_ok(&mut server, response).await;
            drop(server);
            // As after the others, so that there is one to accept.
            let another = tokio::net::TcpStream::connect(rig.listener.local_addr().unwrap());
            drop(another.await.unwrap());
            continue;
        }
        drop(server);
        let fault = response.await.unwrap().unwrap_err();
        match serves_on {
            true => assert!(matches!(fault, WorkerFault::Unanswered { .. }), "{fault}"),
            false => assert!(matches!(fault, WorkerFault::Protocol { .. }), "{fault}"),
        }
    }
}

/// The server reads the request on a kept connection and closes it, as if the request had come a moment too late.
#[tokio::test]
async fn a_kept_connection_that_the_server_closes_repeats_what_may_be_repeated() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let put = Request::put("/").body(streamed("")).unwrap();
    for request in [get("/?again"), put] {
        let response = rig.pass(request);
        let first = server.read().await;
        drop(server);
        server = rig.accept().await;
        let second = server.read().await;
        assert_eq!(
            (&first.line, &first.headers),
            (&second.line, &second.headers)
        );
        is_ok(&mut server, response).await;
    }
    // Not what may have an effect twice, or has a body, or has been answered in part.
    let post = Request::post("/").body(streamed("")).unwrap();
    let put = Request::put("/").body(streamed("body")).unwrap();
    for (request, part) in [(post, ""), (put, ""), (get("/"), "HTTP/1.1 200 OK\r\n")] {
        let response = rig.pass(request);
        server.read().await;
        server.write(part).await;
        drop(server);
        match response.await.unwrap().unwrap_err() {
            WorkerFault::Unanswered { problem, .. } if part.is_empty() => {
                assert!(problem.contains("before it answered"), "{problem}");
            }
            WorkerFault::Protocol { .. } if !part.is_empty() => {}
            other => panic!("{other:?}"),
        }
        let response = rig.pass(get("/"));
        server = rig.accept().await;
        server.read().await;
        is_ok(&mut server, response).await;
    }
    assert!(rig.worker.is_alive());
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_a_fault() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    server.write("220 mail.example.com ESMTP\r\n\r\n").await;
    let fault = response.await.unwrap().unwrap_err();
    assert!(matches!(fault, WorkerFault::Protocol { .. }), "{fault}");
}

#[tokio::test]
async fn a_response_has_at_most_1000_headers() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    for (count, accepted) in [(1000, true), (1001, false)] {
        let response = rig.pass(get("/"));
        server.read().await;
        let headers = "X: 1\r\n".repeat(count - 1);
        server
            .write(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{headers}\r\nok"
            ))
            .await;
        match response.await.unwrap() {
            Ok(response) => {
                assert!(accepted);
                assert_eq!(response.headers().len(), count);
                assert_eq!(text(response).await, "ok");
            }
            Err(fault) => {
                assert!(!accepted, "{fault}");
                assert!(
                    fault.to_string().contains("1000 headers or 64 KiB"),
                    "{fault}"
                );
            }
        }
    }
}

#[tokio::test]
async fn an_answer_in_another_transfer_coding_is_a_fault() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    server
        .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        .await;
    let said = response.await.unwrap().unwrap_err().to_string();
    assert!(
        said.contains("gzip, chunked") && said.contains("Content-Encoding"),
        "{said}"
    );
}

#[tokio::test]
async fn trailers_are_announced_to_those_that_get_them() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    for asks in [true, false] {
        let mut request = get("/");
        if asks {
            let trailers = HeaderValue::from_static("trailers");
            request.headers_mut().insert(TE, trailers);
        }
        let response = rig.pass(request);
        server.read().await;
        server
            .write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n1\r\na\r\n0\r\nx-sum: 1\r\n\r\n")
            .await;
        let response = response.await.unwrap().unwrap();
        assert_eq!(response.headers().contains_key("trailer"), asks);
        assert_eq!(text(response).await, "a");
    }
}

#[tokio::test]
async fn short_pieces_that_arrived_together_are_one_and_those_without_end_have_a_pace() {
    const MANY: usize = 100_000;
    let rig = rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let end = "3\r\nend\r\n0\r\nx-sum: 1\r\n\r\n";
    let answer = [head, &"1\r\nx\r\n".repeat(MANY), end].concat();
    let writing = tokio::spawn(async move { server.write(answer).await });
    let mut response = response.await.unwrap().unwrap();
    let began = std::time::Instant::now();
    let (mut body, mut frames, mut trailers) = (Vec::new(), 0, None);
    while let Some(frame) = response.body_mut().frame().await {
        match frame.unwrap().into_data() {
            Ok(piece) => {
                frames += 1;
                body.extend_from_slice(&piece);
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    writing.await.unwrap();
    assert_eq!(body, ["x".repeat(MANY).as_str(), "end"].concat().as_bytes());
    assert_eq!(trailers.unwrap()["x-sum"], "1");
    assert!(frames < MANY / 20, "{frames}");
    // A fifth is read at once.
    assert!(began.elapsed() >= Duration::from_millis(700));
}

/// Each takes the daemon longer than the server.
#[tokio::test]
async fn interim_responses_without_end_are_a_fault() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    let hints = "HTTP/1.1 103 \r\n\r\n".repeat(20_000);
    // The connection is closed before all of them are read.
    let (_, fault) = tokio::join!(server.try_write(&hints), response);
    let fault = fault.unwrap().unwrap_err();
    let said = fault.to_string();
    assert!(said.contains("too much before the head"), "{said}");
    // A few are passed over, and the body has no such limit.
    let rig = self::rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    let body = "x".repeat(1 << 20);
    let hints = "HTTP/1.1 103 \r\n\r\n".repeat(20);
    let answer = format!(
        "{hints}HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (_, response) = tokio::join!(server.write(&answer), async {
        text(response.await.unwrap().unwrap()).await
    });
    assert_eq!(response.len(), body.len());
}

#[tokio::test]
async fn a_switch_of_protocols_that_nobody_asked_for_is_a_fault() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let response = rig.pass(get("/"));
    server.read().await;
    server
        .write("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
        .await;
    let fault = response.await.unwrap().unwrap_err();
    assert!(matches!(fault, WorkerFault::Protocol { .. }), "{fault}");
}

#[tokio::test]
async fn a_request_whose_body_fails_is_no_fault_of_the_worker() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let (send, body) = piecewise();
    let response = rig.pass(Request::post("/").body(body).unwrap());
    send.send(Ok("some")).await.unwrap();
    server.read_head().await;
    send.send(Err("the client went away".into())).await.unwrap();
    assert_eq!(response.await.unwrap().unwrap().status(), 400);
    assert!(rig.worker.is_alive());
    server.read_to_end().await;
}

#[tokio::test]
async fn a_retired_worker_gets_sigterm_and_its_connections_closed() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    rig.worker.retire();
    assert!(!rig.worker.is_alive());
    assert!(server.read_to_end().await.is_empty());
    drop(rig.worker);
    assert_eq!(rig.instance.let_go(), ["gracefully"]);
    assert_eq!(rig.instance.grace(), Some(GRACE_OF_SERVERS));

    let rig = rig_with(|config| {
        config.keep_alive.stop = Some(Stop::Sigterm);
        config.keep_alive.grace = Some(Duration::ZERO);
    });
    let rig = rig.await;
    rig.worker.retire();
    assert_eq!(rig.instance.grace(), Some(Duration::ZERO));

    let rig = rig_with(|config| config.keep_alive.stop = Some(Stop::Kill)).await;
    rig.worker.retire();
    assert_eq!(rig.instance.let_go(), ["at once"]);

    let rig = self::rig().await;
    drop(rig.worker);
    assert_eq!(rig.instance.let_go(), ["at once"]);

    let rig = self::rig().await;
    rig.worker.kill();
    drop(rig.worker);
    assert_eq!(rig.instance.let_go(), ["kill"]);
}
