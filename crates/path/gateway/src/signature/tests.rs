//! The vectors were signed by botocore 1.44.5 (`SigV4Auth`, `SigV4QueryAuth`) on 2026-01-31 at 12:00.

use http::{HeaderName, HeaderValue};

use super::*;

const SECRET: &[u8] = b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const NOW: u64 = 1_769_860_800;
const SCOPE: &str = "PLKAEXAMPLE/20260131/eu-central-1/lambda/aws4_request";

/// A request, its signature's place being the header or the query.
#[derive(Debug, Clone)]
struct Signed {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: &'static [u8],
}

fn signed(method: Method, uri: &str, headers: &[(&str, &str)], body: &'static [u8]) -> Signed {
    let own = [("host", "127.0.0.1:8080")];
    Signed {
        method,
        uri: uri.parse().unwrap(),
        headers: own
            .iter()
            .chain(headers)
            .map(|(name, value)| {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                (name, HeaderValue::from_str(value).unwrap())
            })
            .collect(),
        body,
    }
}

fn invoke() -> Signed {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=content-type;host;x-amz-date;x-amz-invocation-type, \
         Signature=b72685aebf8caa04b3b63a71a90f15a677cbf50ea69a8927b604e37c406cf12a"
    );
    signed(
        Method::POST,
        "/2015-03-31/functions/arn%3Aaws%3Alambda%3Aus-east-1%3A000000000000%3Afunction%3Alab/invocations?Qualifier=%24LATEST&b=1%202&a",
        &[
            ("x-amz-invocation-type", "RequestResponse"),
            ("content-type", "a  b"),
            ("x-amz-date", "20260131T120000Z"),
            ("authorization", &authorization),
        ],
        b"{\"n\": 1}",
    )
}

fn presigned() -> Signed {
    signed(
        Method::POST,
        "/2015-03-31/functions/lab/invocations?n=1&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=PLKAEXAMPLE%2F20260131%2Feu-central-1%2Flambda%2Faws4_request&X-Amz-Date=20260131T120000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=b1a453f894d89ab2bf89610098561595f393011b0ed519568669e43321f904fb",
        &[],
        b"",
    )
}

fn url() -> Signed {
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=host;x-amz-content-sha256;x-amz-date, \
         Signature=94d7e61d83a1b5ccd8346b0840a098a510ab32d5807ba208fb94abac2aa89b3c"
    );
    signed(
        Method::GET,
        "/fn/lab/a%20b/~x?q=%C3%A9&p=a%2Bb",
        &[
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            ("x-amz-date", "20260131T120000Z"),
            ("authorization", &authorization),
        ],
        b"whatever",
    )
}

fn check(request: &Signed, now: u64) -> Result<(), SignatureError> {
    let signature = Signature::of(&request.headers, request.uri.query())?;
    let signature = signature.expect("it is signed");
    assert_eq!(signature.access_key_id, "PLKAEXAMPLE");
    signature.check_scope(now)?;
    let hash = match signature.payload(&request.headers)? {
        SignedPayload::Unsigned => UNSIGNED.to_owned(),
        SignedPayload::Said(hash) => hash,
        SignedPayload::OfBody => sha256(request.body),
    };
    signature.verify(
        SECRET,
        &request.method,
        &request.uri,
        &request.headers,
        &hash,
    )
}

fn with(request: &Signed, name: &'static str, value: &str) -> Signed {
    let mut changed = request.clone();
    let value = HeaderValue::from_str(value).unwrap();
    changed.headers.insert(HeaderName::from_static(name), value);
    changed
}

fn at(request: &Signed, from: &str, to: &str) -> Signed {
    let uri = request.uri.to_string().replace(from, to);
    assert_ne!(uri, request.uri.to_string());
    Signed {
        uri: uri.parse().unwrap(),
        ..request.clone()
    }
}

#[test]
fn what_botocore_has_signed_is_valid() {
    for request in [invoke(), presigned(), url()] {
        assert_eq!(check(&request, NOW), Ok(()), "{request:?}");
    }
    let plain = signed(
        Method::GET,
        "/?X-Amz-Date=1",
        &[("authorization", "Bearer x")],
        b"",
    );
    assert_eq!(Signature::of(&plain.headers, plain.uri.query()), Ok(None));
}

#[test]
fn a_request_that_was_changed_is_not() {
    let request = invoke();
    for changed in [
        Signed {
            body: b"{\"n\": 2}",
            ..request.clone()
        },
        Signed {
            method: Method::PUT,
            ..request.clone()
        },
        at(&request, "lab/", "bal/"),
        at(&request, "b=1%202", "b=1%203"),
        at(&request, "&a", "&a=1"),
        with(&request, "host", "127.0.0.1:8081"),
        with(&request, "content-type", "a c"),
        with(&request, "x-amz-invocation-type", "DryRun"),
        at(&presigned(), "n=1", "n=2"),
        at(&presigned(), "Expires=60", "Expires=61"),
        Signed {
            body: b"x",
            ..presigned()
        },
        at(&url(), "%C3%A9", "%C3%A8"),
    ] {
        assert_eq!(
            check(&changed, NOW),
            Err(SignatureError::Mismatch),
            "{changed:?}"
        );
    }
    // The same, written in another way.
    assert_eq!(check(&at(&request, "%24LATEST", "$LATEST"), NOW), Ok(()));
    assert_eq!(check(&with(&request, "content-type", " a b "), NOW), Ok(()));
    // Not signed, so that anybody could have added it.
    let added = with(&request, "x-amz-client-context", "e30=");
    assert!(matches!(
        check(&added, NOW),
        Err(SignatureError::Incomplete { .. })
    ));
    for (name, value) in [
        ("x-amz-log-type", "Tail"),
        ("x-pilot-target", "other"),
        ("x-pilot-input", "a=s3://b/c"),
    ] {
        let refused = check(&with(&presigned(), name, value), NOW).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("'{name}' must be a signed header")
        );
    }
    let mut without = request;
    without.headers.remove("content-type");
    assert!(matches!(
        check(&without, NOW),
        Err(SignatureError::Incomplete { .. })
    ));
}

