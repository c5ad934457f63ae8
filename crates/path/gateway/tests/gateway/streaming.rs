//! Event functions that stream their responses: behind their URLs, through the Invoke API, and as events.

use std::time::Duration;

use crate::support::{Answer, Daemon, Function};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pilot_model::ports::{HttpHead, WorkerFault};
use pilot_testkit::{Deal, Reaction, version_with};
use serde_json::{Value, json};

fn head(headers: &[(&str, &str)]) -> HttpHead {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    HttpHead {
        status: 201,
        headers: headers.collect(),
        is_prelude: false,
    }
}

fn stream(headers: &[(&str, &str)], first: &'static str, rest: Vec<Deal>) -> Reaction {
    let rest = rest
        .into_iter()
        .map(|deal| (Duration::from_millis(1), deal));
    Reaction::Http(
        head(headers),
        Bytes::from_static(first.as_bytes()),
        rest.collect(),
    )
}

fn chunk(text: &'static str) -> Deal {
    Deal::Chunk(Bytes::from_static(text.as_bytes()))
}

fn end(text: &'static str) -> Deal {
    Deal::End(Bytes::from_static(text.as_bytes()))
}

fn invoke(name: &str) -> String {
    format!("/2015-03-31/functions/{name}/invocations")
}

fn invoke_streaming(name: &str) -> String {
    format!("/2021-11-15/functions/{name}/response-streaming-invocations")
}

/// `begun `, `and ` and `done`, as plain text.
fn streams() -> Function {
    Function::event("streams", |_| {
        stream(
            &[("content-type", "text/plain"), ("set-cookie", "a=1")],
            "begun ",
            vec![chunk("and "), end("done")],
        )
    })
}

/// The events of a whole stream: kind and payload.
fn events(answer: &Answer) -> Vec<(String, Vec<u8>)> {
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("content-type"),
        Some("application/vnd.amazon.eventstream")
    );
    let mut rest = &answer.body[..];
    let mut events = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap()) as usize;
        let (message, after) = rest.split_at(number(0));
        let (headers, payload) = message[12..message.len() - 4].split_at(number(4));
        let kind = ["PayloadChunk", "InvokeComplete"].into_iter().find(|kind| {
            headers
                .windows(kind.len())
                .any(|part| part == kind.as_bytes())
        });
        events.push((kind.unwrap().to_owned(), payload.to_vec()));
        rest = after;
    }
    events
}

fn chunks(events: &[(String, Vec<u8>)]) -> Vec<&str> {
    let chunks = events.iter().filter(|(kind, _)| kind == "PayloadChunk");
    chunks
        .map(|(_, payload)| std::str::from_utf8(payload).unwrap())
        .collect()
}

fn complete(events: &[(String, Vec<u8>)]) -> Value {
    let (kind, payload) = events.last().unwrap();
    assert_eq!(kind, "InvokeComplete");
    serde_json::from_slice(payload).unwrap()
}

