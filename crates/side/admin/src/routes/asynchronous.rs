//! Asynchronous invocations and dead letters. Everybody sees and changes only those of functions that their token is for.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use pilot_model::access::{Caller, Grant, Role};
use pilot_model::api::ApiError;
use pilot_model::asynchronous::{
    AsyncInfo, AsyncShown, DeadLetters, DeadLettersChanged, LISTED_DEFAULT, LISTED_MAX,
};
use pilot_model::ports::{AsyncFault, AsyncFilter, MayTouch};
use pilot_model::{FunctionName, InvalidName};
use serde::Deserialize;

use super::query_in_words;
use crate::admin::Admin;
use crate::blocking;
use crate::error::Failure;

/// `?function=NAME&limit=N`.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// Only those of this function.
    function: Option<String>,
    /// At most this many, 1 to 1,000. Default: 100.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

type Listed = Result<Query<ListQuery>, QueryRejection>;

/// The invocations that wait or run, oldest first.
#[utoipa::path(
    get, path = "/_pilot/v1/async", operation_id = "list_async", tag = "async",
    params(ListQuery),
    responses(
        (status = 200, description = "Invocations without their payloads", body = [AsyncInfo]),
        (status = 400, description = "A parameter is invalid", body = ApiError),
    ),
)]
pub(crate) async fn list(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    query: Listed,
) -> Result<Response, Failure> {
    listed(admin, caller, query, false).await
}

/// The dead letters, oldest first.
#[utoipa::path(
    get, path = "/_pilot/v1/dlq", operation_id = "list_dead_letters", tag = "async",
    params(ListQuery),
    responses(
        (status = 200, description = "Dead letters without their payloads", body = [AsyncInfo]),
        (status = 400, description = "A parameter is invalid", body = ApiError),
    ),
)]
pub(crate) async fn dead_letters(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    query: Listed,
) -> Result<Response, Failure> {
    listed(admin, caller, query, true).await
}

async fn listed(
    admin: Admin,
    caller: Caller,
    query: Listed,
    dead: bool,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(|error| {
        let problem = format!("{}; use function=NAME and limit=N", query_in_words(&error));
        Failure::new("bad_request", problem)
    })?;
    let function = query.function.map(|name| name.parse()).transpose();
    let function =
        function.map_err(|error: InvalidName| Failure::new("bad_name", error.to_string()))?;
    let limit = query.limit.unwrap_or(LISTED_DEFAULT);
    if !(1..=LISTED_MAX).contains(&limit) {
        let problem = format!("limit is {limit}, must be from 1 to {LISTED_MAX}");
        return Err(Failure::new("bad_request", problem));
    }
    let filter = AsyncFilter {
        dead,
        function,
        limit: usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let (queue, may) = (Arc::clone(&admin.inner.parts.queue), may(caller));
    let listed = admin.inner.long_reads.part(move || {
        let infos = queue.list(&filter, &may)?;
        Ok::<_, Failure>(Json(infos).into_response())
    });
    listed.await
}

/// One invocation or dead letter, with its payload.
#[utoipa::path(
    get, path = "/_pilot/v1/async/{id}", operation_id = "show_async", tag = "async",
    params(("id" = String, Path, description = "Its request id")),
    responses(
        (status = 200, description = "The invocation", body = AsyncShown),
        (status = 400, description = "Not an id", body = ApiError),
        (status = 404, description = "No such invocation", body = ApiError),
    ),
)]
pub(crate) async fn show(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<AsyncShown>, Failure> {
    let (queue, may) = (Arc::clone(&admin.inner.parts.queue), may(caller));
    Ok(Json(blocking(move || queue.show(&id, &may)).await?))
}

/// Removes an invocation that waits.
#[utoipa::path(
    delete, path = "/_pilot/v1/async/{id}", operation_id = "cancel_async", tag = "async",
    params(("id" = String, Path, description = "Its request id")),
    responses(
        (status = 204, description = "It does not run any more"),
        (status = 400, description = "Not an id", body = ApiError),
        (status = 404, description = "No such invocation", body = ApiError),
        (status = 409, description = "It runs, or is a dead letter", body = ApiError),
    ),
)]
pub(crate) async fn cancel(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, Failure> {
    let (queue, may) = (Arc::clone(&admin.inner.parts.queue), may(caller));
    blocking(move || queue.cancel(&id, may)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lets dead letters wait again, as if they were accepted now.
#[utoipa::path(
    post, path = "/_pilot/v1/dlq/redrive", operation_id = "redrive_dead_letters", tag = "async",
    request_body = DeadLetters,
    responses(
        (status = 200, description = "How many wait again, and how many have no room", body = DeadLettersChanged),
        (status = 400, description = "The request is invalid", body = ApiError),
    ),
)]
pub(crate) async fn redrive(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<DeadLettersChanged>, Failure> {
    let which = which(&body)?;
    let (queue, may) = (Arc::clone(&admin.inner.parts.queue), may(caller));
    Ok(Json(blocking(move || queue.redrive(which, may)).await?))
}

/// Removes dead letters.
#[utoipa::path(
    post, path = "/_pilot/v1/dlq/purge", operation_id = "purge_dead_letters", tag = "async",
    request_body = DeadLetters,
    responses(
        (status = 200, description = "How many are removed", body = DeadLettersChanged),
        (status = 400, description = "The request is invalid", body = ApiError),
    ),
)]
pub(crate) async fn purge(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<DeadLettersChanged>, Failure> {
    let which = which(&body)?;
    let (queue, may) = (Arc::clone(&admin.inner.parts.queue), may(caller));
    Ok(Json(blocking(move || queue.purge(which, may)).await?))
}

fn which(body: &[u8]) -> Result<DeadLetters, Failure> {
    super::from_json(body).map_err(|problem| {
        let form = r#"{"id": ID}, {"function": NAME}, or {} for all"#;
        Failure::new("bad_request", format!("{problem}; send {form}"))
    })
}

/// The functions whose invocations a caller may see and change.
fn may(caller: Caller) -> MayTouch {
    let Caller::Known(grant) = caller else {
        return Box::new(|_, _| false);
    };
    Box::new(move |function, owner| permits(&grant, function, owner))
}

fn permits(grant: &Grant, function: &FunctionName, owner: &str) -> bool {
    let owns = grant.is_admin() || grant.owner.as_ref().is_none_or(|own| own == owner);
    owns && grant.permits(Role::Deploy, function.as_str())
}

impl From<AsyncFault> for Failure {
    fn from(fault: AsyncFault) -> Self {
        let code = match &fault {
            AsyncFault::Unknown { .. } => "not_found",
            AsyncFault::Running { .. } | AsyncFault::Dead { .. } => "in_use",
            AsyncFault::Store { .. } => "internal",
        };
        Self::new(code, fault.to_string())
    }
}
