//! A request of a script, and what becomes of its reply: the script reads it, or the function gets it as a message.

use std::fs::File;
use std::future::Future;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pilot_model::initscript::message_name;
use pilot_model::ports::{
    Clock, Input, InputMemory, RemoteFault, RemoteReply, ScriptLink, ScriptSent, StoreRead,
};
use pilot_model::{Instant, Transfer, TransferWay};
use tokio::sync::watch;
use tokio::time::{Instant as Deadline, timeout_at};

use super::{Said, World};
use crate::errors::Code;
use crate::threads::Running;

/// A request.
#[derive(Debug)]
pub(crate) struct Rpc {
    /// For people.
    from: String,
    began: Instant,
    reply: watch::Receiver<Option<Arc<Finished>>>,
    /// For the script's own reading.
    file: Option<File>,
    /// Whether its reply is a message already.
    is_message: AtomicBool,
    _task: Running<()>,
}

/// A request that has ended.
#[derive(Debug)]
struct Finished {
    ended: Instant,
    result: Result<Arc<RemoteReply>, RemoteFault>,
}

/// The reply of a request, which is to become a message.
#[derive(Debug)]
pub(crate) struct Awaited {
    id: u64,
    transfer: Transfer,
    reply: watch::Receiver<Option<Arc<Finished>>>,
    /// Whether no other message has the same reply.
    is_first: bool,
    deadline: Deadline,
}

/// A message with its memory.
pub(crate) struct Given {
    pub(crate) input: Input,
    pub(crate) memory: Arc<dyn InputMemory>,
}

impl Rpc {
    /// Sends it, on the threads of requests.
    pub(crate) fn begin(
        world: &World,
        from: String,
        reply: impl Future<Output = Result<RemoteReply, RemoteFault>> + Send + 'static,
    ) -> Self {
        let (sender, receiver) = watch::channel(None);
        let clock = Arc::clone(&world.clock);
        let began = clock.now();
        let task = world.requests.spawn(async move {
            let result = reply.await.map(Arc::new);
            let ended = clock.now();
            // Nobody may wait any more.
            let _ = sender.send(Some(Arc::new(Finished { ended, result })));
        });
        Self {
            from,
            began,
            reply: receiver,
            file: None,
            is_message: AtomicBool::new(false),
            _task: Running::new(task),
        }
    }

    /// Waits for the reply.
    pub(crate) async fn wait(&mut self) -> Said<()> {
        let finished = finished(&mut self.reply).await;
        let failed = |problem: &str| (Code::Failed, format!("{}: {problem}", self.from));
        match finished {
            None => Err(failed(GONE)),
            Some(finished) => match &finished.result {
                Ok(_) => Ok(()),
                Err(fault) => Err(failed(&fault.problem)),
            },
        }
    }

    /// The reply, once the script has waited for it.
    pub(crate) fn reply(&self) -> Option<Arc<RemoteReply>> {
        let finished = self.reply.borrow().clone()?;
        finished.result.as_ref().ok().cloned()
    }

    /// Copies a part of the reply. Returns how many bytes.
    pub(crate) fn read(&mut self, at: u64, into: &mut [u8]) -> Option<io::Result<usize>> {
        let reply = self.reply()?;
        Some(self.read_file(&reply, at, into))
    }

