//! The daemon's handle of a worker: a process in a sandbox, its invocation channel, its output.

mod call;
mod mux;
mod output;
mod released;
mod sandbox_in_use;
mod socket;

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{
    Answer, BoxFuture, Call, Done, INPUTS_MAX, Input, MemoryShortage, Part, Resources, ShownInputs,
    StartError, StartStamps, Worker, WorkerFault,
};
use pilot_model::timeline::Instant;
use pilot_model::{Farewell, FunctionConfig, WorkerId};
use pilot_protocols::{HeldFiles, Holders};
use pilot_sys::clock::monotonic_ns;
use pilot_wire::FrameKind;
use pilot_wire::meta::ReadyMeta;
use tokio::sync::{Mutex as AsyncMutex, SetOnce, oneshot};
use tokio::time::timeout;

use call::CallError;
pub(crate) use call::Connection;
use mux::Mux;
pub(crate) use output::{Drained, Output};
pub(crate) use released::{Grace, Released, SIGKILL, SIGTERM};
pub(crate) use sandbox_in_use::SandboxInUse;

use crate::cgroup::Cgroup;
use crate::child::{Child, ChildEnd, END_TIME_MAX, or_end};
use crate::pace::Paceable;
use crate::refused::refused;
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
    sandbox: SandboxInUse,
    /// Takes its sandbox back.
    owner: Arc<dyn SandboxOwner>,
    /// Shows the inputs, if it cannot take descriptors.
    holders: Option<Holders>,
    /// What it prints before it ends, if it got time for that. Taken once.
    last_output: Mutex<Option<oneshot::Receiver<Bytes>>>,
    /// The inputs of exchanges that are not over, by stream. The lock is held for a look-up.
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

    /// What the worker has printed since its last answer. No exchange is left.
    async fn last_output(&self) -> Bytes {
        match self {
            Self::OneAtATime(connection) => connection.lock().await.output().take(),
            Self::Several(mux) => mux.close().await,
        }
    }
}

