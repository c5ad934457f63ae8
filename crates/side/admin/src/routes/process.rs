//! The daemon itself: version, metrics, health.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use pilot_model::api::VersionInfo;
use pilot_telemetry::Metrics;

use crate::admin::{Admin, Readiness};

/// The versions.
#[utoipa::path(
    get, path = "/_pilot/v1/version", tag = "daemon",
    responses((status = 200, description = "Versions", body = VersionInfo)),
)]
pub(crate) async fn version(State(admin): State<Admin>) -> Json<VersionInfo> {
    Json(VersionInfo {
        version: admin.inner.config.version.to_owned(),
        api: "v1".to_owned(),
        functions: admin
            .inner
            .config
            .functions_url
            .get()
            .cloned()
            .unwrap_or_default(),
    })
}

/// The metrics in the OpenMetrics text format.
#[utoipa::path(
    get, path = "/metrics", tag = "daemon",
    responses((status = 200, description = "Metrics", body = String, content_type = "application/openmetrics-text")),
)]
pub(crate) async fn metrics(State(admin): State<Admin>) -> Response {
    let scrapes = admin.inner.scrapes.clone();
    let text = scrapes.text(move || scrape(&admin)).await;
    ([(CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response()
}

/// Whether the process is alive.
#[utoipa::path(
    get, path = "/healthz", tag = "daemon",
    responses((status = 200, description = "It is alive", body = String, content_type = "text/plain")),
)]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether the daemon accepts requests.
#[utoipa::path(
    get, path = "/readyz", tag = "daemon",
    responses(
        (status = 200, description = "The daemon is ready", body = Readiness),
        (status = 503, description = "The daemon is not ready, with the reasons", body = Readiness),
    ),
)]
pub(crate) async fn readyz(State(admin): State<Admin>) -> (StatusCode, Json<Readiness>) {
    let readiness = (admin.inner.parts.readiness)();
    let status = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(readiness))
}

/// The gauges are set here, when somebody asks for the metrics.
fn scrape(admin: &Admin) -> String {
    let parts = &admin.inner.parts;
    let functions = parts.control.list();
    parts.observations.catch_up();
    let names: HashSet<_> = functions
        .iter()
        .map(|function| function.name.clone())
        .collect();
    parts.observations.retain(&names);
    for function in &functions {
        parts.metrics.set_pool(&function.name, &function.workers);
    }
    parts.metrics.set_templates(&(parts.templates)());
    parts.metrics.set_certificates(&(parts.certificates)());
    parts.metrics.set_async(&parts.queue.counts());
    parts.metrics.set_triggers(&parts.triggers.list(None));
    parts.metrics.set_busy_poll((parts.busy_polled)());
    parts.metrics.set_handed((parts.handed)());
    parts
        .metrics
        .set_refused_connections(&(parts.refused_connections)());
    parts.metrics.text()
}
