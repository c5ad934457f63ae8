//! A worker that is an HTTP server. The daemon is its client and keeps connections open.
//!
//! There is no task per connection: whoever waits for a response, or reads its body, drives the connection. A kept connection
//! is checked before it is used again. If nothing of a request was sent, the request is repeated on a new connection; no other
//! request is ever sent twice.

mod connection;
mod event;
mod hops;
mod passed;
mod ready;

use std::sync::Arc;
use std::time::Duration;

use http::header::{HOST, HeaderValue, UPGRADE};
use http::{Response, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use pilot_model::ports::{
    Answer, Call, Part, PassedRequest, PassedResponse, StartError, StartStamps, StreamedBody,
    Worker, WorkerFault, WorkerMemory,
};
use pilot_model::{BoxFuture, Instant, WorkerId};
use pilot_sys::clock::monotonic_ns;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::connection::{Connection, Sent};
use self::passed::PassedBody;
use crate::life::Life;
use crate::{Awaited, Held, Instance, Reach, Retire, Start};

/// A worker that is an HTTP server. Dropping it retires it at once.
#[derive(Debug)]
pub struct HttpWorker {
    id: WorkerId,
    stamps: StartStamps,
    site: Arc<Site>,
    /// Watches for the end of the process.
    _watch: JoinSet<()>,
}

/// What a worker shares with the response bodies that are still being read.
#[derive(Debug)]
struct Site {
    life: Life,
    reach: Arc<dyn Reach>,
    port: u16,
    /// `localhost:PORT`, for requests that name no host.
    host: HeaderValue,
    /// Most connections that are kept: one per concurrent invocation.
    idle_max: usize,
    /// Unused connections, most recently used last. `None`: the worker is retired and keeps no more connections. The lock is
    /// held for a push or a pop.
    idle: Mutex<Option<Vec<Connection>>>,
}

/// Why a request has no response.
#[derive(Debug)]
enum Unanswered {
    /// The server failed, or could not be reached.
    Server(String),
    /// The request's own body failed: the client closed its connection, or sent too much.
    RequestBody,
}

impl HttpWorker {
    /// Waits until the server on `port` is ready: it accepts a connection, or answers `GET ready` with 2xx.
    ///
    /// # Errors
    /// [`StartError::Runtime`] when the server ends first or takes too long. The instance is then already retired.
    pub async fn come_up(
        start: Start,
        port: u16,
        ready: Option<String>,
        reach: Arc<dyn Reach>,
        instance: Arc<dyn Instance>,
    ) -> Result<Self, StartError> {
        let site = Arc::new(Site {
            life: Life::new(instance),
            reach,
            port,
            host: HeaderValue::from_str(&format!("localhost:{port}"))
                .expect("a name and a number are a header's value"),
            idle_max: start.version.config.concurrency as usize,
            idle: Mutex::new(Some(Vec::new())),
        });
        let mut watch = JoinSet::new();
        watch.spawn({
            let site = Arc::clone(&site);
            async move {
                site.life.watch().await;
                site.keep_none();
            }
        });
        let mut worker = Self {
            id: start.id,
            stamps: start.stamps(Instant(0)),
            site,
            _watch: watch,
        };
        match ready::wait(&worker.site, &start, ready.as_deref()).await {
            Ok(initialised) => {
                worker.stamps = start.stamps(initialised);
                Ok(worker)
            }
            // Dropping the worker retires it.
            Err(error) => Err(error),
        }
    }

    async fn passed(&self, mut request: PassedRequest) -> Result<PassedResponse, WorkerFault> {
        let site = &self.site;
        *request.version_mut() = Version::HTTP_11;
        if !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, site.host.clone());
        }
        let upgrades = request.headers().contains_key(UPGRADE);
        match site.while_alive(site.exchange(request)).await {
            Ok((response, _))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrades =>
            {
                Err(site
                    .life
                    .fault("it switched protocols although the request did not ask for an upgrade"))
            }
            Ok((response, connection)) => Ok(PassedBody::response(site, response, connection)),
            Err(Unanswered::RequestBody) => {
                // The worker is not at fault, and the client that sent it is gone.
                let body = http_body_util::Empty::new().map_err(|never| match never {});
                let mut response = Response::new(StreamedBody::new(body));
                *response.status_mut() = StatusCode::BAD_REQUEST;
                Ok(response)
            }
            Err(Unanswered::Server(problem)) => Err(site.fault(problem).await),
        }
    }
}

