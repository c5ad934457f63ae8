//! The daemon's handle of a worker: a process in a sandbox, its invocation channel, its output.

mod call;
mod mux;
mod output;
mod released;
mod socket;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{
    Answer, BoxFuture, Call, INPUTS_MAX, Input, MemoryShortage, Part, ShownInputs, StartError,
    StartStamps, Worker, WorkerFault, WorkerMemory,
};
use pilot_model::timeline::Instant;
use pilot_model::{CpuTime, Farewell, FunctionConfig, Rest, WorkerId};
use pilot_protocols::{HeldFiles, Holders};
use pilot_wire::Kind;
use pilot_wire::meta::ReadyMeta;
use tokio::sync::{Mutex as AsyncMutex, SetOnce, oneshot};
use tokio::time::timeout;

use call::CallError;
pub(crate) use call::Connection;
use mux::Mux;
pub(crate) use output::{Drained, Output};
pub(crate) use released::{Grace, Released, SIGKILL, SIGTERM};

use crate::cgroup::Cgroup;
use crate::child::{Child, ChildEnd, END_TIME_MAX, or_end};
use crate::memory;
use crate::pace::Paceable;
use crate::sandbox::Sandbox;

/// A forked (or newly executed) process in a sandbox.
pub(crate) struct ForkedWorker {
    id: WorkerId,
    stamps: StartStamps,
    memory_bytes_max: u64,
    inputs_max: usize,
    /// How it ends when it is released, if its function says so.
    farewell: Option<Farewell>,
    /// Also of its grace period.
    link: Arc<Link>,
    /// Set when its process has been reaped.
    end: Arc<SetOnce<ChildEnd>>,
    /// It was told to end.
    killed: AtomicBool,
    /// Set when the kernel has killed a process of the sandbox because memory was short.
    out_of_memory: OnceLock<MemoryShortage>,
    /// Taken when the worker is killed, or released for reuse.
    body: Mutex<Option<Body>>,
    /// Peak of its memory when it was killed, bytes.
    last_peak: AtomicU64,
    /// Takes its sandbox back.
    owner: Arc<dyn SandboxOwner>,
    cpu: CpuClock,
    /// What paces it while it serves.
    paceable: Option<Paceable>,
    /// Shows the inputs, if it cannot take descriptors.
    holders: Option<Holders>,
    /// What it prints before it ends, if it got time for that. Taken once.
    last_output: Mutex<Option<oneshot::Receiver<Bytes>>>,
    /// The inputs of streamed answers that are not complete, by stream. The lock is held for a look-up.
    held: Mutex<HashMap<u32, HeldFiles>>,
}

/// The channel, by its number of concurrent exchanges.
#[expect(
    clippy::large_enum_variant,
    reason = "it is behind an `Arc`, and most workers have the larger one"
)]
#[derive(Debug)]
enum Link {
    /// One at a time; the lock enforces it. Held across awaits by design.
    OneAtATime(AsyncMutex<Connection>),
    Several(Mux),
}

impl Link {
    /// Reads what the worker prints until `work` is done, so that printing does not hold it up. Nobody asks for it.
    async fn drain_while<T>(&self, work: impl Future<Output = T>) -> T {
        match self {
            Self::OneAtATime(connection) => {
                let mut connection = connection.lock().await;
                connection.output().drain_while(work).await
            }
            // Its task reads.
            Self::Several(_) => work.await,
        }
    }

    /// What the worker printed since its last answer, when its process has ended.
    async fn last_output(&self) -> Bytes {
        match self {
            Self::OneAtATime(connection) => connection.lock().await.output().take(),
            Self::Several(mux) => mux.last_output().await,
        }
    }
}

/// What ends with the worker.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) sandbox: Sandbox,
    pub(crate) process: Child,
}

impl Body {
    /// As [`Worker::memory_peak`].
    pub(crate) fn peak(this: &Mutex<Option<Self>>) -> Option<u64> {
        this.lock().as_ref()?.sandbox.cgroup()?.peak_bytes()
    }

    /// As [`Worker::rest`].
    pub(crate) fn rest(this: &Mutex<Option<Self>>, how: Rest) -> io::Result<()> {
        Self::cgroup_of(this).map_or(Err(io::ErrorKind::Unsupported.into()), |cgroup| {
            cgroup.rest(how)
        })
    }

