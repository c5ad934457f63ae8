//! Function URLs: events in payload format 2.0, and applications.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Daemon, Function, meta, soon, upstream};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pilot_model::Outcome;
use pilot_model::ports::{HttpHead, PassedRequest, WorkerFault};
use pilot_testkit::{Deal, Reaction, version_with};
use serde_json::{Value, json};
use tokio::sync::Notify;

fn returning(value: &Value) -> Reaction {
    Reaction::Return(Duration::ZERO, Bytes::from(value.to_string()), Bytes::new())
}

/// Returns its event.
fn echo() -> Function {
    Function::event("echo", |call| {
        Reaction::Return(Duration::ZERO, call.payload.clone(), Bytes::new())
    })
}

fn head(status: u16, headers: &[(&str, &str)]) -> HttpHead {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    HttpHead {
        status,
        headers: headers.collect(),
        is_prelude: false,
    }
}

fn whole(status: u16, headers: &[(&str, &str)], body: &'static str) -> Reaction {
    Reaction::Http(
        head(status, headers),
        Bytes::from_static(body.as_bytes()),
        Vec::new(),
    )
}

#[tokio::test]
async fn an_event_function_gets_the_request_as_an_event() {
    let daemon = Daemon::with(vec![echo()]).await;
    let headers =
        "content-type: text/plain\r\ncookie: a=1; b=2\r\nX-Up: 1\r\nconnection: keep-alive\r\n";
    let answer = daemon
        .ask("PUT", "/fn/echo/a%20b/c?x=1&x=2", headers, b"body")
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-pilot-start"), Some("cold"));
    assert!(
        answer
            .header("server-timing")
            .unwrap()
            .contains("total;dur=")
    );
    let event = answer.json();
    assert_eq!(event["rawPath"], "/a%20b/c");
    assert_eq!(event["rawQueryString"], "x=1&x=2");
    assert_eq!(event["queryStringParameters"], json!({"x": "1,2"}));
    assert_eq!(event["cookies"], json!(["a=1", "b=2"]));
    assert_eq!(
        (&event["body"], &event["isBase64Encoded"]),
        (&json!("body"), &json!(false))
    );
    assert_eq!(event["requestContext"]["http"]["method"], "PUT");
    assert_eq!(event["requestContext"]["http"]["sourceIp"], "127.0.0.1");
    assert_eq!(event["requestContext"]["domainName"], "pilot.test");
    assert_eq!(
        event["requestContext"]["requestId"].as_str(),
        answer.header("x-amzn-requestid")
    );
    assert_eq!(
        event["headers"],
        json!({
            "content-length": "4",
            "content-type": "text/plain",
            "host": "pilot.test",
            "x-forwarded-for": "127.0.0.1",
            "x-forwarded-prefix": "/fn/echo",
            "x-forwarded-proto": "http",
            "x-up": "1",
        })
    );
}

#[tokio::test]
async fn the_url_without_a_path_is_the_root() {
    let daemon = Daemon::with(vec![echo()]).await;
    for path in ["/fn/echo", "/fn/echo/", "/fn/echo?x", "/fn/echo:1"] {
        let answer = daemon.ask("GET", path, "", b"").await;
        assert_eq!(answer.json()["rawPath"], "/", "{path}");
    }
}

#[tokio::test]
async fn the_authority_of_a_target_is_the_host_for_every_kind_of_function() {
    let app = Function::application("app", |call| {
        let headers = Bytes::from(meta(call)["headers"].to_string());
        Reaction::Http(
            head(200, &[]),
            Bytes::new(),
            vec![(Duration::ZERO, Deal::End(headers))],
        )
    });
    let server = Function::server("web", async |request: PassedRequest| {
        let headers = request.headers();
        let told = json!({"host": headers["host"].to_str().unwrap(),
            "forwarded": headers["x-forwarded-host"].to_str().unwrap()});
        Ok(upstream::response(told.to_string()))
    });
    let daemon = Daemon::with(vec![echo(), app, server]).await;
    let ask = async |function: &str, version: &str, headers: &str| {
        let mut client = daemon.client().await;
        let target = format!("http://y.example:81/fn/{function}/?a");
        client
            .send(format!("GET {target} {version}\r\n{headers}\r\n"))
            .await;
        // In HTTP/1.0, a stream ends with the connection.
        let (bytes, _) = soon(client.until_the_end()).await;
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(" 200 OK\r\n"), "{text}");
        text
    };
    for (version, headers) in [
        ("HTTP/1.1", "host: x.example\r\nconnection: close\r\n"),
        ("HTTP/1.0", ""),
        ("HTTP/1.0", "host: x.example\r\n"),
    ] {
        for function in ["echo", "app", "web"] {
            let text = ask(function, version, headers).await;
            assert!(text.contains("y.example:81"), "{function} {text}");
            assert!(!text.contains("x.example"), "{function} {text}");
        }
    }
    // A web page of another site does not get further in this way.
    let mut client = daemon.client().await;
    client
        .send("POST http://evil.example/2015-03-31/functions/echo/invocations HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.status, 403);
}

