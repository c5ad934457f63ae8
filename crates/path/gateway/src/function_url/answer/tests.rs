use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parsed(output: &Value) -> Result<Reply, AnswerError> {
    parse(Bytes::from(output.to_string()))
}

fn body(reply: &Reply) -> &[u8] {
    match reply.body() {
        ReplyBody::Full(bytes) => bytes,
        other => panic!("{other:?} is not whole"),
    }
}

fn problem(output: &Value) -> String {
    parsed(output).unwrap_err().to_string()
}

#[test]
fn an_object_with_a_status_code_describes_the_response() {
    let reply = parsed(&json!({
        "statusCode": 201,
        "headers": {"X-Text": "a", "x-number": 7, "x-flag": true, "x-none": null, "Content-Type": "text/plain"},
        "cookies": ["a=1; Secure", "b=2"],
        "body": "grün",
        "isBase64Encoded": false,
        "multiValueHeaders": {"x": ["y"]},
    }))
    .unwrap();
    assert_eq!(reply.status(), 201);
    assert_eq!(reply.headers()["x-text"], "a");
    assert_eq!(reply.headers()["x-number"], "7");
    assert_eq!(reply.headers()["x-flag"], "true");
    assert_eq!(reply.headers().get("x-none"), None);
    assert_eq!(reply.headers()["content-type"], "text/plain");
    let cookies: Vec<_> = reply.headers().get_all("set-cookie").iter().collect();
    assert_eq!(cookies, ["a=1; Secure", "b=2"]);
    assert_eq!(body(&reply), "grün".as_bytes());
}

#[test]
fn a_binary_body_is_decoded_with_or_without_padding_and_line_breaks() {
    for text in ["/wA=", "/wA", "/w\r\nA=\n"] {
        let reply = parsed(&json!({"statusCode": "200", "body": text, "isBase64Encoded": true}));
        assert_eq!(body(&reply.unwrap()), [0xff, 0x00]);
    }
}

