//! The Runtime API (`2018-06-01`) and the Extensions API: maps each request to its effect. The state is in the queue and in
//! [`Extensions`](super::extensions::Extensions).
//!
//! Every request has a defined answer. Bodies are bounded: by [`RESPONSE_LEN_MAX`](crate::RESPONSE_LEN_MAX) for an answer in
//! one piece, by [`SMALL_LEN_MAX`] for everything else.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body::Body;
use hyper::body::Incoming;
use pilot_model::log_line::one_line;
use pilot_model::{Seldom, Version};
use serde::Serialize;

use super::extensions::{Extension, Registers};
use super::queue::Answering;
use super::reply::{self, Reply};
use super::socket::Socket;
use super::stream::{ERROR_TYPE, Over, has_prelude, raised};
use super::worksite::Worksite;
use crate::error_body::{as_error_body, error_body, too_large};
use crate::{FREE_LEN, PiecePace, RESPONSE_LEN_MAX, Reserved};

/// Answers one request of the worker.
pub(super) async fn answer(site: &Worksite, socket: &Socket, request: Request<Incoming>) -> Reply {
    site.pace.wait().await;
    let path = request.uri().path().to_owned();
    match path
        .strip_prefix("/2018-06-01/")
        .map(|rest| (rest, request.method()))
    {
        Some(("runtime/invocation/next", &Method::GET)) => return next(site, socket).await,
        Some(("runtime/init/error", &Method::POST)) => {
            return init_error(site, request, INIT_ERROR).await;
        }
        Some(("runtime/restore/error", &Method::POST)) => {
            return init_error(site, request, RESTORE_ERROR).await;
        }
        // There is no snapshot: the runtime continues immediately. Early clients send a POST.
        Some(("runtime/restore/next", &(Method::GET | Method::POST))) => return reply::text(""),
        Some(("ping", &Method::GET)) => return reply::text("pong"),
        Some((rest, &Method::POST)) => {
            let id_and_verb = rest
                .strip_prefix("runtime/invocation/")
                .and_then(|rest| rest.split_once('/'));
            match id_and_verb {
                Some((id, "response")) => return response(site, id, request).await,
                Some((id, "error")) => return error(site, id, request).await,
                _ => {}
            }
        }
        _ => {}
    }
    match (path.as_str(), request.method()) {
        ("/2020-01-01/extension/register", &Method::POST) => register(site, request).await,
        ("/2020-01-01/extension/event/next", &Method::GET) => {
            extension_next(site, socket, &request).await
        }
        (
            "/2020-01-01/extension/init/error" | "/2020-01-01/extension/exit/error",
            &Method::POST,
        ) => extension_error(site, &request),
        ("/2020-08-15/logs", &Method::PUT) => reply::problem(
            StatusCode::ACCEPTED,
            "Logs.NotSupported",
            "Logs API is not supported",
        ),
        ("/2022-07-01/telemetry", &Method::PUT) => reply::problem(
            StatusCode::ACCEPTED,
            "Telemetry.NotSupported",
            "Telemetry API is not supported",
        ),
        (path, method) => {
            tracing::debug!(worker = %site.id, %method, path, "a worker requested an unknown path of the Runtime API");
            reply::problem(
                StatusCode::NOT_FOUND,
                "NotFound",
                "The Runtime API has no such path, or not with this method",
            )
        }
    }
}

async fn next(site: &Worksite, socket: &Socket) -> Reply {
    let taken = tokio::select! {
        biased;
        () = socket.closed() => return reply::truncated(),
        taken = site.poll() => taken,
    };
    match taken {
        Ok(taken) => {
            if let Some(notice) = &taken.notice {
                site.extensions.tell_of_invocation(notice);
            }
            let mut reply = reply::event(taken.body);
            reply.headers_mut().extend(taken.headers);
            reply
        }
        Err(_) => reply::invalid_state(
            "the runtime polled for the next invocation before it answered the one it has",
        ),
    }
}

async fn response(site: &Worksite, id: &str, request: Request<Incoming>) -> Reply {
    let Some(answering) = site.queue.begin_answer(id) else {
        return reply::invalid_request_id();
    };
    match request
        .headers()
        .get("lambda-runtime-function-response-mode")
    {
        // aws-lambda-go sends no mode: only the content type marks its streamed answers.
        None if has_prelude(request.headers()) => return stream(site, answering, request).await,
        None => {}
        Some(mode) if mode.as_bytes().eq_ignore_ascii_case(b"buffered") => {}
        Some(mode) if mode.as_bytes().eq_ignore_ascii_case(b"streaming") => {
            return stream(site, answering, request).await;
        }
        Some(mode) => {
            let problem = format!(
                "the response mode is {:?}, must be \"streaming\" or \"buffered\"",
                String::from_utf8_lossy(mode.as_bytes())
            );
            answering.error(error_body("Runtime.InvalidResponseModeHeader", &problem));
            return reply::problem(
                StatusCode::BAD_REQUEST,
                "InvalidFunctionResponseMode",
                "Invalid function response mode",
            );
        }
    }
    // As in Lambda, the body is not checked to be JSON.
    settle(site, answering, request.into_body(), Answering::result).await
}

