//! The connections to a worker's server: making, keeping and using them. A worker shares it with the response bodies that are still
//! being read.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::HeaderValue;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use parking_lot::Mutex;
use pilot_model::Instant;
use pilot_model::ports::{PassedRequest, StreamedBody, WorkerFault};
use pilot_sys::clock::monotonic_ns;
use tokio::time::timeout;

use super::connection::{Connection, Sent};
use super::hops;
use crate::life::Life;
use crate::{FunctionBudget, PiecePace, Reach};

/// What a worker shares with the response bodies that are still being read.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) life: Life,
    pub(super) reach: Arc<dyn Reach>,
    pub(super) port: u16,
    /// `localhost:PORT`, for requests that name no host.
    pub(super) host: HeaderValue,
    /// Most connections that are kept: one per concurrent invocation.
    pub(super) idle_max: usize,
    /// Unused connections, most recently used last. `None`: the worker is retired and keeps no more connections. The lock is
    /// held for a push or a pop.
    pub(super) idle: Mutex<Option<Vec<Connection>>>,
    /// How often in a row it has closed a new connection without an answer.
    pub(super) unanswered: AtomicU32,
    /// Holds answers that are not streamed.
    pub(super) answers: FunctionBudget,
    /// Of those that are.
    pub(super) pieces: PiecePace,
}

/// Why a request has no response.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The server failed, or could not be reached.
    Server(String),
    /// Nobody listens on the server's port, so nothing of the request was sent.
    Unsent(Box<PassedRequest>, String),
    /// The server closed a connection, and serves on. If the connection was kept, the server may have been about to close it.
    Closed(String),
    /// The request's own body failed: the client closed its connection, or sent too much.
    RequestBody,
}

impl Site {
    /// Sends one request and waits for the response's head. Uses a kept connection if one still works. A server may close it just then,
    /// and nobody knows whether it has read the request: it is sent again, on a new connection, if it has the same effect twice.
    pub(super) async fn exchange(
        &self,
        mut request: PassedRequest,
    ) -> Result<(Response<Incoming>, Connection), Unanswered> {
        let mut use_kept = true;
        loop {
            let kept = if use_kept { self.kept() } else { None };
            let was_kept = kept.is_some();
            let again = if was_kept { again(&request) } else { None };
            let connection = match kept {
                Some(connection) => connection,
                None => match self.connect().await {
                    Ok(connection) => connection,
                    // A request that is sent once more may have been read the first time.
                    Err(NoConnection::Refused(problem)) if use_kept => {
                        return Err(Unanswered::Unsent(Box::new(request), problem));
                    }
                    Err(NoConnection::Refused(problem) | NoConnection::Failed(problem)) => {
                        return Err(Unanswered::Server(problem));
                    }
                },
            };
            match connection.send(request).await {
                Sent::Answered(response, connection) => {
                    self.unanswered.store(0, Ordering::Relaxed);
                    hops::check_coding(response.headers()).map_err(Unanswered::Server)?;
                    return Ok((response, connection));
                }
                // The server had closed the kept connection. Each retry uses one up, so this loop ends.
                Sent::Unused(unsent, _) if was_kept => request = unsent,
                Sent::Closed(problem) if was_kept => match again {
                    Some(again) => (request, use_kept) = (again, false),
                    None => return Err(Unanswered::Closed(problem)),
                },
                Sent::Closed(problem) if self.serves_on().await => {
                    return Err(Unanswered::Closed(problem));
                }
                Sent::Unused(_, problem) | Sent::Closed(problem) | Sent::Lost(problem) => {
                    return Err(Unanswered::Server(problem));
                }
                Sent::BodyFailed => return Err(Unanswered::RequestBody),
            }
        }
    }

    /// Whether a server that closed a new connection without an answer can be expected to answer others. Some do so on purpose,
    /// or after a handler's panic.
    async fn serves_on(&self) -> bool {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= UNANSWERED_MAX {
            return false;
        }
        match self.connect().await {
            Ok(connection) => {
                self.keep(connection);
                true
            }
            Err(_) => false,
        }
    }

