//! List, describe, remove, scale, roll back.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bytes::Bytes;
use pilot_model::access::{Caller, Role};
use pilot_model::api::{ApiError, HIDDEN, RollbackRequest, ScaleRequest};
use pilot_model::deployment::{DeployError, FunctionDescription, FunctionSummary, RollbackReport};
use pilot_model::ports::Scaling;
use pilot_model::status::PoolStatus;
use serde::Deserialize;

use super::function_name;
use crate::access::{actor, known};
use crate::admin::Admin;
use crate::blocking;
use crate::error::Failure;

/// All functions.
#[utoipa::path(
    get, path = "/_pilot/v1/functions", tag = "functions",
    responses((status = 200, description = "Every function, by name", body = [FunctionSummary])),
)]
pub(crate) async fn list(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
) -> Json<Vec<FunctionSummary>> {
    let control = Arc::clone(&admin.inner.parts.control);
    let listed = move || {
        let mut functions = control.list();
        if let Caller::Known(grant) = &caller
            && !grant.is_admin()
        {
            // A token sees the functions that it is for.
            functions.retain(|function| {
                let is_owners = |owner: &String| {
                    let found = control.describe(&function.name);
                    found.is_some_and(|found| found.config.owner() == owner)
                };
                grant.permits(Role::Deploy, function.name.as_str())
                    && grant.owner.as_ref().is_none_or(is_owners)
            });
        }
        functions
    };
    Json(blocking(listed).await)
}

/// How much a description says.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DescribeQuery {
    /// Whether it has the values of environment variables. The values of secrets are never in it.
    #[serde(default)]
    values: bool,
}

/// One function.
#[utoipa::path(
    get, path = "/_pilot/v1/functions/{name}", tag = "functions",
    params(("name" = String, Path, description = "The function"), DescribeQuery),
    responses(
        (status = 200, description = "Configuration, template, newest invocations", body = FunctionDescription),
        (status = 400, description = "Not a name, or a parameter is invalid", body = ApiError),
        (status = 404, description = "No such function", body = ApiError),
    ),
)]
pub(crate) async fn describe(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Query(query): Query<DescribeQuery>,
) -> Result<Json<FunctionDescription>, Failure> {
    let name = function_name(&name)?;
    let control = Arc::clone(&admin.inner.parts.control);
    let wanted = name.clone();
    let mut found = blocking(move || control.describe(&wanted)).await;
    if let (false, Some(found)) = (query.values, &mut found) {
        for value in found.config.environment.values_mut() {
            HIDDEN.clone_into(value);
        }
    }
    if let Some(found) = &mut found {
        found.triggers = admin.inner.parts.triggers.list(Some(&name));
    }
    found.map(Json).ok_or_else(|| Failure::not_found(&name))
}

/// Removes a function.
#[utoipa::path(
    delete, path = "/_pilot/v1/functions/{name}", tag = "functions",
    params(("name" = String, Path, description = "The function")),
    responses(
        (status = 204, description = "Removed; its running invocations finish, and its deployments are given up"),
        (status = 400, description = "Not a name", body = ApiError),
        (status = 404, description = "No such function", body = ApiError),
    ),
)]
pub(crate) async fn remove(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Extension(caller): Extension<Caller>,
) -> Result<StatusCode, Failure> {
    let name = function_name(&name)?;
    let actor = actor(&admin, known(&caller)?);
    if admin.inner.parts.control.remove(&name, actor).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Failure::not_found(&name))
    }
}

/// Retires or starts idle workers, or changes the policy that sizes the pool.
#[utoipa::path(
    post, path = "/_pilot/v1/functions/{name}/scale", tag = "functions",
    params(("name" = String, Path, description = "The function")),
    request_body = ScaleRequest,
    responses(
        (status = 200, description = "Its workers now", body = PoolStatus),
        (status = 400, description = "The request is invalid", body = ApiError),
        (status = 409, description = "It is broken", body = ApiError),
        (status = 404, description = "No such function", body = ApiError),
    ),
)]
pub(crate) async fn scale(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<PoolStatus>, Failure> {
    let name = function_name(&name)?;
    let request: ScaleRequest = super::from_json(&body).map_err(|problem| {
        let form = r#"{"workers": N} or {"policy": "NAME"}"#;
        Failure::new("bad_request", format!("{problem}; send {form}"))
    })?;
    let policy = request.policy.map(|policy| policy.check()).transpose();
    let scaling = Scaling {
        workers: request.workers,
        policy: policy.map_err(|error| Failure::new("bad_request", error.to_string()))?,
    };
    let control = Arc::clone(&admin.inner.parts.control);
    let wanted = name.clone();
    // It starts tasks, so it must know the runtime; a blocking thread does.
    let status = blocking(move || control.scale(&wanted, scaling)).await?;
    status.map(Json).ok_or_else(|| Failure::not_found(&name))
}

/// Makes a kept version the live one again.
#[utoipa::path(
    post, path = "/_pilot/v1/functions/{name}/rollback", tag = "functions",
    params(("name" = String, Path, description = "The function")),
    request_body = Option<RollbackRequest>,
    responses(
        (status = 200, description = "The version that is live now", body = RollbackReport),
        (status = 400, description = "The request is invalid, or the version does not start", body = ApiError),
        (status = 404, description = "No such function, or no such version", body = ApiError),
        (status = 409, description = "Something that the version needs is missing", body = ApiError),
    ),
)]
pub(crate) async fn rollback(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<RollbackReport>, Failure> {
    let name = function_name(&name)?;
    let request: RollbackRequest = super::from_optional_json(&body).map_err(|problem| {
        let form = r#"{"version": N}, or nothing for the version before"#;
        Failure::new("bad_request", format!("{problem}; send {form}"))
    })?;
    let control = &admin.inner.parts.control;
    let actor = actor(&admin, known(&caller)?);
    let rolled_back = control.rollback(&name, request.version, actor).await;
    rolled_back.map(Json).map_err(|error| match error {
        DeployError::Invalid {
            code: "not_found", ..
        } => Failure::not_found(&name),
        error => error.into(),
    })
}
