//! Function URLs: payload format 2.0 as input, a status object or plain JSON as output, and binary data in both directions.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pilot_harness::{Request, eventually};
use serde_json::{Value, json};

use crate::{ECHO, lab, plain};

#[test]
fn the_event_is_payload_format_2_0() {
    let daemon = lab(ECHO, plain());
    let request = Request::new("POST", "/fn/lab/orders/a%20b?x=1&y=2&x=3&z=%C3%BC")
        .header("content-type", "application/json")
        .header("cookie", "a=1; b=2")
        .header("X-Custom", "seen")
        .header("user-agent", "harness")
        .body("{\"k\": 1}");
    let event = daemon.send(&request).ok().json();
    assert_eq!(event["version"], "2.0");
    assert_eq!(event["routeKey"], "$default");
    assert_eq!(event["rawQueryString"], "x=1&y=2&x=3&z=%C3%BC");
    assert_eq!(
        event["queryStringParameters"],
        json!({"x": "1,3", "y": "2", "z": "ü"})
    );
    assert_eq!(event["cookies"], json!(["a=1", "b=2"]));
    assert_eq!(event["headers"]["x-custom"], "seen");
    assert_eq!(event["headers"]["content-type"], "application/json");
    assert_eq!(event["body"], "{\"k\": 1}");
    assert_eq!(event["isBase64Encoded"], false);
    let http = &event["requestContext"]["http"];
    assert_eq!(http["method"], "POST");
    assert_eq!(http["sourceIp"], "127.0.0.1");
    assert_eq!(http["userAgent"], "harness");
    assert_eq!(http["protocol"], "HTTP/1.1");
    assert!(
        event["rawPath"].as_str().unwrap().starts_with("/orders/a"),
        "{}",
        event["rawPath"]
    );
    assert!(event["requestContext"]["timeEpoch"].as_u64() > Some(1_600_000_000_000));
    assert_eq!(
        event["requestContext"]["requestId"].as_str().map(str::len),
        Some(36)
    );
}

#[test]
fn a_get_without_body_has_none() {
    let daemon = lab(ECHO, plain());
    let event = daemon.get("/fn/lab/").ok().json();
    assert_eq!(event["rawPath"], "/");
    assert_eq!(event["rawQueryString"], "");
    assert!(
        event
            .get("body")
            .is_none_or(|body| body.is_null() || body == ""),
        "{event}"
    );
    assert_eq!(event["isBase64Encoded"], false);
}

#[test]
fn the_url_works_without_its_last_slash() {
    let daemon = lab(ECHO, plain());
    let response = daemon.get("/fn/lab");
    assert!(
        matches!(response.status, 200 | 307 | 308),
        "{}",
        response.status
    );
}

#[test]
fn every_method_reaches_the_handler() {
    let daemon = lab(
        "def handler(event, context):\n    return {'statusCode': 200, 'headers': {'x-method': event['requestContext']['http']['method']}, 'body': ''}\n",
        plain(),
    );
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
        let response = daemon.send(&Request::new(method, "/fn/lab/"));
        assert_eq!(response.status, 200, "{method}");
        assert_eq!(response.header("x-method"), Some(method));
    }
}

#[test]
fn a_binary_body_arrives_as_base64() {
    let daemon = lab(
        "import base64, hashlib\ndef handler(event, context):\n    assert event['isBase64Encoded']\n    return hashlib.sha256(base64.b64decode(event['body'])).hexdigest()\n",
        plain(),
    );
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let request = Request::new("POST", "/fn/lab/")
        .header("content-type", "image/png")
        .body(bytes);
    assert_eq!(
        daemon.send(&request).ok().text(),
        // SHA-256 of the bytes 0..=255 repeated to 100,000, computed with Python's hashlib.
        "db8f1d69251d95e2c88268d3c540533cc5182e0e33065a6f3f322f606a574489"
    );
}

#[test]
fn a_binary_answer_leaves_as_bytes() {
    let daemon = lab(
        "import base64\ndef handler(event, context):\n    return {'statusCode': 200, 'headers': {'content-type': 'image/png'}, 'isBase64Encoded': True, 'body': base64.b64encode(bytes(range(256)) * 100).decode()}\n",
        plain(),
    );
    let response = daemon.get("/fn/lab/").ok();
    assert_eq!(response.header("content-type"), Some("image/png"));
    let bytes: Vec<u8> = (0..=255).cycle().take(25_600).collect();
    assert!(response.body == bytes);
}

