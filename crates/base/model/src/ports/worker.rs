//! A worker: its exchanges, its end, its memory.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{BoxFuture, Input, PassedRequest, PassedResponse};
use crate::ids::WorkerId;
use crate::invocation::{CpuTime, InvocationHead};
use crate::keep_alive::Rest;
use crate::size::Size;
use crate::timeline::Instant;

/// A process (or instance) that serves one version. Dropping the last reference ends it.
pub trait Worker: Send + Sync + Debug {
    /// Which.
    fn id(&self) -> WorkerId;

    /// The times of its start.
    fn stamps(&self) -> StartStamps;

    /// One exchange: sends `call` and resolves at the whole answer, or at the head of a streamed one. With a concurrency of 1, the
    /// caller must not call again before the exchange has ended. If the future is dropped early, the worker is unusable and must be
    /// [cancelled](Worker::cancel) or [killed](Worker::kill), except for versions with [`Interface::Http`](crate::Interface::Http),
    /// as with [`Worker::pass`].
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>>;

    /// Shows inputs to a worker that takes paths, while a call of it runs. They are there until the result is dropped, or the worker ends.
    ///
    /// # Errors
    /// Why they cannot be shown.
    fn show(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<ShownInputs, String>> {
        drop(inputs);
        let problem = "this kind of worker takes no paths".to_owned();
        Box::pin(std::future::ready(Err(problem)))
    }

    /// The next part of a streamed answer.
    fn next(&self, stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>>;

    /// Passes a request through to the function's own server and resolves at the response's head. Only for workers of versions
    /// with [`Interface::Http`](crate::Interface::Http). Dropping the future, or the response's body, closes the connection,
    /// which tells the server that nobody waits. The worker can still be used.
    fn pass(&self, request: PassedRequest) -> BoxFuture<'_, Result<PassedResponse, Unpassed>> {
        drop(request);
        let fault = WorkerFault::Protocol {
            problem: "this worker is not an HTTP server".to_owned(),
            output: Bytes::new(),
        };
        Box::pin(std::future::ready(Err(fault.into())))
    }

    /// The output since the last call, bounded, of a worker that is an HTTP server: what it prints belongs to no single call. Of a worker
    /// that can be told that callers have gone ([`Worker::cancel`]): what it printed until the end of such exchanges. Must not wait.
    fn take_output(&self) -> Bytes {
        Bytes::new()
    }

    /// Resolves when [`Worker::take_output`] has something to return. False: it will print nothing more, or what it prints is part
    /// of its answers.
    fn printed(&self) -> BoxFuture<'static, bool> {
        Box::pin(std::future::ready(false))
    }

    /// Call it once, after [`Worker::kill`], [`Worker::retire`] or [`Worker::discard`], when no future of an exchange is left. What it
    /// printed since its last answer, bounded. If it got time to end, resolves when it has ended; otherwise at once. Empty if what it
    /// prints is not part of its answers ([`Worker::take_output`]).
    fn last_output(&self) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::ready(Bytes::new()))
    }

    /// The caller of this exchange has gone, and its futures are dropped. Tells the worker, and resolves when it has ended the exchange, so
    /// that it can be used for another one; to false if it never will. `None`: it cannot be told, and must be
    /// [killed](Worker::kill) when its other exchanges have ended.
    fn cancel(&self, stream: u32) -> Option<BoxFuture<'static, bool>> {
        let _ = stream;
        None
    }

    /// False once it is known that it has ended. Called on the path before each lease: reads a flag, no system call.
    fn is_alive(&self) -> bool {
        true
    }

    /// Ends the process, and everything it started, at once.
    fn kill(&self);

    /// Releases it between invocations. It ends soon, and its runtime may be cleaned and used again. The caller drops it.
    fn retire(&self) {
        self.kill();
    }

    /// Releases it as [`Worker::retire`] does, but nothing is kept: its memory is needed.
    fn discard(&self) {
        self.retire();
    }

    /// What it uses of the machine, and how it rests.
    fn resources(&self) -> &dyn Resources;
}

/// What a worker uses of the machine, and how it rests.
pub trait Resources: Send + Sync + Debug {
    /// Memory in use and its peak; reads `/proc` and the cgroup, so not for the path.
    fn memory(&self) -> WorkerMemory;

