//! Functions that are HTTP servers: the request is streamed to the server, and the response back to the client. The sizes of the
//! bodies are not limited. The function's timeout applies to the whole request.
//!
//! The server gets: method, path and query as sent, without `/fn/NAME`; the client's headers with `Host`, without hop-by-hop headers
//! and without the token; `X-Forwarded-For`, `-Proto`, `-Host` and `-Prefix` (the removed `/fn/NAME`); and `X-Amzn-RequestId`, the
//! id that the client and the logs get, too.
//!
//! Upgrades are passed on, except `h2c`: with it a client could bypass the gateway (RFC 9113 has no use for it).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use pilot_invoke::{PassedBody, Request, ResponseBody};
use pilot_model::ports::PassedRequest;
use pilot_model::trigger::FaasTrigger;

use super::UrlParts;
use crate::connection::line::Line;
use crate::deadline;
use crate::errors::{AnswerError, RequestError};
use crate::expectation::{Expectation, Permission};
use crate::forward::{self, Upgrades};
use crate::headers;
use crate::lambda_api::Named;
use crate::list_headers;
use crate::reply::{Reply, ReplyBody};
use crate::request_context::RequestContext;
use crate::timing;
use crate::tunnel::Tunnel;

/// Streams the request to the server of `version`.
///
/// # Errors
/// See [`RequestError`]. An error of the function is a reply with status 502.
pub(super) async fn call(
    mut context: RequestContext<'_>,
    url: UrlParts<'_>,
    named: &Named,
    version: Arc<pilot_model::Version>,
) -> Result<Reply, RequestError> {
    let invoker = &context.gate.invoker;
    let wants_head = context.head.method == Method::HEAD;
    let trace = context.trace(super::ROUTE);
    let urgency = deadline::of(&context.head.headers, context.received)?;
    let has_body_input = version.config.body_input().is_some();
    let (request, client) = passed(&mut context, url, has_body_input)?;
    let call = Request {
        id: context.id.clone(),
        arn: version.arn(named.qualifier.as_deref()),
        version,
        inputs: BTreeMap::new(),
        received: context.received,
        client_context: None,
        trace: Some(trace),
        trigger: FaasTrigger::Http,
        urgency,
        chain: None,
    };
    let response = invoker.pass(call, request).await;
    let response = response.map_err(|error| context.known_body_fault(error.into()))?;
    let mut reply = match response.body {
        ResponseBody::Passed(passed) => answered(passed, wants_head),
        ResponseBody::Upgraded(upgraded) => match client {
            Some(client) if client.takes(upgraded.headers()) => {
                switched(upgraded, client.connection, context.line)
            }
            Some(_) | None => AnswerError::unfit().into_reply(&context.id),
        },
        ResponseBody::FunctionError(error) => AnswerError::raised(&error).into_reply(&context.id),
        // Streamed requests never have such a response.
        ResponseBody::Result(_) | ResponseBody::Http { .. } => {
            AnswerError::unfit().into_reply(&context.id)
        }
    };
    timing::write(
        reply.headers_mut(),
        &response.id,
        Some(response.start),
        &response.timeline,
        &response.transfers,
        invoker.now(),
    );
    Ok(reply)
}

/// A client whose connection may become a tunnel.
struct UpgradingClient {
    connection: OnUpgrade,
    /// The protocols that it takes, as it has written them.
    protocols: HeaderValue,
}

impl UpgradingClient {
    /// Whether a server's response switches only to protocols that the client takes (RFC 9110, section 7.8).
    fn takes(&self, response: &HeaderMap) -> bool {
        let offered = self.protocols.to_str().unwrap_or_default();
        let is_offered = |protocol: &str| {
            let mut offered = offered.split(',');
            offered.any(|one| one.trim().eq_ignore_ascii_case(protocol))
        };
        let mut chosen = list_headers::tokens(response, &headers::UPGRADE).peekable();
        chosen.peek().is_some() && chosen.all(is_offered)
    }
}

