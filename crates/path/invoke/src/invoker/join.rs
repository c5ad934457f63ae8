//! The parallel start: what an invocation needs before its exchange is prepared concurrently, from its admission on.
//!
//! The request is announced to the pool at once, so that a worker starts while the payload arrives. The worker is leased last, when
//! payload and inputs are complete: a slow sender and a slow store occupy no worker. If a worker has to start, the function's
//! initscript begins before anybody asks for the worker, and runs beside the fetches of the inputs. It ends before the lease, or
//! goes on during the call. It begins late if a worker was free and another request has taken it. What its shared initscript has
//! sent goes with each call.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use pilot_model::initscript::During;
use pilot_model::inputs::Values;
use pilot_model::ports::{BoxFuture, Fetched, Initialised, InputFault, StreamedBody};
use pilot_model::{FunctionConfig, StartKind};
use pilot_pool::{Announcement, Awaited, Lease, Leased, Pool, Refusal};

use crate::error::InvokeError;
use crate::invocation::{Invocation, InvocationContext};
use crate::limits::Limits;
use crate::request::{Payload, Request};
use crate::script::Begun;

/// The requirements of an exchange.
pub(super) struct Joined {
    pub(super) payload: Payload,
    pub(super) invocation: Invocation,
    /// The worker, or why there is none.
    pub(super) lease: Result<Lease, NotReady>,
}

/// Why there can be no exchange.
#[derive(Debug)]
pub(super) enum NotReady {
    /// There is no worker.
    Refused(Refusal),
    /// An input is missing.
    Input(InputFault),
    /// The same, and it is the body of the request.
    Body(InputFault),
}

impl NotReady {
    /// There is no exchange without this input.
    pub(crate) fn without(invocation: &Invocation, fault: InputFault) -> Self {
        if invocation.is_body(&fault.input) {
            Self::Body(fault)
        } else {
            Self::Input(fault)
        }
    }
}

/// Waits for the payload, the inputs and a worker. Dropping the future cancels both.
///
/// # Errors
/// The payload's own error, and [`InvokeError::PayloadTooLarge`].
pub(super) async fn join<E: From<InvokeError>>(
    context: &Arc<InvocationContext>,
    limits: &Limits,
    pool: &Arc<Pool>,
    request: &Request,
    payload: impl Future<Output = Result<Payload, E>>,
) -> Result<Joined, E> {
    let mut payload = pin!(payload);
    // A payload that arrived with the head needs no announcement.
    let polled = poll_fn(|cx| Poll::Ready(payload.as_mut().poll(cx))).await;
    let admitted = context.clock.now();
    let config = &request.version.config;
    let must_start = || config.initscript.is_some() && !pool.has_free();
    let (mut payload, mut announcement, runs_script) = match polled {
        Poll::Ready(payload) => (payload?, None, must_start()),
        Poll::Pending => {
            // The worker that now starts may be free when the payload is there.
            let must_start = must_start();
            let announcement = pool.announce(admitted, Awaited::Sender);
            (payload.await?, Some(announcement), must_start)
        }
    };
    let bytes = payload.body.len();
    if payload.rest.is_none() && bytes > limits.payload_bytes_max {
        return Err(E::from(InvokeError::PayloadTooLarge {
            bytes,
            bytes_max: limits.payload_bytes_max,
        }));
    }
    let mut invocation = Invocation::new(context, request, admitted);
    invocation.bytes_in = bytes as u64;
    let direct = payload.direct.take().map(|body| invocation.counted(body));
    let handed = payload.data.take();
    let not_handed = handed.and_then(|data| invocation.handed(data));
    let wanted = Wanted {
        request,
        values: values(config, &payload),
        event: &payload.body,
        runs_script,
        has_shared: config.shared_initscript.is_some(),
    };
    let lease = if let Some(fault) = not_handed {
        Err(NotReady::Input(fault))
    } else if wanted.nothing() || context.inputs.overlaps() {
        // A script sends its first requests before a fork takes the processor.
        let script = wanted.begin(&mut invocation);
        if !wanted.nothing() {
            match (&announcement, &direct) {
                // Its body is an input, which its sender still sends.
                (None, Some(_)) => announcement = Some(pool.announce(admitted, Awaited::Sender)),
                (None, None) => announcement = Some(pool.announce(admitted, Awaited::Inputs)),
                (Some(announced), None) => announced.sent(),
                (Some(_), Some(_)) => {}
            }
        }
        let fault = match wanted.nothing() {
            true => None,
            false => Box::pin(wanted.fetch(&mut invocation, script, direct)).await,
        };
        if announcement.is_some() {
            invocation.timeline.inputs_ready = Some(context.clock.now());
        }
        match fault {
            None => {
                let lease = match wanted.script_may_begin() {
                    false => lease(pool, &mut invocation, announcement).await,
                    true => Box::pin(wanted.lease(pool, &mut invocation, announcement)).await,
                };
                lease.map_err(NotReady::Refused)
            }
            Some(fault) => Err(NotReady::without(&invocation, fault)),
        }
    } else {
        let after = one_after_the_other(pool, &mut invocation, announcement, wanted, direct);
        Box::pin(after).await
    };
    Ok(Joined {
        payload,
        invocation,
        lease,
    })
}