    /// Lets it rest: it gets no CPU time, or hardly any, until [`Resources::wake`]. Only between exchanges. Does not wait for the
    /// worker.
    ///
    /// # Errors
    /// `Unsupported`: this worker or this machine cannot. Otherwise the kernel's.
    fn rest(&self, how: Rest) -> io::Result<()> {
        let _ = how;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets it run again. On the path: one system call, which does not wait for the worker. Does nothing if it does not rest.
    ///
    /// # Errors
    /// The kernel's. The worker is then unusable.
    fn wake(&self) -> io::Result<()> {
        Ok(())
    }

    /// Reclaims the memory of a worker that rests, as far as the kernel can: files that can be read again, and, on a machine with
    /// swap, everything. Not for the path: takes as long as writing that memory takes.
    ///
    /// # Errors
    /// As [`Resources::rest`].
    fn reclaim(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The first of its exchanges begins. An engine that limits CPU time itself does so from here on.
    fn engage(&self) {}

    /// The last of its exchanges has ended.
    fn disengage(&self) {}

    /// An exchange begins or ends. For the path.
    fn exchange_changed(&self) {}

    /// The most memory that it has used, bytes. For the path: one system call. `None`: it is not recorded, or not cheap to read.
    fn memory_peak(&self) -> Option<u64> {
        None
    }

    /// CPU time of all its processes since its start, also of those that have ended. For the path: one system call of 1.3 µs,
    /// sometimes two. Where the kernel does not count it for a group of processes, that of its main process. `None`: it cannot be
    /// measured.
    fn cpu(&self) -> Option<CpuTime> {
        None
    }

    /// How long it waited for the next period of its CPU limit since its start, added up over the CPUs. For the path: one system call.
    /// `None`: it cannot be measured.
    fn throttled(&self) -> Option<Duration> {
        None
    }
}

/// Inputs that a worker can open by their paths, until this is dropped.
#[derive(Debug)]
pub struct ShownInputs {
    /// Their paths, in the order of the inputs.
    pub paths: Vec<String>,
    /// What keeps them there.
    pub kept: Box<dyn Debug + Send>,
}

/// What one exchange sends.
#[derive(Debug, Clone)]
pub struct Call {
    /// Chosen by the caller, not in use on this worker; never 0.
    pub stream: u32,
    /// The head of the invocation. With an HTTP head it is for an application, otherwise for a handler.
    pub head: Arc<InvocationHead>,
    /// The event, or the request's body.
    pub payload: Bytes,
    /// Descriptors that go to the worker with the call, at most [`INPUTS_MAX`](super::INPUTS_MAX).
    pub inputs: Vec<Input>,
    /// Paths of the inputs in the worker, if it takes these instead of descriptors. Set by the engine.
    pub paths: Vec<String>,
}

/// The result of an exchange.
#[derive(Debug)]
pub enum Answer {
    /// The handler returned this JSON.
    Result(Bytes, Done),
    /// The handler raised: Lambda's error body, JSON.
    Error(Bytes, Done),
    /// An HTTP response begins.
    Http {
        /// Status and headers.
        head: HttpHead,
        /// First bytes of the body.
        first: Bytes,
        /// Present if the body is complete; otherwise continue with [`Worker::next`].
        done: Option<Done>,
    },
}

/// Head of an application's response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpHead {
    /// 100-599.
    pub status: u16,
    /// Names and values, as sent.
    pub headers: Vec<(String, String)>,
    /// An event function has set them (Lambda's http-integration-response), so they are part of its streamed payload.
    pub is_prelude: bool,
}

/// A part of a streamed answer.
#[derive(Debug)]
pub enum Part {
    /// More body.
    Chunk(Bytes),
    /// The last part, may be empty.
    End(Bytes, Done),
    /// The application raised, and the answer ends here: Lambda's error body, JSON. The worker can still be used.
    Error(Bytes, Done),
}

/// The measurements of a completed exchange.
#[derive(Debug, Clone)]
pub struct Done {
    /// The handler was called.
    pub started: Instant,
    /// The handler returned.
    pub returned: Instant,
    /// The answer's first byte reached the daemon.
    pub first_byte: Instant,
    /// What the invocation printed (stdout and stderr, in order), bounded.
    pub output: Bytes,
    /// The worker ends after this answer, as it says itself: it must not get another call.
    pub is_last: bool,
}

/// The times of a worker's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartStamps {
    /// The decision to start it.
    pub asked: Instant,
    /// Its template was there: the start did not wait for others before. `asked` where there is no template.
    pub template: Instant,
    /// First instruction.
    pub forked: Instant,
    /// Isolated.
    pub sandboxed: Instant,
    /// Initialised.
    pub initialised: Instant,
}

