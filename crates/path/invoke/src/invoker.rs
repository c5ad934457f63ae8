//! `Invoker`: the interface for the gateway and the control side. It knows the live version of each name.

mod calls;
mod exchange;
mod join;
mod passing;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::forecast::MakeForecaster;
use pilot_model::ports::{
    Clock, Engine, EventSink, InitRunner, InputFault, InputSource, PassedRequest, Peer, Placement,
    Platform, Scaling, StartError,
};
use pilot_model::status::{ForecastStatus, PoolStatus, RuntimeStatus};
use pilot_model::{BoxFuture, FunctionName, Instant, Outcome, Runtime, ScaleConfig, Version};
use pilot_pool::{Awaited, Pool, PoolLimits, Pools, Refusal};
use pilot_protocols::MemoryBudget;

use crate::elsewhere::Elsewhere;
use crate::error::{InvokeError, ThrottleReason};
use crate::fault::{Failure, LastOutput};
use crate::functions::{Function, Functions, same};
use crate::invocation::{Invocation, InvocationContext};
use crate::limits::Limits;
use crate::request::{Payload, Request};
use crate::response::{Response, ResponseBody};
use crate::starting::Starting;
use calls::events_memory;
use exchange::exchange;
use join::{NotReady, join, lease};
use passing::pass;

/// The running functions. Shared as `Arc<Invoker>`.
#[derive(Debug)]
pub struct Invoker {
    engine: Arc<dyn Engine>,
    context: Arc<InvocationContext>,
    /// Where functions are that are not here.
    placement: Arc<dyn Placement>,
    limits: Limits,
    /// For functions that invoke others.
    itself: Weak<Self>,
    /// For the events of their calls.
    events: MemoryBudget,
    /// Read on the path without a lock; replaced as a whole while `change` is held.
    functions: ArcSwap<Functions>,
    /// Serialises activation and removal.
    change: Mutex<()>,
}

impl Invoker {
    /// Starts with no function. `inputs`: where inputs come from, and who runs initscripts. `placement`: where functions are that are
    /// not here. Call it inside a tokio runtime: its timer and sampler run there.
    #[must_use]
    pub fn new(
        engine: Arc<dyn Engine>,
        sink: Arc<dyn EventSink>,
        clock: Arc<dyn Clock>,
        inputs: (Arc<dyn InputSource>, Arc<dyn InitRunner>),
        placement: Arc<dyn Placement>,
        forecaster: MakeForecaster,
        limits: Limits,
    ) -> Arc<Self> {
        let starting = Starting::around(Arc::clone(&engine), &inputs);
        let pools = Pools::new(
            starting,
            Arc::clone(&sink),
            Arc::clone(&clock),
            forecaster,
            PoolLimits {
                queue_max: limits.queue_max,
                start_wait_max: limits.start_wait_max,
                wait_max: limits.wait_max,
                memory_bytes_max: limits.memory_bytes_max,
                memory_sample_every: limits.memory_sample_every,
                workers_max: limits.workers_max,
                start_rule: limits.start_rule,
                cpus: limits.cpus,
            },
        );
        Arc::new_cyclic(|itself| Self {
            engine,
            context: Arc::new(InvocationContext::new(pools, sink, clock, inputs)),
            placement,
            limits,
            itself: Weak::clone(itself),
            events: events_memory(),
            functions: ArcSwap::default(),
            change: Mutex::new(()),
        })
    }

    /// The version for a name and a qualifier. `qualifier`: `None` or `$LATEST` for the live one, a version's number, or its id.
    ///
    /// # Errors
    /// [`InvokeError::FunctionNotFound`], [`InvokeError::Broken`], [`InvokeError::VersionNotFound`].
    pub fn find(&self, name: &str, qualifier: Option<&str>) -> Result<Arc<Version>, InvokeError> {
        let functions = self.functions.load();
        functions.find(name)?.version(qualifier).map(Arc::clone)
    }

    /// Invokes and waits for the answer, or for the head of a streamed one. Dropping the future cancels the invocation.
    ///
    /// A worker starts while `payload` is still arriving. The function's timeout counts from the call of the handler, as in
    /// Lambda. Before that, the request waits for a busy worker at most for `scale.max_wait_s`, or [`Limits::wait_max`], or else for
    /// the same time, and for a starting one at most for [`Limits::start_wait_max`]; then it is refused. It is refused at once if the
    /// queue takes longer, or too long for the deadline of [`Request::urgency`].
    ///
    /// # Errors
    /// The payload's own errors, and [`InvokeError`]. Errors of the function itself are a [`Response`].
    pub async fn invoke<E: From<InvokeError>>(
        &self,
        request: Request,
        payload: impl Future<Output = Result<Payload, E>>,
    ) -> Result<Response, E> {
        let pool = self.pool(&request.version)?;
        let joined = join(&self.context, &self.limits, &pool, &request, payload).await?;
        match joined.lease {
            Ok(lease) => {
                Ok(exchange(self, request, joined.payload, joined.invocation, lease).await?)
            }
            Err(not_ready) => Ok(without_exchange(joined.invocation, not_ready)?),
        }
    }

