//! A worker that is an HTTP server: the daemon is its client, over connections that are kept.
//!
//! There is no task per connection: whoever waits for a response, or reads its body, drives the connection meanwhile. A kept
//! connection is looked at before it is used again, and a request of which nothing was sent goes over a new one. Nothing else is
//! ever sent twice.

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

/// A worker that is an HTTP server. Dropped, it is let go at once.
#[derive(Debug)]
pub struct HttpWorker {
    id: WorkerId,
    stamps: StartStamps,
    site: Arc<Site>,
    /// Watches for the end of the process.
    _watch: JoinSet<()>,
}

/// What a worker shares with the bodies of its responses.
#[derive(Debug)]
struct Site {
    life: Life,
    reach: Arc<dyn Reach>,
    port: u16,
    /// `localhost:PORT`, for requests that name no host.
    host: HeaderValue,
    /// Most connections that are kept: one per invocation at a time.
    idle_max: usize,
    /// Connections that nobody uses, the one used last at the end. `None`: the worker is let go, none is kept any more. The lock is
    /// held for a push or a pop.
    idle: Mutex<Option<Vec<Connection>>>,
}

/// Why a request has no response.
#[derive(Debug)]
enum Unanswered {
    /// The server, or the way to it.
    Server(String),
    /// The request's own body failed: the client has gone away, or sent too much.
    RequestBody,
}

impl HttpWorker {
    /// Waits until the server on `port` is ready: it accepts, or answers `GET ready` with 2xx.
    ///
    /// # Errors
    /// [`StartError::Runtime`] when it ends before, or takes too long. The instance has then been retired at once.
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
                    .fault("it switched protocols, which nobody had asked for"))
            }
            Ok((response, connection)) => Ok(PassedBody::response(site, response, connection)),
            Err(Unanswered::RequestBody) => {
                // It is not the worker's fault, and whoever sent it has gone.
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
    /// One request, up to the response's head; over a kept connection if there is one that is still good.
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
                // The server had closed it meanwhile. There are only so many kept ones, so this ends.
                Sent::Unused(unsent, _) if was_kept => request = unsent,
                Sent::Unused(_, problem) | Sent::Lost(problem) => {
                    return Err(Unanswered::Server(problem));
                }
                Sent::BodyFailed => return Err(Unanswered::RequestBody),
            }
        }
    }

    /// The connection that was used last, if it is not about to be closed by the server.
    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let idle = idle.as_mut()?;
        let connection = idle.pop()?;
        if now().since(connection.kept_since) < IDLE_TIME_MAX {
            return Some(connection);
        }
        // Those below are older.
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

    /// Keeps a connection whose exchange is over, if it can be used again.
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

    /// `work`, or the end of the process: what had been answered by then still counts.
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

    /// The fault of a server that did not answer: how it ended, if it did.
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
        let problem = format!("no answer is under way on stream {stream}");
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
        // A server that ends waits for its connections.
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

/// A connection is not used again after this long: servers close idle ones (gunicorn after 2 s, Node.js and uvicorn after 5 s),
/// and a request that crosses the close on its way is lost.
const IDLE_TIME_MAX: Duration = Duration::from_millis(1500);

/// Longest wait for a connection to a server that has been up.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// What a dead process wrote is there already.
const LAST_ANSWER_TIME_MAX: Duration = Duration::from_millis(50);

/// From SIGTERM to the end: Cloud Run's ten seconds.
const TERMINATION_TIME_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
