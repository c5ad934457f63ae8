//! The `Instance` of a worker in a native sandbox: the end of its program, its output, and connections into its network.

use std::io;
use std::net::TcpStream as StdTcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::ports::{Input, MemoryShortage, Resources};
use pilot_protocols::{Awaited, End, HeldFiles, Holders, Instance, OwnProcesses, Reach, Retire};
use tokio::net::TcpStream;
use tokio::sync::{Notify, SetOnce};
use tokio::task::AbortHandle;
use tokio::time::Instant as Deadline;

use crate::child::{ChildEnd, END_TIME_MAX};
use crate::control::Control;
use crate::pace::Paceable;
use crate::worker::{
    Body, Drained, Grace, Output, Released, SIGKILL, SIGTERM, SandboxInUse, SandboxOwner,
};

/// See the module. Dropping it releases the sandbox, to be cleaned.
#[derive(Debug)]
pub(super) struct NativeInstance {
    owner: Arc<dyn SandboxOwner>,
    memory_bytes_max: u64,
    /// In the host's network.
    own_processes: Option<OwnProcesses>,
    end: Arc<SetOnce<ChildEnd>>,
    over: AtomicBool,
    sandbox: Arc<SandboxInUse>,
    output: Arc<Mutex<Output>>,
    /// Something was printed, or nothing will be.
    printed: Arc<Notify>,
    /// Output was taken.
    taken: Arc<Notify>,
    reader: AbortHandle,
    holders: Holders,
}

impl NativeInstance {
    pub(super) fn new(
        owner: Arc<dyn SandboxOwner>,
        memory_bytes_max: u64,
        own_processes: Option<OwnProcesses>,
        body: Body,
        output: Output,
        holders: Holders,
        paceable: Option<Paceable>,
    ) -> Self {
        let pipe = output.pipe_shared();
        let output = Arc::new(Mutex::new(output));
        let (printed, taken) = (Arc::<Notify>::default(), Arc::<Notify>::default());
        let (read, prints, room) = (
            Arc::clone(&output),
            Arc::clone(&printed),
            Arc::clone(&taken),
        );
        let reader = tokio::spawn(async move {
            // Reads all the time, so that the program never blocks on a full pipe, unless what it prints is taken all the time.
            while pipe.readable().await.is_ok() {
                let drained = read.lock().drain_ready();
                if drained == Drained::Ended {
                    break;
                }
                prints.notify_one();
                drained.rest().await;
                while read.lock().is_full() {
                    room.notified().await;
                }
            }
            prints.notify_one();
        });
        Self {
            owner,
            memory_bytes_max,
            own_processes,
            end: body.process.end_watch(),
            over: AtomicBool::new(false),
            sandbox: Arc::new(SandboxInUse::new(body, paceable)),
            output,
            printed,
            taken,
            reader: reader.abort_handle(),
            holders,
        }
    }

    fn let_go(&self, grace: Option<Grace>) {
        self.over.store(true, Ordering::Relaxed);
        // It is one of the processes whose end is awaited.
        self.holders.close();
        if let Some(body) = self.sandbox.take() {
            self.owner.take_back(Released { body, grace });
        }
    }
}

impl Drop for NativeInstance {
    fn drop(&mut self) {
        self.reader.abort();
        self.let_go(None);
    }
}

