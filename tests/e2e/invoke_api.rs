//! The Lambda Invoke API: names, qualifiers, invocation types, headers, limits and AWS's errors.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilot_harness::{Request, Response};
use serde_json::{Value, json};

use crate::{ECHO, answer, daemon, failure, lab, plain};

fn post(path: &str, body: &str) -> Request {
    Request::new("POST", path)
        .header("content-type", "application/json")
        .body(body)
}

const PATH: &str = "/2015-03-31/functions/lab/invocations";

/// AWS's error format: the type in a header, and type and message in the body.
#[track_caller]
fn aws_error(response: &Response, status: u16, kind: &str) -> Value {
    assert_eq!(response.status, status, "{}", response.text());
    let header = response
        .header("x-amzn-errortype")
        .unwrap_or("(no x-amzn-ErrorType)");
    assert!(header.starts_with(kind), "{header}");
    let body = response.json();
    let message = body["Message"]
        .as_str()
        .or(body["message"].as_str())
        .unwrap_or("");
    assert!(!message.is_empty(), "{body}");
    body
}

#[test]
fn an_event_of_any_json_type_comes_back_as_it_went() {
    let daemon = lab(ECHO, plain());
    for event in [
        json!({"a": [1, 2.5, null, true, "ü\u{1F600}\u{0}"]}),
        json!([]),
        json!("text"),
        json!(7),
        json!(null),
        json!(false),
    ] {
        assert_eq!(answer(&daemon, "lab", event.clone()), event);
    }
}

#[test]
fn no_payload_is_an_empty_event() {
    let daemon = lab(ECHO, plain());
    let response = daemon.send(&Request::new("POST", PATH)).ok();
    assert!(
        response.json() == json!({}) || response.json() == json!(null),
        "{}",
        response.text()
    );
}

#[test]
fn an_answer_has_request_id_executed_version_and_content_type() {
    let daemon = lab(
        "def handler(event, context):\n    return context.aws_request_id\n",
        plain(),
    );
    let response = daemon.invoke("lab", &json!({})).ok();
    let id = response.header("x-amzn-requestid").unwrap();
    assert_eq!(response.json(), id, "the handler saw the same id");
    assert_eq!(id.len(), 36);
    assert_eq!(response.header("x-amz-executed-version"), Some("1"));
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_ne!(
        daemon.invoke("lab", &json!({})).header("x-amzn-requestid"),
        Some(id)
    );
}

#[test]
fn name_arn_partial_arn_and_version_all_mean_the_function() {
    let code = |word: &str| format!("def handler(event, context):\n    return '{word}'\n");
    let daemon = lab(&code("first"), plain());
    daemon.upload_code("lab", &plain(), &code("second"));
    let arn = "arn:aws:lambda:us-east-1:000000000000:function:lab";
    for (name, word, executed) in [
        ("lab", "second", "2"),
        ("lab:$LATEST", "second", "2"),
        (arn, "second", "2"),
        (
            "arn%3Aaws%3Alambda%3Alocal%3A000000000000%3Afunction%3Alab",
            "second",
            "2",
        ),
        ("000000000000:function:lab", "second", "2"),
        ("lab:2", "second", "2"),
        ("lab:1", "first", "1"),
        (
            "arn:aws:lambda:us-east-1:000000000000:function:lab:1",
            "first",
            "1",
        ),
    ] {
        let response = daemon.invoke(name, &json!({}));
        assert_eq!(response.status, 200, "{name}: {}", response.text());
        assert_eq!(response.json(), word, "{name}");
        assert_eq!(
            response.header("x-amz-executed-version"),
            Some(executed),
            "{name}"
        );
    }
    let by_query = daemon.post(&format!("{PATH}?Qualifier=1"), &json!({}));
    assert_eq!(by_query.json(), "first");
}

#[test]
fn an_unknown_function_or_version_is_404_resource_not_found() {
    let daemon = lab(ECHO, plain());
    for name in [
        "nobody",
        "lab:9",
        "arn:aws:lambda:us-east-1:000000000000:function:nobody",
    ] {
        let response = daemon.invoke(name, &json!({}));
        let body = aws_error(&response, 404, "ResourceNotFoundException");
        assert!(body.to_string().contains("not found"), "{body}");
    }
}

#[test]
fn a_name_that_cannot_be_one_is_400() {
    let daemon = daemon();
    let response = daemon.invoke("no%20such%20name!", &json!({}));
    assert!(
        response.status == 400 || response.status == 404,
        "{}",
        response.text()
    );
}