    /// Passes a request through to the function's own HTTP server, and waits for the response's head. A worker is leased at once,
    /// because the server reads the body as it arrives. Dropping the future cancels the invocation.
    ///
    /// # Errors
    /// See [`Invoker::invoke`].
    pub async fn pass(
        &self,
        request: Request,
        mut passed: PassedRequest,
    ) -> Result<Response, InvokeError> {
        let pool = self.pool(&request.version)?;
        let mut invocation = Invocation::new(&self.context, &request, self.now());
        let mut announcement = None;
        if !request.version.config.inputs.is_empty() {
            let awaited = match request.version.config.body_input() {
                Some(_) => Awaited::Sender,
                None => Awaited::Inputs,
            };
            announcement = Some(pool.announce(self.now(), awaited));
            if let Some(fault) = invocation.fetch_for(&mut passed).await {
                let not_ready = NotReady::without(&invocation, fault);
                return without_exchange(invocation, not_ready);
            }
        }
        match lease(&pool, &mut invocation, announcement).await {
            Ok(lease) => pass(self, passed, invocation, lease).await,
            Err(refusal) => refused(invocation, refusal),
        }
    }

    /// The function, if it is not here and other nodes have it.
    #[must_use]
    pub fn elsewhere(&self, name: &str) -> Option<Elsewhere> {
        let error = self.functions.load().find(name).err()?;
        if !matches!(error, InvokeError::FunctionNotFound { .. }) {
            return None;
        }
        let nodes = self.nodes_of(name);
        let function = name.parse().ok().filter(|_| !nodes.is_empty())?;
        Some(Elsewhere { function, nodes })
    }

    /// The nodes that have this function, which is not here.
    fn nodes_of(&self, function: &str) -> Vec<Arc<dyn Peer>> {
        self.placement.place(function)
    }

    /// Another reference. `None`: it is being dropped.
    fn itself(&self) -> Option<Arc<Self>> {
        self.itself.upgrade()
    }

    /// The present time, on the clock of all stamps.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.context.clock.now()
    }

    /// How many invocations run, the waiting ones included. It goes on counting, and does not keep the invoker alive.
    #[must_use]
    pub fn running(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.context.running)
    }

    /// Waits at most `grace` for the running invocations, then retires every worker. It does not refuse new requests; the gateway
    /// does.
    pub async fn drain(&self, grace: Duration) {
        if tokio::time::timeout(grace, self.context.quiet())
            .await
            .is_err()
        {
            tracing::warn!(?grace, "invocations still run: their workers are ended");
        }
        self.context.pools.close().await;
    }

    /// Waits until what workers printed at their end is published. Call it after [`Invoker::drain`], when their sandboxes have ended.
    pub async fn settle(&self) {
        self.context.pools.settle().await;
    }

    /// Whether all functions' workers that are always kept, those that are kept ready, and reserved ones fit together with those of
    /// this version. A quarter of the places stays free for everything else.
    fn has_room_for(&self, version: &Version) -> Result<(), StartError> {
        let kept = |version: &Version| {
            let scale = &version.config.scale;
            (u64::from(scale.min) + u64::from(scale.spare)).max(u64::from(scale.reserved))
        };
        let functions = self.functions.load();
        let others: u64 = functions
            .live()
            .map(|pool| pool.version())
            .filter(|other| other.config.name != version.config.name)
            .map(|other| kept(other))
            .sum();
        let places = self.limits.workers_max as u64;
        let room = places - places / 4;
        if kept(version) == 0 || others + kept(version) <= room {
            return Ok(());
        }
        let scale = &version.config.scale;
        Err(StartError::Full {
            problem: format!(
                "scale.min = {}, scale.spare = {} and scale.reserved = {} keep more workers than there is room for: this daemon can keep \
                 {room}, and other functions keep {others} of them; lower them, or raise limits.workers",
                scale.min, scale.spare, scale.reserved
            ),
        })
    }

    /// Whether a worker of this version may have no more memory than everything together. Otherwise the kernel would end others for
    /// what it uses. Engines of containers may have their groups elsewhere.
    fn has_memory_for(&self, version: &Version) -> Result<(), StartError> {
        let wanted = version.config.memory_bytes;
        match self.limits.total_memory_bytes {
            Some(total)
                if wanted > total && !matches!(version.config.runtime, Runtime::Container(_)) =>
            {
                Err(StartError::Full {
                    problem: format!(
                        "memory_mb is {}, and limits.total_memory_mb of pilotd.toml, for all functions and builds together, is {}: ask for \
                         less, or raise that limit",
                        wanted >> 20,
                        total >> 20
                    ),
                })
            }
            _ => Ok(()),
        }
    }

    /// The pool of a version from [`Invoker::find`].
    fn pool(&self, version: &Arc<Version>) -> Result<Arc<Pool>, InvokeError> {
        let functions = self.functions.load();
        let function = functions.find(version.config.name.as_str())?;
        function.pool(version).map(Arc::clone)
    }

    /// Replaces the table of names. Returns the result of `change`.
    fn change<T>(&self, change: impl FnOnce(&mut Functions) -> T) -> T {
        let _one_at_a_time = self.change.lock();
        let mut functions = Functions::clone(&self.functions.load());
        let result = change(&mut functions);
        self.functions.store(Arc::new(functions));
        result
    }
}

