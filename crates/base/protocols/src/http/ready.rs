//! Waits until a server is ready: its port accepts a connection, or a path answers with 2xx. The checks repeat after pauses
//! that start well below a millisecond and grow with the time waited, so that the delay they add stays a small fraction of the
//! start.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode, Uri};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use pilot_model::Instant;
use pilot_model::ports::{PassedResponse, StartError, StreamedBody};
use tokio::time::{sleep, timeout};

use super::connection::{Connection, Sent};
use super::passed::PassedBody;
use super::site::{Site, now};
use crate::Start;

/// What the last check saw; for the error message.
enum Seen {
    NotAccepting(String),
    Status(StatusCode),
    NoAnswer(String),
}

/// Waits until the server is ready. The connection of the successful check is kept for the first request.
pub(super) async fn wait(
    site: &Arc<Site>,
    start: &Start,
    path: Option<&str>,
) -> Result<Instant, StartError> {
    let port = site.port;
    let uri = match path.map(|path| (path, path.parse::<Uri>())) {
        None => None,
        Some((path, Ok(uri))) if path.starts_with('/') => Some(uri),
        Some((path, _)) => {
            return Err(StartError::Runtime {
                problem: format!(
                    "ready is {path:?}, which is not a path; use one like \"/healthz\""
                ),
                output: String::new(),
            });
        }
    };
    let mut seen = Seen::NotAccepting("not tried".to_owned());
    let asked = async {
        let began = now();
        let mut pause = FIRST_PAUSE;
        loop {
            match once(site, uri.as_ref()).await {
                Ok(()) => return now(),
                Err(what) => seen = what,
            }
            rest(pause).await;
            let passed = now().since(began);
            pause = (pause * 3 / 2)
                .min(passed / 8)
                .clamp(FIRST_PAUSE, LAST_PAUSE);
        }
    };
    let until_ended = async {
        tokio::select! {
            biased;
            end = site.life.ended() => Err(end),
            at = asked => Ok(at),
        }
    };
    match timeout(start.ready_max, until_ended).await {
        Ok(Ok(at)) => Ok(at),
        Ok(Err(end)) => {
            let became = match &uri {
                Some(uri) => format!("answered GET {uri} on port {port}"),
                None => format!("accepted on port {port}"),
            };
            Err(start.ended(end, &became, HINT, &site.life))
        }
        Err(_) => {
            let missing = match (&uri, &seen) {
                (Some(uri), Seen::Status(status)) => format!(
                    "did not answer GET {uri} with 2xx (the last answer was {status}) on port {port}"
                ),
                (Some(uri), Seen::NoAnswer(problem)) => {
                    format!("did not answer GET {uri} on port {port} ({problem})")
                }
                (_, Seen::NotAccepting(problem)) => {
                    format!("did not accept on port {port} ({problem})")
                }
                (None, _) => format!("did not accept on port {port}"),
            };
            Err(start.too_slow(&missing, HINT, &site.life))
        }
    }
}

/// One check.
async fn once(site: &Arc<Site>, uri: Option<&Uri>) -> Result<(), Seen> {
    let connect = async {
        let stream = site.reach.connect(site.port).await;
        let stream = stream.map_err(|error| error.to_string())?;
        Connection::new(stream).await
    };
    let connection = match site.kept() {
        Some(connection) => connection,
        None => timeout(TRY_TIME_MAX, connect)
            .await
            .unwrap_or_else(|_| Err("it takes too long".to_owned()))
            .map_err(Seen::NotAccepting)?,
    };
    let Some(uri) = uri else {
        site.keep(connection);
        return Ok(());
    };
    let body = Empty::new().map_err(|never| match never {});
    let mut request = Request::new(StreamedBody::new(body));
    *request.uri_mut() = uri.clone();
    request.headers_mut().insert(HOST, site.host.clone());
    request
        .headers_mut()
        .insert(USER_AGENT, HeaderValue::from_static("pilotlight-ready"));
    let answered = timeout(TRY_TIME_MAX, async {
        match connection.send(request).await {
            Sent::Answered(response, connection) => {
                let response = PassedBody::response(site, response, connection, None);
                Ok(skip_body(response).await)
            }
            Sent::Unused(_, problem) | Sent::Closed(problem) | Sent::Lost(problem) => Err(problem),
            Sent::BodyFailed => Err("the request was not sent".to_owned()),
        }
    });
    match answered.await {
        Ok(Ok(status)) if status.is_success() => Ok(()),
        Ok(Ok(status)) => Err(Seen::Status(status)),
        Ok(Err(problem)) => Err(Seen::NoAnswer(problem)),
        Err(_) => Err(Seen::NoAnswer("it takes too long".to_owned())),
    }
}

/// Reads and discards a short body, so that its connection can be kept.
async fn skip_body(response: PassedResponse) -> StatusCode {
    let (head, mut body) = response.into_parts();
    let mut left = BODY_LEN_MAX;
    while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let len = frame.data_ref().map_or(0, bytes::Bytes::len);
        match left.checked_sub(len) {
            Some(less) => left = less,
            None => break,
        }
    }
    head.status
}

/// Sleeps. tokio's timer counts whole milliseconds, so shorter pauses use a blocking thread.
async fn rest(pause: Duration) {
    if pause >= TIMER_STEP {
        sleep(pause).await;
        return;
    }
    // This fails only during the runtime's shutdown, when the pause no longer matters.
    drop(tokio::task::spawn_blocking(move || std::thread::sleep(pause)).await);
}

const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// The resolution of tokio's timer.
const TIMER_STEP: Duration = Duration::from_millis(1);

/// Longest time for one check.
const TRY_TIME_MAX: Duration = Duration::from_secs(1);

/// Longest body of a check's response that is read, bytes.
const BODY_LEN_MAX: usize = 64 * 1024;

const HINT: &str = "Does the server listen on 0.0.0.0:$PORT?";