#[tokio::test]
async fn behind_its_url_the_stream_is_the_response() {
    let daemon = Daemon::with(vec![streams()]).await;
    let answer = daemon.ask("GET", "/fn/streams/x", "", b"").await;
    assert_eq!((answer.status, answer.text()), (201, "begun and done"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert_eq!(answer.header("set-cookie"), Some("a=1"));
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
}

#[tokio::test]
async fn the_invoke_api_sends_a_streamed_response_in_one_piece() {
    let daemon = Daemon::with(vec![streams()]).await;
    let mut client = daemon.client().await;
    let tail = "x-amz-log-type: Tail\r\n";
    let answer = client.ask("POST", &invoke("streams"), tail, b"{}").await;
    assert_eq!((answer.status, answer.text()), (200, "begun and done"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert_eq!(answer.header("x-amz-executed-version"), Some("1"));
    assert_eq!(answer.header("x-amz-function-error"), None);
    assert!(answer.header("x-amz-log-result").is_some());
    let again = client.ask("POST", &invoke("streams"), "", b"{}").await;
    assert_eq!(again.header("x-pilot-start"), Some("warm"));
}

#[tokio::test]
async fn the_invoke_api_sends_the_prelude_of_a_streamed_response_too() {
    let function = Function::event("streams", |_| {
        let mut head = head(&[("content-type", "text/plain"), ("set-cookie", "a=1")]);
        head.is_prelude = true;
        Reaction::Http(
            head,
            Bytes::from_static(b"begun "),
            vec![(Duration::ZERO, end("done"))],
        )
    });
    let daemon = Daemon::with(vec![function]).await;
    let answer = daemon.ask("POST", &invoke("streams"), "", b"{}").await;
    let prelude = r#"{"statusCode":201,"headers":{"content-type":"text/plain"},"cookies":["a=1"]}"#;
    assert_eq!(
        answer.text(),
        format!("{prelude}\0\0\0\0\0\0\0\0begun done")
    );
    let media_type = "application/vnd.awslambda.http-integration-response";
    assert_eq!(answer.header("content-type"), Some(media_type));
}

#[tokio::test]
async fn a_streaming_invocation_gives_each_piece_in_an_event() {
    let daemon = Daemon::with(vec![streams()]).await;
    let tail = "x-amz-log-type: Tail\r\n";
    let path = invoke_streaming("streams:1");
    let answer = daemon.ask("POST", &path, tail, b"{}").await;
    assert_eq!(answer.header("x-amz-executed-version"), Some("1"));
    assert_eq!(answer.header("x-amzn-requestid").map(str::len), Some(36));
    let events = events(&answer);
    assert_eq!(chunks(&events), ["begun ", "and ", "done"]);
    let complete = complete(&events);
    assert_eq!(complete.get("ErrorCode"), None);
    let log = STANDARD
        .decode(complete["LogResult"].as_str().unwrap())
        .unwrap();
    assert!(
        String::from_utf8(log)
            .unwrap()
            .contains("REPORT RequestId: ")
    );
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_one_piece() {
    let echo = Function::event("echo", |call| {
        Reaction::Return(Duration::ZERO, call.payload.clone(), Bytes::new())
    });
    let whole = Function::event("whole", |_| stream(&[], "whole", vec![]));
    let daemon = Daemon::with(vec![echo, whole]).await;
    for (name, text) in [("echo", "[1]"), ("whole", "whole")] {
        let path = invoke_streaming(name);
        let events = events(&daemon.ask("POST", &path, "", b"[1]").await);
        assert_eq!(chunks(&events), [text]);
        assert_eq!(complete(&events), json!({}));
    }
}

#[tokio::test]
async fn what_the_function_does_wrong_is_in_the_last_event() {
    const RAISED: &str = r#"{"errorType":"ValueError","errorMessage":"no"}"#;
    let early = Function::event("early", |_| {
        Reaction::Raise(Duration::ZERO, Bytes::from_static(RAISED.as_bytes()))
    });
    let late = Function::event("late", |_| {
        let raise = Deal::Raise(Bytes::from_static(RAISED.as_bytes()));
        stream(&[], "begun", vec![raise])
    });
    let dies = Function::event("dies", |_| {
        let fault = WorkerFault::Exited {
            code: 3,
            output: Bytes::new(),
        };
        stream(&[], "begun", vec![Deal::Die(fault)])
    });
    let slow = version_with("slow", 1, |config| {
        config.timeout = Duration::from_millis(20);
    });
    let slow = Function::of(slow, |_| {
        let rest = vec![(Duration::from_secs(3600), end(""))];
        Reaction::Http(head(&[]), Bytes::from_static(b"begun"), rest)
    });
    let large = Function::event("large", |_| {
        let result = Bytes::from(vec![b'1'; 7_000_000]);
        Reaction::Return(Duration::ZERO, result, Bytes::new())
    });
    let daemon = Daemon::with(vec![early, late, dies, slow, large]).await;
    for (name, pieces, code, details) in [
        ("early", 0, "ValueError", RAISED),
        ("late", 1, "ValueError", RAISED),
        (
            "dies",
            1,
            "Runtime.ExitError",
            " Error: Runtime exited with error: exit status 3\"",
        ),
        (
            "slow",
            1,
            "Sandbox.Timedout",
            " Error: Task timed out after 0.02 seconds\"",
        ),
        ("large", 0, "Function.ResponseSizeTooLarge", "6291556 bytes"),
    ] {
        let path = invoke_streaming(name);
        let events = events(&daemon.ask("POST", &path, "", b"{}").await);
        assert_eq!(chunks(&events).len(), pieces, "{name}");
        let complete = complete(&events);
        assert_eq!(complete["ErrorCode"], code, "{name}");
        let told = complete["ErrorDetails"].as_str().unwrap();
        assert!(told.contains(details), "{told}");
        if pieces == 1 {
            let body: Value = serde_json::from_str(told).unwrap();
            assert_eq!(body["errorType"], code, "{name}");
        }
    }
}

#[tokio::test]
async fn a_large_piece_goes_in_several_events() {
    let large = Function::event("large", |_| {
        let part = Bytes::from(vec![b'x'; 2_500_000]);
        let rest = vec![(Duration::ZERO, Deal::End(part))];
        Reaction::Http(head(&[]), Bytes::new(), rest)
    });
    let daemon = Daemon::with(vec![large]).await;
    let path = invoke_streaming("large");
    let events = events(&daemon.ask("POST", &path, "", b"{}").await);
    let lengths: Vec<usize> = chunks(&events).iter().map(|text| text.len()).collect();
    assert_eq!(lengths, [1 << 20, 1 << 20, 2_500_000 - (2 << 20)]);
}

#[tokio::test]
async fn the_caller_is_told_of_its_mistakes_before_anything_streams() {
    let daemon = Daemon::with(vec![streams()]).await;
    for (name, headers, body, status) in [
        ("nope", "", "{}", 404),
        ("streams", "", "{", 400),
        ("streams", "x-amz-invocation-type: Event\r\n", "{}", 400),
        ("streams", "x-amz-invocation-type: DryRun\r\n", "{}", 204),
    ] {
        let path = invoke_streaming(name);
        let answer = daemon.ask("POST", &path, headers, body.as_bytes()).await;
        assert_eq!(answer.status, status, "{name} {headers}");
    }
    assert_eq!(daemon.engine.starts(), 0);
}