/// As if inputs were fetched by the worker: it is leased first. Only to measure what the overlap gains.
async fn one_after_the_other(
    pool: &Arc<Pool>,
    invocation: &mut Invocation,
    announcement: Option<Announcement>,
    wanted: Wanted<'_>,
    direct: Option<StreamedBody>,
) -> Result<Lease, NotReady> {
    let lease = lease(pool, invocation, announcement).await;
    let lease = lease.map_err(NotReady::Refused)?;
    let script = wanted.begin(invocation);
    let fault = wanted.fetch(invocation, script, direct).await;
    invocation.timeline.inputs_ready = Some(invocation.now());
    match fault {
        None => Ok(lease),
        Some(fault) => Err(NotReady::without(invocation, fault)),
    }
}

/// The inputs of an invocation, and what its initscript sends.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    request: &'a Request,
    values: Values<'a>,
    event: &'a Bytes,
    /// A worker has to start, and there is an initscript.
    runs_script: bool,
    has_shared: bool,
}

impl Wanted<'_> {
    fn nothing(self) -> bool {
        !self.runs_script && !self.has_shared && !self.has_inputs()
    }

    fn has_inputs(self) -> bool {
        !self.request.version.config.inputs.is_empty() || !self.request.inputs.is_empty()
    }

    /// Whether there is a script, and it was not needed because a worker was free.
    fn script_may_begin(self) -> bool {
        !self.runs_script && self.request.version.config.initscript.is_some()
    }

    /// Waits for a worker. If the free one was taken by another request meanwhile, the script of the one that starts begins now.
    async fn lease(
        self,
        pool: &Arc<Pool>,
        invocation: &mut Invocation,
        announcement: Option<Announcement>,
    ) -> Result<Lease, Refusal> {
        let late = Self {
            runs_script: true,
            ..self
        };
        let lease = match ask(pool, invocation, announcement)? {
            Leased::Now(lease) if lease.kind() == StartKind::Warm => lease,
            Leased::Now(lease) => {
                if let Some(script) = late.begin(invocation) {
                    invocation.initialised(script.await);
                }
                lease
            }
            Leased::Later(waiting) => {
                let script = late.begin(invocation);
                let both = async {
                    let script = async {
                        match script {
                            Some(script) => script.await,
                            None => Initialised::default(),
                        }
                    };
                    tokio::join!(waiting.lease(), script)
                };
                let (lease, initialised) = both.await;
                invocation.initialised(initialised);
                lease?
            }
        };
        invocation.leased(&lease);
        Ok(lease)
    }

    /// Begins the script, if there is one. What it returns is waited for before the call.
    fn begin(self, invocation: &mut Invocation) -> Option<BoxFuture<'static, Initialised>> {
        let version = &self.request.version;
        let script = version.config.initscript.as_ref();
        let script = script.filter(|_| self.runs_script)?;
        let context = Arc::clone(invocation.context());
        let event = self.event.clone();
        match script.during {
            During::Start => Some(context.initscripts.run(version, event, None)),
            During::Invocation => {
                let run = |link| context.initscripts.run(version, event, Some(link));
                invocation.goes_on(Begun::new(context.clock.now(), run));
                None
            }
        }
    }

    /// Fetches them, if there are any. Returns why there is no invocation, if a required one is missing.
    async fn fetch(
        self,
        invocation: &mut Invocation,
        script: Option<BoxFuture<'static, Initialised>>,
        direct: Option<StreamedBody>,
    ) -> Option<InputFault> {
        let context = Arc::clone(invocation.context());
        let version = &self.request.version;
        let inputs = self.has_inputs().then(|| {
            let requested = &self.request.inputs;
            context
                .inputs
                .fetch(&version.config, requested, self.values, direct)
        });
        // An input that is missing ends the script, which nobody needs any more.
        let inputs = async {
            let fetched = match inputs {
                Some(inputs) => inputs.await,
                None => Fetched::default(),
            };
            match fetched.fault {
                None => Ok(fetched),
                Some(_) => Err(fetched),
            }
        };
        let shared = self.has_shared.then(|| context.initscripts.shared(version));
        match tokio::try_join!(inputs, ended(script), ended(shared)) {
            Err(fetched) => invocation.fetched(fetched),
            Ok((fetched, own, shared)) => {
                invocation.initialised(own);
                invocation.initialised(shared);
                invocation.fetched(fetched)
            }
        }
    }
}

/// Waits for a script, if there is one. It never fails.
async fn ended(script: Option<impl Future<Output = Initialised>>) -> Result<Initialised, Fetched> {
    Ok(match script {
        Some(script) => script.await,
        None => Initialised::default(),
    })
}

/// What the placeholders of the inputs stand for.
fn values<'a>(config: &'a FunctionConfig, payload: &'a Payload) -> Values<'a> {
    let http = payload.http.as_ref();
    Values {
        // The body of an application's request is no event.
        event: if http.is_some() { b"" } else { &payload.body },
        headers: http.map(|http| http.headers.as_slice()),
        environment: &config.environment,
    }
}

/// Waits for a worker, for as long as [`Invoker::invoke`](crate::Invoker::invoke) says.
pub(super) async fn lease(
    pool: &Arc<Pool>,
    invocation: &mut Invocation,
    announcement: Option<Announcement>,
) -> Result<Lease, Refusal> {
    let lease = match ask(pool, invocation, announcement)? {
        Leased::Now(lease) => lease,
        Leased::Later(waiting) => Box::pin(waiting.lease()).await?,
    };
    invocation.leased(&lease);
    Ok(lease)
}

fn ask(
    pool: &Arc<Pool>,
    invocation: &Invocation,
    announcement: Option<Announcement>,
) -> Result<Leased, Refusal> {
    let timeline = &invocation.timeline;
    let now = timeline.inputs_ready.or(timeline.admitted);
    let now = now.unwrap_or(timeline.received);
    pool.lease(now, invocation.urgency, announcement)
}