#[test]
fn half_of_a_pair_is_sent_as_the_replacement_character() {
    for (escaped, text) in [
        (r"hi \ud83d", "hi \u{fffd}"),
        (r"\udE00 and \ud83d\ude00", "\u{fffd} and \u{1f600}"),
        (r"\ud83d\ud83d\ude00\n", "\u{fffd}\u{1f600}\n"),
        (r"\ud83d\u0041", "\u{fffd}A"),
        (r"\\ud83d\ud83d", "\\ud83d\u{fffd}"),
    ] {
        let reply = parse(Bytes::from(format!(r#""{escaped}""#))).unwrap();
        assert_eq!(body(&reply), text.as_bytes(), "{escaped}");
        let described = format!(r#"{{"statusCode": 201, "body": "{escaped}"}}"#);
        let reply = parse(Bytes::from(described)).unwrap();
        assert_eq!(
            (reply.status().as_u16(), body(&reply)),
            (201, text.as_bytes())
        );
    }
    let described = r#"{"statusCode": 200, "headers": {"x-a": "a\ud83d"}, "cookies": ["b\udc00"], "body": "c"}"#;
    let reply = parse(Bytes::from(described)).unwrap();
    assert_eq!(headers::text(&reply.headers()["x-a"]), "a\u{fffd}");
    assert_eq!(headers::text(&reply.headers()["set-cookie"]), "b\u{fffd}");
    assert_eq!(body(&reply), b"c");
    // Cut-off or invalid escapes are no halves.
    for invalid in [r#""\ud83"#, r#""\ud83x\ud83d""#, "\"\\", r#""\ud83d"#] {
        assert!(parse(Bytes::from(invalid)).is_err(), "{invalid}");
    }
}

#[test]
fn anything_without_a_status_code_is_the_body() {
    for output in [
        json!({"a": [1, 2]}),
        json!([1]),
        json!(1.5),
        json!(null),
        json!(true),
    ] {
        let reply = parsed(&output).unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()["content-type"], "application/json");
        assert_eq!(body(&reply), output.to_string().as_bytes());
    }
    assert_eq!(body(&parsed(&json!("a \"b\"")).unwrap()), b"a \"b\"");
}

#[test]
fn a_body_that_is_json_goes_out_as_json() {
    let reply = parsed(&json!({"statusCode": 200, "body": {"a": 1}})).unwrap();
    assert_eq!(body(&reply), b"{\"a\":1}");
    assert_eq!(reply.headers()["content-type"], "application/json");
}

#[test]
fn what_belongs_to_the_connection_is_not_the_functions() {
    let reply = parsed(&json!({
        "statusCode": 200,
        "headers": {"Content-Length": "999", "Transfer-Encoding": "chunked", "Connection": "close"},
    }))
    .unwrap();
    assert_eq!(reply.headers().len(), 1, "{:?}", reply.headers());
}

#[test]
fn no_content_has_no_content() {
    let reply = parsed(&json!({"statusCode": 204, "body": "x"})).unwrap();
    assert_eq!(body(&reply), b"");
}

#[test]
fn a_malformed_response_is_told_by_its_key() {
    let cases = [
        (
            json!({"statusCode": "abc"}),
            "statusCode is \\\"abc\\\", must be 200 to 599",
        ),
        (json!({"statusCode": null}), "statusCode is null"),
        (json!({"statusCode": 99}), "statusCode is 99"),
        (json!({"statusCode": 101}), "statusCode is 101"),
        (json!({"statusCode": 200.5}), "statusCode is 200.5"),
        (json!({"statusCode": {}}), "statusCode is {}"),
        (json!({"statusCode": 200, "headers": ["a"]}), "headers is"),
        (
            json!({"statusCode": 200, "headers": {"a b": "c"}}),
            "a name in headers is a b",
        ),
        (
            json!({"statusCode": 200, "headers": {"a": ["c"]}}),
            "headers.a is",
        ),
        (
            json!({"statusCode": 200, "headers": {"a": "b\r\nc: d"}}),
            "headers.a is",
        ),
        (json!({"statusCode": 200, "cookies": "a=1"}), "cookies is"),
        (
            json!({"statusCode": 200, "cookies": ["a\n"]}),
            "an entry of cookies is",
        ),
        (
            json!({"statusCode": 200, "isBase64Encoded": "yes"}),
            "isBase64Encoded is",
        ),
        (
            json!({"statusCode": 200, "body": "%", "isBase64Encoded": true}),
            "body is not base64",
        ),
        (
            json!({"statusCode": 200, "body": [1], "isBase64Encoded": true}),
            "body is [1]",
        ),
    ];
    for (output, wanted) in cases {
        let told = problem(&output);
        assert!(told.contains(wanted), "{output}: {told}");
    }
}

#[test]
fn headers_beyond_measure_are_refused() {
    let headers: serde_json::Map<_, _> = (0..40_000)
        .map(|n| (format!("x-{n}"), json!("1")))
        .collect();
    let cookies: Vec<_> = (0..40_000).map(|n| format!("c{n}=1")).collect();
    for output in [
        json!({"statusCode": 200, "headers": headers}),
        json!({"statusCode": 200, "cookies": cookies}),
    ] {
        assert!(problem(&output).contains("more than 1000 headers"));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_output_is_too_odd(output in any::<Vec<u8>>()) {
        let _ = parse(Bytes::from(output));
    }

    #[test]
    fn no_description_is_too_odd(
        status in prop_oneof![Just(json!(200)), any_json()],
        headers in any_json(),
        cookies in any_json(),
        body in any_json(),
        encoded in any_json(),
    ) {
        let _ = parsed(&json!({
            "statusCode": status, "headers": headers, "cookies": cookies, "body": body, "isBase64Encoded": encoded,
        }));
    }
}
