//! What this crate needs of whatever a worker runs in: how it ends, what it prints, what memory it uses, and a way into its
//! network. Not how it is made or cleaned.

use std::any::Any;
use std::fmt::{self, Debug};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::BoxFuture;
use pilot_model::ports::WorkerMemory;
use tokio::net::TcpStream;

/// What a worker runs in, as far as its end, output and memory are concerned. Implemented by sandboxes and containers.
pub trait Instance: Send + Sync + Debug {
    /// Resolves when the main process has ended. May be asked several times, and after the end.
    fn ended(&self) -> BoxFuture<'static, End>;

    /// False once it is known to have ended, or was told to. Asked before each lease: a look at a flag, not at the kernel.
    fn is_alive(&self) -> bool;

    /// Ends everything in it at once; it is not used again. Idempotent.
    fn kill(&self);

    /// Lets it go between invocations: what is left of it may be cleaned and used again. Never waits. Idempotent, and without effect
    /// after [`Instance::kill`].
    fn retire(&self, how: Retire);

    /// What was printed (stdout and stderr, in order) since the last time, bounded. Asked once per invocation on the path: it
    /// must not wait, and must have what was written before the answer came.
    fn take_output(&self) -> Bytes;

    /// Memory in use and its peak. Not for the path.
    fn memory(&self) -> WorkerMemory;

    /// Its memory limit, bytes: what an out-of-memory fault names.
    fn memory_bytes_max(&self) -> u64;
}

/// How an instance's main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// Killed by the kernel at its memory limit.
    OutOfMemory,
    /// Nobody could tell, for example because the sandbox's init or the container engine went away.
    Unknown,
}

/// How an instance is let go.
#[derive(Debug)]
pub enum Retire {
    /// Everything in it is ended now.
    AtOnce,
    /// Its main process gets SIGTERM; what has not ended by itself after `grace` is ended (the contract of Knative and Cloud
    /// Run; Lambda's `Shutdown` phase).
    Gracefully {
        /// Longest that it may take.
        grace: Duration,
        /// Whose end is the end: the rest is ended then.
        awaited: Awaited,
        /// What it may want to talk to meanwhile. To be dropped once it has ended, not before.
        held: Held,
    },
}

/// Whose end an instance that is let go gracefully is given the time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Its main process alone.
    MainProcess,
    /// Every process in it: others than the main one were told to end, too.
    Everything,
}

/// Whatever must live until an instance has ended. Opaque: keep it, then drop it.
#[derive(Default)]
pub struct Held(
    #[expect(dead_code, reason = "it is there to be dropped")] Option<Box<dyn Any + Send>>,
);

impl Held {
    pub(crate) fn new(what: impl Any + Send) -> Self {
        Self(Some(Box::new(what)))
    }
}

impl Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// How the daemon gets into an instance's network.
pub trait Reach: Send + Sync + Debug {
    /// Connects to the loopback device inside, at `port`.
    ///
    /// # Errors
    /// As connect(2): `ConnectionRefused` as long as nobody listens.
    fn connect(&self, port: u16) -> BoxFuture<'static, io::Result<TcpStream>>;
}
