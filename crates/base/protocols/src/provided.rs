//! A worker that polls the Lambda Runtime API (`2018-06-01`): the daemon serves the API on a listener inside the worker's
//! network, and a call waits in the queue for the next poll.
//!
//! A runtime that violates the API gets Lambda's error and affects only itself:
//!
//! | the runtime | result |
//! |---|---|
//! | answers twice, or an unknown id | 400 `InvalidRequestID`; the first answer counts |
//! | polls before it has answered, with a concurrency of 1 | 403 `InvalidStateTransition` |
//! | never polls (again) | the call waits until its timeout |
//! | polls, and never answers | the same |
//! | disconnects from a poll | the event waits for the next poll; if it was already sent, as above |
//! | disconnects in the middle of an answer | `Runtime.TruncatedResponse`, or the fault if the process ended |
//! | answers more than 6 MiB in one piece | 413, and `Function.ResponseSizeTooLarge` for the caller |
//! | answers something other than JSON | passed on unchanged, as in Lambda |
//! | posts an error that is not a JSON object | it becomes the message of an error |
//! | has an extension that registers and never asks for an event | the start fails, and the error names the extension |
//! | has an extension that does not ask for the next event | the next call waits, up to the last call's deadline |

mod api;
mod extensions;
mod prelude;
mod queue;
mod reply;
mod server;
mod socket;
mod stream;
mod times;
mod worksite;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use pilot_model::calendar::unix_ms;
use pilot_model::keep_alive::GRACE;
use pilot_model::ports::{
    Answer, Call, Done, Input, Part, Resources, ShownInputs, StartError, StartStamps, Worker,
    WorkerFault,
};
use pilot_model::{BoxFuture, Farewell, Instant, WorkerId};
use pilot_sys::clock::monotonic_ns;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::extensions::{Extensions, invoke_notice};
use self::queue::{Event, Initialisation, InvocationQueue, Posted, Refused};
use self::stream::{Beginning, Piece, Streamed};
use self::times::Times;
use self::worksite::Worksite;
use crate::error_body::{error_body, truncated};
use crate::inputs::input_headers;
use crate::life::{Life, OutputUse};
use crate::pace::{Pace, PiecePace};
use crate::start::output_text;
use crate::{Awaited, Held, HeldFiles, Instance, Retire, Start};