    /// As [`Worker::wake`].
    pub(crate) fn wake(this: &Mutex<Option<Self>>) -> io::Result<()> {
        Self::cgroup_of(this).map_or(Ok(()), |cgroup| cgroup.wake())
    }

    /// As [`Worker::reclaim`].
    pub(crate) fn reclaim(this: &Mutex<Option<Self>>) -> io::Result<()> {
        // Not under the lock, which waking the worker needs.
        Self::cgroup_of(this).map_or(Ok(()), |cgroup| cgroup.reclaim())
    }

    pub(crate) fn cgroup_of(this: &Mutex<Option<Self>>) -> Option<Arc<Cgroup>> {
        this.lock().as_ref()?.sandbox.shared_cgroup()
    }

    /// Memory of the sandbox's processes; nothing once the worker is killed or released.
    pub(crate) fn memory(this: &Mutex<Option<Self>>) -> WorkerMemory {
        let seen = {
            let body = this.lock();
            let cgroup = body.as_ref().and_then(|body| body.sandbox.cgroup());
            cgroup.map(|cgroup| (cgroup.processes(), cgroup.peak_bytes()))
        };
        let Some((processes, peak)) = seen else {
            return WorkerMemory::default();
        };
        // Not under the lock, which ending the worker needs: reading the memory of a process that forks waits until the fork is
        // done, which may take many seconds if it waits for memory.
        WorkerMemory {
            pss: processes.into_iter().map(memory::pss_bytes).sum(),
            peak,
        }
    }
}

/// Reads the CPU time of a sandbox's processes, or, where the kernel counts none for its group, of its main process.
#[derive(Debug, Default)]
pub(crate) struct CpuClock {
    /// The main process, as the daemon sees it. Found at the first read, which takes 20 µs more.
    pid: OnceLock<u32>,
    /// What was read last, for those who ask when the sandbox is gone.
    last: Mutex<(Option<CpuTime>, Option<Duration>)>,
}

impl CpuClock {
    /// CPU time. `None`: there is no cgroup.
    pub(crate) fn read(&self, body: &Mutex<Option<Body>>) -> Option<CpuTime> {
        match body.lock().as_ref() {
            Some(body) => {
                if let Some(cpu) = body.sandbox.cgroup()?.cpu() {
                    return Some(cpu);
                }
            }
            None => return self.last.lock().0,
        }
        self.of_main_process(body)
    }

    /// Time for which the sandbox was throttled. `None`: it is not counted.
    pub(crate) fn throttled(&self, body: &Mutex<Option<Body>>) -> Option<Duration> {
        match body.lock().as_ref() {
            Some(body) => body.sandbox.cgroup()?.throttled(),
            None => self.last.lock().1,
        }
    }

    /// The sandbox will be gone: remembers what was counted.
    pub(crate) fn remember(&self, body: &Body) {
        if let Some(cgroup) = body.sandbox.cgroup() {
            *self.last.lock() = (cgroup.cpu(), cgroup.throttled());
        }
    }

    fn of_main_process(&self, body: &Mutex<Option<Body>>) -> Option<CpuTime> {
        let pid = match self.pid.get() {
            Some(pid) => *pid,
            None => {
                let processes = body.lock().as_ref()?.sandbox.cgroup()?.processes();
                // Its children have higher numbers, as long as the numbers do not wrap around.
                let main = processes.into_iter().min()?;
                *self.pid.get_or_init(|| main)
            }
        };
        let (user, all) = pilot_sys::clock::process_cpu_ns(pid)?;
        Some(CpuTime {
            user: Duration::from_nanos(user),
            system: Duration::from_nanos(all - user),
        })
    }
}

/// Has the sandbox of a worker, and takes it back when the worker is released.
pub(crate) trait SandboxOwner: fmt::Debug + Send + Sync {
    /// Takes it back. The worker's channel is closed, unless it has a grace period; its process may still be ending.
    fn take_back(&self, released: Released);

    /// The sandbox ended with its worker.
    fn lost(&self) {}
}

impl fmt::Debug for ForkedWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkedWorker")
            .field("id", &self.id)
            .field("stamps", &self.stamps)
            .finish_non_exhaustive()
    }
}

