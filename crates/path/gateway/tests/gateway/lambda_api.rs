//! AWS Lambda's Invoke API, as SDKs use it.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Daemon, Function, Setup, meta, soon};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pilot_gateway::{Access, Door, GatewayConfig};
use pilot_invoke::Limits;
use pilot_model::access::{Grant, Role};
use pilot_testkit::{FixedTokens, Reaction, version_with};
use serde_json::json;
use tokio::sync::Notify;

const ECHO: &str = "/2015-03-31/functions/echo/invocations";

/// Prints a line and returns its event.
fn echo() -> Function {
    Function::event("echo", |call| {
        Reaction::Return(
            Duration::ZERO,
            call.payload.clone(),
            Bytes::from_static(b"printed\n"),
        )
    })
}

#[tokio::test]
async fn an_invocation_answers_with_the_result_and_everything_about_it() {
    let daemon = Daemon::with(vec![echo()]).await;
    let answer = daemon.ask("POST", ECHO, "", br#"{"a": 1}"#).await;
    assert_eq!((answer.status, answer.text()), (200, r#"{"a": 1}"#));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-amz-executed-version"), Some("1"));
    assert_eq!(answer.header("x-amz-function-error"), None);
    assert_eq!(answer.header("x-amzn-requestid").map(str::len), Some(36));
    assert_eq!(answer.header("x-pilot-start"), Some("cold"));
    let timing = answer.header("server-timing").unwrap();
    for phase in [
        "admit;dur=",
        "lease;dur=",
        "init;dur=",
        "handler;dur=",
        "total;dur=",
    ] {
        assert!(timing.contains(phase), "{phase} in {timing}");
    }
    let again = daemon.ask("POST", ECHO, "", b"2").await;
    assert_eq!(again.header("x-pilot-start"), Some("warm"));
}

#[tokio::test]
async fn every_way_to_name_a_function_invokes_it() {
    let daemon = Daemon::with(vec![echo()]).await;
    for name in [
        "echo:1",
        "echo%3A1",
        "000000000000:function:echo",
        "arn:aws:lambda:us-east-1:000000000000:function:echo",
        "arn%3Aaws%3Alambda%3Aus-east-1%3A123456789012%3Afunction%3Aecho%3A%24LATEST",
    ] {
        let path = format!("/2015-03-31/functions/{name}/invocations");
        assert_eq!(
            daemon.ask("POST", &path, "", b"1").await.status,
            200,
            "{name}"
        );
    }
    let qualified = format!("{ECHO}?Qualifier=1");
    assert_eq!(daemon.ask("POST", &qualified, "", b"1").await.status, 200);
}

#[tokio::test]
async fn no_body_is_an_empty_event() {
    let daemon = Daemon::with(vec![echo()]).await;
    assert_eq!(daemon.ask("POST", ECHO, "", b"").await.text(), "{}");
}

#[tokio::test]
async fn the_function_gets_its_arn_client_context_and_trace() {
    let tell = Function::event("tell", |call| {
        let told = Bytes::from(meta(call).to_string());
        Reaction::Return(Duration::ZERO, told, Bytes::new())
    });
    let daemon = Daemon::with(vec![tell]).await;
    let context = STANDARD.encode(r#"{"custom":{"k":"v"}}"#);
    let headers = format!("x-amz-client-context: {context}\r\nx-amzn-trace-id: Root=1-2-3\r\n");
    let path = "/2015-03-31/functions/tell:1/invocations";
    let told = daemon.ask("POST", path, &headers, b"").await;
    let meta = told.json();
    assert_eq!(
        meta["arn"],
        "arn:aws:lambda:us-east-1:000000000000:function:tell:1"
    );
    assert_eq!(meta["client_context"], r#"{"custom":{"k":"v"}}"#);
    assert_eq!(meta["trace"], "Root=1-2-3");
    assert_eq!(meta["id"].as_str(), told.header("x-amzn-requestid"));
}

#[tokio::test]
async fn a_dry_run_checks_and_does_not_run() {
    let daemon = Daemon::with(vec![echo()]).await;
    let headers = "x-amz-invocation-type: DryRun\r\n";
    let answer = daemon.ask("POST", ECHO, headers, b"{}").await;
    assert_eq!(
        (answer.status, answer.header("x-amz-executed-version")),
        (204, Some("1"))
    );
    let missing = "/2015-03-31/functions/nope/invocations";
    assert_eq!(
        daemon.ask("POST", missing, headers, b"{}").await.status,
        404
    );
    assert_eq!(daemon.engine.starts(), 0);
}

#[tokio::test]
async fn the_log_tail_comes_when_asked_for() {
    let daemon = Daemon::with(vec![echo()]).await;
    let answer = daemon
        .ask("POST", ECHO, "x-amz-log-type: Tail\r\n", b"1")
        .await;
    let log = STANDARD
        .decode(answer.header("x-amz-log-result").unwrap())
        .unwrap();
    let log = String::from_utf8(log).unwrap();
    assert!(
        log.contains("printed\n") && log.contains("REPORT RequestId: "),
        "{log}"
    );
    assert_eq!(
        daemon
            .ask("POST", ECHO, "", b"1")
            .await
            .header("x-amz-log-result"),
        None
    );
}

#[tokio::test]
async fn what_the_function_does_wrong_is_a_200_with_a_function_error() {
    let raise = Function::event("raise", |_| {
        Reaction::Raise(
            Duration::ZERO,
            Bytes::from_static(br#"{"errorType":"ValueError","errorMessage":"no"}"#),
        )
    });
    let large = Function::event("large", |_| {
        Reaction::Return(
            Duration::ZERO,
            Bytes::from(vec![b'1'; 7_000_000]),
            Bytes::new(),
        )
    });
    let hang = version_with("hang", 1, |config| {
        config.timeout = Duration::from_millis(20)
    });
    let hang = Function::of(hang, |_| Reaction::Hang);
    let daemon = Daemon::with(vec![raise, large, hang]).await;
    for (name, error_type, message) in [
        ("raise", "ValueError", "no"),
        ("large", "Function.ResponseSizeTooLarge", "6291556 bytes"),
        (
            "hang",
            "Sandbox.Timedout",
            "Task timed out after 0.02 seconds",
        ),
    ] {
        let path = format!("/2015-03-31/functions/{name}/invocations");
        let answer = daemon.ask("POST", &path, "", b"1").await;
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(
            answer.header("x-amz-function-error"),
            Some("Unhandled"),
            "{name}"
        );
        let error = answer.json();
        assert_eq!(error["errorType"], error_type);
        assert!(
            error["errorMessage"].as_str().unwrap().contains(message),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_the_caller_does_wrong_has_lambdas_status_and_name() {
    let app = Function::application("app", |_| Reaction::Hang);
    let daemon = Daemon::with(vec![echo(), app]).await;
    let context = "x-amz-client-context: ?\r\n";
    let key = "x-pilot-idempotency-key: k\r\n";
    let later = "x-amz-invocation-type: Later\r\n";
    let cases = [
        ("nope", "", "{}", 404, "ResourceNotFoundException"),
        ("echo:9", "", "{}", 404, "ResourceNotFoundException"),
        ("a%20b", "", "{}", 400, "ValidationException"),
        ("echo", "", "{", 400, "InvalidRequestContentException"),
        ("echo", context, "{}", 400, "InvalidRequestContentException"),
        ("echo", key, "{}", 400, "InvalidRequestContentException"),
        ("echo", later, "{}", 400, "ValidationException"),
        ("app", "", "{}", 501, "NotImplementedException"),
    ];
    for (function, headers, body, status, name) in cases {
        let path = format!("/2015-03-31/functions/{function}/invocations");
        let answer = daemon.ask("POST", &path, headers, body.as_bytes()).await;
        let told = (answer.status, answer.header("x-amzn-errortype"));
        assert_eq!(told, (status, Some(name)), "{function} {headers}");
        assert_eq!(answer.json()["Type"], "User");
        assert!(answer.header("x-amzn-requestid").is_some());
    }
}

#[tokio::test]
async fn what_is_no_invocation_has_lambdas_status_and_name() {
    let daemon = Daemon::with(vec![echo()]).await;
    let qualifiers = "/2015-03-31/functions/echo:1/invocations?Qualifier=2";
    let streaming = "/2021-11-15/functions/echo/response-streaming-invocations";
    let asynchronous = "/2014-11-13/functions/echo/invoke-async";
    for (method, path, status, name) in [
        ("POST", qualifiers, 400, "InvalidParameterValueException"),
        ("GET", ECHO, 404, "UnknownOperationException"),
        (
            "GET",
            "/2015-03-31/functions/",
            404,
            "UnknownOperationException",
        ),
        ("GET", streaming, 404, "UnknownOperationException"),
        (
            "GET",
            "/2018-10-31/layers",
            404,
            "UnknownOperationException",
        ),
        ("POST", asynchronous, 501, "NotImplementedException"),
        (
            "POST",
            "/2014-11-13/functions/echo/invoke-async/",
            501,
            "NotImplementedException",
        ),
    ] {
        let answer = daemon.ask(method, path, "", b"{}").await;
        let told = (answer.status, answer.header("x-amzn-errortype"));
        assert_eq!(told, (status, Some(name)), "{path}");
        assert!(answer.header("x-amzn-requestid").is_some(), "{path}");
    }
}

#[tokio::test]
async fn a_missing_function_is_told_in_lambdas_words() {
    let daemon = Daemon::with(vec![]).await;
    let path = "/2015-03-31/functions/nope/invocations";
    let missing = daemon.ask("POST", path, "", b"{}").await.json();
    let arn = "arn:aws:lambda:us-east-1:000000000000:function:nope";
    assert_eq!(
        missing,
        json!({"Type": "User", "Message": format!("Function not found: {arn}")})
    );
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_announced_or_not() {
    let daemon = Daemon::with(vec![echo()]).await;
    let mut announced = daemon.client().await;
    let head = format!("POST {ECHO} HTTP/1.1\r\nhost: x\r\ncontent-length: 6291457\r\n\r\n");
    announced.send(&head).await;
    let refusal = announced.answer().await;
    assert_eq!(
        (refusal.status, refusal.header("x-amzn-errortype")),
        (413, Some("RequestTooLargeException"))
    );
    let mut chunked = daemon.client().await;
    chunked
        .send(format!(
            "POST {ECHO} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        ))
        .await;
    let chunk = [
        b"100000\r\n".to_vec(),
        vec![b'1'; 0x10_0000],
        b"\r\n".to_vec(),
    ]
    .concat();
    for _ in 0..7 {
        chunked.send(&chunk).await;
    }
    assert_eq!(chunked.answer().await.status, 413);
}

#[tokio::test]
async fn a_body_at_the_limit_goes_through() {
    let daemon = Daemon::with(vec![echo()]).await;
    let event = vec![b'1'; 6 * 1024 * 1024];
    let answer = daemon.ask("POST", ECHO, "", &event).await;
    assert_eq!((answer.status, answer.body.len()), (200, event.len()));
}

#[tokio::test]
async fn a_client_may_wait_for_100_continue() {
    let daemon = Daemon::with(vec![echo()]).await;
    let mut client = daemon.client().await;
    let head = format!(
        "POST {ECHO} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    );
    client.send(&head).await;
    assert_eq!(client.answer().await.status, 100);
    client.send("12").await;
    assert_eq!(client.answer().await.text(), "12");
}

#[tokio::test]
async fn a_body_that_stops_coming_ends_in_a_408() {
    let config = GatewayConfig {
        body_timeout: Duration::from_millis(20),
        ..GatewayConfig::default()
    };
    let functions = vec![echo()];
    let daemon = Daemon::start(Setup {
        config,
        functions,
        ..Setup::default()
    })
    .await;
    let mut client = daemon.client().await;
    client
        .send(format!(
            "POST {ECHO} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{"
        ))
        .await;
    assert_eq!(client.answer().await.status, 408);
}

#[tokio::test]
async fn a_full_queue_is_a_429_with_a_reason() {
    let begun = Arc::new(Notify::new());
    let began = begun.clone();
    let one = version_with("one", 1, |config| {
        config.scale.max = 1;
        config.timeout = Duration::from_secs(60);
    });
    let one = Function::of(one, move |_| {
        began.notify_one();
        Reaction::Hang
    });
    let limits = Limits {
        queue_max: 1,
        ..Limits::default()
    };
    let functions = vec![one];
    let daemon = Daemon::start(Setup {
        limits,
        functions,
        ..Setup::default()
    })
    .await;
    let path = "/2015-03-31/functions/one/invocations";
    let mut busy = daemon.client().await;
    busy.send(format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n1"
    ))
    .await;
    soon(begun.notified()).await;
    // One of two further requests may wait, the other one not.
    let refused = tokio::select! {
        refused = daemon.ask("POST", path, "", b"1") => refused,
        refused = daemon.ask("POST", path, "", b"1") => refused,
    };
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("1"))
    );
    assert_eq!(
        refused.header("x-amzn-errortype"),
        Some("TooManyRequestsException")
    );
    assert_eq!(
        refused.json()["Reason"],
        "ReservedFunctionConcurrentInvocationLimitExceeded"
    );
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_its_slot() {
    let begun = Arc::new(Notify::new());
    let began = begun.clone();
    let one = version_with("one", 1, |config| {
        config.scale.max = 1;
        config.timeout = Duration::from_secs(60);
    });
    let one = Function::of(one, move |call| {
        if call.payload == "1" {
            began.notify_one();
            return Reaction::Hang;
        }
        Reaction::answer("2")
    });
    let daemon = Daemon::with(vec![one]).await;
    let path = "/2015-03-31/functions/one/invocations";
    let mut busy = daemon.client().await;
    busy.send(format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n1"
    ))
    .await;
    soon(begun.notified()).await;
    drop(busy);
    assert_eq!(soon(daemon.ask("POST", path, "", b"0")).await.text(), "2");
}

#[tokio::test]
async fn a_token_is_wanted_where_one_is_configured_and_control_has_its_own() {
    let tell = Function::event("echo", |call| {
        Reaction::Return(
            Duration::ZERO,
            Bytes::from(meta(call).to_string()),
            Bytes::new(),
        )
    });
    let config = GatewayConfig {
        tokens: FixedTokens::one("s3cret", Grant::of("x", Role::Invoke)),
        ..GatewayConfig::default()
    };
    let door = Door {
        calls: Access::Token,
        ..Door::default()
    };
    let functions = vec![tell];
    let daemon = Daemon::start(Setup {
        config,
        door,
        functions,
        ..Setup::default()
    })
    .await;
    let sdk = "authorization: AWS4-HMAC-SHA256 Credential=x\r\n";
    let incomplete = daemon.ask("POST", ECHO, sdk, b"1").await;
    assert_eq!(
        (incomplete.status, incomplete.header("x-amzn-errortype")),
        (400, Some("IncompleteSignatureException"))
    );
    let missing = daemon.ask("POST", ECHO, "", b"1").await;
    assert_eq!(
        (missing.status, missing.header("x-amzn-errortype")),
        (403, Some("MissingAuthenticationTokenException"))
    );
    let wrong = daemon
        .ask("POST", ECHO, "x-pilot-token: guess\r\n", b"1")
        .await;
    assert_eq!(
        wrong.header("x-amzn-errortype"),
        Some("UnrecognizedClientException")
    );
    assert_eq!(daemon.ask("GET", "/fn/echo", "", b"").await.status, 403);
    let session = format!("{sdk}x-amz-security-token: s3cret\r\n");
    for shown in [
        "x-pilot-token: s3cret\r\n",
        "authorization: Bearer s3cret\r\n",
        &session,
    ] {
        assert_eq!(
            daemon.ask("POST", ECHO, shown, b"1").await.status,
            200,
            "{shown}"
        );
    }
    assert_eq!(daemon.ask("GET", "/healthz", "", b"").await.status, 200);
}