#[test]
fn bytes_go_round_unchanged() {
    let daemon = lab(
        "def handler(event, context):\n    return {'statusCode': 200, 'headers': {'content-type': 'application/octet-stream'}, 'isBase64Encoded': event['isBase64Encoded'], 'body': event.get('body', '')}\n",
        plain(),
    );
    for bytes in [
        vec![0xff, 0xfe, 0, 1],
        b"plain text".to_vec(),
        "ü".into(),
        vec![0xc3],
    ] {
        let request = Request::new("POST", "/fn/lab/")
            .header("content-type", "application/octet-stream")
            .body(bytes.clone());
        assert_eq!(daemon.send(&request).ok().body, bytes);
    }
}

#[test]
fn an_answer_object_sets_status_headers_and_cookies() {
    let daemon = lab(
        "def handler(event, context):\n    return {'statusCode': 418, 'headers': {'x-one': '1', 'content-type': 'text/plain'}, 'cookies': ['a=1; Path=/', 'b=2'], 'body': 'short and stout'}\n",
        plain(),
    );
    let response = daemon.get("/fn/lab/");
    assert_eq!(response.status, 418);
    assert_eq!(response.header("x-one"), Some("1"));
    assert_eq!(response.header("content-type"), Some("text/plain"));
    assert_eq!(response.all("set-cookie"), ["a=1; Path=/", "b=2"]);
    assert_eq!(response.text(), "short and stout");
}

#[test]
fn a_bare_answer_is_200_json() {
    let daemon = lab(
        "def handler(event, context):\n    return {'no': 'status code'}\n",
        plain(),
    );
    let response = daemon.get("/fn/lab/").ok();
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.json(), json!({"no": "status code"}));
    let text = lab(
        "def handler(event, context):\n    return 'just \"text\"'\n",
        plain(),
    )
    .get("/fn/lab/")
    .ok();
    // As in AWS, the body of a string is its text, not its JSON.
    assert_eq!(text.header("content-type"), Some("application/json"));
    assert_eq!(text.text(), "just \"text\"");
}

#[test]
fn an_answer_object_that_is_malformed_is_502() {
    for code in [
        "{'statusCode': 'no number'}",
        "{'statusCode': 99, 'body': ''}",
        "{'statusCode': 200, 'isBase64Encoded': True, 'body': '%%%'}",
        "{'statusCode': 200, 'headers': {'x\\r\\ny': '1'}, 'body': ''}",
        "{'statusCode': 200, 'headers': {'x': 'a\\r\\nset-cookie: evil=1'}, 'body': ''}",
    ] {
        let daemon = lab(
            &format!("def handler(event, context):\n    return {code}\n"),
            plain(),
        );
        let response = daemon.get("/fn/lab/");
        assert_eq!(response.status, 502, "{code}: {}", response.text());
        assert!(response.all("set-cookie").is_empty());
    }
}

#[test]
fn an_exception_is_502_without_the_traceback_of_the_function() {
    let daemon = lab(
        "def handler(event, context):\n    raise ValueError('secret detail')\n",
        plain(),
    );
    let response = daemon.get("/fn/lab/");
    assert_eq!(response.status, 502);
    assert!(
        !response.text().contains("stackTrace"),
        "{}",
        response.text()
    );
}

#[test]
fn an_unknown_function_is_404() {
    let daemon = crate::daemon();
    let response = daemon.get("/fn/nobody/");
    assert_eq!(response.status, 404);
    let body: Value = response.json();
    assert!(body.to_string().contains("nobody"), "{body}");
}

#[test]
fn a_chunked_request_body_is_taken() {
    let daemon = lab(ECHO, plain());
    let mut connection = daemon.connect();
    connection.send_raw(
        b"POST /fn/lab/ HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    );
    assert_eq!(connection.receive("POST").ok().json()["body"], "abcde");
}

#[test]
fn a_text_body_may_also_be_posted_as_base64_by_hand() {
    let daemon = lab(
        "import base64, json\ndef handler(event, context):\n    return base64.b64decode(json.loads(event['body'])['image']).decode()\n",
        plain(),
    );
    let body = json!({"image": STANDARD.encode("a picture")}).to_string();
    let request = Request::new("POST", "/fn/lab/")
        .header("content-type", "application/json")
        .body(body);
    assert_eq!(daemon.send(&request).ok().text(), "a picture");
}

#[test]
fn what_a_function_raises_is_not_shown_to_callers_of_its_url() {
    let daemon = lab(
        "def handler(event, context):\n    raise ValueError('the password is 1234')\n",
        plain(),
    );
    let answer = daemon.get("/fn/lab/");
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["Message"], "Internal Server Error");
    let text = answer.text();
    assert!(
        !text.contains("1234") && !text.contains("ValueError"),
        "{text}"
    );
    eventually("it is in the log", || {
        daemon
            .logs("lab")
            .contains("the password is 1234")
            .then_some(())
    });
}