/// Why an exchange ended without an answer. The worker is dead or must be killed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerFault {
    /// It ended by itself.
    #[error("the worker exited with status {code}")]
    Exited {
        /// Exit status.
        code: i32,
        /// What it printed.
        output: Bytes,
    },
    /// A signal ended it.
    #[error("the worker was ended by signal {signal}")]
    Signalled {
        /// Signal number.
        signal: i32,
        /// What it printed.
        output: Bytes,
    },
    /// The kernel killed it because memory was short.
    #[error("{}", .shortage.of_worker(*.limit_bytes))]
    OutOfMemory {
        /// Where memory was short.
        shortage: MemoryShortage,
        /// The worker's own limit, bytes.
        limit_bytes: u64,
        /// What it printed.
        output: Bytes,
    },
    /// It ended before it had read the whole call, for this reason. So the call was not executed, and another worker may take it.
    #[error("{0}, before it had read its call")]
    NotTaken(Box<Self>),
    /// It violated the protocol.
    #[error("the worker violated the protocol: {problem}")]
    Protocol {
        /// How it violated the protocol.
        problem: String,
        /// What it printed.
        output: Bytes,
    },
    /// A server that runs on closed a connection, and did not answer the request on it. It may have executed it.
    #[error("{problem}")]
    Unanswered {
        /// What it did.
        problem: String,
        /// What it printed.
        output: Bytes,
    },
}

/// Why a request that is passed through has no response.
#[derive(Debug)]
pub struct Unpassed {
    /// What the worker did.
    pub fault: WorkerFault,
    /// The request, if nothing of it was sent: another worker may take it, whatever its method.
    pub unsent: Option<Box<PassedRequest>>,
}

impl From<WorkerFault> for Unpassed {
    fn from(fault: WorkerFault) -> Self {
        Self {
            fault,
            unsent: None,
        }
    }
}

impl WorkerFault {
    /// The same with what the worker printed.
    #[must_use]
    pub fn with_output(self, output: Bytes) -> Self {
        match self {
            Self::Exited { code, .. } => Self::Exited { code, output },
            Self::Signalled { signal, .. } => Self::Signalled { signal, output },
            Self::OutOfMemory {
                shortage,
                limit_bytes,
                ..
            } => Self::OutOfMemory {
                shortage,
                limit_bytes,
                output,
            },
            Self::NotTaken(fault) => Self::NotTaken(Box::new(fault.with_output(output))),
            Self::Protocol { problem, .. } => Self::Protocol { problem, output },
            Self::Unanswered { problem, .. } => Self::Unanswered { problem, output },
        }
    }
}

/// Where memory was short when the kernel killed a process to free some, or the daemon did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryShortage {
    /// The worker reached its own limit, `memory_mb`.
    Own,
    /// All builds together reached `[build] total_memory_mb`.
    Builds,
    /// Everything below the daemon together reached `limits.total_memory_mb`.
    Total,
    /// The machine, or a control group around the daemon, had no memory left.
    Outside,
    /// The sockets in the worker's network held too much memory, and the daemon ended it: the kernel limits only a part of it.
    Sockets,
    /// There were more than [`SOCKETS_MAX`] sockets in the worker's network, and the daemon ended it.
    TooManySockets,
    /// It held more than [`LOCKS_MAX`] locks of files, and the daemon ended it: the kernel does not charge for their memory.
    TooManyLocks,
    /// It had more than [`EPOLL_WATCHES_MAX`] watches of epoll, and the daemon ended it: an event that many wait for stops a CPU.
    TooManyWatches,
    /// It had more than [`OVERLAY_FOLDERS_MAX`] open folders of overlays, and the daemon ended it: the kernel does not charge for the lists
    /// of their names.
    TooManyFolders,
    /// Ended workers of the function had left more memory to its other processes than `memory_mb`, and the daemon ended these.
    LeftBehind,
}

/// Sockets in the network of a worker, which those of a template share. A message has the number, too.
pub const SOCKETS_MAX: u64 = 20_000;

/// Locks of files that a worker may hold, which are about 2 MB of the kernel's memory. A message has the number, too.
pub const LOCKS_MAX: u64 = 10_000;

/// Watches of epoll(7) that a worker may have. With as many on one descriptor, its event takes up to 10 ms. A message has the number, too.
pub const EPOLL_WATCHES_MAX: u64 = 50_000;

/// Open folders of overlays that a worker may have while the kernel has more memory than usual that it cannot free. Each may have a list
/// of the folder's names, up to 512 bytes for each. A message has the number, too.
pub const OVERLAY_FOLDERS_MAX: u64 = 4;

impl MemoryShortage {
    /// Whether the daemon ended it, because the kernel does not limit what it had too much of.
    #[must_use]
    pub fn is_found_by_the_daemon(self) -> bool {
        match self {
            Self::Own | Self::Builds | Self::Total | Self::Outside => false,
            Self::Sockets
            | Self::TooManySockets
            | Self::TooManyLocks
            | Self::TooManyWatches
            | Self::TooManyFolders
            | Self::LeftBehind => true,
        }
    }

