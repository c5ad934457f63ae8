//! A worker that is an HTTP server. The daemon is its client and keeps connections open.
//!
//! There is no task per connection: whoever waits for a response, or reads its body, drives the connection. A kept connection
//! is checked before it is used again. A request is sent again, on a new connection, if nothing of it was sent, or if the server closed
//! a kept connection without a byte of a response and the request is idempotent and has no body. No other request is ever sent twice.

mod connection;
mod event;
mod hops;
mod passed;
mod ready;
mod site;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use http::header::{HOST, HeaderMap, HeaderValue, TE, TRAILER, UPGRADE};
use http::{Response, StatusCode, Version};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use pilot_model::keep_alive::GRACE_OF_SERVERS;
use pilot_model::ports::{
    Answer, Call, Input, Part, PassedInputs, PassedRequest, PassedResponse, Resources, StartError,
    StartStamps, StreamedBody, Unpassed, Worker, WorkerFault,
};
use pilot_model::{BoxFuture, Farewell, Instant, InvocationHead, WorkerId, trace};
use tokio::task::JoinSet;

use self::passed::PassedBody;
use self::site::{Site, Unanswered};
use crate::inputs::{input_headers, strip};
use crate::life::{Life, OutputUse};
use crate::{Awaited, Held, HeldFiles, Instance, PiecePace, Reach, Retire, Start};

/// A worker that is an HTTP server. Dropping it retires it at once.
#[derive(Debug)]
pub struct HttpWorker {
    id: WorkerId,
    stamps: StartStamps,
    site: Arc<Site>,
    /// How it ends, if its function says so.
    farewell: Option<Farewell>,
    /// Watches for the end of the process.
    _watch: JoinSet<()>,
}

impl HttpWorker {
    /// Waits until the server on `port` is ready: it accepts a connection, or answers `GET ready` with 2xx.
    ///
    /// # Errors
    /// [`StartError::Runtime`] when the server ends first or takes too long. The instance is then already retired.
    pub async fn when_ready(
        start: Start,
        port: u16,
        ready: Option<String>,
        reach: Arc<dyn Reach>,
        instance: Arc<dyn Instance>,
    ) -> Result<Self, StartError> {
        let site = Arc::new(Site {
            life: Life::new(instance, OutputUse::Followed),
            reach,
            port,
            host: HeaderValue::from_str(&format!("localhost:{port}"))
                .expect("a name and a number are a header's value"),
            idle_max: start.version.config.concurrency as usize,
            idle: Mutex::new(Some(Vec::new())),
            unanswered: AtomicU32::new(0),
            answers: start.answers.clone(),
            pieces: PiecePace::default(),
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
            farewell: start.version.config.keep_alive.farewell(),
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

    /// Shows the inputs of a request, and names them in its headers.
    async fn hold(
        &self,
        given: Option<PassedInputs>,
        headers: &mut HeaderMap,
    ) -> Result<Option<HeldFiles>, WorkerFault> {
        // Also where there are no inputs: a server must not take a client's path for one of ours.
        strip(headers);
        let Some(PassedInputs { inputs, failed }) = given else {
            return Ok(None);
        };
        let life = &self.site.life;
        let held = life.hold(inputs.clone()).await?;
        let paths = held.as_ref().map_or(&[][..], |held| &held.paths);
        input_headers(&inputs, paths, &failed, headers).map_err(|problem| life.fault(problem))?;
        Ok(held)
    }

    async fn passed(&self, mut request: PassedRequest) -> Result<PassedResponse, Unpassed> {
        let site = &self.site;
        *request.version_mut() = Version::HTTP_11;
        if !request.headers().contains_key(HOST) {
            request.headers_mut().insert(HOST, site.host.clone());
        }
        let given = request.extensions_mut().remove::<PassedInputs>();
        let again = given.clone();
        let held = self.hold(given, request.headers_mut()).await?;
        let upgrades = request.headers().contains_key(UPGRADE);
        let takes_trailers = request.headers().contains_key(TE);
        match site.while_alive(site.exchange(request)).await {
            Ok((response, _))
                if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrades =>
            {
                let fault = site
                    .life
                    .fault("it switched protocols although the request did not ask for an upgrade");
                Err(fault.into())
            }
            Ok((mut response, connection)) => {
                if !takes_trailers {
                    // They end here (RFC 9110, 6.5.1), so nobody is told to expect them.
                    response.headers_mut().remove(TRAILER);
                }
                Ok(PassedBody::response(site, response, connection, held))
            }
            Err(Unanswered::RequestBody) => {
                // The worker is not at fault, and the client that sent it is gone.
                let body = http_body_util::Empty::new().map_err(|never| match never {});
                let mut response = Response::new(StreamedBody::new(body));
                *response.status_mut() = StatusCode::BAD_REQUEST;
                Ok(response)
            }
            Err(Unanswered::Server(problem)) => Err(site.fault(problem).await.into()),
            Err(Unanswered::Unsent(unsent, problem)) => Err(Unpassed {
                fault: site.fault(problem).await,
                unsent: with_inputs(unsent, again),
            }),
            Err(Unanswered::Closed(problem)) => Err(site.closed(problem).await.into()),
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
            let mut headers = HeaderMap::new();
            tell_trace(&call.head, &mut headers);
            let given = PassedInputs {
                inputs: call.inputs,
                failed: call.head.failed_inputs.clone(),
            };
            // Until the result is complete.
            let _held = self.hold(Some(given), &mut headers).await?;
            event::call(&self.site, call.payload, headers).await
        })
    }

    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
        let problem = format!("stream {stream} has no answer");
        Box::pin(async move { Err(self.site.life.fault(problem)) })
    }

    fn pass(&self, request: PassedRequest) -> BoxFuture<'_, Result<PassedResponse, Unpassed>> {
        Box::pin(self.passed(request))
    }

