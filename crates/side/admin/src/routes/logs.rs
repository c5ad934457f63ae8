//! A function's log: its last lines, and on request all new lines until the client disconnects.

use std::io;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use pilot_model::api::ApiError;
use serde::Deserialize;

use super::function_name;
use crate::admin::Admin;
use crate::blocking;
use crate::error::Failure;
use crate::logs::{LogFollower, LogReader, read_aside};

/// `?lines=N&follow=BOOL`.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogsQuery {
    /// Number of last lines.
    #[serde(default = "lines_default")]
    #[param(default = 100, maximum = 100_000)]
    lines: usize,
    /// Whether to follow the log.
    #[serde(default)]
    #[param(default = false)]
    follow: bool,
}

/// A function's output, with START, END and REPORT lines.
#[utoipa::path(
    get, path = "/_pilot/v1/functions/{name}/logs", tag = "functions",
    params(("name" = String, Path, description = "The function"), LogsQuery),
    responses(
        (status = 200, description = "Lines of text", body = String, content_type = "text/plain"),
        (status = 400, description = "A parameter is invalid", body = ApiError),
        (status = 404, description = "No such function", body = ApiError),
    ),
)]
pub(crate) async fn logs(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    query: Result<Query<LogsQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let name = function_name(&name)?;
    let Query(query) = query.map_err(|error| {
        Failure::new(
            "bad_request",
            format!(
                "{}; use lines=N and follow=true or false",
                error.body_text()
            ),
        )
    })?;
    let lines = query.lines.min(LINES_MAX);
    let opened = blocking(move || {
        if admin.inner.parts.control.describe(&name).is_none() {
            return Err(Failure::not_found(&name));
        }
        let logs = admin.inner.parts.observations.logs();
        let opened = if query.follow {
            logs.follow(&name, lines).map(following)
        } else {
            logs.read(&name, lines).map(reading)
        };
        opened.map_err(|error| {
            Failure::new(
                "internal",
                format!("the log of '{name}' cannot be read: {error}"),
            )
        })
    });
    let body = opened.await?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

fn following(follower: LogFollower) -> Body {
    Body::from_stream(stream::try_unfold(follower, LogFollower::next))
}

fn reading(reader: LogReader) -> Body {
    Body::from_stream(stream::try_unfold(reader, |reader| async {
        let (read, reader) = read_aside(reader).await;
        let bytes = read?;
        Ok::<_, io::Error>((!bytes.is_empty()).then_some((bytes, reader)))
    }))
}

fn lines_default() -> usize {
    100
}

const LINES_MAX: usize = 100_000;