impl Platform for Invoker {
    fn try_version(
        &self,
        version: &Arc<Version>,
    ) -> BoxFuture<'static, Result<TemplateReport, StartError>> {
        let inputs = self.context.inputs.check(&version.config);
        let inputs = inputs.map_err(|problem| StartError::Inputs { problem });
        if let Err(unfit) = inputs
            .and_then(|()| self.has_memory_for(version))
            .and_then(|()| self.has_room_for(version))
        {
            return Box::pin(async { Err(unfit) });
        }
        if version.config.initscripts().next().is_none() {
            return self.context.pools.prepare(version);
        }
        let compiled = self.context.initscripts.prepare(version);
        let (context, version) = (Arc::clone(&self.context), Arc::clone(version));
        Box::pin(async move {
            let compiled = compiled.await;
            compiled.map_err(|problem| StartError::Initscript { problem })?;
            context.pools.prepare(&version).await
        })
    }

    fn discard(&self, version: &Arc<Version>) {
        let functions = self.functions.load();
        let live = functions
            .running(version.config.name.as_str())
            .map(|function| &function.live);
        match live.filter(|live| live.version().id == version.id) {
            // A deployment of the same code and configuration has its template in common with the live version.
            Some(live) => live.note_prepared(),
            None => self.engine.forget(version),
        }
    }

    fn activate(&self, version: Arc<Version>) {
        self.context.initscripts.activate(&version);
        let config = &version.config;
        let pools = &self.context.pools;
        pools.reserve(&config.name, config.scale.reserved);
        let older_max = self.limits.older_versions_max;
        let replaced = self.change(|functions| {
            let name = version.config.name.as_str().to_owned();
            let Some(function) = functions.running_mut(&name) else {
                let live = self.context.pools.open(version);
                functions.insert(
                    name,
                    Function {
                        live,
                        older: Vec::new(),
                    },
                );
                return None;
            };
            if same(function.live.version(), &version) {
                function.live.note_prepared();
                return None;
            }
            let again = function
                .older
                .iter()
                .position(|pool| same(pool.version(), &version));
            let live = match again {
                Some(at) => function.older.remove(at),
                None => self.context.pools.open(version),
            };
            live.inherit_forecast(&function.live);
            live.revive();
            let replaced = std::mem::replace(&mut function.live, live);
            function.older.insert(0, Arc::clone(&replaced));
            function.older.truncate(older_max);
            Some(replaced)
        });
        if let Some(replaced) = replaced {
            replaced.retire();
        }
    }

    fn mark_broken(&self, name: &FunctionName, problem: &str) {
        self.change(|functions| functions.insert_broken(name.as_str(), problem));
    }

    fn keep_versions(&self, name: &FunctionName, kept: &[u32]) {
        let forgotten = self.change(|functions| {
            let function = functions.running_mut(name.as_str())?;
            let older = std::mem::take(&mut function.older);
            let (kept, forgotten) = older
                .into_iter()
                .partition(|pool| kept.contains(&pool.version().number));
            function.older = kept;
            Some(forgotten)
        });
        for pool in forgotten.iter().flat_map(|pools: &Vec<_>| pools) {
            pool.retire();
        }
    }

    fn remove(&self, name: &FunctionName) {
        let removed = self.change(|functions| functions.remove(name.as_str()));
        self.context.pools.reserve(name, 0);
        for pool in removed.iter().flat_map(Function::pools) {
            pool.retire();
        }
    }

    fn renew(&self, name: &FunctionName) {
        let functions = self.functions.load();
        for pool in functions
            .running(name.as_str())
            .into_iter()
            .flat_map(Function::pools)
        {
            pool.renew();
        }
    }

    fn status(&self, name: &FunctionName) -> Option<PoolStatus> {
        let functions = self.functions.load();
        let pools = functions.running(name.as_str())?.pools();
        Some(pools.fold(PoolStatus::default(), |sum, pool| {
            let status = pool.status();
            PoolStatus {
                starting: sum.starting + status.starting,
                idle: sum.idle + status.idle,
                frozen: sum.frozen + status.frozen,
                busy: sum.busy + status.busy,
                waiting: sum.waiting + status.waiting,
                memory_bytes: sum.memory_bytes + status.memory_bytes,
            }
        }))
    }

    fn scale(&self, name: &FunctionName, scaling: Scaling) -> Option<PoolStatus> {
        let live = Arc::clone(&self.functions.load().running(name.as_str())?.live);
        if let Some(policy) = scaling.policy {
            let scale = &live.version().config.scale;
            live.start_forecast(ScaleConfig {
                policy,
                ..scale.clone()
            });
        }
        if let Some(workers) = scaling.workers {
            live.scale(workers);
        }
        self.status(name)
    }

    fn forecast(&self, name: &FunctionName) -> Option<ForecastStatus> {
        let functions = self.functions.load();
        functions.running(name.as_str())?.live.forecast_status()
    }

    fn runtimes(&self, name: &FunctionName) -> Option<RuntimeStatus> {
        let functions = self.functions.load();
        let live = &functions.running(name.as_str())?.live;
        self.engine.runtimes(live.version())
    }
}