#[test]
fn a_signature_is_valid_for_a_quarter_of_an_hour_and_a_presigned_one_as_long_as_it_says() {
    let time = |request: &Signed, now: u64| match check(request, now) {
        Ok(()) => true,
        Err(SignatureError::Time { problem }) => {
            assert!(problem.contains("20260131T120000Z"), "{problem}");
            false
        }
        Err(other) => panic!("{other}"),
    };
    let request = invoke();
    for (seconds, valid) in [(0, true), (900, true), (901, false)] {
        assert_eq!(time(&request, NOW + seconds), valid, "{seconds} s later");
        assert_eq!(time(&request, NOW - seconds), valid, "{seconds} s earlier");
    }
    assert!(time(&presigned(), NOW + 60));
    assert!(!time(&presigned(), NOW + 61));
}

#[test]
fn what_is_not_a_signature_for_lambda_is_refused_in_aws_words() {
    let authorization = |value: &str| with(&invoke(), "authorization", value);
    let whole = invoke().headers["authorization"]
        .to_str()
        .unwrap()
        .to_owned();
    for (from, to) in [
        ("/lambda/", "/s3/"),
        ("aws4_request", "aws5_request"),
        ("/20260131/", "/20260130/"),
        ("/20260131/", "/2026/"),
    ] {
        let refused = check(&authorization(&whole.replace(from, to)), NOW).unwrap_err();
        assert!(
            matches!(refused, SignatureError::Scope { .. }),
            "{to}: {refused}"
        );
        assert_eq!(refused.name(), "InvalidSignatureException");
    }
    for (from, to) in [
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256"),
        ("/eu-central-1/", "/"),
        ("host;", ""),
        ("content-type;host", "host;content-type"),
        ("host;x", "Host;x"),
        ("host;x", "host;host;x"),
        ("Signature=b7", "Signature=+7"),
        ("Signature=b7", "Signature=7"),
        ("Signature=", "Signatur="),
        ("SignedHeaders=", "Signature="),
    ] {
        let changed = whole.replace(from, to);
        assert_ne!(changed, whole);
        let refused = check(&authorization(&changed), NOW).unwrap_err();
        assert!(
            matches!(refused, SignatureError::Incomplete { .. }),
            "{to}: {refused}"
        );
        assert_eq!(refused.name(), "IncompleteSignatureException");
    }
    for date in [
        "",
        "20260131",
        "20261331T120000Z",
        "20260230T120000Z",
        "2026013éT12000Z",
        "20260131T240000Z",
    ] {
        let Ok(value) = HeaderValue::from_bytes(date.as_bytes()) else {
            continue;
        };
        let mut request = invoke();
        request.headers.insert("x-amz-date", value);
        assert!(
            matches!(check(&request, NOW), Err(SignatureError::Incomplete { .. })),
            "{date}"
        );
    }
    for expires in ["0", "604801", "-1", "x", "99999999999999999999"] {
        let request = at(&presigned(), "Expires=60", &format!("Expires={expires}"));
        assert!(
            matches!(check(&request, NOW), Err(SignatureError::Incomplete { .. })),
            "{expires}"
        );
    }
    let twice = at(
        &presigned(),
        "X-Amz-Expires=60",
        "X-Amz-Expires=60&X-Amz-Expires=60",
    );
    assert!(matches!(
        check(&twice, NOW),
        Err(SignatureError::Incomplete { .. })
    ));
    let streaming = with(
        &url(),
        "x-amz-content-sha256",
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    );
    assert!(matches!(
        check(&streaming, NOW),
        Err(SignatureError::Incomplete { .. })
    ));
}

#[test]
fn no_authorization_and_no_query_is_too_odd() {
    use proptest::prelude::*;
    proptest!(|(text in "[ -~]{0,80}", query in "[!-~]{0,80}")| {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(&format!("AWS4-HMAC-SHA256{text}")).unwrap());
        headers.insert("x-amz-date", HeaderValue::from_static("20260131T120000Z"));
        let _ = Signature::of(&headers, None);
        let query = format!("X-Amz-Signature=1&{query}");
        let _ = Signature::of(&HeaderMap::new(), Some(&query));
    });
}

#[test]
fn a_target_that_signers_change_is_the_cause_of_a_refusal() {
    for (from, to, cause) in [
        ("/~x", "//~x", "path"),
        ("/~x", "/./~x", "path"),
        ("/~x", "/../x", "path"),
        ("/~x", "/.", "path"),
        ("%C3%A9", "a+b", "'+'"),
    ] {
        let refused = check(&at(&url(), from, to), NOW).unwrap_err();
        assert!(matches!(refused, SignatureError::Target { .. }), "{to}");
        assert_eq!(refused.name(), "InvalidSignatureException");
        let told = refused.to_string();
        assert!(
            told.contains("does not match") && told.contains(cause),
            "{told}"
        );
    }
    let refused = check(&at(&url(), "/~x", "/..x/.y"), NOW);
    assert_eq!(refused, Err(SignatureError::Mismatch));
}
