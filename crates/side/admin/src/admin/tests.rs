use std::fs::File;
use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use futures_util::StreamExt;
use http_body_util::BodyExt;
use pilot_model::access::{Caller, Grant, Role};
use pilot_model::api::{ApiError, DeployEvent, LayerInfo, PruneReport, PruneRequest};
use pilot_model::cost::{CostReport, CostRequest};
use pilot_model::deployment::TemplateReport;
use pilot_model::deployment::{
    DeployError, DeployReport, FunctionDescription, FunctionSummary, Progress, RollbackReport,
};
use pilot_model::ports::{
    CostError, Costs, CostsOf, Observed, Scaling, SecretUser, UsageRecords, UsageRows,
};
use pilot_model::status::{PoolStatus, Totals};
use pilot_model::{BoxFuture, FunctionName, FunctionSpec, LayerId, VersionId};
use pilot_telemetry::{Bus, BusConfig};
use pilot_testkit::ManualClock;
use tokio::sync::{Semaphore, mpsc};
use tower::ServiceExt;

use super::*;
use crate::logs::LogStore;
use crate::router::rows;

mod access;
mod asynchronous;
mod triggers;

type Said = Arc<dyn Fn(Progress) + Send + Sync>;

/// Has only the function `known`. A deployment reports one line and then waits for a permit.
#[derive(Debug)]
struct FakeControl {
    go_on: Arc<Semaphore>,
    deployed: mpsc::UnboundedSender<(FunctionName, FunctionSpec, Vec<u8>)>,
    refuse: Mutex<Option<DeployError>>,
}

fn whole(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The id of the only layer.
fn layer_id() -> LayerId {
    "0a".repeat(32).parse().unwrap()
}

/// Tells what it was asked. A table of platforms is wrong, and the record of a function is its name.
#[derive(Debug)]
struct FakeCosts;

impl Costs for FakeCosts {
    fn cost(
        &self,
        function: Option<&CostsOf>,
        request: &CostRequest,
    ) -> Result<CostReport, CostError> {
        match &request.billing {
            Some(_) => Err(CostError::Billing("fee: wrong".to_owned())),
            None => Ok(CostReport {
                since_unix_ms: request.since_unix_ms,
                notes: function.map(|of| of.name.to_string()).into_iter().collect(),
                ..CostReport::default()
            }),
        }
    }

    fn usage(
        &self,
        function: Option<&CostsOf>,
        since_unix_ms: Option<u64>,
        records: UsageRecords,
    ) -> Result<UsageRows, CostError> {
        let name = function.map(|of| &of.name);
        let rows = [
            format!("{name:?}\n"),
            format!("{since_unix_ms:?} {records:?}\n"),
        ];
        Ok(Box::new(rows.map(|row| Ok(row.into_bytes())).into_iter()))
    }
}

impl ControlPlane for FakeControl {
    fn spool(&self) -> std::io::Result<File> {
        tempfile::tempfile()
    }

    fn layer(&self, id: &LayerId) -> BoxFuture<'static, Result<Option<LayerInfo>, DeployError>> {
        let found = (*id == layer_id()).then(|| LayerInfo {
            id: id.clone(),
            files: 1,
            bytes: 2,
        });
        Box::pin(async move { Ok(found) })
    }

    /// Tells the length of the archive.
    fn add_layer(
        &self,
        id: LayerId,
        archive: File,
    ) -> BoxFuture<'static, Result<LayerInfo, DeployError>> {
        let bytes = whole(archive).len() as u64;
        Box::pin(async move {
            Ok(LayerInfo {
                id,
                files: 1,
                bytes,
            })
        })
    }

    fn deploy(
        &self,
        name: FunctionName,
        spec: FunctionSpec,
        _only_of: Option<String>,
        archive: File,
        progress: Said,
    ) -> BoxFuture<'static, Result<DeployReport, DeployError>> {
        let (go_on, deployed) = (Arc::clone(&self.go_on), self.deployed.clone());
        let refuse = self.refuse.lock().take();
        Box::pin(async move {
            progress(Progress {
                stage: "unpack".to_owned(),
                message: "1 files".to_owned(),
            });
            go_on.acquire().await.unwrap().forget();
            if let Some(error) = refuse {
                return Err(error);
            }
            deployed.send((name.clone(), spec, whole(archive))).unwrap();
            Ok(report(name))
        })
    }

    fn users(&self, _secret: &pilot_model::SecretId) -> Vec<SecretUser> {
        Vec::new()
    }

    fn renew(&self, _name: &FunctionName) {}

    fn prune(&self, request: PruneRequest) -> BoxFuture<'static, Result<PruneReport, DeployError>> {
        let report = PruneReport {
            dry_run: request.dry_run,
            ..PruneReport::default()
        };
        Box::pin(async move { Ok(report) })
    }

    fn list(&self) -> Vec<FunctionSummary> {
        vec![summary()]
    }

    fn describe(&self, name: &FunctionName) -> Option<FunctionDescription> {
        (name.as_str() == "known").then(|| FunctionDescription {
            summary: summary(),
            config: pilot_testkit::config("known"),
            environment: "e0".to_owned(),
            template: template(),
            url_path: "/fn/known/".to_owned(),
            last_cold: None,
            last: None,
            versions: vec![],
            forecast: None,
            runtimes: None,
            triggers: vec![],
            sharing: None,
        })
    }

    fn remove(&self, name: &FunctionName) -> BoxFuture<'static, Result<bool, DeployError>> {
        let known = name.as_str() == "known";
        Box::pin(async move { Ok(known) })
    }

    fn rollback(
        &self,
        name: &FunctionName,
        number: Option<u32>,
    ) -> BoxFuture<'static, Result<RollbackReport, DeployError>> {
        let known = name.as_str() == "known" && number != Some(9);
        let report = RollbackReport {
            name: name.clone(),
            version: VersionId::from_hex("01"),
            number: number.unwrap_or(1),
            replaced: 2,
            changed: true,
        };
        Box::pin(async move {
            if known {
                return Ok(report);
            }
            Err(DeployError::Invalid {
                code: "unknown_version",
                message: "there is 1".to_owned(),
                detail: String::new(),
            })
        })
    }

    fn scale(
        &self,
        name: &FunctionName,
        scaling: Scaling,
    ) -> Result<Option<PoolStatus>, DeployError> {
        let status = PoolStatus {
            idle: scaling.workers.unwrap_or(7),
            ..PoolStatus::default()
        };
        Ok((name.as_str() == "known").then_some(status))
    }
}

