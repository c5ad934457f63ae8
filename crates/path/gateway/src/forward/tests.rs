//! Which headers are passed on, which are removed, and whose `X-Forwarded-*` headers are trusted.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::list_headers::{strip_response, tokens};

fn client(peer: &str, scheme: Scheme) -> Line {
    Line::new(peer.parse().unwrap(), scheme, Arc::default())
}

fn prepared(
    pairs: &[(&'static str, &'static str)],
    peer: &str,
    trust: TrustForwarded,
) -> (HeaderMap, Origin) {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_static(value));
    }
    let origin = prepare(
        &mut headers,
        &client(peer, Scheme::Http),
        trust,
        "/fn/web",
        Some(3),
    );
    (headers, origin)
}

#[test]
fn what_concerns_the_connection_alone_is_taken_out() {
    let (headers, _) = prepared(
        &[
            ("connection", "keep-alive, X-Private, host"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("expect", "100-continue"),
            ("host", "shop.local"),
            ("accept", "*/*"),
        ],
        "192.0.2.1:5",
        TrustForwarded::Nobody,
    );
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    let kept = [
        "accept",
        "content-length",
        "host",
        "x-forwarded-for",
        "x-forwarded-prefix",
        "x-forwarded-proto",
    ];
    assert_eq!(names, kept);
    assert_eq!(headers["content-length"], "3");
    assert_eq!(headers["x-forwarded-prefix"], "/fn/web");
}

fn passed(pairs: &[(&str, &str)], peer: &str) -> (HeaderMap, Upgrades) {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let client = client(peer, Scheme::Http);
    let upgrades = pass_on(&mut headers, &client, TrustForwarded::Loopback, "/fn/web");
    (headers, upgrades)
}

#[test]
fn an_upgrade_is_asked_for_anew_and_nothing_else_of_the_connection() {
    let (headers, upgrades) = passed(
        &[
            ("connection", "Keep-Alive, UPGRADE, x-private"),
            ("upgrade", "websocket"),
            ("x-private", "1"),
            ("te", "gzip, trailers;q=0.5"),
            ("host", "shop.local"),
        ],
        "192.0.2.1:5",
    );
    assert_eq!(upgrades, Upgrades::Pass);
    let connection: Vec<_> = headers.get_all("connection").iter().collect();
    assert_eq!(connection, ["te", "upgrade"]);
    assert_eq!(
        (&headers["upgrade"], &headers["te"]),
        (
            &HeaderValue::from_static("websocket"),
            &HeaderValue::from_static("trailers")
        )
    );
    assert!(!headers.contains_key("x-private"));
}

#[test]
fn an_upgrade_needs_the_word_of_connection_and_must_not_be_h2c() {
    let named = ("connection", "upgrade");
    for pairs in [
        &[("upgrade", "websocket")][..],
        &[named],
        &[named, ("upgrade", "h2c")],
        &[named, ("upgrade", "websocket, H2C")],
        &[named, ("upgrade", "websocket"), ("upgrade", "h2c")],
    ] {
        let (headers, upgrades) = passed(pairs, "192.0.2.1:5");
        assert_eq!(upgrades, Upgrades::No, "{pairs:?}");
        assert!(!headers.contains_key("upgrade"), "{pairs:?}");
    }
}

#[test]
fn the_host_stays_and_a_strangers_word_on_another_does_not() {
    let claims = [
        ("host", "shop.local"),
        ("x-forwarded-host", "forged.example"),
        ("x-forwarded-host", "twice.example"),
    ];
    let all = |headers: &HeaderMap| {
        let all = headers.get_all("x-forwarded-host").iter();
        all.map(|value| value.to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (headers, _) = passed(&claims, "192.0.2.1:5");
    assert_eq!(
        (&headers["host"], all(&headers)),
        (
            &HeaderValue::from_static("shop.local"),
            vec!["shop.local".to_owned()]
        )
    );
    let (headers, _) = passed(&claims, "127.0.0.1:5");
    assert_eq!(all(&headers), ["forged.example", "twice.example"]);
    let (headers, _) = passed(&[], "127.0.0.1:5");
    assert_eq!(
        (&headers["host"], all(&headers)),
        (
            &HeaderValue::from_static("localhost"),
            vec!["localhost".to_owned()]
        )
    );
}

/// Headers with many that are not passed on, and with names of others in `Connection`.
fn any_headers() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = prop_oneof![
        proptest::sample::select(headers::NOT_PASSED.to_vec())
            .prop_map(|name| name.as_str().to_owned()),
        "x-[ab]",
        Just("content-type".to_owned()),
    ];
    let word = prop_oneof![
        "x-[ab]",
        Just("upgrade".to_owned()),
        Just("close".to_owned()),
        Just("trailers".to_owned()),
        Just("Content-Type".to_owned()),
        "[ -~]{0,6}",
    ];
    let value = proptest::collection::vec(word, 0..4).prop_map(|words| words.join(", "));
    proptest::collection::vec((name, value), 0..12)
}

proptest! {
    #[test]
    fn what_concerns_a_connection_alone_never_passes(pairs in any_headers()) {
        let mut sent = HeaderMap::new();
        for (name, value) in &pairs {
            let value = HeaderValue::from_str(value).unwrap();
            sent.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
        }
        let named: Vec<String> = tokens(&sent, &headers::CONNECTION).map(str::to_lowercase).collect();

        let mut response = sent.clone();
        strip_response(&mut response);
        for name in &headers::NOT_PASSED {
            prop_assert!(!response.contains_key(name), "{name}");
        }
        prop_assert!(response.keys().all(|name| !named.iter().any(|it| it == name.as_str())));

        let mut request = sent;
        let trust = TrustForwarded::Nobody;
        let upgrades = pass_on(&mut request, &client("192.0.2.1:5", Scheme::Http), trust, "/fn/web");
        for name in &headers::NOT_PASSED {
            let ours = match name.as_str() {
                "te" => request.get_all(name).iter().all(|value| value == "trailers"),
                "upgrade" => upgrades == Upgrades::Pass || !request.contains_key(name),
                "connection" => request.get_all(name).iter().all(|value| value == "te" || value == "upgrade"),
                _ => !request.contains_key(name),
            };
            prop_assert!(ours, "{name}");
        }
        for name in ["x-a", "x-b", "content-type"] {
            let passes = request.contains_key(name);
            prop_assert!(!passes || !named.iter().any(|it| it == name), "{name}");
        }
    }
}

#[test]
fn a_strangers_word_on_whom_he_speaks_for_is_replaced() {
    let claims = [
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-proto", "https"),
    ];
    let (headers, origin) = prepared(&claims, "192.0.2.1:5", TrustForwarded::Loopback);
    assert_eq!(headers["x-forwarded-for"], "192.0.2.1");
    assert_eq!(headers["x-forwarded-proto"], "http");
    assert_eq!(origin.client, "192.0.2.1:5".parse().unwrap());
}

#[test]
fn a_proxys_word_is_believed_and_added_to() {
    let claims = [
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-for", "198.51.100.2"),
        ("x-forwarded-proto", "https"),
    ];
    let (headers, origin) = prepared(&claims, "[::ffff:127.0.0.1]:5", TrustForwarded::Loopback);
    assert_eq!(
        headers["x-forwarded-for"],
        "203.0.113.9, 198.51.100.2, 127.0.0.1"
    );
    assert_eq!(origin.scheme, Scheme::Https);
    assert_eq!(origin.client, "198.51.100.2:0".parse().unwrap());
}

#[test]
fn what_only_proxies_say_is_removed_from_requests_of_others() {
    let claims = [
        ("host", "shop.local"),
        ("x-forwarded-host", "forged.example"),
        ("x-forwarded-port", "443"),
        ("x-real-ip", "10.0.0.1"),
        ("forwarded", "for=10.0.0.1;host=forged.example"),
    ];
    for (peer, trust, stays) in [
        ("192.0.2.1:5", TrustForwarded::Loopback, false),
        ("127.0.0.1:5", TrustForwarded::Nobody, false),
        ("127.0.0.1:5", TrustForwarded::Loopback, true),
        ("192.0.2.1:5", TrustForwarded::Everybody, true),
    ] {
        let (headers, _) = prepared(&claims, peer, trust);
        for (name, _) in &claims[1..] {
            assert_eq!(headers.contains_key(*name), stays, "{peer} {name}");
        }
    }
}