#[test]
fn a_payload_that_is_not_json_is_400_invalid_request_content() {
    let daemon = lab(ECHO, plain());
    for body in ["{", "{\"a\":}", "nope", "\u{FEFF}{}x"] {
        let response = daemon.send(&post(PATH, body));
        aws_error(&response, 400, "InvalidRequestContentException");
    }
    let latin = daemon.send(&Request::new("POST", PATH).body(vec![b'"', 0xff, b'"']));
    aws_error(&latin, 400, "InvalidRequestContentException");
    assert_eq!(answer(&daemon, "lab", json!(1)), 1);
}

#[test]
fn a_payload_over_the_limit_is_413_and_one_below_it_is_not() {
    let daemon = lab(
        "def handler(event, context):\n    return len(event)\n",
        plain(),
    );
    let five_mb = format!("\"{}\"", "x".repeat(5_000_000));
    assert_eq!(daemon.send(&post(PATH, &five_mb)).ok().json(), 5_000_000);
    let huge = format!("\"{}\"", "x".repeat(8 << 20));
    aws_error(
        &daemon.send(&post(PATH, &huge)),
        413,
        "RequestTooLargeException",
    );
    assert_eq!(answer(&daemon, "lab", json!("ab")), 2);
}

#[test]
fn a_large_answer_comes_whole() {
    let daemon = lab(
        "def handler(event, context):\n    return 'y' * event\n",
        plain(),
    );
    assert_eq!(
        answer(&daemon, "lab", json!(5_000_000))
            .as_str()
            .unwrap()
            .len(),
        5_000_000
    );
}

#[test]
fn a_dry_run_is_204_and_runs_nothing() {
    let daemon = lab(
        "def handler(event, context):\n    raise SystemExit('it ran')\n",
        plain(),
    );
    let response = daemon.send(&post(PATH, "{}").header("x-amz-invocation-type", "DryRun"));
    assert_eq!(response.status, 204);
    assert_eq!(daemon.describe("lab")["totals"]["invocations"], 0);
    let nobody = post("/2015-03-31/functions/nobody/invocations", "{}");
    assert_eq!(
        daemon
            .send(&nobody.header("x-amz-invocation-type", "DryRun"))
            .status,
        404
    );
}

#[test]
fn an_unknown_invocation_type_is_400() {
    let daemon = lab(ECHO, plain());
    let response = daemon.send(&post(PATH, "{}").header("x-amz-invocation-type", "Sometimes"));
    aws_error(&response, 400, "ValidationException");
}

#[test]
fn the_logs_tail_comes_along_when_asked_for() {
    let daemon = lab(
        "import sys\ndef handler(event, context):\n    print('to stdout')\n    print('to stderr', file=sys.stderr)\n",
        plain(),
    );
    let (response, log) = daemon.invoke_tail("lab", &json!({}));
    let id = response.header("x-amzn-requestid").unwrap();
    assert!(
        log.contains("to stdout") && log.contains("to stderr"),
        "{log}"
    );
    assert!(log.contains(&format!("START RequestId: {id}")), "{log}");
    assert!(log.contains(&format!("END RequestId: {id}")), "{log}");
    assert!(log.contains(&format!("REPORT RequestId: {id}")), "{log}");
    assert_eq!(
        daemon.invoke("lab", &json!({})).header("x-amz-log-result"),
        None,
        "not asked for"
    );
}

#[test]
fn the_logs_tail_is_the_last_four_kilobytes() {
    let daemon = lab(
        "def handler(event, context):\n    print('first ' + 'x' * 20000)\n    print('the last')\n",
        plain(),
    );
    let (_, log) = daemon.invoke_tail("lab", &json!({}));
    assert!(log.len() <= 4096, "{}", log.len());
    assert!(log.contains("the last") && !log.contains("first"), "{log}");
}

#[test]
fn the_client_context_reaches_the_handler() {
    let code = "def handler(event, context):\n    c = context.client_context\n    return [c.custom, c.env, c.client.app_title] if c else None\n";
    let daemon = lab(code, plain());
    let context =
        json!({"custom": {"k": "v"}, "env": {"locale": "de"}, "client": {"app_title": "till"}});
    let response = daemon.send(&post(PATH, "{}").header(
        "x-amz-client-context",
        &STANDARD.encode(context.to_string()),
    ));
    assert_eq!(
        response.ok().json(),
        json!([{"k": "v"}, {"locale": "de"}, "till"])
    );
    assert_eq!(answer(&daemon, "lab", json!({})), json!(null));
}

