//! One use of a container by a server, as `base/protocols` sees it: the main process's end and output, and the connection to
//! its network.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use pilot_model::ports::{Input, Resources};
use pilot_model::{BoxFuture, FunctionConfig};
use pilot_protocols::{Awaited, End, HeldFiles, Holders, Instance, OwnProcesses, Reach, Retire};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::container::Container;
use crate::hold::{hold, holders};
use crate::shim::{Ended, Shim, Whom};
use crate::usage::Use;

/// A use of a container.
#[derive(Debug)]
pub(crate) struct ContainerInstance {
    container: Arc<Container>,
    usage: Arc<Use>,
    memory_bytes_max: u64,
    holders: Holders,
}

/// Connects into a container's network.
#[derive(Debug)]
pub(crate) struct Inside {
    shim: Arc<Shim>,
    /// In the host's network, where others may listen on the port that a server was to have.
    own_processes: Option<OwnProcesses>,
}

impl ContainerInstance {
    /// With the inputs of a version.
    pub(crate) fn new(container: Arc<Container>, usage: Arc<Use>, config: &FunctionConfig) -> Self {
        let holders = holders(&container);
        if config.may_have_inputs() {
            holders.start_ahead();
        }
        Self {
            container,
            usage,
            memory_bytes_max: config.memory_bytes,
            holders,
        }
    }
}

impl Instance for ContainerInstance {
    fn ended(&self) -> BoxFuture<'static, End> {
        let (process, counters) = (
            self.usage.process.clone(),
            Arc::clone(&self.container.counters),
        );
        let before = self.usage.shortages_before;
        Box::pin(async move {
            let ended = process.ended().await;
            if ended != Ended::Exited(0)
                && let Some(shortage) = counters.shortage_since(before)
            {
                return End::OutOfMemory(shortage);
            }
            match ended {
                Ended::Exited(status) => End::Exited(status),
                Ended::Signalled(signal) => End::Signalled(signal),
                Ended::Unknown => End::Unknown,
            }
        })
    }

    fn is_alive(&self) -> bool {
        !self.usage.let_go.load(Ordering::Relaxed)
            && self.usage.process.end().is_none()
            && self.container.shim.is_alive()
    }

    fn kill(&self) {
        self.usage.let_go.store(true, Ordering::Relaxed);
        self.holders.close();
        self.container.shim.kill_all_soon();
        self.usage.settle();
    }

    fn retire(&self, how: Retire) {
        if self.usage.let_go.swap(true, Ordering::Relaxed) {
            return;
        }
        // It is one of the processes whose end is awaited.
        self.holders.close();
        let (grace, awaited, held) = match how {
            Retire::Gracefully {
                grace,
                awaited,
                held,
            } => (grace, awaited, held),
            Retire::AtOnce { held } => {
                self.container.shim.kill_all_soon();
                if held.is_some() {
                    let process = self.usage.process.clone();
                    self.container.spawn(async move {
                        let _ = timeout(KILL_TIME_MAX, process.ended()).await;
                        drop(held);
                    });
                }
                return self.usage.settle();
            }
        };
        let shim = &self.container.shim;
        shim.signal(&self.usage.process, SIGTERM, Whom::Process);
        let (container, usage) = (Arc::clone(&self.container), Arc::clone(&self.usage));
        self.container.spawn(async move {
            let ended = async {
                usage.process.ended().await;
                if awaited == Awaited::Everything {
                    // Whatever still runs then is killed.
                    drop(container.shim.at_rest(grace).await);
                }
            };
            tokio::select! {
                _ = timeout(grace, ended) => {}
                () = async { usage.settled.wait().await; } => {}
            }
            container.shim.kill_all_soon();
            drop(held);
            usage.settle();
        });
    }

    fn take_output(&self) -> Bytes {
        self.usage.output.take()
    }

    fn printed(&self) -> BoxFuture<'static, bool> {
        self.usage.output.printed()
    }

    fn resources(&self) -> &dyn Resources {
        &*self.container
    }

    fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    fn among_neighbours(&self) -> Option<OwnProcesses> {
        self.container.own_processes.clone()
    }

    fn hold(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<HeldFiles, String>> {
        Box::pin(async move { hold(&self.holders, &self.container, &inputs).await })
    }
}

impl Inside {
    pub(crate) fn new(shim: Arc<Shim>, own_processes: Option<OwnProcesses>) -> Self {
        Self {
            shim,
            own_processes,
        }
    }
}

impl Reach for Inside {
    fn connect(&self, port: u16) -> BoxFuture<'static, io::Result<TcpStream>> {
        let (shim, own_processes) = (Arc::clone(&self.shim), self.own_processes.clone());
        Box::pin(async move {
            let stream = shim
                .connect(port)
                .await
                .map_err(crate::shim::ShimError::into_io)?;
            let stream = TcpStream::from_std(stream)?;
            // connect(2), EINPROGRESS: the socket becomes writable when the connection is made or has failed; its error says
            // which.
            stream.writable().await?;
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            if let Some(own_processes) = own_processes {
                own_processes.check_server(port).await?;
            }
            Ok(stream)
        })
    }
}

/// Longest time until the end of a killed process is known.
const KILL_TIME_MAX: Duration = Duration::from_secs(2);

/// signal(7).
const SIGTERM: i32 = 15;
