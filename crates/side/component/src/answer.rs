//! The response to a request. Whoever reads its body runs the instance: there is no task per instance, and a client that hangs up ends it.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use pilot_model::runtime::wasm::FAILED;
use tokio::time::{Instant as Deadline, timeout_at};
use wasmtime_wasi_http::bindings::http::types::ErrorCode;
use wasmtime_wasi_http::body::HyperOutgoingBody;

use crate::instance::{Begun, Failure, Guest};

/// Runs an instance until it has sent the head of its response, or has ended without one.
pub(crate) async fn head_of(begun: Begun, is_head: bool, deadline: Deadline) -> Response<Answer> {
    let Begun {
        mut guest,
        response,
        start,
    } = begun;
    let mut receiver = pin!(response);
    let mut ended = None;
    let sent = timeout_at(
        deadline,
        std::future::poll_fn(|cx| {
            if ended.is_none()
                && let Poll::Ready(end) = guest.as_mut().poll(cx)
            {
                ended = Some(end);
            }
            // At its end the instance has either sent a response or dropped the sender.
            receiver.as_mut().poll(cx)
        }),
    )
    .await;
    let problem = match (sent, &ended) {
        (Ok(Ok(Ok(mut response))), _) => {
            response.headers_mut().remove(FAILED);
            if let Some(took) = start.get() {
                tell(response.headers_mut(), *took);
            }
            return answered(response, guest, ended, is_head);
        }
        (Ok(Ok(Err(code))), _) => format!("the component answered with an error: {code:?}"),
        (Ok(Err(_)), Some(Err(_))) if deadline <= Deadline::now() => return too_late(),
        (Ok(Err(_)), Some(Err(failure))) => {
            eprintln!("{}", failure.detail);
            format!("the component failed: {}", failure.reason)
        }
        (Ok(Err(_)), _) => "the component ended without a response".to_owned(),
        (Err(_), _) => return too_late(),
    };
    failed(StatusCode::INTERNAL_SERVER_ERROR, "error", &problem)
}

fn too_late() -> Response<Answer> {
    let problem = "the component did not answer in time; raise timeout_s, or make it faster";
    failed(StatusCode::GATEWAY_TIMEOUT, "timeout", problem)
}

/// A response that says for the daemon, too, that the component failed.
fn failed(status: StatusCode, how: &'static str, problem: &str) -> Response<Answer> {
    let mut response = refused(status, problem);
    let how = HeaderValue::from_static(how);
    response.headers_mut().insert(FAILED, how);
    response
}

/// Writes how long the instance's start took, beside what the daemon writes.
fn tell(headers: &mut HeaderMap, took: Duration) {
    let text = format!("instance;dur={:.3}", took.as_secs_f64() * 1e3);
    if let Ok(value) = HeaderValue::from_str(&text) {
        headers.append(SERVER_TIMING, value);
    }
}

/// The standard's name; the crate `http` has none.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// A response of the worker itself. The function's log has it, too.
pub(crate) fn refused(status: StatusCode, problem: &str) -> Response<Answer> {
    eprintln!("{problem}");
    let text = Bytes::from(format!("{problem}\n"));
    let body = Full::new(text).map_err(|never| match never {}).boxed();
    let mut response = Response::new(Answer::done(body));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

fn answered(
    response: Response<HyperOutgoingBody>,
    guest: Guest,
    ended: Option<Result<(), Failure>>,
    is_head: bool,
) -> Response<Answer> {
    let failed = matches!(ended, Some(Err(_)));
    let guest = match ended {
        None => Some(guest),
        Some(ended) => {
            report(ended);
            None
        }
    };
    let no_body = is_head
        || matches!(
            response.status(),
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    let left = match no_body {
        true => Some(0),
        false => length(response.headers()),
    };
    response.map(|body| Answer {
        body,
        guest,
        left,
        failed,
        flushed: false,
    })
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// The head is gone, so only the log can have the error of an instance.
fn report(ended: Result<(), Failure>) {
    if let Err(failure) = ended {
        let detail = failure.detail;
        eprintln!("the component failed after the head of its response: {detail}");
    }
}

/// The body of a response, and the instance that sends it.
pub(crate) struct Answer {
    body: HyperOutgoingBody,
    /// `None`: it has ended.
    guest: Option<Guest>,
    /// Bytes of the body that are still to come, if the head says how many; then the server does not ask for the body's end.
    left: Option<u64>,
    /// The instance failed before the body's end, which then looks like one.
    failed: bool,
    /// What it had sent before that is on its way.
    flushed: bool,
}

impl Answer {
    fn done(body: HyperOutgoingBody) -> Self {
        Self {
            body,
            guest: None,
            left: None,
            failed: false,
            flushed: false,
        }
    }

    /// Polls the instance. True: it has ended.
    fn run(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(guest) = &mut self.guest else {
            return true;
        };
        let Poll::Ready(ended) = guest.as_mut().poll(cx) else {
            return false;
        };
        self.guest = None;
        self.failed = ended.is_err();
        report(ended);
        true
    }

    fn passed(&mut self, frame: &Frame<Bytes>) {
        if let (Some(left), Some(data)) = (&mut self.left, frame.data_ref()) {
            *left = left.saturating_sub(data.len() as u64);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = ErrorCode;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            self.run(cx);
            polled = Pin::new(&mut self.body).poll_frame(cx);
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.passed(&frame);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) if self.failed && self.left != Some(0) => {
                if self.flushed {
                    return Poll::Ready(Some(Err(ErrorCode::HttpProtocolError)));
                }
                // The server drops the connection at an error, with what it has not written yet: also the head, without which the
                // daemon would end the worker. It writes when a body has nothing at the moment.
                self.flushed = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // The response ends with the instance, which may still have something to do.
            Poll::Ready(None) if !self.run(cx) => {
                // What becomes of it does not concern the body any more.
                self.left = Some(0);
                Poll::Pending
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.guest.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // The whole response was sent. The instance has its own deadline.
        if self.left == Some(0)
            && let Some(guest) = self.guest.take()
        {
            tokio::spawn(async move { report(guest.await) });
        }
    }
}
