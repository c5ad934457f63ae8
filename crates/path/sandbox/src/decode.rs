//! Decoders of inputs: `pilot decode-input` in sandboxes, as a user of their own in namespaces of their own, with the functions'
//! filter and limits, without files and without a network. A process decodes one input and ends, so nothing of one owner's data can
//! reach another one's, also if the data takes over the decoder.
//!
//! One process waits in advance while inputs are being decoded, and for some time after the last one: its start, of which the
//! sandbox is most, is then on no input's way. All are nested in one base sandbox, in which nothing else runs.
//!
//! Not here: what is decoded and what is said over the socket. That is in `side/data` and `side/decode`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pilot_model::cpu_limit::WEIGHT;
use pilot_model::inputs::decoded::DECODE_VERB;
use pilot_model::ports::{BoxFuture, DecoderHost, DecoderProcess, MemoryShortage, StartError};
use pilot_model::size::Size;
use pilot_sys::seqpacket;
use tokio::time::timeout;

use crate::cgroup::{Branch, CPU_PERIOD_US, Cgroup, Limits};
use crate::channel::set_nonblocking;
use crate::child::{Child, ChildEnd};
use crate::machine::{Machine, dev_null};
use crate::message::{ExecSpec, Folders};
use crate::refused::refused;
use crate::rootfs::RootSpec;
use crate::runtime_files::PILOT_INSIDE;
use crate::sandbox::{NestNetwork, Sandbox, SandboxSpec, SharedSandbox};

/// Runs decoders in sandboxes.
#[derive(Debug)]
pub struct SandboxedDecoders {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    machine: Arc<Machine>,
    memory_bytes: u64,
    /// It lives as long as a process in it. Held across an await, so that there is one.
    base: tokio::sync::Mutex<Weak<Sandbox>>,
    waiting: Mutex<WaitingDecoder>,
}

/// The process that waits in advance.
#[derive(Debug, Default)]
struct WaitingDecoder {
    process: Option<Process>,
    /// Whether one is being started.
    is_starting: bool,
    /// How often one was put here: who ends it after a time ends no later one.
    puts: u64,
    is_closed: bool,
}

/// A process that has read nothing yet, or is decoding.
#[derive(Debug)]
struct Process {
    child: Child,
    sandbox: Sandbox,
    /// Keeps the base sandbox alive.
    _base: SharedSandbox,
    /// Taken by who uses it.
    socket: Option<OwnedFd>,
}

/// A process in use.
#[derive(Debug)]
struct Used {
    process: Process,
    host: Weak<Inner>,
}

impl SandboxedDecoders {
    /// `memory_bytes`: what one process may have.
    #[must_use]
    pub fn new(machine: Arc<Machine>, memory_bytes: u64) -> Self {
        Self {
            inner: Arc::new(Inner {
                machine,
                memory_bytes,
                base: tokio::sync::Mutex::default(),
                waiting: Mutex::default(),
            }),
        }
    }

    /// From now on, no process waits in advance. See [`Machine::vacated`].
    pub fn close(&self) {
        let mut waiting = self.inner.waiting.lock();
        waiting.is_closed = true;
        let process = waiting.process.take();
        drop(waiting);
        drop(process);
    }
}

impl DecoderHost for SandboxedDecoders {
    fn start(&self) -> BoxFuture<'static, Result<Box<dyn DecoderProcess>, String>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let waiting = inner.waiting.lock().process.take();
            let process = match waiting.filter(Process::is_alive) {
                Some(process) => process,
                None => {
                    let started = inner.start().await;
                    started.map_err(|error| error.to_string())?
                }
            };
            let host = Arc::downgrade(&inner);
            Ok(Box::new(Used { process, host }) as Box<dyn DecoderProcess>)
        })
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes
    }
}

impl Inner {
    async fn start(&self) -> Result<Process, StartError> {
        let began = Instant::now();
        let base = self.base().await?;
        let limits = Limits {
            memory_bytes: self.memory_bytes,
            cpu_milli: 1000,
            cpu_period_us: CPU_PERIOD_US,
            cpu_weight: WEIGHT,
            pids: PIDS_MAX,
            freezable: false,
        };
        let cgroup = self.machine.cgroup_of(Branch::Functions, &limits)?;
        let folders = Folders {
            tmp_bytes_max: TMP_BYTES_MAX,
            over_template: false,
            user: None,
        };
        let sandbox = base.nest(NestNetwork::Own, cgroup, folders).await?;
        let (ours, theirs) =
            seqpacket::stream_pair_with_untrusted().map_err(refused("a socket pair"))?;
        set_nonblocking(&ours).map_err(refused("a socket pair"))?;
        let null = dev_null()?;
        let spec = ExecSpec {
            path: PILOT_INSIDE.to_owned(),
            arguments: vec![DECODE_VERB.to_owned()],
            environment: Vec::new(),
            cwd: PathBuf::from("/"),
            user: self.machine.user(),
            cgroup_files: 0,
            template: false,
            own_filter: true,
        };
        let fds = [theirs.as_fd(), null.as_fd(), null.as_fd()];
        let child = sandbox.exec(spec, &fds).await?;
        tracing::debug!(took = ?began.elapsed(), "a decoder was started");
        Ok(Process {
            child,
            sandbox,
            _base: base,
            socket: Some(ours),
        })
    }