/// What ends with the worker.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) sandbox: Sandbox,
    pub(crate) process: Child,
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
            Ok(Err(CallError::Broken(problem) | CallError::TooLong(problem))) => {
                return Err(runtime(problem, &mut connection));
            }
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
                    (ChildEnd::ForkFailed(_), _) => format!("the worker {}", end.in_words()),
                    _ => format!("the worker {} before it was ready", end.in_words()),
                };
                return Err(runtime(problem, &mut connection));
            }
        };
        match frame.kind {
            FrameKind::Ready => {
                let ready: ReadyMeta = serde_json::from_slice(&frame.meta)
                    .map_err(|error| runtime(format!("READY: {error}"), &mut connection))?;
                let link = match config.concurrency {
                    1 => Link::OneAtATime(AsyncMutex::new(connection)),
                    _ => Link::Several(
                        Mux::new(connection, ready.window)
                            .map_err(refused("a second descriptor for a worker's channel"))?,
                    ),
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
                    sandbox: SandboxInUse::new(body, None),
                    owner,
                    holders: None,
                    last_output: Mutex::default(),
                    held: Mutex::default(),
                })
            }
            FrameKind::InitError => {
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
        self.sandbox.pace(paceable);
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

    /// Its exchanges are over.
    fn close_holders(&self) {
        if let Some(holders) = &self.holders {
            holders.close();
            let held = std::mem::take(&mut *self.held.lock());
            drop(held);
        }
    }

    async fn exchange(&self, call: &Call) -> Result<Answer, WorkerFault> {
        match &*self.link {
            Link::OneAtATime(connection) => {
                let mut connection = connection.lock().await;
                let answer = self.while_alive(pin!(connection.call(call))).await;
                match answer {
                    Ok(answer) => Ok(answer),
                    Err(CallError::TooLong(problem)) => Ok(not_sent(&problem)),
                    Err(what) => {
                        let unread = match what {
                            CallError::Closed { unread } => unread || connection.is_unread(),
                            CallError::Broken(_) | CallError::TooLong(_) => false,
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
                Err(CallError::TooLong(problem)) => Ok(not_sent(&problem)),
                Err(what) => Err(self.fault_of_several(what, mux).await),
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
                Err(what) => Err(self.fault_of_several(what, mux).await),
            },
        }
    }
}

/// The answer to a call that does not fit into a frame.
fn not_sent(problem: &str) -> Answer {
    let error = serde_json::json!({
        "errorType": "Runtime.RequestTooLarge",
        "errorMessage": format!("the request was not sent to the function: {problem}"),
    });
    let now = Instant(monotonic_ns());
    let done = Done {
        started: now,
        returned: now,
        first_byte: now,
        output: Bytes::new(),
        is_last: false,
    };
    Answer::Error(error.to_string().into(), done)
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
            let body = self.sandbox.take();
            self.killed.store(true, Ordering::Relaxed);
            self.owner.lost();
            let fault = self.fault_of(what, output, body.as_ref()).await;
            // Again: a process also takes time to end.
            if let Some(body) = &body {
                self.sandbox.remember(body);
            }
            fault
        })
    }

    /// The same of a worker of several calls. Nobody knows which of them has printed what was left, so that the first one has all of it.
    fn fault_of_several<'a>(&'a self, what: CallError, mux: &'a Mux) -> BoxFuture<'a, WorkerFault> {
        Box::pin(async move {
            let fault = self.fault(what, Bytes::new()).await;
            fault.with_output(mux.take_last_output().await)
        })
    }

    async fn fault_of(&self, what: CallError, output: Bytes, body: Option<&Body>) -> WorkerFault {
        let cgroup = body.and_then(|body| body.sandbox.cgroup());
        if let Some(shortage) = cgroup.and_then(Cgroup::shortage) {
            // Of several callers, the first takes the body and knows.
            let _ = self.out_of_memory.set(shortage);
        }
        if let CallError::Broken(problem) | CallError::TooLong(problem) = what {
            return WorkerFault::Protocol { problem, output };
        }
        let end = match timeout(END_TIME_MAX, self.end.wait()).await {
            Ok(end) => end.clone(),
            Err(_) => ChildEnd::Unknown,
        };
        match (end, self.out_of_memory.get()) {
            (ChildEnd::Exited(code), _) => WorkerFault::Exited { code, output },
            (ChildEnd::Signalled(SIGKILL), Some(shortage)) => self.ended_for(*shortage, output),
            // Its template, which would have known, may be ended with it.
            (ChildEnd::Unknown, Some(shortage)) if shortage.is_found_by_the_daemon() => {
                self.ended_for(*shortage, output)
            }
            (ChildEnd::Signalled(signal), _) => WorkerFault::Signalled { signal, output },
            (end, _) => WorkerFault::Protocol {
                problem: format!("the worker {}", end.in_words()),
                output,
            },
        }
    }

    fn ended_for(&self, shortage: MemoryShortage, output: Bytes) -> WorkerFault {
        WorkerFault::OutOfMemory {
            shortage,
            limit_bytes: self.memory_bytes_max,
            output,
        }
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
            let mut is_held = false;
            if let Some(holders) = self.holders.as_ref().filter(|_| !call.inputs.is_empty()) {
                let held = Box::pin(self.hold(holders, &mut call)).await?;
                // A caller that leaves does not take them from a worker that serves on.
                self.held.lock().insert(call.stream, held);
                is_held = true;
            }
            let answer = self.exchange(&call).await;
            if is_held && !matches!(answer, Ok(Answer::Http { done: None, .. })) {
                self.held.lock().remove(&call.stream);
            }
            answer
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

    fn cancel(&self, stream: u32) -> Option<BoxFuture<'static, bool>> {
        match &*self.link {
            Link::OneAtATime(_) => None,
            Link::Several(mux) => {
                let over = mux.cancel(stream)?;
                let held = self.held.lock().remove(&stream);
                Some(match held {
                    // Until the worker reads them no more.
                    Some(held) => Box::pin(async move {
                        let _held = held;
                        over.await
                    }),
                    None => over,
                })
            }
        }
    }

    fn is_alive(&self) -> bool {
        !self.end.initialized() && !self.killed.load(Ordering::Relaxed)
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.close_holders();
        // The sandbox's init exits when its socket closes, and the kernel ends everything in its PID namespace.
        drop(self.sandbox.take());
        self.owner.lost();
    }

    fn retire(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.close_holders();
        if let Some(body) = self.sandbox.take() {
            let begin = |farewell| Grace::begin(farewell, &body, Arc::clone(&self.link));
            let (grace, heard) = self.farewell.map(begin).unzip();
            *self.last_output.lock() = heard;
            self.owner.take_back(Released { body, grace });
        }
    }

    fn last_output(&self) -> BoxFuture<'static, Bytes> {
        if let Some(heard) = self.last_output.lock().take() {
            // Where too many have their grace, the sender is dropped.
            return Box::pin(async move { heard.await.unwrap_or_default() });
        }
        let link = Arc::clone(&self.link);
        Box::pin(async move { link.last_output().await })
    }

    fn take_output(&self) -> Bytes {
        match &*self.link {
            Link::OneAtATime(_) => Bytes::new(),
            Link::Several(mux) => mux.take_unclaimed(),
        }
    }

    fn resources(&self) -> &dyn Resources {
        &self.sandbox
    }
}

impl Drop for ForkedWorker {
    fn drop(&mut self) {
        if let Some(body) = self.sandbox.take() {
            self.owner.take_back(Released { body, grace: None });
        }
    }
}
