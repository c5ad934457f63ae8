//! Asynchronous invocations and dead letters: who sees which, and requests that are wrong.

use super::*;

fn deployer(function: Option<&str>, owner: Option<&str>) -> Caller {
    let mut grant = Grant::of("t", Role::Deploy);
    grant
        .functions
        .extend(function.map(|name| name.parse().unwrap()));
    grant.owner = owner.map(str::to_owned);
    known(grant)
}

async fn answer(caller: Caller, method: &str, path: &str, body: &str) -> (StatusCode, String) {
    let bench = Bench::new(AdminConfig::default());
    let request = Request::builder()
        .method(method)
        .uri(path)
        .extension(caller);
    let response = bench
        .send(request.body(Body::from(body.to_owned())).unwrap())
        .await;
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn a_token_sees_and_changes_only_the_invocations_of_its_functions_and_owner() {
    for (caller, sees_known, sees_other) in [
        (known(Grant::admin("t")), true, true),
        (deployer(None, None), true, true),
        (deployer(Some("known"), None), true, false),
        (deployer(None, Some("them")), false, true),
        (deployer(Some("known"), Some("them")), false, false),
    ] {
        let (status, list) = answer(caller.clone(), "GET", "/_pilot/v1/async", "").await;
        assert_eq!(status, StatusCode::OK, "{list}");
        assert_eq!(list.contains("known-1"), sees_known, "{list}");
        assert_eq!(list.contains("other-1"), sees_other, "{list}");
        let (status, _) = answer(caller.clone(), "GET", "/_pilot/v1/async/other-1", "").await;
        assert_eq!(status == StatusCode::OK, sees_other);
        let (status, _) = answer(caller.clone(), "DELETE", "/_pilot/v1/async/other-1", "").await;
        let wanted = if sees_other {
            StatusCode::CONFLICT
        } else {
            StatusCode::NOT_FOUND
        };
        assert_eq!(status, wanted);
        let (_, purged) = answer(caller, "POST", "/_pilot/v1/dlq/purge", "{}").await;
        let changed = u64::from(sees_known) + u64::from(sees_other);
        assert_eq!(purged, format!("{{\"changed\":{changed},\"left\":0}}"));
    }
}

#[tokio::test]
async fn a_wrong_parameter_is_named() {
    let admin = || known(Grant::admin("t"));
    for (method, path, body, problem) in [
        ("GET", "/_pilot/v1/async?limit=0", "", "from 1 to 1000"),
        ("GET", "/_pilot/v1/async?functions=a", "", "function=NAME"),
        (
            "GET",
            "/_pilot/v1/dlq?function=a%20b",
            "",
            "not a function name",
        ),
        (
            "POST",
            "/_pilot/v1/dlq/redrive",
            "{\"all\":true}",
            "{} for all",
        ),
        ("POST", "/_pilot/v1/dlq/purge", "", "{} for all"),
    ] {
        let (status, said) = answer(admin(), method, path, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {said}");
        assert!(said.contains(problem), "{path} {said}");
    }
}

#[tokio::test]
async fn the_metrics_say_how_deep_and_how_old_the_queue_is() {
    let (_, text) = answer(known(Grant::admin("t")), "GET", "/metrics", "").await;
    for line in [
        "pilot_async_invocations{state=\"waiting\"} 2",
        "pilot_async_oldest_age_seconds 9",
        "pilot_async_events_total{event=\"accepted\"} 5",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