/// The head of a streamed answer that arrives in these pieces, and how much of the body has come with it.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzzed_prelude<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<Option<pilot_model::ports::HttpHead>, String> {
    let mut read = prelude::Prelude::default();
    for piece in pieces {
        let fed = read.feed(piece).map_err(|error| error.to_string())?;
        if let Some((head, _)) = fed {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// A worker that polls the Lambda Runtime API. Dropping it is the same as [`Worker::retire`].
#[derive(Debug)]
pub struct ProvidedWorker {
    site: Arc<Worksite>,
    stamps: StartStamps,
    /// Streamed answers that are being read, by stream. The lock is held for a look-up: a reader takes its answer out.
    streams: Mutex<HashMap<u32, Box<Streamed>>>,
    /// The inputs of these answers. The lock is held for a look-up.
    held: Mutex<HashMap<u32, HeldFiles>>,
    /// The server. Empty once the worker is retired.
    tasks: Mutex<JoinSet<()>>,
}

impl ProvidedWorker {
    /// Serves the Runtime API on `listener` and waits for the worker's first poll.
    ///
    /// # Errors
    /// [`StartError::Import`] when the runtime reports an initialisation error, [`StartError::Runtime`] when it ends or does
    /// not poll in time. The instance is then already retired.
    pub async fn when_ready(
        start: Start,
        listener: TcpListener,
        instance: Arc<dyn Instance>,
    ) -> Result<Self, StartError> {
        let site = Arc::new(Worksite {
            id: start.id,
            version: Arc::clone(&start.version),
            life: Life::new(instance, OutputUse::Answers),
            queue: InvocationQueue::new(start.version.config.concurrency),
            extensions: Extensions::default(),
            pace: Pace::default(),
            pieces: PiecePace::default(),
            answers: start.answers.clone(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(server::serve(Arc::clone(&site), listener));
        let mut worker = Self {
            site,
            stamps: start.stamps(Instant(0)),
            streams: Mutex::default(),
            held: Mutex::default(),
            tasks: Mutex::new(tasks),
        };
        match worker.initialised(&start).await {
            Ok(initialised) => {
                worker.stamps = start.stamps(initialised);
                Ok(worker)
            }
            Err(error) => {
                worker.site.life.retire(|| Retire::AtOnce {
                    held: Held::default(),
                });
                Err(error)
            }
        }
    }

    async fn initialised(&self, start: &Start) -> Result<Instant, StartError> {
        let Worksite {
            life,
            queue,
            extensions,
            ..
        } = &*self.site;
        // The server closes the queue only after it has read everything that came before the end.
        let over = async {
            tokio::select! {
                biased;
                initialised = queue.initialised() => Ok(initialised),
                () = queue.closed() => Err(life.ended().await),
            }
        };
        match timeout(start.ready_max, over).await {
            Ok(Ok(Initialisation::Ready(at))) => Ok(at),
            Ok(Ok(Initialisation::Failed(body))) => Err(StartError::Import {
                body: String::from_utf8_lossy(&body).into_owned(),
                output: output_text(life),
            }),
            Ok(Err(end)) => Err(start.ended(end, "polled the Runtime API", HINT, life)),
            Err(_) => Err(match extensions.working() {
                Some(name) if queue.was_asked() => start.too_slow(
                    &format!("polled, but its extension {name:?} did not ask for its first event"),
                    EXTENSION_HINT,
                    life,
                ),
                _ => start.too_slow("did not poll the Runtime API", HINT, life),
            }),
        }
    }

    /// The exchange, during which the worker has files with the call's inputs.
    async fn exchange_with_inputs(&self, mut call: Call) -> Result<Answer, WorkerFault> {
        let stream = call.stream;
        let held = self.site.life.hold(call.inputs.clone()).await?;
        call.paths = held.as_ref().map_or(Vec::new(), |held| held.paths.clone());
        let answer = self.exchange(call).await?;
        if let (Answer::Http { done: None, .. }, Some(held)) = (&answer, held) {
            self.held.lock().insert(stream, held);
        }
        Ok(answer)
    }

    async fn exchange(&self, call: Call) -> Result<Answer, WorkerFault> {
        let Worksite { life, queue, .. } = &*self.site;
        if call.head.http.is_some() {
            return Err(life.fault("the Lambda Runtime API takes events, not HTTP requests"));
        }
        if life.was_let_go() {
            return Err(match life.ended_soon().await {
                Some(end) => life.fault_of(end),
                None => life.fault("the worker is retired"),
            });
        }
        let (caller, heard) = oneshot::channel();
        let event = self
            .event(&call, caller)
            .map_err(|problem| life.fault(problem))?;
        match queue.submit(event) {
            Ok(()) => {}
            Err(Refused::Closed) => return Err(self.not_taken().await),
            Err(Refused::IdInUse) => {
                return Err(life.fault("an invocation with this id is still running"));
            }
            Err(Refused::Full) => {
                return Err(life.fault("more concurrent invocations than the version allows"));
            }
        }
        match heard.await {
            Ok(Posted::Result(body, times)) => {
                Ok(Answer::Result(body, self.done(times, times.first_byte)))
            }
            Ok(Posted::Error(body, times)) => {
                let is_last = self.ends_after_an_error().await;
                let done = self.done(times, times.first_byte);
                Ok(Answer::Error(body, Done { is_last, ..done }))
            }
            Ok(Posted::Truncated(times)) => self.broken(times).await,
            Ok(Posted::Stream(streamed)) => self.begin(call.stream, streamed).await,
            Ok(Posted::NotTaken) => Err(self.not_taken().await),
            Err(_) => Err(life.fault_of(life.ended().await)),
        }
    }

    /// Whether the runtime ends after it has posted an error, as aws-lambda-go does after a panic: the next call would be lost with
    /// it. A runtime that goes on polls next.
    async fn ends_after_an_error(&self) -> bool {
        let Worksite { life, queue, .. } = &*self.site;
        if self.site.version.config.concurrency > 1 {
            return false;
        }
        let shown = async {
            tokio::select! {
                biased;
                () = queue.asked_again() => false,
                _ = life.ended() => true,
            }
        };
        timeout(AFTER_ERROR_MAX, shown).await.unwrap_or(false)
    }

    /// The worker has ended without the call.
    async fn not_taken(&self) -> WorkerFault {
        let life = &self.site.life;
        WorkerFault::NotTaken(Box::new(life.fault_of(life.ended().await)))
    }

    /// The answer to the next poll.
    fn event(&self, call: &Call, caller: oneshot::Sender<Posted>) -> Result<Event, String> {
        let head = &call.head;
        let mut headers = HeaderMap::with_capacity(HEADERS_LEN);
        let mut set = |name: &'static HeaderName, value: &str| {
            let value = HeaderValue::from_str(value).map_err(|_| {
                format!("{name} cannot be {value:?}: it is not a valid header value")
            })?;
            headers.insert(name, value);
            Ok::<_, String>(())
        };
        set(&names::REQUEST_ID, head.id.as_str())?;
        set(&names::FUNCTION_ARN, &head.arn)?;
        if let Some(trace) = &head.trace {
            set(&names::TRACE_ID, trace)?;
        }
        if let Some(json) = &head.client_context {
            // Line breaks in JSON are only between tokens, where a blank is equivalent. U+007F is only in texts, and no part of a header.
            let json = json.replace(['\r', '\n'], " ");
            set(&names::CLIENT_CONTEXT, &json.replace('\u{7f}', "\\u007f"))?;
        }
        input_headers(&call.inputs, &call.paths, &head.failed_inputs, &mut headers)?;
        headers.insert(&names::DEADLINE, HeaderValue::from(head.deadline_unix_ms));
        let notice = (!self.site.extensions.is_empty()).then(|| {
            let trace = head.trace.as_deref();
            invoke_notice(head.id.as_str(), &head.arn, head.deadline_unix_ms, trace)
        });
        Ok(Event {
            id: head.id.as_str().into(),
            headers,
            body: call.payload.clone(),
            notice,
            caller,
        })
    }

    /// The head of a streamed answer.
    async fn begin(&self, stream: u32, mut streamed: Box<Streamed>) -> Result<Answer, WorkerFault> {
        let times = streamed.times;
        match streamed.begin().await {
            Beginning::Head(head, Piece::Last(first)) => Ok(Answer::Http {
                head,
                first,
                done: Some(self.done(times, now())),
            }),
            Beginning::Head(head, Piece::More(first)) => {
                self.streams.lock().insert(stream, streamed);
                Ok(Answer::Http {
                    head,
                    first,
                    done: None,
                })
            }
            Beginning::Raised(body) => Ok(Answer::Error(body, self.done(times, now()))),
            Beginning::Invalid(problem) => {
                let body = error_body("Runtime.InvalidPrelude", &problem.to_string());
                Ok(Answer::Error(body, self.done(times, now())))
            }
            Beginning::Broken | Beginning::Head(_, Piece::Raised(_) | Piece::Broken) => {
                self.broken(times).await
            }
        }
    }

    async fn next_part(&self, stream: u32) -> Result<Part, WorkerFault> {
        let streamed = self.streams.lock().remove(&stream);
        let Some(mut streamed) = streamed else {
            let problem = format!("stream {stream} has no answer");
            return Err(self.site.life.fault(problem));
        };
        let times = streamed.times;
        match streamed.piece().await {
            Piece::More(bytes) => {
                self.streams.lock().insert(stream, streamed);
                Ok(Part::Chunk(bytes))
            }
            Piece::Last(bytes) => Ok(Part::End(bytes, self.done(times, now()))),
            Piece::Raised(body) => Ok(Part::Error(body, self.done(times, now()))),
            Piece::Broken => match self.site.life.ended_soon().await {
                Some(end) => Err(self.site.life.fault_of(end)),
                None => Ok(Part::Error(truncated(), self.done(times, now()))),
            },
        }
    }

    /// An answer broke off before any of it was passed on.
    async fn broken(&self, times: Times) -> Result<Answer, WorkerFault> {
        match self.site.life.ended_soon().await {
            Some(end) => Err(self.site.life.fault_of(end)),
            None => Ok(Answer::Error(truncated(), self.done(times, now()))),
        }
    }

    fn done(&self, times: Times, returned: Instant) -> Done {
        Done {
            started: times.started,
            returned,
            first_byte: times.first_byte,
            output: self.site.life.take_output(),
            is_last: false,
        }
    }

    /// Unless its function says otherwise, the worker gets Lambda's two seconds to end if it has extensions; without, it does not need
    /// them. An extension may be a process of its own, which gets them even if the runtime ends at once.
    fn how_to_retire(&self) -> Retire {
        let extensions = &self.site.extensions;
        let grace = match self.site.version.config.keep_alive.farewell() {
            Some(Farewell::Sigterm(grace)) => grace,
            None if !extensions.is_empty() => GRACE,
            None | Some(Farewell::Kill) => {
                return Retire::AtOnce {
                    held: self.server(),
                };
            }
        };
        let awaited = if extensions.awaits_shutdown() {
            Awaited::Everything
        } else {
            Awaited::MainProcess
        };
        let deadline = SystemTime::now() + grace;
        extensions.tell_of_shutdown(unix_ms(deadline));
        Retire::Gracefully {
            grace,
            awaited,
            held: self.server(),
        }
    }

    /// The server, which the worker's processes would see close.
    fn server(&self) -> Held {
        Held::new(std::mem::take(&mut *self.tasks.lock()))
    }
}

impl Worker for ProvidedWorker {
    fn id(&self) -> WorkerId {
        self.site.id
    }

    fn stamps(&self) -> StartStamps {
        self.stamps
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>> {
        Box::pin(self.exchange_with_inputs(call))
    }

    fn show(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<ShownInputs, String>> {
        Box::pin(self.site.life.show(inputs))
    }

    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
        Box::pin(async move {
            let part = self.next_part(stream).await;
            if !matches!(part, Ok(Part::Chunk(_))) {
                self.held.lock().remove(&stream);
            }
            part
        })
    }

    fn is_alive(&self) -> bool {
        self.site.life.is_alive()
    }

    fn kill(&self) {
        self.site.life.kill();
    }

    fn retire(&self) {
        self.site.life.retire(|| self.how_to_retire());
    }

    fn last_output(&self) -> BoxFuture<'static, Bytes> {
        let Some(end) = self.site.life.retired_end() else {
            return Box::pin(std::future::ready(self.site.life.last_output()));
        };
        let site = Arc::clone(&self.site);
        Box::pin(async move {
            end.await;
            site.life.last_output()
        })
    }

    fn resources(&self) -> &dyn Resources {
        self.site.life.resources()
    }
}

impl Drop for ProvidedWorker {
    fn drop(&mut self) {
        self.retire();
    }
}

fn now() -> Instant {
    Instant(monotonic_ns())
}

/// Headers of an event.
mod names {
    use http::HeaderName;

    pub(super) static REQUEST_ID: HeaderName =
        HeaderName::from_static("lambda-runtime-aws-request-id");
    pub(super) static DEADLINE: HeaderName = HeaderName::from_static("lambda-runtime-deadline-ms");
    pub(super) static FUNCTION_ARN: HeaderName =
        HeaderName::from_static("lambda-runtime-invoked-function-arn");
    pub(super) static TRACE_ID: HeaderName = HeaderName::from_static("lambda-runtime-trace-id");
    pub(super) static CLIENT_CONTEXT: HeaderName =
        HeaderName::from_static("lambda-runtime-client-context");
}

const HEADERS_LEN: usize = 8;

/// How long the caller of a call with an error waits to see whether the runtime polls or ends.
const AFTER_ERROR_MAX: Duration = Duration::from_millis(20);

const HINT: &str = "Does it poll http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation/next, as a Lambda runtime client does?";

const EXTENSION_HINT: &str = "Does it ask for http://$AWS_LAMBDA_RUNTIME_API/2020-01-01/extension/event/next once it has registered?";

#[cfg(test)]
mod tests;
