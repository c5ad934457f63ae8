//! A running invocation: its stamps, and the record that is published at its end, however it ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http_body_util::{BodyExt as _, Empty};
use pilot_model::initscript::{ScriptRun, connection_name};
use pilot_model::inputs::Values;
use pilot_model::ports::{
    Clock, Done, EventSink, Fetched, HandedConnection, InitRunner, Initialised, Input, InputFault,
    InputFaultKind, InputKind, InputMemory, InputSource, PassedInputs, PassedRequest, StreamedBody,
    Worker,
};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{
    CpuTime, Event, FailedInput, Instant, InvocationId, InvocationRecord, Outcome, SharedWorker,
    StartKind, Timeline, TraceSpan, Transfer, TransferWay, Version, WorkerId, WorkerOrigin,
};
use pilot_pool::{Lease, Pools, Urgency};
use pilot_protocols::MemoryBudget;
use tokio::sync::Notify;
use tokio::time::Instant as Deadline;

use crate::duration::{self, Ran};
use crate::fault::LastOutput;
use crate::passed::upload::{Watch, watched};
use crate::request::Request;
use crate::script::{Begun, Going, messages_memory};
use crate::task::Task;
use crate::traffic::TunnelTraffic;
use crate::upload::Upload;

/// What every invocation needs.
#[derive(Debug)]
pub(crate) struct InvocationContext {
    pub(crate) pools: Pools,
    pub(crate) sink: Arc<dyn EventSink>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) inputs: Arc<dyn InputSource>,
    pub(crate) initscripts: Arc<dyn InitRunner>,
    /// For what functions send to their initscripts.
    script_messages: MemoryBudget,
    pub(crate) running: Arc<AtomicUsize>,
    quiet: Notify,
}

impl InvocationContext {
    pub(crate) fn new(
        pools: Pools,
        sink: Arc<dyn EventSink>,
        clock: Arc<dyn Clock>,
        (inputs, initscripts): (Arc<dyn InputSource>, Arc<dyn InitRunner>),
    ) -> Self {
        Self {
            pools,
            sink,
            clock,
            inputs,
            initscripts,
            script_messages: messages_memory(),
            running: Arc::default(),
            quiet: Notify::new(),
        }
    }

    /// Resolves once no invocation runs.
    pub(crate) async fn quiet(&self) {
        loop {
            let quiet = self.quiet.notified();
            if self.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            quiet.await;
        }
    }
}

/// A running invocation. If it is dropped before [`Invocation::end`], it was cancelled.
#[derive(Debug)]
pub(crate) struct Invocation {
    context: Arc<InvocationContext>,
    pub(crate) id: InvocationId,
    pub(crate) version: Arc<Version>,
    pub(crate) timeline: Timeline,
    pub(crate) start: StartKind,
    pub(crate) urgency: Urgency,
    trigger: FaasTrigger,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    worker: Option<WorkerId>,
    memory_bytes_max: Option<u64>,
    pss_bytes: Option<u64>,
    pub(crate) cpu: Option<CpuTime>,
    throttled: Option<Duration>,
    shared: Option<SharedWorker>,
    /// The messages of a WebSocket.
    pub(crate) traffic: Option<Arc<TunnelTraffic>>,
    /// The rest of the request's body, until the end.
    pub(crate) upload: Option<Upload>,
    /// The request's body that is an input, until the end.
    direct: Option<Arc<Watch>>,
    /// The handler's calls to other functions, until the end.
    pub(crate) calls: Option<Task>,
    /// The inputs for the worker, until they are sent.
    pub(crate) inputs: Vec<Input>,
    /// What is sent after the inputs: the progress of those that still arrive, and connections of initscripts.
    pub(crate) more: Vec<Input>,
    /// What these connections need, until the end.
    kept: Vec<Box<dyn std::fmt::Debug + Send + Sync>>,
    /// The memory of the inputs, until the end.
    input_memory: Vec<Arc<dyn InputMemory>>,
    pub(crate) transfers: Vec<Transfer>,
    /// What comes of its initscript after the call, until it is sent.
    script: Option<Begun>,
    /// The same, until the end.
    script_going: Option<Going>,
    /// What the initscripts say in the function's log.
    script_said: Option<String>,
    scripts: Vec<ScriptRun>,
    /// The output of a worker that ended before it took the call.
    printed_before: Bytes,
    /// See [`InvocationRecord::output_published`].
    pub(crate) output_published: Option<usize>,
    /// When the worker got the request, on the clock of timeouts. Not a stamp, because reading that clock again is not needed.
    called: Option<Deadline>,
    /// Its span, if it is recorded.
    trace: Option<Arc<TraceSpan>>,
    ended: bool,
}

