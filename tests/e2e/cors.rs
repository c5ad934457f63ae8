//! Cross-origin resource sharing on function URLs: which web pages of other sites may call a function.

use pilot_harness::{Daemon, DaemonOptions, Project, Request, Response};
use serde_json::json;

use crate::{ECHO, daemon_with};

/// Returns a response with headers of its own, one of which the policy decides.
const OWN: &str = "def handler(event, context):\n    return {'statusCode': 200, 'headers': {'access-control-allow-origin': 'https://own.example', 'x-total': '7', 'vary': 'accept'}, 'body': event.get('rawPath', '')}\n";

const SHOP: &str = "https://shop.example";

fn shared(policy: &str, config: &str) -> Daemon {
    let daemon = daemon_with(DaemonOptions {
        config: Some(config.to_owned()),
        ..DaemonOptions::default()
    });
    let keys = format!("[functions.lab.cors]\n{policy}");
    daemon.deploy(&Project::function("lab", OWN, &keys));
    daemon
}

fn preflight(daemon: &Daemon, origin: &str, method: &str, headers: Option<&str>) -> Response {
    let mut request = Request::new("OPTIONS", "/fn/lab/x")
        .header("origin", origin)
        .header("access-control-request-method", method);
    if let Some(headers) = headers {
        request = request.header("access-control-request-headers", headers);
    }
    daemon.connect().exchange(&request)
}

fn call(daemon: &Daemon, origin: Option<&str>) -> Response {
    let mut request = Request::new("GET", "/fn/lab/x");
    if let Some(origin) = origin {
        request = request.header("origin", origin);
    }
    daemon.connect().exchange(&request)
}

const POLICY: &str = "allow_origins = [\"https://shop.example\", \"http://localhost:3000\"]\nallow_methods = [\"PUT\"]\n\
                      allow_headers = [\"X-Key\", \"content-type\"]\nexpose_headers = [\"x-total\"]\nallow_credentials = true\nmax_age = 600\n";

#[test]
fn a_preflight_is_answered_without_a_worker_and_without_a_token() {
    let daemon = shared(POLICY, "invocations = \"token\"\n");
    let answer = preflight(&daemon, SHOP, "PUT", Some("x-key, Content-Type"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (name, value) in [
        ("access-control-allow-origin", Some(SHOP)),
        ("access-control-allow-methods", Some("PUT")),
        ("access-control-allow-headers", Some("x-key, Content-Type")),
        ("access-control-allow-credentials", Some("true")),
        ("access-control-max-age", Some("600")),
        ("access-control-expose-headers", None),
    ] {
        assert_eq!(answer.header(name), value, "{name}");
    }
    assert!(answer.header("vary").unwrap().contains("Origin"));
    assert!(answer.text().is_empty());
    for (origin, method, headers) in [
        ("https://evil.example", "PUT", None),
        ("https://shop.example.evil", "PUT", None),
        ("http://shop.example", "PUT", None),
        ("null", "PUT", None),
        (SHOP, "DELETE", None),
        (SHOP, "put", None),
        (SHOP, "PUT", Some("x-key, x-other")),
    ] {
        let answer = preflight(&daemon, origin, method, headers);
        for (name, value) in &answer.headers {
            assert!(
                !name.starts_with("access-control-"),
                "{origin} {method}: {name}: {value}"
            );
        }
        assert!(answer.header("vary").unwrap().contains("Origin"));
    }
    let described = daemon.describe("lab");
    assert_eq!(described["totals"]["invocations"], json!(0), "{described}");
    assert_eq!(
        daemon.workers("lab", "idle") + daemon.workers("lab", "busy"),
        0
    );
    // The call itself needs the token; the page may read that it does.
    let refused = call(&daemon, Some(SHOP));
    assert_eq!(refused.status, 403);
    assert_eq!(refused.header("access-control-allow-origin"), Some(SHOP));
}

#[test]
fn an_allowed_page_reads_the_response_and_others_do_not() {
    let daemon = shared(POLICY, "");
    let response = call(&daemon, Some(SHOP));
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(
        response.all("access-control-allow-origin"),
        [SHOP],
        "the policy replaces the function's"
    );
    assert_eq!(
        response.header("access-control-allow-credentials"),
        Some("true")
    );
    assert_eq!(
        response.header("access-control-expose-headers"),
        Some("x-total")
    );
    assert_eq!(response.all("vary"), ["accept", "Origin"]);
    assert_eq!(response.header("x-total"), Some("7"));
    for origin in [
        Some("https://evil.example"),
        Some("https://own.example"),
        None,
    ] {
        let response = call(&daemon, origin);
        assert_eq!(response.status, 200);
        assert_eq!(
            response.header("access-control-allow-origin"),
            None,
            "{origin:?}"
        );
        assert_eq!(response.header("access-control-allow-credentials"), None);
        assert!(
            response.all("vary").contains(&"Origin"),
            "a cache keeps them apart"
        );
    }
}

#[test]
fn a_wildcard_is_for_all_origins_and_never_with_credentials() {
    let daemon = shared(
        "allow_origins = [\"*\"]\nallow_methods = [\"*\"]\nallow_headers = [\"*\"]\nexpose_headers = [\"*\"]\n",
        "",
    );
    let answer = preflight(&daemon, "https://any.example", "PATCH", Some("x-any"));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    assert_eq!(answer.header("access-control-allow-methods"), Some("PATCH"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("x-any"));
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    let response = call(&daemon, Some("https://any.example"));
    assert_eq!(response.header("access-control-allow-origin"), Some("*"));
    assert_eq!(response.header("access-control-expose-headers"), Some("*"));
    for (policy, words) in [
        (
            "allow_origins = [\"*\"]\nallow_credentials = true\n",
            "cannot be used with allow_credentials",
        ),
        (
            "allow_origins = [\"https://a.example/x\"]\n",
            "without a path",
        ),
        ("allow_origin = [\"*\"]\n", "allow_origins"),
        ("max_age = 60\n", "cors.allow_origins"),
    ] {
        let keys = format!("[functions.lab.cors]\n{policy}");
        let refused = daemon.deploy_fails(&Project::function("lab", OWN, &keys));
        assert!(refused.contains(words), "{policy}: {refused}");
    }
}

#[test]
fn without_a_policy_the_function_answers_preflights_itself() {
    let daemon = daemon_with(DaemonOptions::default());
    daemon.deploy(&Project::function("lab", OWN, ""));
    let answer = preflight(&daemon, SHOP, "PUT", None);
    assert_eq!(
        answer.header("access-control-allow-origin"),
        Some("https://own.example")
    );
    assert_eq!(answer.header("access-control-allow-methods"), None);
}

#[test]
fn an_allowed_origin_does_not_open_the_invoke_api() {
    let daemon = shared(POLICY, "");
    daemon.upload_code("other", &json!({}), ECHO);
    for function in ["lab", "other"] {
        let invoke = Request::new(
            "POST",
            &format!("/2015-03-31/functions/{function}/invocations"),
        )
        .header("origin", SHOP)
        .body("{}");
        let response = daemon.connect().exchange(&invoke);
        assert_eq!(response.status, 403, "{function}: {}", response.text());
    }
    let other = Request::new("GET", "/fn/other/").header("origin", SHOP);
    let response = daemon.connect().exchange(&other);
    assert_eq!(response.header("access-control-allow-origin"), None);
}