    /// The sandbox around those of the processes.
    async fn base(&self) -> Result<SharedSandbox, StartError> {
        let mut kept = self.base.lock().await;
        if let Some(base) = kept.upgrade().filter(|base| !base.has_ended()) {
            return Ok(base);
        }
        let pilot = self.machine.files.pilot();
        let pilot = pilot.ok_or_else(|| StartError::Sandbox {
            problem: "the file of this binary is not there any more: start the daemon again"
                .to_owned(),
        })?;
        let request = SandboxSpec {
            root: RootSpec {
                mount_point: self.machine.config.dir.join("root"),
                shown: vec![(pilot.to_owned(), PathBuf::from(PILOT_INSIDE))],
                writable: None,
                user: USER_SHOWN,
                resolver: None,
                libraries: false,
            },
            own_network: true,
            own_users: None,
            tmp_bytes_max: TMP_BYTES_MAX,
        };
        let base = Sandbox::with_root(&self.machine.spawner, request, None, None).await?;
        let base = Arc::new(base);
        *kept = Arc::downgrade(&base);
        Ok(base)
    }

    /// Starts the process that waits for the next input, unless there is one.
    fn start_ahead(self: &Arc<Self>) {
        let mut waiting = self.waiting.lock();
        if waiting.is_starting || waiting.is_closed || waiting.process.is_some() {
            return;
        }
        waiting.is_starting = true;
        drop(waiting);
        let host = Arc::downgrade(self);
        tokio::spawn(async move {
            let Some(inner) = host.upgrade() else { return };
            let started = inner.start().await;
            inner.waiting.lock().is_starting = false;
            match started {
                Ok(process) => inner.put(process),
                Err(error) => {
                    tracing::warn!(%error, "no decoder could be started in advance");
                }
            }
        });
    }

    /// Keeps a process that has read nothing, for some time.
    fn put(self: &Arc<Self>, process: Process) {
        let mut waiting = self.waiting.lock();
        if waiting.is_closed || waiting.process.is_some() {
            drop(waiting);
            return;
        }
        waiting.process = Some(process);
        waiting.puts += 1;
        let put = waiting.puts;
        drop(waiting);
        let host = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(WAITS_MAX).await;
            let Some(inner) = host.upgrade() else { return };
            let mut waiting = inner.waiting.lock();
            let process = match waiting.puts == put {
                true => waiting.process.take(),
                false => None,
            };
            drop(waiting);
            drop(process);
        });
    }
}

impl Process {
    fn is_alive(&self) -> bool {
        !self.child.has_ended() && !self.sandbox.has_ended()
    }
}

impl DecoderProcess for Used {
    fn socket(&mut self) -> Option<OwnedFd> {
        if let Some(inner) = self.host.upgrade() {
            inner.start_ahead();
        }
        self.process.socket.take()
    }

    fn ended(self: Box<Self>) -> BoxFuture<'static, String> {
        Box::pin(async move {
            let Process { child, sandbox, .. } = &self.process;
            let Ok(end) = timeout(END_TIME_MAX, child.end()).await else {
                return "it closed its socket and went on".to_owned();
            };
            let shortage = sandbox.cgroup().and_then(Cgroup::shortage);
            let memory_bytes = self.host.upgrade().map_or(0, |host| host.memory_bytes);
            match shortage {
                Some(MemoryShortage::Own) => format!(
                    "it needs more memory than the {} that a decoder may have: see data.decoder_memory_mb in pilotd.toml",
                    Size(memory_bytes)
                ),
                Some(around) => format!("the kernel ended it: {}", around.around()),
                // So Rust ends a program that asks for memory which it cannot have.
                None if matches!(end, ChildEnd::Signalled(libc::SIGABRT)) => format!(
                    "it aborted: the lengths in the data are wrong, or it needs more memory than the {} that a decoder may have \
                     (data.decoder_memory_mb in pilotd.toml)",
                    Size(memory_bytes)
                ),
                None => format!("it {}", end.in_words()),
            }
        })
    }

    fn unused(self: Box<Self>) {
        let Self { process, host } = *self;
        if let Some(inner) = host.upgrade()
            && process.socket.is_some()
            && process.is_alive()
        {
            inner.put(process);
        }
    }
}

/// A process, and the threads that it does not start.
const PIDS_MAX: u32 = 2;
const TMP_BYTES_MAX: u64 = 1 << 20;
/// The user in `/etc/passwd`. The processes have other user ids.
const USER_SHOWN: u32 = 1000;
/// How long a process waits for an input.
const WAITS_MAX: Duration = Duration::from_secs(60);
/// Until the end of a process that has closed its socket is known.
const END_TIME_MAX: Duration = Duration::from_secs(1);
