//! A worker whose calls do what the test says, in tokio's time.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{
    Answer, Call, Clock, Done, HttpHead, Input, Part, PassedRequest, PassedResponse, Resources,
    ShownInputs, StartStamps, Unpassed, Worker, WorkerFault, WorkerMemory,
};
use pilot_model::{BoxFuture, CpuTime, Instant, WorkerId};
use tokio::sync::watch;

/// What a call does.
#[derive(Debug, Clone)]
pub enum Reaction {
    /// After a delay, prints the last text and returns this body.
    Return(Duration, Bytes, Bytes),
    /// See [`Reaction::denies`].
    Deny(Duration),
    /// Raises an exception: Lambda's error body.
    Raise(Duration, Bytes),
    /// The worker ends after this delay.
    Die(Duration, WorkerFault),
    /// Never returns.
    Hang,
    /// Answers over HTTP: the head and the first part at once, then each part after its delay.
    Http(HttpHead, Bytes, Vec<(Duration, Deal)>),
}

/// What follows in a streamed answer.
#[derive(Debug, Clone)]
pub enum Deal {
    /// A part of the body.
    Chunk(Bytes),
    /// The last part.
    End(Bytes),
    /// The application raises an exception: Lambda's error body.
    Raise(Bytes),
    /// The worker ends.
    Die(WorkerFault),
}

impl Reaction {
    /// Returns this body at once.
    #[must_use]
    pub fn answer(body: &'static str) -> Self {
        Self::Return(
            Duration::ZERO,
            Bytes::from_static(body.as_bytes()),
            Bytes::new(),
        )
    }

    /// Returns `{}` after this delay, has computed all the time, and says that it has taken none.
    #[must_use]
    pub fn denies(time: Duration) -> Self {
        Self::Deny(time)
    }

    /// Returns `{}` after this delay.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self::Return(time, Bytes::from_static(b"{}"), Bytes::new())
    }
}

/// A fake HTTP server's response to a request.
pub type Served = BoxFuture<'static, Result<PassedResponse, WorkerFault>>;

/// What the workers of an engine do.
#[derive(Clone)]
pub(crate) struct Behaviour {
    pub(crate) calls: Arc<dyn Fn(&Call) -> Reaction + Send + Sync>,
    pub(crate) passes: Arc<dyn Fn(PassedRequest) -> Served + Send + Sync>,
    /// Why a request that is passed through is not even sent.
    pub(crate) refuses: Arc<dyn Fn() -> Option<WorkerFault> + Send + Sync>,
}

impl Default for Behaviour {
    /// Answers `{}` at once, and is not an HTTP server.
    fn default() -> Self {
        let no_server = || WorkerFault::Protocol {
            problem: "this worker is not an HTTP server".to_owned(),
            output: Bytes::new(),
        };
        Self {
            calls: Arc::new(|_| Reaction::answer("{}")),
            passes: Arc::new(move |_| Box::pin(std::future::ready(Err(no_server())))),
            refuses: Arc::new(|| None),
        }
    }
}

/// A fake worker.
pub struct FakeWorker {
    id: WorkerId,
    clock: Arc<dyn Clock>,
    behaviour: Behaviour,
    pss: u64,
    stamps: Mutex<StartStamps>,
    calls: Mutex<Vec<Call>>,
    streams: Mutex<HashMap<u32, Stream>>,
    printed: Mutex<Bytes>,
    /// CPU time besides that of all calls.
    computed: Mutex<Duration>,
    dead: watch::Sender<bool>,
}

#[derive(Debug)]
struct Stream {
    started: Instant,
    first_byte: Instant,
    rest: VecDeque<(Duration, Deal)>,
}

impl std::fmt::Debug for FakeWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FakeWorker").field(&self.id).finish()
    }
}

impl FakeWorker {
    /// What it has printed after its last answer.
    const LAST_OUTPUT: Bytes = Bytes::from_static(b"printed before the end\n");

    /// CPU time of each call.
    pub const CPU_PER_CALL: CpuTime = CpuTime {
        user: Duration::from_millis(2),
        system: Duration::from_millis(1),
    };

    pub(crate) fn new(
        id: WorkerId,
        clock: Arc<dyn Clock>,
        behaviour: Behaviour,
        pss: u64,
    ) -> Arc<Self> {
        let now = clock.now();
        Arc::new(Self {
            id,
            clock,
            behaviour,
            pss,
            stamps: Mutex::new(StartStamps {
                asked: now,
                template: now,
                forked: now,
                sandboxed: now,
                initialised: now,
            }),
            calls: Mutex::new(Vec::new()),
            streams: Mutex::new(HashMap::new()),
            printed: Mutex::default(),
            computed: Mutex::default(),
            dead: watch::Sender::new(false),
        })
    }

    pub(crate) fn became_ready(&self, stamps: StartStamps) {
        *self.stamps.lock() = stamps;
    }

    /// The calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// Prints a text; replaces output that nobody has read yet.
    pub fn print(&self, text: &'static str) {
        *self.printed.lock() = Bytes::from_static(text.as_bytes());
    }

    /// Ends by itself between calls.
    pub fn die(&self) {
        self.dead.send_replace(true);
    }

    fn done(&self, started: Instant, first_byte: Instant, output: Bytes) -> Done {
        Done {
            started,
            returned: self.clock.now(),
            first_byte,
            output,
            is_last: false,
        }
    }