    fn of_worker(self, limit_bytes: u64) -> String {
        match self {
            Self::Own => format!(
                "the worker used more memory than its limit of {}",
                Size(limit_bytes)
            ),
            found if found.is_found_by_the_daemon() => {
                format!("the worker was ended: {}", found.around())
            }
            around => format!("the kernel killed the worker: {}", around.around()),
        }
    }

    /// Why a worker or template did not come up.
    #[must_use]
    pub fn of_start(self, what: &str) -> String {
        match self {
            Self::Own => {
                format!("{what} took more memory than memory_mb allows; give it more")
            }
            found if found.is_found_by_the_daemon() => {
                format!("it was ended while {what}: {}", found.around())
            }
            around => format!("the kernel ended it while {what}: {}", around.around()),
        }
    }

    /// The message for the caller of the function.
    #[must_use]
    pub fn of_runtime(self, limit_bytes: u64) -> String {
        match self {
            Self::Own => format!(
                "Runtime used more memory than its limit of {} MB: raise memory_mb",
                limit_bytes >> 20
            ),
            around => format!("Runtime was killed: {}", around.around()),
        }
    }

    /// Why something was ended that had not reached its own limit, and what to change.
    #[must_use]
    pub fn around(self) -> &'static str {
        match self {
            Self::Own => "it reached its own memory_mb",
            Self::Builds => {
                "all builds together reached total_memory_mb of [build] in pilotd.toml; its own memory_mb was not reached. Deploy \
                 fewer functions at once, or raise total_memory_mb of [build]"
            }
            Self::Total => {
                "all functions and builds together reached limits.total_memory_mb of pilotd.toml; its own memory_mb was not \
                 reached. Run less at once (scale.max, limits.memory_mb), raise limits.total_memory_mb, or add memory"
            }
            Self::Outside => {
                "the machine, or a control group around the daemon, had no memory left; its own memory_mb was not reached. Run less \
                 at once (scale.max, limits.memory_mb and limits.total_memory_mb of pilotd.toml) or add memory"
            }
            Self::Sockets => {
                "the sockets in its network held more memory than they may. Accept connections, read what arrives, and do not keep \
                 datagrams back (MSG_MORE)"
            }
            Self::TooManySockets => {
                "there were more sockets in its network than the 20,000 that may be in it, which the workers of a template share. Close \
                 those that are no longer used"
            }
            Self::TooManyLocks => {
                "it held more than the 10,000 locks of files that it may hold (flock, fcntl). Release those that are no longer needed"
            }
            Self::TooManyWatches => {
                "it had more than the 50,000 watches of epoll that it may have. Remove those that are no longer needed"
            }
            Self::TooManyFolders => {
                "it had more than 4 open folders of /tmp or /dev/shm, whose lists of names took much memory of the kernel. Close folders that \
                 are no longer needed, or write there in the handler and not at import"
            }
            Self::LeftBehind => {
                "workers of the function that have ended had left more memory to its other processes than its memory_mb, as shared memory \
                 or files that they had sent. Share less between workers, or raise memory_mb"
            }
        }
    }
}

/// A worker's memory, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerMemory {
    /// Proportional set size (smaps_rollup): shared pages are counted once over all who share them.
    pub pss: u64,
    /// The cgroup's highest charge so far; `None` without a memory cgroup.
    pub peak: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_about_too_many_sockets_has_their_limit() {
        let message = MemoryShortage::TooManySockets.of_worker(0).replace(',', "");
        assert!(message.contains(&SOCKETS_MAX.to_string()), "{message}");
    }

    #[test]
    fn the_message_about_too_many_locks_has_their_limit() {
        let message = MemoryShortage::TooManyLocks.of_worker(0).replace(',', "");
        assert!(message.contains(&LOCKS_MAX.to_string()), "{message}");
    }

    #[test]
    fn the_message_about_too_many_watches_has_their_limit() {
        let message = MemoryShortage::TooManyWatches.of_worker(0).replace(',', "");
        assert!(
            message.contains(&EPOLL_WATCHES_MAX.to_string()),
            "{message}"
        );
    }

    #[test]
    fn the_message_about_too_many_folders_has_their_limit() {
        let message = MemoryShortage::TooManyFolders.of_worker(0);
        let limit = format!("more than {OVERLAY_FOLDERS_MAX} open folders");
        assert!(message.contains(&limit), "{message}");
    }
}