impl Invocation {
    pub(crate) fn new(
        context: &Arc<InvocationContext>,
        request: &Request,
        admitted: Instant,
    ) -> Self {
        context.running.fetch_add(1, Ordering::SeqCst);
        let mut timeline = Timeline::new(request.received);
        timeline.admitted = Some(admitted.max(request.received));
        Self {
            context: Arc::clone(context),
            id: request.id.clone(),
            version: Arc::clone(&request.version),
            timeline,
            start: StartKind::Warm,
            urgency: request.urgency,
            trigger: request.trigger,
            bytes_out: 0,
            bytes_in: 0,
            worker: None,
            memory_bytes_max: None,
            pss_bytes: None,
            cpu: None,
            throttled: None,
            shared: None,
            traffic: None,
            upload: None,
            direct: None,
            calls: None,
            inputs: Vec::new(),
            more: Vec::new(),
            kept: Vec::new(),
            input_memory: Vec::new(),
            transfers: Vec::new(),
            script: None,
            script_going: None,
            script_said: None,
            scripts: Vec::new(),
            printed_before: Bytes::new(),
            output_published: None,
            called: None,
            trace: request.trace.as_ref().and_then(|trace| trace.span.clone()),
            ended: false,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.context.clock.now()
    }

    pub(crate) fn context(&self) -> &Arc<InvocationContext> {
        &self.context
    }

    /// Takes what was fetched. Returns why there is no invocation, if a required input is missing.
    pub(crate) fn fetched(&mut self, fetched: Fetched) -> Option<InputFault> {
        self.inputs.extend(fetched.inputs);
        self.more.extend(fetched.progress);
        self.input_memory.extend(fetched.memory);
        self.transfers.extend(fetched.transfers);
        fetched.fault
    }

    /// The request's body, which is an input: it counts as far as it arrives.
    pub(crate) fn counted(&mut self, body: StreamedBody) -> StreamedBody {
        let (body, watch) = watched(body);
        self.direct = Some(watch);
        body
    }

    /// Whether an input is the body of its request.
    pub(crate) fn is_body(&self, input: &str) -> bool {
        self.direct.is_some() && self.version.config.body_input() == Some(input)
    }

    /// Takes what an initscript has sent. A message whose id the invocation has already is left out: its own script is taken first, then
    /// the shared one.
    pub(crate) fn initialised(&mut self, initialised: Initialised) {
        let Initialised {
            mut fetched,
            connections,
            said,
            run,
        } = initialised;
        if self.version.config.runtime.forks() {
            if !connections.is_empty() {
                self.script = Some(Begun::ended(self.now(), connections));
            }
        } else {
            self.connected(connections);
        }
        if let Some(said) = said {
            self.script_said.get_or_insert_default().push_str(&said);
        }
        self.scripts.extend(run);
        let is_new = |name: &str| !self.inputs.iter().any(|input| input.name == name);
        fetched.inputs.retain(|input| is_new(&input.name));
        self.fetched(fetched);
    }

    /// Takes the connections of an initscript, for a worker that takes paths.
    fn connected(&mut self, connections: Vec<HandedConnection>) {
        let now = self.now();
        for HandedConnection {
            id,
            address,
            socket,
        } in connections
        {
            match socket {
                Ok(socket) => {
                    self.more.push(Input {
                        name: connection_name(id, Some(&address)),
                        kind: InputKind::Socket,
                        descriptor: Arc::new(socket.descriptor),
                        object: None,
                        decoded: None,
                    });
                    self.kept.extend(socket.kept);
                }
                Err(problem) => self.transfers.push(Transfer {
                    input: connection_name(id, None),
                    from: address,
                    bytes: 0,
                    began: now,
                    ended: now,
                    error: Some(problem),
                    way: TransferWay::Handed,
                    decoding: None,
                    streamed: None,
                }),
            }
        }
    }

    /// Its initscript goes on during the call.
    pub(crate) fn goes_on(&mut self, script: Begun) {
        self.script = Some(script);
    }

    /// The worker is about to be called: what comes of the initscript from now on goes there. Returns the descriptor for it.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn send_script(&mut self, worker: &Arc<dyn Worker>) -> io::Result<Option<Input>> {
        let Some(script) = self.script.take() else {
            return Ok(None);
        };
        let memory = self.context.script_messages.of(&self.version.config.name);
        let takes_paths = !self.version.config.runtime.forks();
        let paths = takes_paths.then(|| Arc::downgrade(worker));
        let (going, input) = Going::start(script, memory, paths)?;
        self.script_going = Some(going);
        Ok(Some(input))
    }