impl ForkedWorker {
    /// Waits until the process is ready.
    pub(crate) async fn when_ready(
        id: WorkerId,
        asked: Instant,
        template: Instant,
        config: &FunctionConfig,
        mut connection: Connection,
        body: Body,
        owner: Arc<dyn SandboxOwner>,
    ) -> Result<Self, StartError> {
        let runtime = |problem: String, connection: &mut Connection| StartError::Runtime {
            problem,
            output: connection.output().take_text(),
        };
        let frame = match or_end(connection.frame(), body.process.end()).await {
            Ok(Ok(frame)) => frame,
            Ok(Err(CallError::Broken(problem))) => return Err(runtime(problem, &mut connection)),
            ended @ (Ok(Err(CallError::Closed { .. })) | Err(_)) => {
                let end = match ended {
                    Err(end) => end,
                    Ok(_) => timeout(END_TIME_MAX, body.process.end())
                        .await
                        .unwrap_or(ChildEnd::Unknown),
                };
                let shortage = body.sandbox.cgroup().and_then(Cgroup::shortage);
                let problem = match (&end, shortage) {
                    (ChildEnd::Signalled(_), Some(shortage)) => shortage.of_start("starting"),
                    _ => format!("the worker {} before it was ready", end.in_words()),
                };
                return Err(runtime(problem, &mut connection));
            }
        };
        match frame.kind {
            Kind::Ready => {
                let ready: ReadyMeta = serde_json::from_slice(&frame.meta)
                    .map_err(|error| runtime(format!("READY: {error}"), &mut connection))?;
                let link = match config.concurrency {
                    1 => Link::OneAtATime(AsyncMutex::new(connection)),
                    _ => Link::Several(Mux::new(connection).map_err(|error| {
                        StartError::Sandbox {
                            problem: format!("a second descriptor for a worker's channel: {error}"),
                        }
                    })?),
                };
                Ok(Self {
                    id,
                    stamps: StartStamps {
                        asked,
                        template,
                        forked: Instant(ready.forked_ns),
                        sandboxed: Instant(ready.sandboxed_ns),
                        initialised: Instant(ready.initialised_ns),
                    },
                    memory_bytes_max: config.memory_bytes,
                    inputs_max: INPUTS_MAX.min(ready.inputs_max as usize),
                    farewell: config.keep_alive.farewell(),
                    link: Arc::new(link),
                    end: body.process.end_watch(),
                    killed: AtomicBool::new(false),
                    out_of_memory: OnceLock::new(),
                    body: Mutex::new(Some(body)),
                    last_peak: AtomicU64::new(0),
                    owner,
                    cpu: CpuClock::default(),
                    paceable: None,
                    holders: None,
                    last_output: Mutex::default(),
                    held: Mutex::default(),
                })
            }
            Kind::InitError => {
                let error = StartError::Import {
                    body: String::from_utf8_lossy(&frame.body).into_owned(),
                    output: connection.output().take_text(),
                };
                // The process exits by itself when the channel closes, so the sandbox can be reused.
                drop(connection);
                owner.take_back(Released { body, grace: None });
                Err(error)
            }
            other => Err(runtime(
                format!("the worker's first frame is {other:?}"),
                &mut connection,
            )),
        }
    }
}

impl ForkedWorker {
    /// A worker that takes inputs by their paths, because it cannot take descriptors.
    pub(crate) fn with_paths(mut self, holders: Holders) -> Self {
        self.holders = Some(holders);
        self.inputs_max = INPUTS_MAX;
        self
    }

    /// A worker that is paced while it serves.
    pub(crate) fn paced(mut self, paceable: Option<Paceable>) -> Self {
        self.paceable = paceable;
        self
    }

    /// Shows the inputs of a call to a worker that takes paths.
    async fn hold(&self, holders: &Holders, call: &mut Call) -> Result<HeldFiles, WorkerFault> {
        match holders.hold(&call.inputs).await {
            Ok(mut held) => {
                call.paths = std::mem::take(&mut held.paths);
                Ok(held)
            }
            Err(problem) => {
                let problem = format!("show it its inputs: {problem}");
                Err(self.fault(CallError::Broken(problem), Bytes::new()).await)
            }
        }
    }

    fn close_holders(&self) {
        if let Some(holders) = &self.holders {
            holders.close();
        }
    }

