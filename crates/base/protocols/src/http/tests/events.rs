//! Events posted to a server.

use pilot_model::ports::Call;

use crate::RESPONSE_LEN_MAX;

use super::*;

fn event(body: &str) -> Call {
    pilot_testkit::event_call("1", body)
}

/// The result of an event for this answer of the server.
async fn answered(rig: &Rig, server: &mut Peer, answer: &str) -> Result<Answer, WorkerFault> {
    let worker = Arc::clone(&rig.worker);
    let call = tokio::spawn(async move { worker.call(event("{\"a\":1}")).await });
    let request = server.read().await;
    assert_eq!(request.line, "POST / HTTP/1.1");
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.text(), "{\"a\":1}");
    server.write(answer).await;
    call.await.unwrap()
}

fn with_body(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_2xx_is_a_result_and_always_json() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    for (status, sent, expected) in [
        ("200 OK", r#"{"b": 2}"#, r#"{"b": 2}"#),
        ("201 Created", "plain \"text\"", r#""plain \"text\"""#),
        ("200 OK", "", "null"),
    ] {
        rig.instance.print("line");
        let answer = answered(&rig, &mut server, &with_body(status, sent)).await;
        let Ok(Answer::Result(body, done)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(body, expected);
        assert_eq!(
            (done.output, rig.worker.take_output()),
            (Bytes::new(), Bytes::from_static(b"line"))
        );
        assert!(done.started <= done.first_byte);
    }
    assert_eq!(rig.reach.connects(), 1);
}

#[tokio::test]
async fn any_other_status_is_an_error_that_shows_the_beginning_of_the_body() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let long = format!("oh no{}", "x".repeat(5000));
    let answer = with_body("500 Internal Server Error", &long);
    let Ok(Answer::Error(body, _)) = answered(&rig, &mut server, &answer).await else {
        panic!("no error");
    };
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["errorType"], "Runtime.HttpStatus");
    let message = body["errorMessage"].as_str().unwrap();
    assert!(
        message.contains("500 Internal Server Error: oh no") && message.len() < 700,
        "{message}"
    );
}

#[tokio::test]
async fn a_response_that_is_too_large_or_breaks_off_is_an_error() {
    let rig = rig().await;
    let mut server = rig.accept().await;
    let large = with_body("200 OK", &"x".repeat(RESPONSE_LEN_MAX * 2));
    let worker = Arc::clone(&rig.worker);
    let call = tokio::spawn(async move { worker.call(event("{}")).await });
    server.read().await;
    // The write fails because the worker stops reading before the end.
    drop(tokio::io::AsyncWriteExt::write_all(&mut server.stream, large.as_bytes()).await);
    let answer = call.await.unwrap();
    assert!(
        matches!(&answer, Ok(Answer::Error(body, _)) if body.starts_with(br#"{"errorType":"Function.ResponseSizeTooLarge""#)),
    );

    let worker = Arc::clone(&rig.worker);
    let call = tokio::spawn(async move { worker.call(event("{}")).await });
    let mut server = rig.accept().await;
    server.read().await;
    server
        .write("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome")
        .await;
    drop(server);
    let answer = call.await.unwrap();
    assert!(
        matches!(&answer, Ok(Answer::Error(body, _)) if body.starts_with(br#"{"errorType":"Runtime.TruncatedResponse""#)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn an_http_request_is_not_called_and_nothing_is_under_way() {
    let rig = rig().await;
    let mut http = event("");
    Arc::make_mut(&mut http.head).http = Some(pilot_testkit::http_head());
    let fault = rig.worker.call(http).await.unwrap_err();
    assert!(matches!(fault, WorkerFault::Protocol { .. }), "{fault}");
    let fault = rig.worker.next(1).await.unwrap_err();
    assert!(matches!(fault, WorkerFault::Protocol { .. }), "{fault}");
}

#[tokio::test]
async fn an_event_for_a_port_on_which_nobody_listens_was_not_taken() {
    let rig = rig().await;
    rig.reach.listens_no_more();
    drop(rig.accept().await);
    closes_arrive().await;
    let fault = rig.worker.call(event("1")).await.unwrap_err();
    assert!(matches!(fault, WorkerFault::NotTaken(_)), "{fault:?}");
}