    fn read_file(&mut self, reply: &RemoteReply, at: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.file.is_none() {
            let input = reply.memory.input("reply")?;
            self.file = Some(File::from(input.descriptor.try_clone()?));
        }
        let mut done = 0;
        while let (Some(file), Some(rest)) = (&self.file, into.get_mut(done..)) {
            let place = at.saturating_add(done as u64);
            match file.read_at(rest, place)? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    /// Its reply as message `id`, which is waited for until `deadline`.
    pub(crate) fn message(&self, id: u64, deadline: Deadline) -> Awaited {
        Awaited {
            id,
            transfer: transfer_of(id, &self.from, self.began),
            reply: self.reply.clone(),
            is_first: !self.is_message.swap(true, Ordering::Relaxed),
            deadline,
        }
    }
}

impl Awaited {
    /// Waits for it. The transfer says how it came, or why it did not.
    pub(crate) async fn collect(
        mut self,
        clock: &dyn Clock,
        deadline: Deadline,
    ) -> (Transfer, Option<Given>) {
        let deadline = deadline.min(self.deadline);
        let given = match timeout_at(deadline, finished(&mut self.reply)).await {
            Err(_) => {
                self.transfer.ended = clock.now();
                Err("the reply was not here in time".to_owned())
            }
            Ok(None) => Err(GONE.to_owned()),
            Ok(Some(finished)) => {
                self.transfer.ended = finished.ended;
                match &finished.result {
                    Err(fault) => Err(fault.problem.clone()),
                    Ok(reply) => {
                        self.transfer.way = reply.way;
                        let object = reply.object.clone();
                        let object =
                            object.filter(|read| self.is_first || !read.object.answers_once());
                        give(self.id, &reply.memory, object)
                    }
                }
            }
        };
        settled(self.transfer, given)
    }

    /// Waits for it, and sends it to the function.
    pub(crate) async fn send(self, clock: Arc<dyn Clock>, link: Arc<dyn ScriptLink>) -> Transfer {
        let (id, deadline) = (self.id, self.deadline);
        let (transfer, given) = self.collect(clock.as_ref(), deadline).await;
        send(id, transfer.clone(), given, link.as_ref());
        transfer
    }
}

/// The transfer of a message, and the message, or in the transfer why there is none.
fn settled(mut transfer: Transfer, given: Result<Given, String>) -> (Transfer, Option<Given>) {
    match given {
        Ok(given) => {
            transfer.bytes = given.memory.bytes();
            (transfer, Some(given))
        }
        Err(problem) => {
            transfer.error = Some(problem);
            (transfer, None)
        }
    }
}

/// Bytes that the script has copied, as a message.
pub(crate) fn copied(
    id: u64,
    memory: &Arc<dyn InputMemory>,
    (began, ended): (Instant, Instant),
) -> (Transfer, Option<Given>) {
    let transfer = Transfer {
        way: TransferWay::Handed,
        ended,
        ..transfer_of(id, "initscript", began)
    };
    settled(transfer, give(id, memory, None))
}

/// Gives a message, or why there is none, to the function that may be running.
pub(crate) fn send(id: u64, transfer: Transfer, given: Option<Given>, link: &dyn ScriptLink) {
    link.sent(match given {
        None => ScriptSent::NoMessage { id, transfer },
        Some(Given { input, memory }) => ScriptSent::Message {
            id,
            input,
            memory,
            transfer,
        },
    });
}

fn give(
    id: u64,
    memory: &Arc<dyn InputMemory>,
    object: Option<Arc<StoreRead>>,
) -> Result<Given, String> {
    let input = memory.input(&message_name(id));
    let mut input = input.map_err(|error| format!("no descriptor for it: {error}"))?;
    input.object = object;
    Ok(Given {
        input,
        memory: Arc::clone(memory),
    })
}

/// Of a message that is not here yet.
pub(crate) fn transfer_of(id: u64, from: &str, now: Instant) -> Transfer {
    Transfer {
        input: message_name(id),
        from: from.to_owned(),
        bytes: 0,
        way: TransferWay::Fetched,
        began: now,
        ended: now,
        decoding: None,
        streamed: None,
        error: None,
    }
}

/// `None`: the request's task is gone.
async fn finished(reply: &mut watch::Receiver<Option<Arc<Finished>>>) -> Option<Arc<Finished>> {
    let found = reply.wait_for(Option::is_some).await.ok()?;
    found.clone()
}

/// The request's task is gone.
const GONE: &str = "the daemon is stopping";