    async fn exchange(&self, call: &Call) -> Result<Answer, WorkerFault> {
        match &*self.link {
            Link::OneAtATime(connection) => {
                let mut connection = connection.lock().await;
                let answer = self.while_alive(pin!(connection.call(call))).await;
                match answer {
                    Ok(answer) => Ok(answer),
                    Err(what) => {
                        let unread = match what {
                            CallError::Closed { unread } => unread || connection.is_unread(),
                            CallError::Broken(_) => false,
                        };
                        let output = connection.output().take();
                        let fault = self.fault(what, output).await;
                        Err(match unread {
                            true => WorkerFault::NotTaken(Box::new(fault)),
                            false => fault,
                        })
                    }
                }
            }
            Link::Several(mux) => match self.while_alive(Box::pin(mux.call(call))).await {
                Ok(answer) => Ok(answer),
                Err(what) => Err(self.fault(what, Bytes::new()).await),
            },
        }
    }

    async fn next_part(&self, stream: u32) -> Result<Part, WorkerFault> {
        match &*self.link {
            Link::OneAtATime(connection) => {
                let mut connection = connection.lock().await;
                let part = self.while_alive(pin!(connection.next_part(stream))).await;
                match part {
                    Ok(part) => Ok(part),
                    Err(what) => {
                        let output = connection.output().take();
                        Err(self.fault(what, output).await)
                    }
                }
            }
            Link::Several(mux) => match self.while_alive(Box::pin(mux.next_part(stream))).await {
                Ok(part) => Ok(part),
                Err(what) => Err(self.fault(what, Bytes::new()).await),
            },
        }
    }
}

impl Body {
    /// The sandbox, once its process has ended. `None`: the process did not end in time, or its end is unknown.
    pub(crate) async fn vacated(self) -> Option<Sandbox> {
        match timeout(END_TIME_MAX, self.process.end()).await {
            Ok(ChildEnd::Exited(_) | ChildEnd::Signalled(_)) => Some(self.sandbox),
            _ => None,
        }
    }
}

impl ForkedWorker {
    /// Runs `work`, but fails when the process ends first. It takes a reference, because a future that is passed on is copied.
    async fn while_alive<T>(
        &self,
        work: impl Future<Output = Result<T, CallError>> + Unpin,
    ) -> Result<T, CallError> {
        let end = async { self.end.wait().await.clone() };
        or_end(work, end)
            .await
            .unwrap_or(Err(CallError::Closed { unread: false }))
    }

    /// The process has ended or is unusable. Determines why, for the callers of the running exchanges, and ends the rest of the
    /// sandbox.
    ///
    /// Boxed, because it is rare, and would make the future of every call larger.
    fn fault(&self, what: CallError, output: Bytes) -> BoxFuture<'_, WorkerFault> {
        Box::pin(async move {
            let body = self.take_body();
            self.killed.store(true, Ordering::Relaxed);
            self.owner.lost();
            let fault = self.fault_of(what, output, body.as_ref()).await;
            // Again: a process also takes time to end.
            if let Some(body) = &body {
                self.cpu.remember(body);
            }
            fault
        })
    }

    async fn fault_of(&self, what: CallError, output: Bytes, body: Option<&Body>) -> WorkerFault {
        let cgroup = body.and_then(|body| body.sandbox.cgroup());
        if let Some(shortage) = cgroup.and_then(Cgroup::shortage) {
            // Of several callers, the first takes the body and knows.
            let _ = self.out_of_memory.set(shortage);
        }
        if let CallError::Broken(problem) = what {
            return WorkerFault::Protocol { problem, output };
        }
        let end = match timeout(END_TIME_MAX, self.end.wait()).await {
            Ok(end) => end.clone(),
            Err(_) => ChildEnd::Unknown,
        };
        match (end, self.out_of_memory.get()) {
            (ChildEnd::Exited(code), _) => WorkerFault::Exited { code, output },
            (ChildEnd::Signalled(SIGKILL), Some(shortage)) => WorkerFault::OutOfMemory {
                shortage: *shortage,
                limit_bytes: self.memory_bytes_max,
                output,
            },
            (ChildEnd::Signalled(signal), _) => WorkerFault::Signalled { signal, output },
            (end, _) => WorkerFault::Protocol {
                problem: format!("the worker {}", end.in_words()),
                output,
            },
        }
    }

    /// For the end of the sandbox. Its peak of memory is remembered.
    fn take_body(&self) -> Option<Body> {
        let peak = Body::peak(&self.body).unwrap_or(0);
        self.last_peak.fetch_max(peak, Ordering::Relaxed);
        let body = self.body.lock().take();
        if let Some(body) = &body {
            self.cpu.remember(body);
        }
        body
    }
}