    fn take_output(&self) -> bytes::Bytes {
        self.site.life.take_output()
    }

    fn printed(&self) -> BoxFuture<'static, bool> {
        self.site.life.printed()
    }

    fn is_alive(&self) -> bool {
        self.site.life.is_alive()
    }

    fn kill(&self) {
        self.site.life.kill();
        self.site.keep_none();
    }

    fn retire(&self) {
        let usual = Farewell::Sigterm(GRACE_OF_SERVERS);
        self.site
            .life
            .retire(|| match self.farewell.unwrap_or(usual) {
                Farewell::Kill => Retire::AtOnce {
                    held: Held::default(),
                },
                Farewell::Sigterm(grace) => Retire::Gracefully {
                    grace,
                    awaited: Awaited::MainProcess,
                    held: Held::default(),
                },
            });
        // A server that shuts down waits until its connections are closed.
        self.site.keep_none();
    }

    fn resources(&self) -> &dyn Resources {
        self.site.life.resources()
    }
}

/// Tells the server the trace of an event, if it is recorded. Requests that are passed through have it from the gateway.
fn tell_trace(head: &InvocationHead, headers: &mut HeaderMap) {
    let header = head.trace.as_deref().unwrap_or_default();
    let Some(traceparent) = trace::traceparent(header) else {
        return;
    };
    let state = head.trace_state.as_deref();
    for (name, text) in [
        ("traceparent", Some(&*traceparent)),
        ("tracestate", state),
        ("x-amzn-trace-id", Some(header)),
    ] {
        if let Some(Ok(value)) = text.map(HeaderValue::from_str) {
            headers.insert(name, value);
        }
    }
}

impl Drop for HttpWorker {
    fn drop(&mut self) {
        self.site.life.retire(|| Retire::AtOnce {
            held: Held::default(),
        });
        self.site.keep_none();
    }
}

/// The request as it came, for another worker. `None`: its inputs can be read only once.
fn with_inputs(
    mut request: Box<PassedRequest>,
    given: Option<PassedInputs>,
) -> Option<Box<PassedRequest>> {
    if let Some(given) = given {
        if !given.inputs.iter().all(Input::can_be_read_again) {
            return None;
        }
        request.extensions_mut().insert(given);
    }
    Some(request)
}

#[cfg(test)]
mod tests;