impl Instance for NativeInstance {
    fn ended(&self) -> BoxFuture<'static, End> {
        let (end, sandbox) = (Arc::clone(&self.end), Arc::clone(&self.sandbox));
        Box::pin(async move { end_of(end.wait().await, || sandbox.shortage()) })
    }

    fn is_alive(&self) -> bool {
        !self.end.initialized() && !self.over.load(Ordering::Relaxed)
    }

    fn kill(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.holders.close();
        // The sandbox's init exits when its socket closes, and the kernel ends everything in its PID namespace.
        if let Some(body) = self.sandbox.take() {
            drop(body);
            self.owner.lost();
        }
    }

    fn retire(&self, how: Retire) {
        match how {
            Retire::AtOnce { held } => {
                self.sandbox.tell_signal(SIGKILL);
                let until = Deadline::now() + END_TIME_MAX;
                self.let_go(Some(Grace::until(until, Awaited::MainProcess, held)));
            }
            Retire::Gracefully {
                grace,
                awaited,
                held,
            } => {
                self.sandbox.tell_signal(SIGTERM);
                let until = Deadline::now() + grace;
                self.let_go(Some(Grace::until(until, awaited, held)));
            }
        }
    }

    fn take_output(&self) -> Bytes {
        let output = self.output.lock().take();
        self.taken.notify_one();
        output
    }

    fn printed(&self) -> BoxFuture<'static, bool> {
        let (output, printed) = (Arc::clone(&self.output), Arc::clone(&self.printed));
        output.lock().follow();
        Box::pin(async move {
            loop {
                {
                    let output = output.lock();
                    if !output.is_empty() {
                        return true;
                    }
                    if output.is_ended() {
                        return false;
                    }
                }
                printed.notified().await;
            }
        })
    }

    fn resources(&self) -> &dyn Resources {
        &*self.sandbox
    }

    fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    fn among_neighbours(&self) -> Option<OwnProcesses> {
        self.own_processes.clone()
    }

    fn hold(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<HeldFiles, String>> {
        Box::pin(async move {
            let held = self.holders.hold(&inputs).await;
            held.map_err(|problem| format!("show it its inputs: {problem}"))
        })
    }
}

/// How the program ended. A shell, npm and other programs that run it exit with [`STATUS_KILLED`] if it was killed.
fn end_of(end: &ChildEnd, shortage: impl FnOnce() -> Option<MemoryShortage>) -> End {
    let (end, was_killed) = match *end {
        ChildEnd::Exited(code) => (End::Exited(code), code == STATUS_KILLED),
        ChildEnd::Signalled(signal) => (End::Signalled(signal), true),
        ChildEnd::ForkFailed(_) | ChildEnd::Unknown => (End::Unknown, false),
    };
    let shortage = was_killed.then(shortage).flatten();
    shortage.map_or(end, End::OutOfMemory)
}

/// 128 and the number of the signal (POSIX, "Shell Command Language", 2.8.2).
const STATUS_KILLED: i32 = 128 + SIGKILL;

/// Connects into a sandbox's network. Does not keep the sandbox alive: a connection to an ended one fails.
#[derive(Debug)]
pub(super) struct NativeReach {
    pub(super) control: Weak<Control>,
    /// In the host's network, where others may listen on the port that a server was to have.
    pub(super) own_processes: Option<OwnProcesses>,
}

impl Reach for NativeReach {
    fn connect(&self, port: u16) -> BoxFuture<'static, io::Result<TcpStream>> {
        let (control, own_processes) = (self.control.upgrade(), self.own_processes.clone());
        Box::pin(async move {
            let control = control.ok_or(io::ErrorKind::NotConnected)?;
            let socket = control.connect(port).await?;
            let stream = TcpStream::from_std(StdTcpStream::from(socket))?;
            // connect(2): the socket becomes writable when it is connected or has failed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_killed_for_lack_of_memory_is_told_apart_also_behind_another_one() {
        let short = || Some(MemoryShortage::Own);
        let out_of_memory = End::OutOfMemory(MemoryShortage::Own);
        assert_eq!(end_of(&ChildEnd::Signalled(SIGKILL), short), out_of_memory);
        assert_eq!(end_of(&ChildEnd::Exited(137), short), out_of_memory);
        // One of its processes was killed, but it went on and ended by itself.
        assert_eq!(end_of(&ChildEnd::Exited(1), short), End::Exited(1));
        assert_eq!(end_of(&ChildEnd::Exited(137), || None), End::Exited(137));
        assert_eq!(end_of(&ChildEnd::Unknown, short), End::Unknown);
    }
}
