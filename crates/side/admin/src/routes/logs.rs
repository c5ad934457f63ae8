//! A function's log: its last lines, and on request all new lines until the client disconnects.

use std::io;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use pilot_model::api::ApiError;
use pilot_model::log_line::LogLine;
use serde::Deserialize;

use super::{function_name, query_in_words};
use crate::admin::Admin;
use crate::error::Failure;
use crate::logs::{LogFollower, LogForm, LogReader, LogsWanted, read_aside};
use crate::long_reads::LongReads;

/// `?lines=N&follow=BOOL&since_unix_ms=T&request=ID&format=FORMAT`.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogsQuery {
    /// Number of last lines of those that pass the filters.
    #[serde(default = "lines_default")]
    #[param(default = 100, maximum = 100_000)]
    lines: usize,
    /// Whether to follow the log.
    #[serde(default)]
    #[param(default = false)]
    follow: bool,
    /// Only lines from this time on, Unix milliseconds.
    since_unix_ms: Option<u64>,
    /// Only lines of the request with this id.
    request: Option<String>,
    /// `text`: time, source and text of each line, with control characters visible. `json`: a `LogLine` per line.
    #[serde(default)]
    #[param(value_type = String, default = "text", pattern = "^(text|json)$")]
    format: Format,
}

/// How the lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

/// A function's output, with START, END and REPORT lines.
#[utoipa::path(
    get, path = "/_pilot/v1/functions/{name}/logs", tag = "functions",
    params(("name" = String, Path, description = "The function"), LogsQuery),
    responses(
        (status = 200, description = "Lines", content(
            (String = "text/plain"),
            (LogLine = "application/x-ndjson"),
        )),
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
                "{}; use lines=N, follow=true or false, since_unix_ms=T, request=ID, format=text or json",
                query_in_words(&error)
            ),
        )
    })?;
    let (form, content_type) = match query.format {
        Format::Text => (LogForm::Text, "text/plain; charset=utf-8"),
        Format::Json => (LogForm::Json, "application/x-ndjson"),
    };
    let wanted = LogsWanted {
        lines: query.lines.min(LINES_MAX),
        since_unix_ms: query.since_unix_ms,
        request: query.request,
        form,
    };
    let reads = admin.inner.long_reads.clone();
    let of_body = reads.clone();
    let opened = reads.part(move || {
        if admin.inner.parts.control.describe(&name).is_none() {
            return Err(Failure::not_found(&name));
        }
        let logs = admin.inner.parts.observations.logs();
        let opened = if query.follow {
            logs.follow(&name, wanted)
                .map(|follower| following(follower, of_body))
        } else {
            logs.read(&name, wanted)
                .map(|reader| reading(reader, of_body))
        };
        opened.map_err(|error| {
            Failure::new(
                "internal",
                format!("the log of '{name}' cannot be read: {error}"),
            )
        })
    });
    let body = opened.await?;
    Ok(([(CONTENT_TYPE, content_type)], body).into_response())
}

fn following(follower: LogFollower, reads: LongReads) -> Body {
    Body::from_stream(stream::try_unfold(follower, move |follower| {
        let reads = reads.clone();
        async move { follower.next(&reads).await }
    }))
}

fn reading(reader: LogReader, reads: LongReads) -> Body {
    Body::from_stream(stream::try_unfold(reader, move |reader| {
        let reads = reads.clone();
        async move {
            let (read, reader) = read_aside(reader, &reads).await;
            let bytes = read?;
            Ok::<_, io::Error>((!bytes.is_empty()).then_some((bytes, reader)))
        }
    }))
}

fn lines_default() -> usize {
    100
}

const LINES_MAX: usize = 100_000;