#[tokio::test]
async fn bytes_go_in_and_out_unchanged() {
    let mirror = Function::event("mirror", |call| {
        let event: Value = serde_json::from_slice(&call.payload).unwrap();
        assert_eq!(event["isBase64Encoded"], true);
        returning(&json!({
            "statusCode": 201,
            "headers": {"content-type": "image/png", "x-own": "1"},
            "cookies": ["a=1", "b=2"],
            "body": event["body"],
            "isBase64Encoded": true,
        }))
    });
    let daemon = Daemon::with(vec![mirror]).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let answer = daemon
        .ask("POST", "/fn/mirror", "content-type: image/png\r\n", &bytes)
        .await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (201, Some("image/png"))
    );
    assert_eq!(answer.body, bytes);
    let cookies: Vec<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "set-cookie")
        .collect();
    assert_eq!(cookies.len(), 2);
}

#[tokio::test]
async fn a_head_request_has_the_length_and_no_body() {
    let app = Function::application("app", |call| match meta(call)["path"].as_str().unwrap() {
        "/told" => whole(200, &[("content-length", "7")], ""),
        "/streamed" => {
            let rest = vec![(Duration::ZERO, Deal::End(Bytes::from_static(b"x")))];
            Reaction::Http(head(200, &[("content-length", "7")]), Bytes::new(), rest)
        }
        _ => whole(200, &[], "seven.."),
    });
    let text = Function::event("text", |_| returning(&json!("seven..")));
    let daemon = Daemon::with(vec![app, text]).await;
    for path in ["/fn/text", "/fn/app/told", "/fn/app/streamed"] {
        let mut client = daemon.client().await;
        let answer = client.ask("HEAD", path, "", b"").await;
        assert_eq!(
            (answer.status, answer.header("content-length")),
            (200, Some("7")),
            "{path}"
        );
        assert_eq!(
            client.ask("GET", "/next", "", b"").await.text(),
            "GET /next ",
            "{path}"
        );
    }
    assert_eq!(daemon.engine.alive(), 2);
}

