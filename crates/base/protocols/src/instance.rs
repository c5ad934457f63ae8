//! What this crate needs to know of the sandbox or container that a worker runs in: how it ends, what it prints, how much
//! memory it uses, and how to connect to it. How it is made and cleaned is not part of this.

use std::any::Any;
use std::fmt::{self, Debug};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::BoxFuture;
use pilot_model::ports::{Input, MemoryShortage, Resources};
use tokio::net::TcpStream;

use crate::OwnProcesses;

/// The sandbox or container of a worker: its end, output and memory.
pub trait Instance: Send + Sync + Debug {
    /// Resolves when the main process has ended. May be called repeatedly, also after the end.
    fn ended(&self) -> BoxFuture<'static, End>;

    /// False once the instance is known to have ended or was told to end. Called before each lease, so it only reads a flag.
    fn is_alive(&self) -> bool;

    /// Ends everything in it at once. It is not used again. Idempotent.
    fn kill(&self);

    /// Releases it between invocations: it may be cleaned and used again. Does not block. Idempotent, and without effect after
    /// [`Instance::kill`].
    fn retire(&self, how: Retire);

    /// What was printed (stdout and stderr, in order) since the last call, bounded. Called once per invocation: it must not
    /// block, and must include everything written before the answer arrived.
    fn take_output(&self) -> Bytes;

    /// See [`Worker::printed`](pilot_model::ports::Worker::printed). Also resolves after the instance was let go.
    fn printed(&self) -> BoxFuture<'static, bool>;

    /// What it uses of the machine, and how it rests.
    fn resources(&self) -> &dyn Resources;

    /// Its memory limit, bytes; named in out-of-memory faults.
    fn memory_bytes_max(&self) -> u64;

    /// If others can reach the loopback device of its network: whose connections are its own.
    fn among_neighbours(&self) -> Option<OwnProcesses> {
        None
    }

    /// Shows inputs as files that its processes can read.
    ///
    /// # Errors
    /// Why they cannot be shown.
    fn hold(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<HeldFiles, String>> {
        drop(inputs);
        let problem = "this kind of worker takes no inputs".to_owned();
        Box::pin(std::future::ready(Err(problem)))
    }
}

/// Files inside an instance that show inputs, until this is dropped.
#[derive(Debug)]
pub struct HeldFiles {
    /// Their paths, in the order of the inputs.
    pub paths: Vec<String>,
    _held: Held,
}

impl HeldFiles {
    /// `held` is what keeps the files there.
    pub fn new(paths: Vec<String>, held: impl Any + Send) -> Self {
        Self {
            paths,
            _held: Held::new(held),
        }
    }
}

/// How an instance's main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Signalled(i32),
    /// Killed by the kernel because memory was short.
    OutOfMemory(MemoryShortage),
    /// Unknown, for example because the sandbox's init or the container engine ended first.
    Unknown,
}

/// How an instance is released.
#[derive(Debug)]
pub enum Retire {
    /// Everything in it is killed immediately.
    AtOnce {
        /// As below.
        held: Held,
    },
    /// Its main process gets SIGTERM. Whatever still runs after `grace` is killed (as Knative and Cloud Run do, and Lambda in
    /// its `Shutdown` phase).
    Gracefully {
        /// Longest time until the kill.
        grace: Duration,
        /// Which processes are waited for; the others are then killed.
        awaited: Awaited,
        /// Must stay alive until the instance has ended; dropped afterwards.
        held: Held,
    },
}

/// Which processes a graceful end waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Only the main process.
    MainProcess,
    /// Every process, because others than the main one were told to end, too.
    Everything,
}

/// Owns whatever must live until an instance has ended. Opaque: keep it, then drop it.
#[derive(Default)]
pub struct Held(Option<Box<dyn Any + Send>>);

impl Held {
    /// Whether there is something to drop.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn new(what: impl Any + Send) -> Self {
        Self(Some(Box::new(what)))
    }
}

impl Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}

/// How the daemon connects into an instance's network.
pub trait Reach: Send + Sync + Debug {
    /// Connects to `port` on the instance's loopback device.
    ///
    /// # Errors
    /// As connect(2): `ConnectionRefused` while nothing listens.
    fn connect(&self, port: u16) -> BoxFuture<'static, io::Result<TcpStream>>;
}