fn template() -> TemplateReport {
    TemplateReport {
        python: "3.11.7".to_owned(),
        imports: vec![],
        failed_imports: vec![],
        findings: Vec::new(),
        memory_bytes: 1,
        forkable: true,
        reason: None,
        took: Duration::ZERO,
        warnings: Vec::new(),
    }
}

fn summary() -> FunctionSummary {
    FunctionSummary {
        name: "known".parse().unwrap(),
        version: VersionId::from_hex("01"),
        number: 1,
        runtime: "python".to_owned(),
        handler: "app.handler".to_owned(),
        deployed_unix_s: 0,
        workers: PoolStatus {
            idle: 3,
            ..PoolStatus::default()
        },
        totals: Totals::default(),
        problem: None,
    }
}

fn report(name: FunctionName) -> DeployReport {
    DeployReport {
        name,
        version: VersionId::from_hex("02"),
        number: 2,
        changed: true,
        runtime: "python".to_owned(),
        environment_reused: false,
        environment_has: "Python 3.11.7".to_owned(),
        template: template(),
        url_path: "/fn/known/".to_owned(),
    }
}

/// A caller with these rights.
fn known(grant: Grant) -> Caller {
    Caller::Known(Arc::new(grant))
}

struct Bench {
    _folder: tempfile::TempDir,
    admin: Admin,
    control: Arc<FakeControl>,
    observations: Arc<Observations>,
    deployed: mpsc::UnboundedReceiver<(FunctionName, FunctionSpec, Vec<u8>)>,
}

impl Bench {
    fn new(config: AdminConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::default());
        let bus = Bus::start(BusConfig::default(), Arc::clone(&metrics)).unwrap();
        let logs = LogStore::open(folder.path().join("logs"), LogStore::FILE_BYTES_MAX).unwrap();
        let clock = Arc::new(ManualClock::default());
        let observations = Observations::subscribe(&bus, logs, &metrics, clock).unwrap();
        let observations = Arc::new(observations);
        let (sender, deployed) = mpsc::unbounded_channel();
        let control = Arc::new(FakeControl {
            go_on: Arc::new(Semaphore::new(0)),
            deployed: sender,
            refuse: Mutex::default(),
        });
        let key = pilot_seal::SealingKey::random_text().unwrap();
        let key = Arc::new(pilot_seal::SealingKey::parse(&key, "the.key").unwrap());
        let parts = AdminParts {
            control: Arc::clone(&control) as Arc<dyn ControlPlane>,
            tokens: {
                let path = folder.path().join("tokens.json");
                Arc::new(TokenStore::open(path, vec![], Arc::clone(&key)).unwrap())
            },
            secrets: {
                let path = folder.path().join("secrets.json");
                Arc::new(SecretStore::open(path, key).unwrap())
            },
            certificates: Arc::new(Vec::new),
            refused_connections: Arc::new(|| vec![("too_slow", 7)]),
            handed: Arc::new(|| (2, 64)),
            observations: Arc::clone(&observations),
            costs: Arc::new(FakeCosts),
            queue: Arc::new(asynchronous::FakeQueue),
            triggers: Arc::new(triggers::FakeTriggers),
            metrics,
            templates: Arc::new(|| {
                vec![TemplateMemory {
                    level: "function".to_owned(),
                    name: "known".to_owned(),
                    memory_bytes: 42,
                }]
            }),
            readiness: Arc::new(|| Readiness {
                ready: false,
                reasons: vec!["restoring".to_owned()],
            }),
        };
        Self {
            _folder: folder,
            admin: Admin::new(parts, config),
            control,
            observations,
            deployed,
        }
    }

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
    bench.admin.finish().await;
    assert_eq!(bench.deployed.recv().await.unwrap().0.as_str(), "known");
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
async fn only_so_many_archives_arrive_at_once() {
    let mut bench = Bench::new(AdminConfig {
        uploads_max: 1,
        ..AdminConfig::default()
    });
    let first = bench.send(form(&[("spec", b"{}"), ("code", b"1")])).await;
    let router = bench.admin.router();
    let mut request = form(&[("spec", b"{}"), ("code", b"2")]);
    request.extensions_mut().insert(known(Grant::admin("test")));
    let second = tokio::spawn(router.oneshot(request));
    tokio::task::yield_now().await;
    assert_eq!(bench.admin.inner.deployments.lock().len(), 1);
    bench.control.go_on.add_permits(2);
    let _ = events(first).await;
    let _ = events(second.await.unwrap().unwrap()).await;
    assert_eq!(&bench.deployed.recv().await.unwrap().2[..], b"1");
    assert_eq!(&bench.deployed.recv().await.unwrap().2[..], b"2");
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