#[test]
fn a_client_context_that_is_not_base64_is_400() {
    let daemon = lab(ECHO, plain());
    let response = daemon.send(&post(PATH, "{}").header("x-amz-client-context", "%%%"));
    aws_error(&response, 400, "Invalid");
}

#[test]
fn an_unhandled_exception_is_a_200_with_function_error() {
    let daemon = lab(
        "def handler(event, context):\n    raise KeyError('gone')\n",
        plain(),
    );
    let response = daemon.invoke("lab", &json!({}));
    assert_eq!(response.status, 200);
    assert_eq!(response.header("x-amz-function-error"), Some("Unhandled"));
    assert_eq!(response.header("x-amz-executed-version"), Some("1"));
    assert_eq!(failure(&daemon, "lab", json!({}))["errorType"], "KeyError");
}

#[test]
fn a_wrong_method_or_path_is_an_error_in_json() {
    let daemon = lab(ECHO, plain());
    let get = daemon.get(PATH);
    assert!(get.status == 405 || get.status == 404, "{}", get.status);
    let nowhere = daemon.get("/nowhere");
    assert_eq!(nowhere.status, 404);
    assert!(nowhere.json().is_object());
}

#[test]
fn one_connection_serves_many_requests_and_pipelined_ones_in_order() {
    let daemon = lab(ECHO, plain());
    let mut connection = daemon.connect();
    for number in 0..50 {
        let response = connection.exchange(&post(PATH, &number.to_string()));
        assert_eq!(response.ok().json(), number);
    }
    for number in 0..5 {
        connection.send(&post(PATH, &number.to_string()));
    }
    for number in 0..5 {
        assert_eq!(connection.receive("POST").ok().json(), number);
    }
}

#[test]
fn what_is_not_http_is_refused_and_nothing_else_minds() {
    let daemon = lab(ECHO, plain());
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ] {
        let mut connection = daemon.connect();
        connection.send_raw(garbage.as_bytes());
        connection.hang_up();
    }
    let mut half = daemon.connect();
    half.send_raw(b"POST /2015-03-31/functions/lab/invocations HTTP/1.1\r\ncontent-le");
    assert_eq!(answer(&daemon, "lab", json!(1)), 1);
    half.hang_up();
}

#[test]
fn a_function_sees_a_trace_its_region_and_its_runtimes_version() {
    let code = "import os, sys\ndef handler(event, context):\n    names = ('_X_AMZN_TRACE_ID', 'AWS_REGION', 'AWS_DEFAULT_REGION', 'AWS_EXECUTION_ENV')\n    return [*map(os.environ.get, names), context.invoked_function_arn, 'AWS_Lambda_python%d.%d' % sys.version_info[:2]]\n";
    for region in [None, Some("eu-central-1")] {
        let own: serde_json::Map<String, Value> = region
            .map(|region| ("AWS_REGION".to_owned(), json!(region)))
            .into_iter()
            .collect();
        let daemon = lab(code, json!({"environment": own}));
        let seen = answer(&daemon, "lab", json!({}));
        let region = region.unwrap_or("us-east-1");
        assert_eq!(seen[1], region);
        assert_eq!(seen[2], region);
        assert_eq!(seen[3], seen[5]);
        assert_eq!(
            seen[4],
            format!("arn:aws:lambda:{region}:000000000000:function:lab")
        );
        // Root=1-SECONDS-24 digits;Parent=16 digits;Sampled=0
        let trace = seen[0].as_str().unwrap();
        let (root, rest) = trace.split_once(';').unwrap();
        assert_eq!((root.len(), &root[..7]), (40, "Root=1-"), "{trace}");
        assert_eq!((rest.len(), &rest[..7]), (33, "Parent="), "{trace}");
        let again = answer(&daemon, "lab", json!({}));
        assert_ne!(again[0], seen[0]);
    }
}

#[test]
fn parameters_that_would_be_ignored_are_refused() {
    let daemon = lab(ECHO, plain());
    let path = "/2015-03-31/functions/lab/invocations";
    for (header, named) in [
        ("X-Amz-Tenant-Id", "TenantId"),
        ("X-Amz-Durable-Execution-Name", "DurableExecutionName"),
    ] {
        let request = Request::new("POST", path).header(header, "a").body("{}");
        let refused = daemon.send(&request);
        assert_eq!(refused.status, 501, "{}", refused.text());
        assert!(refused.text().contains(named), "{}", refused.text());
    }
    let published = format!("{path}?Qualifier=%24LATEST.PUBLISHED");
    let request = Request::new("POST", &published).body("{}");
    daemon.send(&request).ok();
}