async fn error(site: &Worksite, id: &str, request: Request<Incoming>) -> Reply {
    let Some(answering) = site.queue.begin_answer(id) else {
        return reply::invalid_request_id();
    };
    let kind = error_type(request.headers());
    settle(site, answering, request.into_body(), |answering, body| {
        answering.error(as_error_body(body, kind.as_deref()));
    })
    .await
}

/// Reads an answer in one piece and passes it to its caller.
async fn settle(
    site: &Worksite,
    answering: Answering,
    mut body: Incoming,
    give: impl FnOnce(Answering, Bytes),
) -> Reply {
    let mut memory = site.answers.nothing();
    match read(&mut body, RESPONSE_LEN_MAX, &mut memory, &site.pieces).await {
        Ok(body) => {
            give(answering, memory.keep(body));
            reply::accepted()
        }
        Err(Unread::TooLarge) => {
            answering.error(too_large());
            drain(&mut body, &site.pieces).await;
            reply::too_large()
        }
        Err(Unread::Raised(body)) => {
            answering.error(body);
            reply::accepted()
        }
        // Dropping `answering` tells the caller.
        Err(Unread::Broken) => reply::truncated(),
    }
}

/// Passes the body on while it arrives, and replies when all of it has been read.
async fn stream(site: &Worksite, answering: Answering, request: Request<Incoming>) -> Reply {
    let content_type = request.headers().get(CONTENT_TYPE).map_or_else(
        || "application/octet-stream".to_owned(),
        |value| String::from_utf8_lossy(value.as_bytes()).into_owned(),
    );
    let posting = answering.stream(content_type);
    match posting.pass_on(request.into_body(), &site.pieces).await {
        Some(Over::Taken) => reply::accepted(),
        Some(Over::Invalid) => reply::problem(
            StatusCode::BAD_REQUEST,
            "InvalidResponsePrelude",
            "The response does not begin with a prelude, as its content type says",
        ),
        None => reply::truncated(),
    }
}

async fn init_error(site: &Worksite, request: Request<Incoming>, default: &str) -> Reply {
    if site.queue.is_up() {
        return reply::invalid_state("the initialisation is over, because the runtime has polled");
    }
    let kind = error_type(request.headers()).unwrap_or_else(|| default.to_owned());
    let mut body = request.into_body();
    // An error that cannot be read is still an error.
    let sent = read_small(site, &mut body).await.unwrap_or_default();
    if site.queue.fail_init(as_error_body(sent, Some(&kind))) {
        reply::accepted()
    } else {
        reply::invalid_state("the initialisation is over")
    }
}

fn error_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(&ERROR_TYPE).map(HeaderValue::as_bytes)?;
    Some(String::from_utf8_lossy(value).into_owned()).filter(|kind| !kind.is_empty())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Registered<'a> {
    function_name: &'a str,
    function_version: String,
    handler: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    account_id: Option<&'static str>,
}

async fn register(site: &Worksite, request: Request<Incoming>) -> Reply {
    let (head, mut body) = request.into_parts();
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    let name = text("lambda-extension-name").unwrap_or_default();
    let wants_account = text("lambda-extension-accept-feature").is_some_and(|features| {
        features
            .split(',')
            .any(|feature| feature.trim() == "accountId")
    });
    let Ok(body) = read_small(site, &mut body).await else {
        return forbidden(
            "InvalidRequestFormat",
            "the body cannot be read, or is too long",
        );
    };
    let when = if site.queue.is_up() {
        Registers::Late
    } else {
        Registers::InTime
    };
    match site.extensions.register(name, &body, when) {
        Ok(extension) => {
            let Version { config, number, .. } = &*site.version;
            let registered = Registered {
                function_name: config.name.as_str(),
                function_version: number.to_string(),
                handler: &config.handler,
                account_id: wants_account.then_some(ACCOUNT),
            };
            let body = serde_json::to_vec(&registered).expect("text is always JSON");
            reply::with(
                reply::event(body.into()),
                "lambda-extension-identifier",
                &extension.id,
            )
        }
        Err(rejected) => forbidden(rejected.kind, &rejected.message),
    }
}

async fn extension_next(site: &Worksite, socket: &Socket, request: &Request<Incoming>) -> Reply {
    match extension(site, request) {
        Ok(extension) => {
            let event = tokio::select! {
                biased;
                () = socket.closed() => return reply::truncated(),
                event = extension.next() => event,
            };
            let id = site.extensions.event_id();
            reply::with(
                reply::event(event),
                "lambda-extension-event-identifier",
                &id,
            )
        }
        Err(reply) => *reply,
    }
}