    async fn perform(&self, call: Call) -> Result<Answer, WorkerFault> {
        let started = self.clock.now();
        match (self.behaviour.calls)(&call) {
            Reaction::Return(time, body, output) => {
                spend(time).await;
                let done = self.done(started, self.clock.now(), output);
                Ok(Answer::Result(body, done))
            }
            Reaction::Deny(time) => {
                spend(time).await;
                *self.computed.lock() += time;
                let done = Done {
                    returned: started,
                    ..self.done(started, started, Bytes::new())
                };
                Ok(Answer::Result(Bytes::from_static(b"{}"), done))
            }
            Reaction::Raise(time, body) => {
                spend(time).await;
                let done = self.done(started, self.clock.now(), Bytes::new());
                Ok(Answer::Error(body, done))
            }
            Reaction::Die(time, fault) => {
                spend(time).await;
                self.die();
                Err(fault)
            }
            Reaction::Hang => std::future::pending().await,
            Reaction::Http(head, first, rest) => {
                let now = self.clock.now();
                let done = rest
                    .is_empty()
                    .then(|| self.done(started, now, Bytes::new()));
                if done.is_none() {
                    let stream = Stream {
                        started,
                        first_byte: now,
                        rest: rest.into(),
                    };
                    self.streams.lock().insert(call.stream, stream);
                }
                Ok(Answer::Http { head, first, done })
            }
        }
    }

    async fn go_on(&self, number: u32) -> Result<Part, WorkerFault> {
        let step = {
            let streams = self.streams.lock();
            streams
                .get(&number)
                .and_then(|stream| stream.rest.front().cloned())
        };
        let Some((pause, deal)) = step else {
            return std::future::pending().await;
        };
        spend(pause).await;
        let stamps = {
            let mut streams = self.streams.lock();
            streams.get_mut(&number).map(|stream| {
                stream.rest.pop_front();
                (stream.started, stream.first_byte)
            })
        };
        match (deal, stamps) {
            (Deal::Chunk(bytes), _) => Ok(Part::Chunk(bytes)),
            (Deal::End(bytes), stamps) => Ok(Part::End(bytes, self.ended(stamps, Bytes::new()))),
            (Deal::Raise(body), stamps) => {
                let printed = Bytes::from_static(b"[ERROR]\n");
                Ok(Part::Error(body, self.ended(stamps, printed)))
            }
            (Deal::Die(fault), _) => {
                self.die();
                Err(fault)
            }
        }
    }

    /// The end of a stream, with the timestamps of its start if they are known.
    fn ended(&self, stamps: Option<(Instant, Instant)>, printed: Bytes) -> Done {
        let now = self.clock.now();
        let (started, first_byte) = stamps.unwrap_or((now, now));
        self.done(started, first_byte, printed)
    }

    /// Runs `work`, but fails as soon as the worker is killed.
    async fn unless_killed<T>(
        &self,
        work: impl Future<Output = Result<T, WorkerFault>>,
    ) -> Result<T, WorkerFault> {
        let mut dead = self.dead.subscribe();
        tokio::select! {
            biased;
            _ = dead.wait_for(|dead| *dead) => Err(WorkerFault::Signalled {
                signal: 9,
                output: Self::LAST_OUTPUT,
            }),
            result = work => result,
        }
    }
}

impl Worker for FakeWorker {
    fn id(&self) -> WorkerId {
        self.id
    }

    fn stamps(&self) -> StartStamps {
        *self.stamps.lock()
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>> {
        self.calls.lock().push(call.clone());
        Box::pin(self.unless_killed(self.perform(call)))
    }

    /// By paths of this process.
    fn show(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<ShownInputs, String>> {
        let path = |input: &Input| format!("/proc/self/fd/{}", input.descriptor.as_raw_fd());
        Box::pin(std::future::ready(Ok(ShownInputs {
            paths: inputs.iter().map(path).collect(),
            kept: Box::new(inputs),
        })))
    }

    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
        Box::pin(self.unless_killed(self.go_on(stream)))
    }

    /// A kill fails requests that have no head yet. The test ends bodies that are being streamed.
    fn pass(&self, request: PassedRequest) -> BoxFuture<'_, Result<PassedResponse, Unpassed>> {
        if let Some(fault) = (self.behaviour.refuses)() {
            let unsent = Some(Box::new(request));
            return Box::pin(std::future::ready(Err(Unpassed { fault, unsent })));
        }
        let served = self.unless_killed((self.behaviour.passes)(request));
        Box::pin(async { served.await.map_err(Unpassed::from) })
    }

    fn take_output(&self) -> Bytes {
        std::mem::take(&mut *self.printed.lock())
    }

    fn last_output(&self) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::ready(Self::LAST_OUTPUT))
    }

    fn is_alive(&self) -> bool {
        !*self.dead.borrow()
    }

    fn kill(&self) {
        self.die();
    }

    fn resources(&self) -> &dyn Resources {
        self
    }
}

impl Resources for FakeWorker {
    fn memory(&self) -> WorkerMemory {
        WorkerMemory {
            pss: self.pss,
            peak: Some(self.pss),
        }
    }

    /// Each call takes [`FakeWorker::CPU_PER_CALL`].
    fn cpu(&self) -> Option<CpuTime> {
        let calls = u32::try_from(self.calls.lock().len()).unwrap_or(u32::MAX);
        Some(CpuTime {
            user: Self::CPU_PER_CALL.user * calls + *self.computed.lock(),
            system: Self::CPU_PER_CALL.system * calls,
        })
    }
}

/// A sleep of zero would still go through the timer.
async fn spend(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