impl Site {
    /// Sends one request and waits for the response's head. Uses a kept connection if one still works.
    async fn exchange(
        &self,
        mut request: PassedRequest,
    ) -> Result<(Response<Incoming>, Connection), Unanswered> {
        loop {
            let kept = self.kept();
            let was_kept = kept.is_some();
            let connection = match kept {
                Some(connection) => connection,
                None => self.connect().await.map_err(Unanswered::Server)?,
            };
            match connection.send(request).await {
                Sent::Answered(response, connection) => return Ok((response, connection)),
                // The server had closed the kept connection. Each retry uses one up, so this loop ends.
                Sent::Unused(unsent, _) if was_kept => request = unsent,
                Sent::Unused(_, problem) | Sent::Lost(problem) => {
                    return Err(Unanswered::Server(problem));
                }
                Sent::BodyFailed => return Err(Unanswered::RequestBody),
            }
        }
    }

    /// The most recently used connection, unless the server may be about to close it.
    fn kept(&self) -> Option<Connection> {
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

    async fn connect(&self) -> Result<Connection, String> {
        let port = self.port;
        let stream = timeout(CONNECT_TIME_MAX, self.reach.connect(port))
            .await
            .map_err(|_| format!("the function's server does not accept on port {port}"))?
            .map_err(|error| format!("connect to the function's server on port {port}: {error}"))?;
        Connection::new(stream).await
    }

    /// Keeps the connection of a finished exchange if it can be used again.
    fn keep(&self, mut connection: Connection) {
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

    fn keep_none(&self) {
        let idle = self.idle.lock().take();
        drop(idle);
    }

    /// Runs `work` until it is done or the process ends. An answer that the process wrote before its end still counts.
    async fn while_alive<T>(
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
    async fn fault(&self, problem: String) -> WorkerFault {
        match self.life.ended_soon().await {
            Some(end) => self.life.fault_of(end),
            None => self.life.fault(problem),
        }
    }
}

impl Worker for HttpWorker {
    fn id(&self) -> WorkerId {
        self.id
    }

    fn stamps(&self) -> StartStamps {
        self.stamps
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>> {
        Box::pin(async move {
            if call.head.http.is_some() {
                let problem = "an HTTP server's requests are passed through, not called";
                return Err(self.site.life.fault(problem));
            }
            event::call(&self.site, call.payload).await
        })
    }

    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
        let problem = format!("stream {stream} has no answer");
        Box::pin(async move { Err(self.site.life.fault(problem)) })
    }

    fn pass(&self, request: PassedRequest) -> BoxFuture<'_, Result<PassedResponse, WorkerFault>> {
        Box::pin(self.passed(request))
    }

    fn take_output(&self) -> bytes::Bytes {
        self.site.life.take_output()
    }

    fn is_alive(&self) -> bool {
        self.site.life.is_alive()
    }

    fn kill(&self) {
        self.site.life.kill();
        self.site.keep_none();
    }

    fn retire(&self) {
        self.site.life.retire(|| Retire::Gracefully {
            grace: TERMINATION_TIME_MAX,
            awaited: Awaited::MainProcess,
            held: Held::default(),
        });
        // A server that shuts down waits until its connections are closed.
        self.site.keep_none();
    }

    fn memory(&self) -> WorkerMemory {
        self.site.life.memory()
    }
}

impl Drop for HttpWorker {
    fn drop(&mut self) {
        self.site.life.retire(|| Retire::AtOnce);
        self.site.keep_none();
    }
}

fn now() -> Instant {
    Instant(monotonic_ns())
}

/// A kept connection is not used after this time. Servers close idle connections (gunicorn after 2 s, Node.js and uvicorn after
/// 5 s), and a request that is sent while the server closes is lost.
const IDLE_TIME_MAX: Duration = Duration::from_millis(1500);

/// Longest wait for a connection to a server that was ready before.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// What a dead process wrote is already in the socket's buffer.
const LAST_ANSWER_TIME_MAX: Duration = Duration::from_millis(50);

/// Time from SIGTERM to SIGKILL: ten seconds, as in Cloud Run.
const TERMINATION_TIME_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
