use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use pilot_model::FunctionName;
use pilot_model::access::{Caller, Grant, Role};
use pilot_model::api::{ApiError, DeployEvent, LayerInfo};
use pilot_model::deployment::{DeployError, FunctionDescription, FunctionSummary};
use pilot_model::ports::Observed;
use pilot_model::status::PoolStatus;
use tower::ServiceExt;

use super::*;
use crate::fakes::{Bench, known, layer_id, report, summary};
use crate::router::rows;

mod access;
mod asynchronous;
mod triggers;

impl Bench {
    async fn send(&self, mut request: Request<Body>) -> Response {
        if request.extensions().get::<Caller>().is_none() {
            request.extensions_mut().insert(known(Grant::admin("test")));
        }
        self.admin.router().oneshot(request).await.unwrap()
    }

    async fn call(&self, method: &str, path: &str, body: &str) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path);
        let response = self
            .send(request.body(Body::from(body.to_owned())).unwrap())
            .await;
        let status = response.status();
        (status, text(response).await)
    }

    /// The status, the error's code and its message.
    async fn refusal(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let (status, text) = self.call(method, path, body).await;
        let error: ApiError =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("not an ApiError: {text}"));
        (status.as_u16(), error.code, error.message)
    }
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn form(parts: &[(&str, &[u8])]) -> Request<Body> {
    let mut body = Vec::new();
    for (name, content) in parts {
        body.extend_from_slice(
            format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n").as_bytes(),
        );
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b--\r\n");
    Request::put("/_pilot/v1/functions/known")
        .header(header::CONTENT_TYPE, "multipart/form-data; boundary=b")
        .body(Body::from(body))
        .unwrap()
}

async fn events(response: Response) -> Vec<DeployEvent> {
    assert_eq!(response.status(), StatusCode::OK);
    let text = text(response).await;
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn what_the_extractors_refuse_is_an_error_like_all_others() {
    let bench = Bench::new(AdminConfig::default());
    let scale = "/_pilot/v1/functions/known/scale";
    let (status, code, message) = bench.refusal("POST", scale, &"x".repeat(70_000)).await;
    assert_eq!((status, code.as_str()), (413, "too_large"));
    assert!(message.contains("65536 bytes"), "{message}");
    for path in [
        "/_pilot/v1/functions/%ff",
        "/_pilot/v1/functions/known?values=x",
        "/_pilot/v1/secrets/key?force=x",
    ] {
        let method = if path.contains("secrets") {
            "DELETE"
        } else {
            "GET"
        };
        let (status, code, message) = bench.refusal(method, path, "").await;
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{path}");
        assert!(!message.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn a_deployment_is_told_line_by_line() {
    let mut bench = Bench::new(AdminConfig::default());
    let response = bench
        .send(form(&[("spec", b"{\"memory_mb\": 64}"), ("code", b"tgz")]))
        .await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "application/x-ndjson"
    );
    let mut body = response.into_body().into_data_stream();
    // The first line arrives before the deployment ends.
    let first = body.next().await.unwrap().unwrap();
    assert_eq!(
        &first[..],
        b"{\"event\":\"progress\",\"stage\":\"unpack\",\"message\":\"1 files\"}\n"
    );
    bench.control.go_on.add_permits(1);
    let last = body.next().await.unwrap().unwrap();
    let last: DeployEvent = serde_json::from_slice(&last).unwrap();
    assert_eq!(
        last,
        DeployEvent::Done(Box::new(report("known".parse().unwrap())))
    );
    assert!(body.next().await.is_none());
    let (_, spec, code) = bench.deployed.recv().await.unwrap();
    assert_eq!((spec.memory_mb, &code[..]), (Some(64), &b"tgz"[..]));
}

#[tokio::test]
async fn a_deployment_goes_on_when_its_client_hangs_up() {
    let mut bench = Bench::new(AdminConfig::default());
    let response = bench.send(form(&[("spec", b"{}"), ("code", b"tgz")])).await;
    drop(response);
    bench.control.go_on.add_permits(1);
    let long_after = Instant::now() + Duration::from_secs(600);
    bench.admin.finish(long_after).await;
    assert_eq!(bench.deployed.recv().await.unwrap().0.as_str(), "known");
}

#[tokio::test]
async fn the_end_gives_up_deployments_that_take_longer_than_it_has() {
    let mut bench = Bench::new(AdminConfig::default());
    let response = bench.send(form(&[("spec", b"{}"), ("code", b"tgz")])).await;
    bench.admin.finish(Instant::now()).await;
    drop(response);
    bench.control.go_on.add_permits(1);
    assert!(bench.admin.inner.deployments.lock().is_empty());
    assert!(bench.deployed.try_recv().is_err(), "it does not go on");
}

#[tokio::test]
async fn a_failed_deployment_ends_with_why() {
    let bench = Bench::new(AdminConfig::default());
    *bench.control.refuse.lock() = Some(DeployError::Invalid {
        code: "import_failed",
        message: "no".to_owned(),
        detail: "Traceback".to_owned(),
    });
    bench.control.go_on.add_permits(1);
    let response = bench.send(form(&[("spec", b"{}"), ("code", b"tgz")])).await;
    let events = events(response).await;
    let DeployEvent::Failed(error) = events.last().unwrap() else {
        panic!("{events:?}")
    };
    assert_eq!(
        (error.code.as_str(), error.detail.as_str()),
        ("import_failed", "Traceback")
    );
}

#[tokio::test]
async fn uploads_that_do_not_do_say_why() {
    let bench = Bench::new(AdminConfig {
        archive_bytes_max: 10,
        ..AdminConfig::default()
    });
    let refused = async |request| {
        let response = bench.send(request).await;
        let status = response.status().as_u16();
        let error: ApiError = serde_json::from_str(&text(response).await).unwrap();
        (status, error.code, error.message)
    };
    let (status, code, message) = refused(form(&[("spec", b"{}"), ("code", &[0; 100_000])])).await;
    assert_eq!((status, code.as_str()), (413, "too_large"));
    assert!(
        message.contains("larger than the limit of 10 bytes"),
        "{message}"
    );
    let (status, code, message) =
        refused(form(&[("spec", b"{\"memory\": 1}"), ("code", b"")])).await;
    assert_eq!((status, code.as_str()), (400, "bad_config"));
    assert!(message.contains("did you mean 'memory_mb'"), "{message}");
    for parts in [
        &[("spec", &b"{}"[..])][..],
        &[("code", b"")],
        &[("other", b"")],
    ] {
        let (status, code, _) = refused(form(parts)).await;
        assert_eq!((status, code.as_str()), (400, "bad_request"));
    }
    let plain = Request::put("/_pilot/v1/functions/known")
        .body(Body::from("x"))
        .unwrap();
    let (status, code, _) = refused(plain).await;
    assert_eq!((status, code.as_str()), (400, "bad_request"));
    let mut cut = form(&[("spec", b"{}")]);
    *cut.body_mut() =
        Body::from("--b\r\ncontent-disposition: form-data; name=\"code\"\r\n\r\nhalf");
    assert_eq!(refused(cut).await.0, 400);
}

#[tokio::test]
async fn a_layer_is_looked_for_and_uploaded_by_its_id() {
    let bench = Bench::new(AdminConfig {
        archive_bytes_max: 100_000,
        ..AdminConfig::default()
    });
    let of = |id: &str| format!("/_pilot/v1/layers/{id}");
    let (status, found) = bench.call("GET", &of(layer_id().as_str()), "").await;
    let found: LayerInfo = serde_json::from_str(&found).unwrap();
    assert_eq!((status.as_u16(), found.bytes), (200, 2));

    let other = "0b".repeat(32);
    let (status, code, message) = bench.refusal("GET", &of(&other), "").await;
    assert_eq!((status, code.as_str()), (404, "not_found"));
    assert!(message.contains("upload it with PUT"), "{message}");
    for id in ["0a", "..%2f..%2fcode"] {
        let (status, code, _) = bench.refusal("PUT", &of(id), "x").await;
        assert_eq!((status, code.as_str()), (400, "bad_name"), "{id}");
    }

    let (status, added) = bench.call("PUT", &of(&other), &"x".repeat(100_000)).await;
    let added: LayerInfo = serde_json::from_str(&added).unwrap();
    assert_eq!((status.as_u16(), added.bytes), (200, 100_000));
    let (status, code, message) = bench
        .refusal("PUT", &of(&other), &"x".repeat(100_001))
        .await;
    assert_eq!((status, code.as_str()), (413, "too_large"));
    assert!(message.contains("limit of 98 KB"), "{message}");
}

#[tokio::test]
async fn functions_are_listed_described_scaled_and_removed() {
    let bench = Bench::new(AdminConfig::default());
    let (status, list) = bench.call("GET", "/_pilot/v1/functions", "").await;
    assert_eq!(status, 200);
    assert_eq!(
        serde_json::from_str::<Vec<FunctionSummary>>(&list).unwrap(),
        [summary()]
    );
    let (status, one) = bench.call("GET", "/_pilot/v1/functions/known", "").await;
    assert_eq!(status, 200);
    assert_eq!(
        serde_json::from_str::<FunctionDescription>(&one)
            .unwrap()
            .summary,
        summary()
    );
    let (status, scaled) = bench
        .call(
            "POST",
            "/_pilot/v1/functions/known/scale",
            "{\"workers\":5}",
        )
        .await;
    assert_eq!(status, 200);
    assert_eq!(serde_json::from_str::<PoolStatus>(&scaled).unwrap().idle, 5);
    let (status, nothing) = bench.call("DELETE", "/_pilot/v1/functions/known", "").await;
    assert_eq!((status.as_u16(), nothing.as_str()), (204, ""));
}

#[tokio::test]
async fn every_error_is_an_api_error() {
    let bench = Bench::new(AdminConfig::default());
    let function = "/_pilot/v1/functions/other";
    for (method, path, body) in [
        ("GET", function.to_owned(), ""),
        ("DELETE", function.to_owned(), ""),
        ("POST", format!("{function}/scale"), "{\"workers\":1}"),
        ("GET", format!("{function}/logs"), ""),
    ] {
        let (status, code, message) = bench.refusal(method, &path, body).await;
        assert_eq!(
            (status, code.as_str()),
            (404, "not_found"),
            "{method} {path}"
        );
        assert!(message.contains("'other'"), "{message}");
    }
    let bad_name = bench.refusal("GET", "/_pilot/v1/functions/a.b", "").await;
    assert_eq!((bad_name.0, bad_name.1.as_str()), (400, "bad_name"));
    let unknown_key = bench
        .refusal("POST", "/_pilot/v1/functions/known/scale", "{\"worker\":1}")
        .await;
    assert_eq!(
        (unknown_key.0, unknown_key.1.as_str()),
        (400, "bad_request")
    );
    assert!(
        unknown_key.2.contains("did you mean 'workers'"),
        "{}",
        unknown_key.2
    );
    let bad_query = bench
        .refusal("GET", "/_pilot/v1/functions/known/logs?lines=many", "")
        .await;
    assert_eq!((bad_query.0, bad_query.1.as_str()), (400, "bad_request"));
    let unknown = bench.refusal("GET", "/_pilot/v1/function", "").await;
    assert_eq!((unknown.0, unknown.1.as_str()), (404, "unknown_route"));
    assert!(
        unknown.2.contains("did you mean /_pilot/v1/functions?"),
        "{}",
        unknown.2
    );
    let method = bench
        .refusal("PATCH", "/_pilot/v1/functions/known", "")
        .await;
    assert_eq!((method.0, method.1.as_str()), (405, "method_not_allowed"));
    assert!(
        method.2.ends_with("it accepts GET, PUT, DELETE"),
        "{}",
        method.2
    );
}

#[tokio::test]
async fn metrics_have_the_gauges_of_now() {
    let bench = Bench::new(AdminConfig::default());
    let (status, text) = bench.call("GET", "/metrics", "").await;
    assert_eq!(status, 200);
    assert!(
        text.contains("pilot_connections_refused_total{reason=\"too_slow\"} 7"),
        "{text}"
    );
    assert!(
        text.contains("pilot_workers{faas_name=\"known\",state=\"idle\"} 3"),
        "{text}"
    );
    assert!(
        text.contains("pilot_template_memory_bytes{level=\"function\"} 42"),
        "{text}"
    );
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn readiness_gives_its_reasons() {
    let bench = Bench::new(AdminConfig::default());
    let (status, text) = bench.call("GET", "/readyz", "").await;
    assert_eq!(
        (status.as_u16(), text.as_str()),
        (503, "{\"ready\":false,\"reasons\":[\"restoring\"]}")
    );
}

#[tokio::test]
async fn the_document_and_the_version_are_served() {
    let bench = Bench::new(AdminConfig {
        version: "9.9.9",
        ..AdminConfig::default()
    });
    let (status, text) = bench.call("GET", "/_pilot/v1/openapi.json", "").await;
    assert_eq!(status, 200);
    assert!(text.starts_with("{\"openapi\":\"3.1.0\""), "{text}");
    let (_, text) = bench.call("GET", "/_pilot/v1/version", "").await;
    assert_eq!(text, "{\"version\":\"9.9.9\",\"api\":\"v1\"}");
}

#[tokio::test]
async fn logs_are_read_and_followed_until_the_function_goes() {
    let bench = Bench::new(AdminConfig::default());
    let name: FunctionName = "known".parse().unwrap();
    let logs = bench.observations.logs();
    logs.append(&name, b"1 f - one\n2 f - two\n3 p id-3 three\n")
        .unwrap();
    let (_, text) = bench
        .call("GET", "/_pilot/v1/functions/known/logs?lines=2", "")
        .await;
    assert_eq!(
        text,
        "1970-01-01T00:00:00.002Z function two\n1970-01-01T00:00:00.003Z platform three\n"
    );
    let (_, text) = bench
        .call(
            "GET",
            "/_pilot/v1/functions/known/logs?request=id-3&since_unix_ms=3&format=json",
            "",
        )
        .await;
    assert_eq!(
        text,
        "{\"time\":\"1970-01-01T00:00:00.003Z\",\"source\":\"platform\",\"request_id\":\"id-3\",\"text\":\"three\"}\n"
    );
    let request = Request::get("/_pilot/v1/functions/known/logs?lines=1&follow=true");
    let response = bench.send(request.body(Body::empty()).unwrap()).await;
    let mut body = response.into_body().into_data_stream();
    assert!(
        body.next()
            .await
            .unwrap()
            .unwrap()
            .ends_with(b"platform three\n")
    );
    logs.append(&name, b"4 f - four\n").unwrap();
    logs.wake_followers();
    assert!(
        body.next()
            .await
            .unwrap()
            .unwrap()
            .ends_with(b"function four\n")
    );
    bench.observations.forget(&name);
    assert!(body.next().await.is_none());
}
