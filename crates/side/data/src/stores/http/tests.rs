use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::stores::scripted::{Asked, Scripted, answer, text};

fn open(server: &Scripted) -> HttpStore {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("http://{}/", server.address);
    HttpStore::open(&HttpConfig { url, ca_pem: None }).unwrap()
}

/// `/latest` is at another release each time that the number changes. A release never changes, so each of them has the tag "1".
async fn releases(latest: Arc<AtomicU32>) -> Scripted {
    let answers = move |asked: &Asked| {
        let Some(release) = asked.path.strip_prefix("/release/") else {
            let latest = latest.load(Ordering::SeqCst);
            return answer(
                "302 Found",
                &format!("location: /release/{latest}\r\n"),
                0,
                "",
            );
        };
        let (tag, body) = ("etag: \"1\"\r\n", release.repeat(10));
        if asked.header("if-none-match") == "\"1\"" {
            return answer("304 Not Modified", tag, 0, "");
        }
        if asked.header("if-range") == "\"1\"" && asked.header("range") == "bytes=5-" {
            let head = format!("{tag}content-range: bytes 5-9/10\r\n");
            return answer("206 Partial Content", &head, 5, &body[5..]);
        }
        answer("200 OK", tag, 10, &body)
    };
    Scripted::start(answers).await
}

#[tokio::test]
async fn the_tag_of_a_redirects_target_is_not_that_of_the_object() {
    let latest = Arc::new(AtomicU32::new(1));
    let server = releases(Arc::clone(&latest)).await;
    let store = open(&server);
    let Ok(Got::Object(first)) = store.get("latest", None).await else {
        panic!("there is an object");
    };
    assert_eq!(first.validator, None);
    assert_eq!(text(first).await.unwrap(), "1111111111");
    latest.store(2, Ordering::SeqCst);
    // The object itself had this tag before there was a redirect.
    let known = Validator::Tag("\"1\"".to_owned());
    let Ok(Got::Object(second)) = store.get("latest", Some(&known)).await else {
        panic!("another release is another object");
    };
    assert_eq!(text(second).await.unwrap(), "2222222222");
    let Ok((at, Got::Object(rest))) = store.rest("latest", &known, 5).await else {
        panic!("there is an object");
    };
    assert_eq!((at, rest.len, rest.validator.as_ref()), (0, Some(10), None));
    assert_eq!(text(rest).await.unwrap(), "2222222222");
}

#[tokio::test]
async fn the_tag_of_an_object_without_a_redirect_is_its_own() {
    let server = releases(Arc::default()).await;
    let store = open(&server);
    let Ok(Got::Object(first)) = store.get("release/3", None).await else {
        panic!("there is an object");
    };
    let known = first.validator.unwrap();
    let again = store.get("release/3", Some(&known)).await.unwrap();
    assert!(matches!(again, Got::Unchanged(None)));
    let Ok((5, Got::Object(rest))) = store.rest("release/3", &known, 5).await else {
        panic!("it goes on");
    };
    assert_eq!(
        (rest.len, rest.validator.as_ref()),
        (Some(10), Some(&known))
    );
}

#[tokio::test]
async fn what_is_sent_encoded_although_that_was_not_asked_for_is_broken() {
    let server = Scripted::start(|asked| {
        let encoding = asked.path.trim_start_matches('/');
        let head = format!("content-encoding: {encoding}\r\n");
        answer("200 OK", &head, 3, "abc")
    })
    .await;
    let store = open(&server);
    let Ok(Got::Object(plain)) = store.get("identity", None).await else {
        panic!("it is as it is");
    };
    assert_eq!(text(plain).await.unwrap(), "abc");
    let error = store.get("gzip", None).await.unwrap_err();
    assert_eq!(error.kind, Kind::Broken);
    assert!(
        error.problem.contains("encoded (gzip)"),
        "{}",
        error.problem
    );
}

#[test]
fn a_key_stays_below_the_url() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let store = HttpStore::open(&HttpConfig {
        url: "https://images.example.com/base/".to_owned(),
        ca_pem: None,
    })
    .unwrap();
    for (key, url) in [
        ("a/b c.png", "base/a/b%20c.png"),
        ("http://other/x", "base/http://other/x"),
        ("a?b#c%2e", "base/a%3Fb%23c%252e"),
        ("a:b@c", "base/a:b@c"),
        ("ä", "base/%C3%A4"),
    ] {
        let found = store.url(key).unwrap();
        assert_eq!(found.as_str(), format!("https://images.example.com/{url}"));
    }
}

#[test]
fn a_part_is_the_rest_of_a_known_length() {
    assert_eq!(part_of("bytes 100-199/200"), Some((100, 200)));
    for range in [
        "bytes 100-199/*",
        "bytes 100-150/200",
        "bytes 199-100/200",
        "bytes */200",
        "bytes 0-18446744073709551615/18446744073709551615",
        "items 0-1/2",
    ] {
        assert_eq!(part_of(range), None, "{range}");
    }
}

#[test]
fn only_what_tells_every_content_apart_is_a_validator() {
    let validator = |headers: &[(&'static str, &'static str)]| {
        let headers = headers.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        validator(&headers.collect())
    };
    assert_eq!(
        validator(&[("etag", "\"a\"")]),
        Some(Validator::Tag("\"a\"".to_owned()))
    );
    assert_eq!(validator(&[("etag", "W/\"a\"")]), None);
    assert_eq!(
        validator(&[("etag", "\"a\""), ("cache-control", "private, No-Store")]),
        None
    );
    let dates = [
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("last-modified", "Sun, 06 Nov 1993 08:49:37 GMT"),
    ];
    assert_eq!(validator(&dates), None);
}

#[test]
fn statuses_say_whose_fault_it_is() {
    let kind = |status: u16| refusal(StatusCode::from_u16(status).unwrap()).map(|error| error.kind);
    assert_eq!(kind(200), None);
    assert_eq!(kind(404), Some(Kind::NotFound));
    assert_eq!(kind(403), Some(Kind::Denied));
    assert_eq!(kind(302), Some(Kind::Broken));
    // Nobody asked whether it has changed.
    assert_eq!(kind(304), Some(Kind::Broken));
    assert_eq!(kind(206), Some(Kind::Broken));
    assert_eq!(kind(503), Some(Kind::Unavailable));
}