/// Errors of extensions that are logged per interval, of all functions.
static EXTENSION_ERRORS: Seldom = Seldom::new(20);

/// Of the type of such an error, in the log.
const KIND_CHARS_MAX: usize = 128;

/// An extension reports an error and stops. Unlike in Lambda, the function continues without it; the log says so.
fn extension_error(site: &Worksite, request: &Request<Incoming>) -> Reply {
    match extension(site, request) {
        Ok(extension) => {
            let kind = request
                .headers()
                .get("lambda-extension-function-error-type")
                .map(|kind| one_line(&String::from_utf8_lossy(kind.as_bytes()), KIND_CHARS_MAX));
            let name = extension.name();
            if let Some(left_out) = EXTENSION_ERRORS.admit(std::time::Instant::now()) {
                tracing::warn!(
                    worker = %site.id, function = %site.version.config.name, extension = name, ?kind, left_out,
                    "an extension reported an error and stops; the function continues without it"
                );
            }
            extension.goes();
            reply::accepted()
        }
        Err(reply) => *reply,
    }
}

/// The extension that sent the request.
fn extension(
    site: &Worksite,
    request: &Request<Incoming>,
) -> Result<std::sync::Arc<Extension>, Box<Reply>> {
    let Some(id) = request.headers().get("lambda-extension-identifier") else {
        let message = "Missing Lambda-Extension-Identifier header";
        return Err(Box::new(forbidden(
            "Extension.MissingExtensionIdentifier",
            message,
        )));
    };
    id.to_str()
        .ok()
        .and_then(|id| site.extensions.find(id))
        .ok_or_else(|| {
            let message = format!(
                "Unknown extension {}",
                String::from_utf8_lossy(id.as_bytes())
            );
            Box::new(forbidden("Extension.UnknownExtensionIdentifier", &message))
        })
}

fn forbidden(kind: &str, message: &str) -> Reply {
    reply::problem(StatusCode::FORBIDDEN, kind, message)
}

/// Why a body was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unread {
    TooLarge,
    Broken,
    /// Its trailers report an exception: Lambda's error body.
    Raised(Bytes),
}

/// Reads the whole body of anything but an answer.
async fn read_small(site: &Worksite, body: &mut Incoming) -> Result<Bytes, Unread> {
    let mut memory = site.answers.nothing();
    read(body, SMALL_LEN_MAX, &mut memory, &site.pieces).await
}

/// Reads the whole body. One that arrived in one piece is not copied. A long one has its memory before it is read on.
async fn read(
    body: &mut Incoming,
    len_max: usize,
    memory: &mut Reserved,
    pace: &PiecePace,
) -> Result<Bytes, Unread> {
    if body.size_hint().lower() > len_max as u64 {
        return Err(Unread::TooLarge);
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let chunk = match frame.map_err(|_| Unread::Broken)?.into_data() {
            Ok(chunk) => chunk,
            Err(frame) => match raised(&frame.into_trailers().unwrap_or_default()) {
                Some(body) => return Err(Unread::Raised(body)),
                None => continue,
            },
        };
        if first.is_empty() && all.is_empty() {
            if chunk.len() > len_max {
                return Err(Unread::TooLarge);
            }
            first = chunk;
            if body.is_end_stream() {
                return Ok(first);
            }
            continue;
        }
        // Not for the first one: most bodies have one piece.
        came(&chunk, pace).await;
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        if all.len() + chunk.len() > len_max {
            return Err(Unread::TooLarge);
        }
        if all.len() + chunk.len() > FREE_LEN {
            // All that it can need, because one that holds a part and waits for more could wait for another that does.
            memory.grow_to(len_max).await;
        }
        all.extend_from_slice(&chunk);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// Discards the rest of a body, so that its sender can read the answer. Above a limit the connection is closed instead.
async fn drain(body: &mut Incoming, pace: &PiecePace) {
    let mut left = DRAIN_LEN_MAX;
    while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        came(&chunk, pace).await;
        let Some(less) = left.checked_sub(chunk.len()) else {
            return;
        };
        left = less;
    }
}

/// A piece has come: the next one is read at the worker's pace.
async fn came(piece: &Bytes, pace: &PiecePace) {
    pace.came(PiecePace::cost(piece.len()));
    pace.rest().await;
}

/// Longest body of a registration or an initialisation error, bytes. Clients may send one per connection before they are
/// initialised.
const SMALL_LEN_MAX: usize = 128 * 1024;

/// Longest rest of an oversized answer that is discarded, bytes.
const DRAIN_LEN_MAX: usize = 64 * 1024 * 1024;

/// The account number in the ARNs that the daemon makes up.
const ACCOUNT: &str = "000000000000";

const INIT_ERROR: &str = "Runtime.InitError";
const RESTORE_ERROR: &str = "Runtime.RestoreHookUserError";