    /// Fetches the inputs of a request that is passed through, and puts them into its extensions. If its body is one of them, it has none
    /// any more. Returns why there is no invocation, if a required input is missing.
    pub(crate) async fn fetch_for(&mut self, passed: &mut PassedRequest) -> Option<InputFault> {
        let is_taken = self.version.config.body_input().is_some();
        let direct = is_taken.then(|| self.counted(take_body(passed)));
        let config = &self.version.config;
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        };
        let headers: Vec<(String, String)> = passed.headers().iter().map(text).collect();
        let values = Values {
            // The body is passed on as it arrives.
            event: b"",
            headers: Some(&headers),
            environment: &config.environment,
        };
        let inputs = Arc::clone(&self.context.inputs);
        // Only the function names inputs of such requests.
        let requested = BTreeMap::new();
        let fetched = inputs.fetch(config, &requested, values, direct).await;
        let fault = self.fetched(fetched);
        self.timeline.inputs_ready = Some(self.now());
        let inputs = PassedInputs {
            inputs: std::mem::take(&mut self.inputs),
            failed: self.failed_inputs(),
        };
        passed.extensions_mut().insert(inputs);
        fault
    }

    /// Takes what another function handed over. Returns why there is no invocation, if it cannot be passed on.
    pub(crate) fn handed(
        &mut self,
        (from, memory): (String, Arc<dyn InputMemory>),
    ) -> Option<InputFault> {
        let now = self.now();
        let (input, from) = ("data".to_owned(), format!("function:{from}"));
        match memory.input(&input) {
            Ok(given) => self.inputs.push(given),
            Err(error) => {
                return Some(InputFault {
                    input,
                    source_text: from,
                    kind: InputFaultKind::Unavailable,
                    problem: format!("no descriptor for it: {error}"),
                });
            }
        }
        self.transfers.push(Transfer {
            input,
            from,
            bytes: memory.bytes(),
            began: now,
            ended: now,
            error: None,
            way: TransferWay::Handed,
            decoding: None,
            streamed: None,
        });
        self.input_memory.push(memory);
        None
    }

    /// The head of a streamed answer is here.
    pub(crate) fn answers(&mut self, now: Instant) {
        self.timeline.first_byte = Some(now);
        self.settle_transfers();
    }

    /// Updates the records of the transfers that still ran when the worker got its inputs.
    fn settle_transfers(&mut self) {
        let running = self.input_memory.iter().filter_map(|one| one.transfer());
        for now in running {
            let known = &mut self.transfers;
            if let Some(transfer) = known.iter_mut().find(|one| one.input == now.input) {
                *transfer = now;
            }
        }
    }

    /// The memory of `inputs`, which were taken from this and begin with those that have memory, by name.
    pub(crate) fn memory_of(&self, inputs: &[Input]) -> Vec<(String, Arc<dyn InputMemory>)> {
        let names = inputs.iter().map(|input| input.name.clone());
        names.zip(self.input_memory.iter().cloned()).collect()
    }

    /// The inputs that the worker does not get.
    pub(crate) fn failed_inputs(&self) -> Vec<FailedInput> {
        let failed = self.transfers.iter().filter_map(|transfer| {
            Some(FailedInput {
                name: transfer.input.clone(),
                problem: transfer.error.clone()?,
            })
        });
        failed.collect()
    }

    /// Stores the worker, and the stamps of its start if the invocation waited for it. If that start began before the invocation
    /// arrived, its stamps are moved: the invocation saw only the rest of it.
    pub(crate) fn leased(&mut self, lease: &Lease) {
        self.worker = Some(lease.worker().id());
        self.start = lease.kind();
        self.timeline.origin = self.version.config.worker_origin();
        let admitted = self.timeline.admitted.unwrap_or(self.timeline.received);
        let given = lease.since().max(admitted);
        let Some(stamps) = lease.start() else {
            self.timeline.leased = Some(given);
            return;
        };
        let leased = stamps.asked.clamp(admitted, given);
        let forked = stamps.forked.clamp(leased, given);
        let sandboxed = stamps.sandboxed.clamp(forked, given);
        let initialised = stamps.initialised.clamp(sandboxed, given);
        self.timeline.leased = Some(leased);
        self.timeline.forked = Some(forked);
        self.timeline.sandboxed =
            (self.timeline.origin != WorkerOrigin::Runtime).then_some(sandboxed);
        self.timeline.initialised = Some(initialised);
    }

    /// The exchange begins, with a worker that is awake. Returns the stream's number.
    pub(crate) fn use_worker(&mut self, lease: &mut Lease) -> u32 {
        let stream = lease.begin();
        self.timeline.thawed = lease.thawed();
        stream
    }

    /// Its worker ended before it took the call, and had printed this.
    pub(crate) fn printed_before(&mut self, output: Bytes) {
        self.printed_before = output;
    }

    /// No worker came up for it. The phase `init` is the time of the attempts.
    pub(crate) fn start_failed(&mut self, now: Instant) {
        self.start = StartKind::Cold;
        let leased = self.timeline.admitted.unwrap_or(self.timeline.received);
        self.timeline.leased = Some(leased);
        self.timeline.initialised = Some(now);
    }

    /// Reads what the worker used since the last call. What was read before stays if the worker is gone.
    pub(crate) fn measure(&mut self, lease: &Lease, now: Instant) {
        let spent = lease.cpu(now);
        if let Some(spent) = spent {
            *self.cpu.get_or_insert_default() += spent;
        }
        let memory = lease.memory_bytes_max(now, spent);
        self.memory_bytes_max = memory.or(self.memory_bytes_max);
        self.pss_bytes = lease.pss_bytes().or(self.pss_bytes);
        if let Some(mut shared) = lease.shared(now) {
            // Read twice at a timeout: the first reading has the CPU time.
            let before = self.shared.and_then(|before| before.cpu);
            shared.cpu = match (before, shared.cpu) {
                (Some(mut before), Some(more)) => {
                    before += more;
                    Some(before)
                }
                (before, more) => before.or(more),
            };
            self.shared = Some(shared);
        }
        if let Some(throttled) = lease.throttled(now) {
            *self.throttled.get_or_insert_default() += throttled;
        }
    }

    /// The exchange with an HTTP server begins. What it prints is published from here on.
    pub(crate) fn begins(&mut self) {
        let at = self.now();
        self.timeline.started = Some(at);
        self.output_published = Some(0);
        self.context.sink.publish(Event::Began {
            id: self.id.clone(),
            version: Arc::clone(&self.version),
            at,
        });
    }

    /// Takes the worker's stamps. They come from the function's own process, so the order is enforced, and that the handler ran for as long
    /// as it takes to use the CPU time that was measured.
    pub(crate) fn done(&mut self, done: &Done, now: Instant) {
        let before = self.ready().min(now);
        let started = done.started.clamp(before, now);
        let said = Ran {
            started,
            returned: done.returned.clamp(started, now),
        };
        let cpu = self.cpu_alone().unwrap_or_default();
        let least = duration::least(cpu, &self.version.config);
        let ran = match said.lasted() >= least {
            true => said,
            false => said.for_at_least(least, self.called_at(now).max(before), now),
        };
        self.timeline.started = Some(ran.started);
        self.timeline.returned = Some(ran.returned);
        self.timeline.first_byte = Some(done.first_byte.clamp(ran.started, now));
    }

    /// The CPU time that was measured, if no other invocation can have used it.
    fn cpu_alone(&self) -> Option<Duration> {
        let alone = self.shared.is_none_or(|shared| shared.alone);
        Some(self.cpu.filter(|_| alone)?.total())
    }

    /// When the worker got the request. `now`: it has not.
    fn called_at(&self, now: Instant) -> Instant {
        let elapsed = self
            .called
            .map_or(Duration::ZERO, |called| called.elapsed());
        let ran = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        Instant(now.0.saturating_sub(ran))
    }

    /// When its worker was there and awake, as far as known.
    fn ready(&self) -> Instant {
        let timeline = &self.timeline;
        let ready = timeline
            .initialised
            .or(timeline.leased)
            .max(timeline.thawed);
        ready.unwrap_or(timeline.received)
    }

    /// The worker gets the request: its handler runs from here on, unless the worker tells more exactly. Returns the time, on the clock of
    /// timeouts.
    pub(crate) fn called(&mut self) -> Deadline {
        *self.called.insert(Deadline::now())
    }

    /// The handler has been ended: by its timeout, by the end of its worker, because the client hung up. Does nothing if it has
    /// returned, or was never called.
    pub(crate) fn stopped(&mut self, now: Instant) {
        if self.called.is_none() || self.timeline.returned.is_some() {
            return;
        }
        let before = self.ready().min(now);
        let started = self.called_at(now).clamp(before, now);
        self.timeline.started.get_or_insert(started);
        self.timeline.returned = Some(now);
    }

    /// What its worker printed until the answer. If others ran there meanwhile, nobody knows whose it is: it is published without an id, so
    /// that no caller gets the lines of another one. [`Invocation::measure`] comes before.
    pub(crate) fn printed(&self, output: Bytes) -> LastOutput {
        if output.is_empty() || self.shared.is_none_or(|shared| shared.alone) {
            return LastOutput::printed(output);
        }
        self.context.sink.publish(Event::Printed {
            version: Arc::clone(&self.version),
            output,
            at: self.now(),
        });
        LastOutput::default()
    }

    /// The output for the record: of an HTTP server what it has printed, followed by `output`.
    pub(crate) fn output(&mut self, lease: &Lease, output: LastOutput) -> LastOutput {
        if self.output_published.is_none() {
            return output;
        }
        let length = output.bytes.len();
        let whole = output.after(lease.flush_output());
        self.output_published = Some(whole.bytes.len() - length);
        whole
    }

    /// It has ended: publishes the record.
    pub(crate) fn end(
        &mut self,
        now: Instant,
        outcome: Outcome,
        output: LastOutput,
    ) -> Arc<InvocationRecord> {
        self.ended = true;
        self.script = None;
        if let Some(going) = self.script_going.take() {
            let record = going.end(&self.version, self.context.clock.as_ref());
            self.transfers.extend(record.transfers);
            self.scripts.extend(record.run);
            if let Some(said) = record.said {
                self.script_said.get_or_insert_default().push_str(&said);
            }
        }
        let output = output.after(std::mem::take(&mut self.printed_before));
        let output = match self.script_said.take() {
            Some(said) => output.and_script(&self.id, &said),
            None => output,
        };
        if let Some(upload) = self.upload.take() {
            self.bytes_in += upload.passed();
        }
        if let Some(direct) = self.direct.take() {
            self.bytes_in += direct.close();
        }
        if let Some(traffic) = self.traffic.take() {
            self.bytes_in += traffic.bytes_in.load(Ordering::Relaxed);
            self.bytes_out += traffic.bytes_out.load(Ordering::Relaxed);
        }
        self.calls = None;
        self.settle_transfers();
        self.inputs.clear();
        self.more.clear();
        self.kept.clear();
        self.input_memory.clear();
        self.stopped(now);
        self.timeline.finished = Some(now);
        let record = Arc::new(InvocationRecord {
            id: self.id.clone(),
            version: Arc::clone(&self.version),
            trigger: self.trigger,
            worker: self.worker,
            start: self.start,
            outcome,
            timeline: self.timeline,
            transfers: self.transfers.clone(),
            scripts: std::mem::take(&mut self.scripts),
            memory_bytes_max: self.memory_bytes_max,
            pss_bytes: self.pss_bytes,
            cpu: self.cpu,
            throttled: self.throttled,
            shared: self.shared,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            output: output.bytes,
            output_printed: output.printed,
            output_published: self.output_published,
            trace: self.trace.take(),
        });
        self.context
            .sink
            .publish(Event::Invoked(Arc::clone(&record)));
        record
    }
}

/// The body of a request that is passed through, which has none after that. Its headers say so.
fn take_body(passed: &mut PassedRequest) -> StreamedBody {
    let headers = passed.headers_mut();
    let is_chunked = headers.remove(TRANSFER_ENCODING).is_some();
    if is_chunked || headers.contains_key(CONTENT_LENGTH) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let nothing = Empty::new().map_err(|never| match never {});
    std::mem::replace(passed.body_mut(), StreamedBody::new(nothing))
}

/// While a worker serves: if this is dropped before [`Serving::ends`], the caller has hung up, and what the worker has used counts.
pub(crate) struct Serving<'a>(pub(crate) &'a mut Invocation, pub(crate) &'a Lease);

impl Serving<'_> {
    pub(crate) fn ends(self) {
        std::mem::forget(self);
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.measure(self.1, now);
    }
}

impl Drop for Invocation {
    fn drop(&mut self) {
        if !self.ended {
            self.end(self.now(), Outcome::Cancelled, LastOutput::default());
        }
        if self.context.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.context.quiet.notify_waiters();
        }
    }
}
