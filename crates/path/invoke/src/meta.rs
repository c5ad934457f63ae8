//! `InvokeMeta` and `HttpMeta` of the wire protocol, as JSON.

use std::net::IpAddr;

use bytes::Bytes;
use serde::Serialize;

use crate::request::{HttpRequest, Request};

/// What an `INVOKE` or `HTTP` frame says about the invocation.
#[derive(Debug, Serialize)]
struct InvokeMeta<'a> {
    id: &'a str,
    arn: &'a str,
    version: String,
    deadline_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_context: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    http: Option<HttpMeta<'a>>,
}

#[derive(Debug, Serialize)]
struct HttpMeta<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    root_path: &'a str,
    headers: &'a [(String, String)],
    client: (IpAddr, u16),
    scheme: &'a str,
}

/// Meta of an `INVOKE` frame.
pub(crate) fn of_event(request: &Request, deadline_ms: u64) -> Bytes {
    write(&meta(request, deadline_ms, None), 256)
}

/// Meta of an `HTTP` frame.
pub(crate) fn of_http(request: &Request, http: &HttpRequest, deadline_ms: u64) -> Bytes {
    let headers: usize = http
        .headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + 8)
        .sum();
    let size = 384 + http.path.len() + http.query.len() + headers;
    let http = HttpMeta {
        method: &http.method,
        path: &http.path,
        query: &http.query,
        root_path: &http.root_path,
        headers: &http.headers,
        client: (http.client.ip(), http.client.port()),
        scheme: http.scheme,
    };
    write(&meta(request, deadline_ms, Some(http)), size)
}

fn meta<'a>(request: &'a Request, deadline_ms: u64, http: Option<HttpMeta<'a>>) -> InvokeMeta<'a> {
    InvokeMeta {
        id: request.id.as_str(),
        arn: &request.arn,
        version: request.version.number.to_string(),
        deadline_ms,
        client_context: request.client_context.as_deref(),
        trace: request.trace.as_deref(),
        http,
    }
}

fn write(meta: &InvokeMeta<'_>, size: usize) -> Bytes {
    let mut json = Vec::with_capacity(size);
    serde_json::to_writer(&mut json, meta)
        .expect("strings and numbers are always JSON, and a Vec takes every write");
    json.into()
}
