//! Usage records of invocations, and what the same invocations would have cost on other platforms.

use std::io;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use pilot_model::api::ApiError;
use pilot_model::cost::{CostReport, CostRequest};
use pilot_model::ports::{CostError, CostsOf, UsageRecords, UsageRows};
use serde::Deserialize;

use super::{function_name, query_in_words};
use crate::admin::Admin;
use crate::blocking;
use crate::error::Failure;
use crate::long_reads::LongReads;

/// What a function's invocations would have cost on other platforms.
#[utoipa::path(
    post, path = "/_pilot/v1/functions/{name}/cost", tag = "functions",
    params(("name" = String, Path, description = "The function")),
    request_body = Option<CostRequest>,
    responses(
        (status = 200, description = "The bills", body = CostReport),
        (status = 400, description = "The request is invalid", body = ApiError),
        (status = 404, description = "No such function", body = ApiError),
        (status = 503, description = "Other reports are being made", body = ApiError),
    ),
)]
pub(crate) async fn cost(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<CostReport>, Failure> {
    let of = existing(&admin, &name).await?;
    report(admin, Some(of), &body).await
}

/// What the invocations of all functions would have cost on other platforms.
#[utoipa::path(
    post, path = "/_pilot/v1/cost", tag = "daemon",
    request_body = Option<CostRequest>,
    responses(
        (status = 200, description = "The bills", body = CostReport),
        (status = 400, description = "The request is invalid", body = ApiError),
        (status = 503, description = "Other reports are being made", body = ApiError),
    ),
)]
pub(crate) async fn cost_of_all(
    State(admin): State<Admin>,
    body: Bytes,
) -> Result<Json<CostReport>, Failure> {
    report(admin, None, &body).await
}

async fn report(
    admin: Admin,
    of: Option<CostsOf>,
    body: &Bytes,
) -> Result<Json<CostReport>, Failure> {
    let request: CostRequest = super::from_optional_json(body).map_err(|problem| {
        let form = r#"{"since_unix_ms": T, "billing": "TOML", "match_cpu": BOOL}, or nothing"#;
        Failure::new("bad_request", format!("{problem}; send {form}"))
    })?;
    let costs = Arc::clone(&admin.inner.parts.costs);
    let report = blocking(move || costs.cost(of.as_ref(), &request)).await?;
    Ok(Json(report))
}

/// A function that is there. Who may see it is known of such a function only.
async fn existing(admin: &Admin, name: &str) -> Result<CostsOf, Failure> {
    let name = function_name(name)?;
    let (control, wanted) = (Arc::clone(&admin.inner.parts.control), name.clone());
    match blocking(move || control.describe(&wanted)).await {
        Some(description) => Ok(CostsOf {
            owner: description.config.owner().to_owned(),
            name,
        }),
        None => Err(Failure::not_found(&name)),
    }
}

/// `?since_unix_ms=T&workers=true`.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageQuery {
    /// Only invocations received, or workers ended, from this time on, Unix milliseconds.
    since_unix_ms: Option<u64>,
    /// The records of workers that have ended, instead of those of invocations.
    #[serde(default)]
    workers: bool,
}

/// The usage records of a function.
#[utoipa::path(
    get, path = "/_pilot/v1/functions/{name}/usage", tag = "functions",
    params(("name" = String, Path, description = "The function"), UsageQuery),
    responses(
        (status = 200, description = "A record per invocation, or per worker", body = String, content_type = "text/csv"),
        (status = 400, description = "A parameter is invalid", body = ApiError),
        (status = 404, description = "No such function", body = ApiError),
    ),
)]
pub(crate) async fn usage(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    query: Result<Query<UsageQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let of = existing(&admin, &name).await?;
    records(admin, Some(of), query).await
}

/// The usage records of all functions.
#[utoipa::path(
    get, path = "/_pilot/v1/usage", tag = "daemon",
    params(UsageQuery),
    responses(
        (status = 200, description = "A record per invocation, or per worker", body = String, content_type = "text/csv"),
        (status = 400, description = "A parameter is invalid", body = ApiError),
    ),
)]
pub(crate) async fn usage_of_all(
    State(admin): State<Admin>,
    query: Result<Query<UsageQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    records(admin, None, query).await
}

async fn records(
    admin: Admin,
    of: Option<CostsOf>,
    query: Result<Query<UsageQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(|error| {
        let problem = format!(
            "{}; use since_unix_ms=T and workers=true",
            query_in_words(&error)
        );
        Failure::new("bad_request", problem)
    })?;
    let costs = Arc::clone(&admin.inner.parts.costs);
    let records = if query.workers {
        UsageRecords::Workers
    } else {
        UsageRecords::Invocations
    };
    let reads = admin.inner.long_reads.clone();
    let rows = reads.part(move || costs.usage(of.as_ref(), query.since_unix_ms, records));
    let rows = rows.await?;
    let body = Body::from_stream(stream::try_unfold(rows, move |rows| {
        next(rows, reads.clone())
    }));
    Ok(([(CONTENT_TYPE, "text/csv; charset=utf-8")], body).into_response())
}

async fn next(mut rows: UsageRows, reads: LongReads) -> io::Result<Option<(Vec<u8>, UsageRows)>> {
    let (piece, rows) = reads.part(move || (rows.next(), rows)).await;
    piece
        .map(|piece| piece.map(|piece| (piece, rows)))
        .transpose()
}

impl From<CostError> for Failure {
    fn from(error: CostError) -> Self {
        let code = match &error {
            CostError::Billing(_) => "bad_request",
            CostError::Busy => "busy",
            CostError::Read(_) => "internal",
        };
        Self::new(code, error.to_string())
    }
}