    /// The most recently used connection, unless the server may be about to close it.
    pub(super) fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let idle = idle.as_mut()?;
        let connection = idle.pop()?;
        if now().since(connection.kept_since) < IDLE_TIME_MAX {
            return Some(connection);
        }
        // The rest are even older.
        idle.clear();
        None
    }

    async fn connect(&self) -> Result<Connection, NoConnection> {
        let port = self.port;
        let connected = timeout(CONNECT_TIME_MAX, self.reach.connect(port)).await;
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let problem = format!("connect to the function's server on port {port}: {error}");
                return Err(match error.kind() {
                    ErrorKind::ConnectionRefused => NoConnection::Refused(problem),
                    _ => NoConnection::Failed(problem),
                });
            }
            Err(_) => {
                let problem = format!("the function's server does not accept on port {port}");
                return Err(NoConnection::Failed(problem));
            }
        };
        let connection = Connection::new(stream).await;
        connection.map_err(NoConnection::Failed)
    }

    /// Keeps the connection of a finished exchange if it can be used again.
    pub(super) fn keep(&self, mut connection: Connection) {
        connection.kept_since = now();
        let mut idle = self.idle.lock();
        match &mut *idle {
            Some(idle) if idle.len() < self.idle_max => idle.push(connection),
            _ => {
                drop(idle);
                drop(connection);
            }
        }
    }

    pub(super) fn keep_none(&self) {
        let idle = self.idle.lock().take();
        drop(idle);
    }

    /// Runs `work` until it is done or the process ends. An answer that the process wrote before its end still counts.
    pub(super) async fn while_alive<T>(
        &self,
        work: impl Future<Output = Result<T, Unanswered>>,
    ) -> Result<T, Unanswered> {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => done,
            _ = self.life.ended() => match timeout(LAST_ANSWER_TIME_MAX, work).await {
                Ok(done) => done,
                Err(_) => Err(Unanswered::Server("its main process ended".to_owned())),
            },
        }
    }

    /// The fault of a server that did not answer. Says how the process ended, if it did.
    pub(super) async fn fault(&self, problem: String) -> WorkerFault {
        match self.life.ended_soon().await {
            Some(end) => self.life.fault_of(end),
            None => self.life.fault(problem),
        }
    }

    /// As [`Site::fault`], of one that closed a connection and serves on.
    pub(super) async fn closed(&self, problem: String) -> WorkerFault {
        match self.life.ended_soon().await {
            Some(end) => self.life.fault_of(end),
            // What it prints is followed.
            None => WorkerFault::Unanswered {
                problem,
                output: Bytes::new(),
            },
        }
    }
}

/// Why there is no connection to the server.
#[derive(Debug)]
enum NoConnection {
    /// Nobody listens on its port.
    Refused(String),
    /// Any other reason.
    Failed(String),
}

/// The same request, if its method is idempotent (RFC 9110, section 9.2.2) and it has no body.
fn again(request: &PassedRequest) -> Option<PassedRequest> {
    if !request.method().is_idempotent() || !request.body().is_end_stream() {
        return None;
    }
    let body = Empty::new().map_err(|never| match never {});
    let mut again = PassedRequest::new(StreamedBody::new(body));
    *again.method_mut() = request.method().clone();
    *again.uri_mut() = request.uri().clone();
    *again.version_mut() = request.version();
    *again.headers_mut() = request.headers().clone();
    *again.extensions_mut() = request.extensions().clone();
    Some(again)
}

pub(super) fn now() -> Instant {
    Instant(monotonic_ns())
}

/// A kept connection is not used after this time. Servers close idle connections (gunicorn after 2 s, Node.js and uvicorn after
/// 5 s), and a request that is sent while the server closes is lost.
const IDLE_TIME_MAX: Duration = Duration::from_millis(1500);

/// A server that closes so many new connections in a row without an answer is taken for one that cannot answer.
const UNANSWERED_MAX: u32 = 3;

/// Longest wait for a connection to a server that was ready before.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// What a dead process wrote is already in the socket's buffer.
const LAST_ANSWER_TIME_MAX: Duration = Duration::from_millis(50);