#[tokio::test]
async fn a_function_that_fails_is_a_502_that_says_how() {
    let raise = Function::event("raise", |_| {
        Reaction::Raise(
            Duration::ZERO,
            Bytes::from_static(br#"{"errorType":"ValueError","errorMessage":"no"}"#),
        )
    });
    let odd = Function::event("odd", |_| returning(&json!({"statusCode": "abc"})));
    let large = Function::event("large", |_| {
        Reaction::Return(
            Duration::ZERO,
            Bytes::from(vec![b'1'; 7_000_000]),
            Bytes::new(),
        )
    });
    let head = Function::application("head", |_| whole(101, &[], ""));
    let header = Function::application("header", |_| whole(200, &[("x", "a\nb")], ""));
    let hang = version_with("hang", 1, |config| {
        config.timeout = Duration::from_millis(20)
    });
    let hang = Function::of(hang, |_| Reaction::Hang);
    let daemon = Daemon::with(vec![raise, odd, large, head, header, hang]).await;
    for (name, error_type, message) in [
        ("raise", "FunctionError", ""),
        ("odd", "Function.InvalidResponse", "statusCode is"),
        ("large", "Function.ResponseSizeTooLarge", "6291556 bytes"),
        ("head", "Function.InvalidResponse", "status 101"),
        ("header", "Function.InvalidResponse", "the header 'x'"),
        ("hang", "Sandbox.Timedout", "timed out after 0.02 seconds"),
    ] {
        let answer = daemon.ask("GET", &format!("/fn/{name}"), "", b"").await;
        assert_eq!(answer.status, 502, "{name}");
        assert_eq!(
            answer.header("x-amz-function-error"),
            Some("Unhandled"),
            "{name}"
        );
        assert!(answer.header("server-timing").is_some(), "{name}");
        let error = answer.json();
        assert_eq!(
            (&error["Message"], &error["errorType"]),
            (&json!("Internal Server Error"), &json!(error_type))
        );
        // What the function raised is not for its callers.
        let told = error["errorMessage"].as_str();
        assert_eq!(told.is_none(), message.is_empty(), "{error}");
        assert!(told.unwrap_or_default().contains(message), "{error}");
    }
    assert_eq!(daemon.ask("GET", "/fn/nope", "", b"").await.status, 404);
}

#[tokio::test]
async fn an_application_gets_the_request_as_it_is() {
    let app = Function::application("app", |call| {
        let told = json!({"meta": meta(call), "body": STANDARD.encode(&call.payload)});
        Reaction::Http(
            head(200, &[("Content-Type", "application/json")]),
            Bytes::from(told.to_string()),
            Vec::new(),
        )
    });
    let daemon = Daemon::with(vec![app]).await;
    let mut client = daemon.client().await;
    let request = "POST /fn/app/a%2Fb//c?q=%20 HTTP/1.1\r\nHost: shop.local\r\nX-A: 1\r\nX-A: 2\r\n\
                   Transfer-Encoding: chunked\r\n\r\n2\r\n\0\u{1}\r\n1\r\n2\r\n0\r\n\r\n";
    client.send(request).await;
    let answer = client.answer().await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let told = answer.json();
    assert_eq!(told["body"], STANDARD.encode(b"\x00\x012"));
    let meta = &told["meta"];
    assert_eq!(
        (&meta["method"], &meta["path"]),
        (&json!("POST"), &json!("/a%2Fb//c"))
    );
    assert_eq!(
        (&meta["query"], &meta["root_path"]),
        (&json!("q=%20"), &json!("/fn/app"))
    );
    assert_eq!(
        (&meta["scheme"], &meta["client"][0]),
        (&json!("http"), &json!("127.0.0.1"))
    );
    let headers: Vec<(String, String)> = serde_json::from_value(meta["headers"].clone()).unwrap();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    for wanted in [
        pair("host", "shop.local"),
        pair("x-a", "1"),
        pair("x-a", "2"),
        pair("content-length", "3"),
        pair("x-forwarded-for", "127.0.0.1"),
        pair("x-forwarded-prefix", "/fn/app"),
    ] {
        assert!(headers.contains(&wanted), "{wanted:?} in {headers:?}");
    }
    assert!(!headers.iter().any(|(name, _)| name == "transfer-encoding"));
}

#[tokio::test]
async fn an_applications_response_goes_out_as_it_is() {
    let app = Function::application("app", |call| match meta(call)["path"].as_str().unwrap() {
        "/none" => whole(204, &[("content-length", "3")], ""),
        "/teapot" => whole(
            418,
            &[
                ("x-a", "1"),
                ("x-a", "2"),
                ("set-cookie", "a"),
                ("content-length", "99"),
                ("connection", "close"),
            ],
            "short",
        ),
        _ => {
            let rest = vec![
                (
                    Duration::from_millis(1),
                    Deal::Chunk(Bytes::from_static(b"and ")),
                ),
                (Duration::ZERO, Deal::Chunk(Bytes::new())),
                (Duration::ZERO, Deal::End(Bytes::from_static(b"done"))),
            ];
            Reaction::Http(
                head(200, &[("content-type", "text/plain")]),
                Bytes::from_static(b"begun "),
                rest,
            )
        }
    });
    let daemon = Daemon::with(vec![app]).await;
    let mut client = daemon.client().await;
    let streamed = client.ask("GET", "/fn/app/stream", "", b"").await;
    assert_eq!(streamed.text(), "begun and done");
    assert_eq!(streamed.header("transfer-encoding"), Some("chunked"));
    assert_eq!(streamed.header("x-pilot-start"), Some("cold"));
    let teapot = client.ask("GET", "/fn/app/teapot", "", b"").await;
    assert_eq!((teapot.status, teapot.text()), (418, "short"));
    assert_eq!(
        teapot
            .headers
            .iter()
            .filter(|(name, _)| name == "x-a")
            .count(),
        2
    );
    assert_eq!(teapot.header("connection"), None);
    let none = client.ask("GET", "/fn/app/none", "", b"").await;
    assert_eq!((none.status, none.header("content-length")), (204, None));
    assert_eq!(
        client
            .ask("OPTIONS", "/fn/app/teapot", "", b"")
            .await
            .status,
        418
    );
    assert_eq!(daemon.engine.starts(), 1);
}

#[tokio::test]
async fn a_body_that_breaks_off_breaks_the_connection_off() {
    let app = Function::application("app", |_| {
        let fault = WorkerFault::Signalled {
            signal: 11,
            output: Bytes::new(),
        };
        let rest = vec![(Duration::ZERO, Deal::Die(fault))];
        Reaction::Http(head(200, &[]), Bytes::from_static(b"begun"), rest)
    });
    let daemon = Daemon::with(vec![app]).await;
    let mut client = daemon.client().await;
    client.send("GET /fn/app HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(client.try_answer("GET").await.is_none());
}

/// Sends the head and "begun", then raises an exception. Keeps serving.
fn raises_late() -> Function {
    Function::application("app", |_| {
        let raised = Bytes::from_static(br#"{"errorType":"ValueError","errorMessage":"late"}"#);
        let rest = vec![(Duration::ZERO, Deal::Raise(raised))];
        Reaction::Http(head(200, &[]), Bytes::from_static(b"begun"), rest)
    })
}

#[tokio::test]
async fn an_application_that_raises_in_the_middle_is_cut_off_behind_what_it_sent() {
    let daemon = Daemon::with(vec![raises_late()]).await;
    for _ in 0..2 {
        let mut client = daemon.client().await;
        client.send("GET /fn/app HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let (sent, _) = client.until_the_end().await;
        let sent = String::from_utf8(sent).unwrap();
        assert!(sent.starts_with("HTTP/1.1 200 OK\r\n"), "{sent}");
        assert!(sent.ends_with("\r\n5\r\nbegun\r\n"), "{sent}");
    }
    assert_eq!(daemon.engine.starts(), 1, "the worker serves on");
}

#[tokio::test]
async fn to_http_1_0_a_body_that_breaks_off_ends_with_a_reset() {
    let daemon = Daemon::with(vec![raises_late()]).await;
    let mut client = daemon.client().await;
    client.send("GET /fn/app HTTP/1.0\r\n\r\n").await;
    let (_, end) = client.until_the_end().await;
    assert_eq!(
        end.unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset,
        "an orderly end would look whole"
    );
}

#[tokio::test]
async fn an_application_that_raises_where_nobody_gets_its_body_is_recorded_as_failed() {
    let daemon = Daemon::with(vec![raises_late()]).await;
    let answer = daemon.ask("HEAD", "/fn/app", "", b"").await;
    assert_eq!(answer.status, 200);
    let record = daemon.record().await;
    assert_eq!(record.outcome, Outcome::FunctionError);
    assert_eq!(daemon.engine.starts(), 1, "the worker serves on");
}

#[tokio::test]
async fn a_body_that_the_client_does_not_get_does_not_delay_the_head_and_goes_on() {
    let rest = || {
        vec![(
            Duration::from_millis(300),
            Deal::End(Bytes::from_static(b"x")),
        )]
    };
    let app = || {
        Function::application("app", move |call| {
            let status = match meta(call)["path"].as_str().unwrap() {
                "/204" => 204,
                "/304" => 304,
                _ => 200,
            };
            Reaction::Http(head(status, &[]), Bytes::from_static(b"begun"), rest())
        })
    };
    let event = || {
        Function::event("event", move |_| {
            Reaction::Http(head(200, &[]), Bytes::from_static(b"begun"), rest())
        })
    };
    for (method, path, status) in [
        ("HEAD", "/fn/app", 200),
        ("GET", "/fn/app/204", 204),
        ("GET", "/fn/app/304", 304),
        ("HEAD", "/fn/event", 200),
    ] {
        let daemon = Daemon::with(vec![app(), event()]).await;
        let answer = daemon.ask(method, path, "", b"").await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(
            daemon.sink.records().is_empty(),
            "{method} {path}: it goes on"
        );
        assert_eq!(daemon.record().await.outcome, Outcome::Ok);
        assert_eq!(daemon.engine.alive(), 1, "{method} {path}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_frees_the_worker() {
    let begun = Arc::new(Notify::new());
    let began = begun.clone();
    let app = version_with("app", 1, |config| {
        config.scale.max = 1;
        config.timeout = Duration::from_secs(60);
        config.interface = pilot_model::Interface::Asgi;
    });
    let app = Function::of(app, move |call| {
        if meta(call)["path"] == "/quick" {
            return whole(200, &[], "quick");
        }
        began.notify_one();
        let rest = vec![(Duration::from_secs(3600), Deal::End(Bytes::new()))];
        Reaction::Http(head(200, &[]), Bytes::from_static(b"begun"), rest)
    });
    let daemon = Daemon::with(vec![app]).await;
    let mut client = daemon.client().await;
    client.send("GET /fn/app HTTP/1.1\r\nhost: x\r\n\r\n").await;
    soon(begun.notified()).await;
    drop(client);
    assert_eq!(
        soon(daemon.ask("GET", "/fn/app/quick", "", b""))
            .await
            .text(),
        "quick"
    );
}