/// An invocation that has not all that it needs.
fn without_exchange(invocation: Invocation, not_ready: NotReady) -> Result<Response, InvokeError> {
    match not_ready {
        NotReady::Refused(refusal) => refused(invocation, refusal),
        NotReady::Input(fault) => Ok(without_input(invocation, &fault)),
        NotReady::Body(fault) => {
            // The record and the function's log say it, too.
            drop(without_input(invocation, &fault));
            Err(InvokeError::BodyInput { fault })
        }
    }
}

/// An invocation without an input that it needs: an error of this invocation alone.
fn without_input(invocation: Invocation, fault: &InputFault) -> Response {
    let (body, output) = Failure::input(&invocation.id, fault);
    let body = ResponseBody::FunctionError(body);
    let now = invocation.now();
    Response::complete(invocation, now, Outcome::InputError, output, body)
}

/// What a client is told to wait: as long as the queue takes now, seconds, or 1 if that is not known.
fn retry_after_s(wait: Option<Duration>) -> u32 {
    let seconds = wait.map_or(1, |wait| wait.as_millis().div_ceil(1000));
    u32::try_from(seconds)
        .unwrap_or(u32::MAX)
        .clamp(1, RETRY_AFTER_S_MAX)
}

/// The longest that a client is told to wait, seconds.
const RETRY_AFTER_S_MAX: u32 = 60;

/// An invocation that got no worker. If the handler cannot be imported, that is the function's error and therefore an answer.
fn refused(mut invocation: Invocation, refusal: Refusal) -> Result<Response, InvokeError> {
    let now = invocation.now();
    let name = invocation.version.config.name.clone();
    let throttled = |reason, wait: Option<Duration>| InvokeError::TooManyRequests {
        name: name.clone(),
        reason,
        retry_after_s: retry_after_s(wait),
    };
    let (outcome, output, error) = match refusal {
        Refusal::Start(StartError::Import { body, output }) => {
            invocation.start_failed(now);
            let body = ResponseBody::FunctionError(body.into());
            let output = LastOutput::printed(output.into());
            return Ok(Response::complete(
                invocation,
                now,
                Outcome::InitError,
                output,
                body,
            ));
        }
        Refusal::Start(error) => {
            invocation.start_failed(now);
            let output = match &error {
                StartError::Runtime { output, .. } => Bytes::from(output.clone()),
                _ => Bytes::new(),
            };
            let outcome = match error {
                StartError::Full { .. } => Outcome::Throttled,
                _ => Outcome::InitError,
            };
            let name = name.clone();
            (outcome, output, InvokeError::StartFailed { name, error })
        }
        Refusal::Full(wait) => (
            Outcome::Throttled,
            Bytes::new(),
            throttled(ThrottleReason::QueueFull, wait),
        ),
        Refusal::Late(wait) => (
            Outcome::Throttled,
            Bytes::new(),
            throttled(ThrottleReason::Late, wait),
        ),
        Refusal::TimedOut(wait) => (
            Outcome::Throttled,
            Bytes::new(),
            throttled(ThrottleReason::QueueTimeout, wait),
        ),
        Refusal::NotStarted => (
            Outcome::Throttled,
            Bytes::new(),
            throttled(ThrottleReason::StartTimeout, None),
        ),
        Refusal::Closed => (Outcome::Cancelled, Bytes::new(), InvokeError::ShuttingDown),
    };
    // The phase `lease` is the time that it waited.
    invocation.timeline.leased.get_or_insert(now);
    invocation.end(now, outcome, LastOutput::printed(output));
    Err(error)
}
