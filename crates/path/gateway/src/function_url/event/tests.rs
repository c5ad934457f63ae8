use http::{HeaderName, HeaderValue};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn built(headers: &HeaderMap, query: &str, body: &[u8]) -> Value {
    let source = EventSource {
        id: "id-1",
        name: "web",
        method: "POST",
        protocol: Version::HTTP_11,
        path: "/a%20b",
        query,
        headers,
        client: "192.0.2.1".parse().unwrap(),
        body,
        unix_ms: 1_584_039_838_390,
    };
    serde_json::from_slice(&source.build()).unwrap()
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

#[test]
fn an_event_has_every_key_of_payload_format_two() {
    let headers = headers(&[
        ("host", "shop.local:8080"),
        ("user-agent", "curl/8"),
        ("content-type", "application/json"),
        ("cookie", "a=1; b=2"),
        ("cookie", "c=3"),
        ("x-many", "1"),
        ("x-many", "2"),
        ("x-many", "3"),
    ]);
    let event = built(&headers, "p=1&p=2&q=a+b%26&flag", b"{\"k\":1}");
    assert_eq!(
        event,
        json!({
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": "/a%20b",
            "rawQueryString": "p=1&p=2&q=a+b%26&flag",
            "cookies": ["a=1", "b=2", "c=3"],
            "headers": {
                "host": "shop.local:8080",
                "user-agent": "curl/8",
                "content-type": "application/json",
                "x-many": "1,2,3",
            },
            "queryStringParameters": {"p": "1,2", "q": "a b&", "flag": ""},
            "requestContext": {
                "accountId": "anonymous",
                "apiId": "web",
                "domainName": "shop.local:8080",
                "domainPrefix": "web",
                "http": {
                    "method": "POST",
                    "path": "/a%20b",
                    "protocol": "HTTP/1.1",
                    "sourceIp": "192.0.2.1",
                    "userAgent": "curl/8",
                },
                "requestId": "id-1",
                "routeKey": "$default",
                "stage": "$default",
                "time": "12/Mar/2020:19:03:58 +0000",
                "timeEpoch": 1_584_039_838_390_u64,
            },
            "body": "{\"k\":1}",
            "isBase64Encoded": false,
        })
    );
}

#[test]
fn what_is_not_there_is_left_out() {
    let event = built(&HeaderMap::new(), "", b"");
    for key in ["cookies", "queryStringParameters", "body"] {
        assert_eq!(event.get(key), None, "{key}");
    }
    assert_eq!(event["isBase64Encoded"], false);
}

#[test]
fn escapes_in_a_query_are_decoded_and_what_is_none_stays() {
    for (given, wanted) in [
        ("plain", "plain"),
        ("arn%3Aaws%3alambda", "arn:aws:lambda"),
        ("caf%C3%A9", "café"),
        ("100%", "100%"),
        ("%zz%4", "%zz%4"),
        ("a+b%2B", "a b+"),
        ("%FF!", "\u{fffd}!"),
    ] {
        let event = built(&HeaderMap::new(), &format!("{given}={given}"), b"");
        assert_eq!(event["queryStringParameters"], json!({ wanted: wanted }));
    }
}

#[test]
fn a_body_is_text_by_its_content_type() {
    for text in [
        "text/plain",
        "TEXT/HTML; charset=utf-8",
        "application/json",
        "application/problem+json",
        "application/xml",
        "image/svg+xml",
        "application/javascript",
    ] {
        assert!(is_text(text), "{text}");
    }
    for binary in [
        "",
        "image/png",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=text/plain",
    ] {
        assert!(!is_text(binary), "{binary}");
    }
}

#[test]
fn text_that_is_not_utf8_is_base64() {
    let event = built(
        &headers(&[("content-type", "text/plain")]),
        "",
        &[0xff, 0x00],
    );
    assert_eq!(event["body"], "/wA=");
    assert_eq!(event["isBase64Encoded"], true);
}

#[test]
fn dates_are_right_at_the_turns() {
    assert_eq!(clf_time(0), "01/Jan/1970:00:00:00 +0000");
    assert_eq!(clf_time(951_782_399_000), "28/Feb/2000:23:59:59 +0000");
    assert_eq!(clf_time(951_782_400_000), "29/Feb/2000:00:00:00 +0000");
    assert_eq!(clf_time(4_107_542_400_000), "01/Mar/2100:00:00:00 +0000");
}

proptest! {
    #[test]
    fn any_request_makes_an_event_that_holds_its_body(
        query in any::<String>(),
        body in any::<Vec<u8>>(),
        content_type in "(text/plain|image/png|)",
        odd in any::<Vec<u8>>(),
    ) {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_str(&content_type).unwrap());
        if let Ok(value) = HeaderValue::from_bytes(&odd) {
            headers.append(HeaderName::from_static("x-odd"), value.clone());
            headers.append(HeaderName::from_static("cookie"), value);
        }
        let event = built(&headers, &query, &body);
        let held = match event.get("body") {
            None => Vec::new(),
            Some(text) if event["isBase64Encoded"] == true => {
                base64::Engine::decode(&STANDARD, text.as_str().unwrap()).unwrap()
            }
            Some(text) => text.as_str().unwrap().as_bytes().to_vec(),
        };
        prop_assert_eq!(held, body);
    }
}