/// The request for the server, and the client's connection if it may become a tunnel. `has_body_input`: the daemon reads the body, so
/// that the server is not asked whether it wants it.
fn passed(
    context: &mut RequestContext<'_>,
    url: UrlParts<'_>,
    has_body_input: bool,
) -> Result<(PassedRequest, Option<UpgradingClient>), RequestError> {
    let uri = uri(url)?;
    // HTTP/1.0 has neither interim responses nor expectations.
    let takes_interim = context.line.usage().takes_interim();
    let expects = forward::expects_continue(&context.head.headers);
    let expects = expects && takes_interim && !has_body_input;
    let permission = expects.then(Arc::<Permission>::default);
    let upload = context.upload(permission.clone().map(Expectation::new));
    let permission = permission.filter(|_| upload.is_some());
    let body = context.streamed(upload);
    let trust = context.gate.config.trust_forwarded;
    let line = context.line;
    let head = &mut context.head;
    let client = head.extensions.remove::<OnUpgrade>();
    let mut headers = std::mem::take(&mut head.headers);
    if client.is_none() {
        // HTTP/1.0 has no upgrades.
        headers.remove(headers::UPGRADE);
    }
    let upgrades = forward::pass_on(&mut headers, line, trust, url.root);
    if permission.is_some() {
        let awaited = HeaderValue::from_static("100-continue");
        headers.insert(headers::EXPECT, awaited);
    }
    say_length(&mut headers, body.size_hint().exact());
    if let Ok(id) = HeaderValue::from_str(context.id.as_str()) {
        headers.insert(headers::REQUEST_ID, id);
    }
    let mut request = http::Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    if takes_interim {
        let usage = Arc::clone(context.line.usage());
        hyper::ext::on_informational(&mut request, move |interim| match &permission {
            Some(permission) if interim.status() == StatusCode::CONTINUE => permission.give(),
            None if interim.status() == StatusCode::CONTINUE => {}
            _ => usage.interim().push(interim.status(), interim.headers()),
        });
    }
    let client = client.filter(|_| upgrades == Upgrades::Pass);
    let client = client.and_then(|connection| {
        let protocols = request.headers().get(headers::UPGRADE)?.clone();
        Some(UpgradingClient {
            connection,
            protocols,
        })
    });
    Ok((request, client))
}

/// Path and query, as sent.
fn uri(url: UrlParts<'_>) -> Result<Uri, RequestError> {
    let rest = url.path_and_query;
    let text = match rest.as_bytes().first() {
        Some(b'/') => Bytes::copy_from_slice(rest.as_bytes()),
        _ => Bytes::from(["/", rest].concat()),
    };
    match PathAndQuery::from_maybe_shared(text) {
        Ok(path_and_query) => Ok(Uri::from(path_and_query)),
        // It was part of a valid URI before.
        Err(error) => Err(RequestError::InvalidContent {
            problem: format!("the path behind {} cannot be read: {error}", url.root),
        }),
    }
}

/// Sets the request's length to the known length of its body, so that contradicting headers cannot confuse the server. A body of
/// unknown length is marked as chunked, because hyper would send a GET without its body otherwise.
fn say_length(headers: &mut HeaderMap, exact: Option<u64>) {
    match exact {
        Some(0) if !headers.contains_key(headers::CONTENT_LENGTH) => {}
        Some(length) => {
            headers.insert(headers::CONTENT_LENGTH, HeaderValue::from(length));
        }
        None => {
            headers.remove(headers::CONTENT_LENGTH);
            let chunked = HeaderValue::from_static("chunked");
            headers.insert(headers::TRANSFER_ENCODING, chunked);
        }
    }
}

/// The server's response, without hop-by-hop headers.
fn answered(response: http::Response<PassedBody>, wants_head: bool) -> Reply {
    let (mut head, body) = response.into_parts();
    // Whatever version the server uses; hyper writes the client's version.
    head.version = Version::HTTP_11;
    let wanted = match head.status {
        StatusCode::UPGRADE_REQUIRED => head.headers.get(headers::UPGRADE).cloned(),
        _ => None,
    };
    list_headers::strip_response(&mut head.headers);
    if let Some(wanted) = wanted {
        // The client is to read it (RFC 9110, section 15.5.22). hyper removes both for HTTP/2.
        let upgrade = HeaderValue::from_static("upgrade");
        head.headers.insert(headers::CONNECTION, upgrade);
        head.headers.insert(headers::UPGRADE, wanted);
    }
    let bodiless = matches!(
        head.status,
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    );
    // hyper writes the length of a body with a known length.
    let keeps_length = !bodiless && (wants_head || body.size_hint().exact().is_none());
    let length = head.headers.remove(headers::CONTENT_LENGTH);
    if let Some(length) = length.filter(|length| keeps_length && headers::is_length(length)) {
        head.headers.insert(headers::CONTENT_LENGTH, length);
    }
    Reply::from_parts(head, ReplyBody::passed(body))
}

/// The last HTTP response on this connection, which then becomes a tunnel.
fn switched(
    mut response: http::Response<pilot_invoke::Tunnel>,
    client: OnUpgrade,
    line: &Line,
) -> Reply {
    let server = hyper::upgrade::on(&mut response);
    let (head, invocation) = response.into_parts();
    line.becomes(Tunnel::new(client, server, invocation));
    let mut headers = head.headers;
    let upgrade = headers.get(headers::UPGRADE).cloned();
    list_headers::strip_response(&mut headers);
    headers.remove(headers::CONTENT_LENGTH);
    headers.insert(headers::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(upgrade) = upgrade {
        headers.insert(headers::UPGRADE, upgrade);
    }
    let mut reply = Reply::new(ReplyBody::empty());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *reply.headers_mut() = headers;
    reply
}