impl Worker for ForkedWorker {
    fn id(&self) -> WorkerId {
        self.id
    }

    fn stamps(&self) -> StartStamps {
        self.stamps
    }

    fn call(&self, mut call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>> {
        Box::pin(async move {
            if call.inputs.len() > self.inputs_max {
                let problem = format!("it takes {} inputs at most", self.inputs_max);
                return Err(self.fault(CallError::Broken(problem), Bytes::new()).await);
            }
            let held = match &self.holders {
                Some(holders) if !call.inputs.is_empty() => {
                    Some(Box::pin(self.hold(holders, &mut call)).await?)
                }
                _ => None,
            };
            let answer = self.exchange(&call).await?;
            if let (Answer::Http { done: None, .. }, Some(held)) = (&answer, held) {
                self.held.lock().insert(call.stream, held);
            }
            Ok(answer)
        })
    }

    fn show(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<ShownInputs, String>> {
        Box::pin(async move {
            let Some(holders) = &self.holders else {
                return Err("this worker takes descriptors".to_owned());
            };
            let mut held = holders.hold(&inputs).await?;
            Ok(ShownInputs {
                paths: std::mem::take(&mut held.paths),
                kept: Box::new(held),
            })
        })
    }

    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
        Box::pin(async move {
            let part = self.next_part(stream).await;
            if self.holders.is_some() && !matches!(part, Ok(Part::Chunk(_))) {
                self.held.lock().remove(&stream);
            }
            part
        })
    }

    fn inputs_max(&self) -> usize {
        self.inputs_max
    }

    fn is_alive(&self) -> bool {
        !self.end.initialized() && !self.killed.load(Ordering::Relaxed)
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.close_holders();
        // The sandbox's init exits when its socket closes, and the kernel ends everything in its PID namespace.
        drop(self.take_body());
        self.owner.lost();
    }

    fn retire(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.close_holders();
        if let Some(body) = self.take_body() {
            let begin = |farewell| Grace::begin(farewell, &body, Arc::clone(&self.link));
            let (grace, heard) = self.farewell.map(begin).unzip();
            *self.last_output.lock() = heard;
            self.owner.take_back(Released { body, grace });
        }
    }

    fn last_output(&self) -> Option<BoxFuture<'static, Bytes>> {
        let heard = self.last_output.lock().take()?;
        // Where too many have their grace, the sender is dropped.
        Some(Box::pin(async move { heard.await.unwrap_or_default() }))
    }

    fn memory(&self) -> WorkerMemory {
        Body::memory(&self.body)
    }

    fn rest(&self, how: Rest) -> io::Result<()> {
        Body::rest(&self.body, how)
    }

    fn wake(&self) -> io::Result<()> {
        Body::wake(&self.body)
    }

    fn reclaim(&self) -> io::Result<()> {
        Body::reclaim(&self.body)
    }

    fn engage(&self) {
        if let Some(paceable) = &self.paceable {
            paceable.begin(Body::cgroup_of(&self.body));
        }
    }

    fn disengage(&self) {
        if let Some(paceable) = &self.paceable {
            paceable.end();
        }
    }

    fn memory_peak(&self) -> Option<u64> {
        let last = self.last_peak.load(Ordering::Relaxed);
        Body::peak(&self.body).or_else(|| (last > 0).then_some(last))
    }

    fn cpu(&self) -> Option<CpuTime> {
        self.cpu.read(&self.body)
    }

    fn throttled(&self) -> Option<Duration> {
        let by_kernel = self.cpu.throttled(&self.body);
        match &self.paceable {
            None => by_kernel,
            Some(paceable) => Some(by_kernel.unwrap_or_default() + paceable.stopped()),
        }
    }
}

impl Drop for ForkedWorker {
    fn drop(&mut self) {
        if let Some(body) = self.body.get_mut().take() {
            self.owner.take_back(Released { body, grace: None });
        }
    }
}
