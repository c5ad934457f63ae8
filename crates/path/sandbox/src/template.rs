//! The daemon's handle of a template: a process that has imported modules and does nothing but fork.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pilot_model::Seldom;
use pilot_model::ports::StartError;
use pilot_sys::seqpacket::Message;
use pilot_wire::control::{Reply, Request, Role, TemplateReady, TemplateSpec, short_fork};
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cgroup::{Cgroup, CpuShare, Resident};
use crate::channel::Channel;
use crate::child::{Child, ChildEnd, END_TIME_MAX, or_end};
use crate::message::USERS;
use crate::sandbox::{Sandbox, SharedSandbox};
use crate::worker::Output;

/// Forks children into sandboxes. The process ends when this and the last of its children's sandboxes are dropped.
#[derive(Debug)]
pub(crate) struct Template {
    control: Arc<Channel>,
    children: Arc<Children>,
    next_child: AtomicU64,
    workers_ready: AtomicU64,
    reader: JoinHandle<()>,
    sandbox: SharedSandbox,
    /// Of its group. `None`: there is no cgroup.
    share: Option<Arc<CpuShare>>,
    ready: TemplateReady,
}

#[derive(Debug)]
struct Children {
    /// Guards the children whose end is awaited.
    waiting: Mutex<HashMap<u64, Awaited>>,
    alive: AtomicBool,
}

/// A child whose end is awaited.
#[derive(Debug)]
struct Awaited {
    end: Arc<SetOnce<ChildEnd>>,
    /// The template has said that it is forked.
    is_forked: bool,
}

/// Longest time for a template's imports.
const IMPORT_TIME_MAX: Duration = Duration::from_secs(120);

impl Template {
    /// Waits until the process at the other end of `control` has finished its imports. `ended` resolves with a description when
    /// the process ends.
    pub(crate) async fn when_ready(
        control: Channel,
        sandbox: SharedSandbox,
        output: &mut Output,
        ended: impl Future<Output = ChildEnd>,
    ) -> Result<Self, StartError> {
        let runtime = |problem: String, output: &mut Output| StartError::Runtime {
            problem,
            output: output.take_text(),
        };
        let message = match output.drain_while(first_message(&control, ended)).await {
            Ok(message) => message,
            Err(end) => {
                let problem = match (&end, sandbox.cgroup().and_then(Cgroup::shortage)) {
                    (Silence::Ended(ChildEnd::Signalled(_)), Some(shortage)) => {
                        shortage.of_start("importing")
                    }
                    (Silence::Ended(end), _) => {
                        format!("the template {} while importing", end.in_words())
                    }
                    (Silence::Failed(error), _) => error.to_string(),
                    (Silence::TooLong, _) => {
                        format!("the imports took more than {} s", IMPORT_TIME_MAX.as_secs())
                    }
                };
                return Err(runtime(problem, output));
            }
        };
        let ready = match serde_json::from_slice(&message.bytes) {
            Ok(Reply::Ready(ready)) => *ready,
            Ok(other) => {
                return Err(runtime(
                    format!("the template's first message is {other:?}"),
                    output,
                ));
            }
            Err(error) => {
                return Err(runtime(
                    format!("the template sent an invalid message: {error}"),
                    output,
                ));
            }
        };
        if let Some(error) = &ready.error {
            return Err(StartError::Import {
                body: error.to_string(),
                output: output.take_text(),
            });
        }
        let control = Arc::new(control);
        let children = Arc::new(Children {
            waiting: Mutex::default(),
            alive: AtomicBool::new(true),
        });
        let reader = tokio::spawn(read_replies(Arc::clone(&control), Arc::clone(&children)));
        let share = sandbox
            .cgroup()
            .map(|cgroup| cgroup.watch(Resident::Template));
        Ok(Self {
            control,
            children,
            share,
            next_child: AtomicU64::new(1),
            workers_ready: AtomicU64::new(0),
            reader,
            sandbox,
            ready,
        })
    }

    /// Requests a child in `sandbox`. Resolves when the template has the request; the child itself reports on `channel` when it
    /// is ready. Without a spec it is a worker of the template's own function. `around` is the sandbox that `sandbox` is nested in, if this
    /// is not the template's own: the child enters its user namespace first.
    pub(crate) async fn fork(
        &self,
        role: Role,
        sandbox: &Sandbox,
        channel: &OwnedFd,
        log: &OwnedFd,
        spec: Option<&TemplateSpec>,
        around: Option<&Sandbox>,
    ) -> Result<Child, StartError> {
        let users = around.and_then(Sandbox::users);
        let (names, fds): (Vec<&str>, Vec<BorrowedFd<'_>>) =
            [("channel", channel.as_fd()), ("log", log.as_fd())]
                .into_iter()
                .chain(users.map(|users| (USERS, users)))
                .chain(sandbox.entrance())
                .unzip();
        let id = self.next_child.fetch_add(1, Ordering::Relaxed);
        let end = Arc::new(SetOnce::new());
        let awaited = Awaited {
            end: Arc::clone(&end),
            is_forked: false,
        };
        self.children.waiting.lock().insert(id, awaited);
        if let Some(share) = &self.share {
            // Before it has the request: a fork must not wait for those who compute.
            share.exchange_changed();
        }
        let sent = match (role, spec) {
            (Role::Worker, None) if self.ready.native => {
                let request = short_fork(id, &names).map_err(io::Error::other);
                match request {
                    Ok(request) => self.control.send_bytes(&request, &fds).await,
                    Err(error) => Err(error),
                }
            }
            _ => {
                let request = Request::Fork {
                    id,
                    r#as: role,
                    fds: &names,
                    spec,
                };
                self.control.send(&request, &fds).await
            }
        };
        if let Err(error) = sent {
            self.children.end();
            return Err(StartError::Runtime {
                problem: format!("cannot send the template a fork request: {error}"),
                output: String::new(),
            });
        }
        Ok(Child::ended_by(end))
    }

    /// The template's report of its imports.
    pub(crate) fn ready(&self) -> &TemplateReady {
        &self.ready
    }

    /// Whether it may fork: with more than one thread, a lock could stay locked in the child forever. It may also say itself that a
    /// child would lack something that the imports made.
    pub(crate) fn forkable(&self) -> bool {
        self.ready.threads == 1 && self.ready.must_not_fork.is_none()
    }

    /// Whether its process is still running, as far as known.
    pub(crate) fn alive(&self) -> bool {
        self.children.alive.load(Ordering::Relaxed)
    }

    /// How many workers that it forked were ready in time.
    pub(crate) fn workers_ready(&self) -> u64 {
        self.workers_ready.load(Ordering::Relaxed)
    }

    pub(crate) fn count_ready(&self) {
        self.workers_ready.fetch_add(1, Ordering::Relaxed);
    }

    /// It does not answer: whoever needs it from now on builds a new one. Its children run on.
    pub(crate) fn give_up(&self) {
        self.children.alive.store(false, Ordering::Relaxed);
    }

    pub(crate) fn sandbox(&self) -> &SharedSandbox {
        &self.sandbox
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        self.reader.abort();
        // Nobody reads its replies any more.
        self.children.end();
    }
}

impl Children {
    /// The template has ended: everybody who waits for a child's end gets `Unknown`.
    fn end(&self) {
        self.alive.store(false, Ordering::Relaxed);
        for (_, waiting) in self.waiting.lock().drain() {
            let _ = waiting.end.set(ChildEnd::Unknown);
        }
    }

    /// # Errors
    /// There is no such child, or its end was told before.
    fn tell(&self, id: u64, end: ChildEnd) -> Result<(), String> {
        let waiting = self.waiting.lock().remove(&id);
        let waiting = waiting.ok_or_else(|| format!("there is no child {id}"))?;
        // Set once, because the entry is removed.
        let _ = waiting.end.set(end);
        Ok(())
    }

    /// # Errors
    /// There is no such child, or this was told before.
    fn forked(&self, id: u64) -> Result<(), String> {
        match self.waiting.lock().get_mut(&id) {
            None => Err(format!("there is no child {id}")),
            Some(waiting) if waiting.is_forked => Err(format!("child {id} is forked twice")),
            Some(waiting) => {
                waiting.is_forked = true;
                Ok(())
            }
        }
    }
}

/// Why a template did not report.
enum Silence {
    Ended(ChildEnd),
    Failed(io::Error),
    TooLong,
}

/// A new template's first message, or why there is none.
async fn first_message(
    control: &Channel,
    ended: impl Future<Output = ChildEnd>,
) -> Result<Message, Silence> {
    let mut ended = std::pin::pin!(ended);
    // The end may be seen just before the end of the channel. Then it must not be waited for again.
    let mut seen = None;
    let noted = async {
        let end = ended.as_mut().await;
        seen.insert(end).clone()
    };
    let received = timeout(IMPORT_TIME_MAX, or_end(control.receive(), noted)).await;
    match received {
        Ok(Ok(Ok(Some(message)))) => Ok(message),
        // The process has ended; its status arrives in a moment.
        Ok(Ok(Ok(None))) => Err(Silence::Ended(match seen {
            Some(end) => end,
            None => timeout(END_TIME_MAX, ended)
                .await
                .unwrap_or(ChildEnd::Unknown),
        })),
        Ok(Ok(Err(error))) => Err(Silence::Failed(error)),
        Ok(Err(end)) => Err(Silence::Ended(end)),
        Err(_) => Err(Silence::TooLong),
    }
}

/// Passes a template's replies on until it closes its end, or has sent more invalid ones than a working template ever does. Then it
/// is taken as ended: whoever needs it builds a new one.
async fn read_replies(control: Arc<Channel>, children: Arc<Children>) {
    let told = Seldom::new(INVALID_TOLD_MAX);
    let mut invalid: u32 = 0;
    while let Ok(Some(message)) = control.receive().await {
        let problem = match serde_json::from_slice(&message.bytes) {
            Ok(Reply::Exited { id, code, signal }) => {
                let end = match (code, signal) {
                    (Some(code), _) => ChildEnd::Exited(code),
                    (None, Some(signal)) => ChildEnd::Signalled(signal),
                    (None, None) => ChildEnd::Unknown,
                };
                children.tell(id, end)
            }
            Ok(Reply::ForkFailed { id, error }) => children.tell(id, ChildEnd::ForkFailed(error)),
            Ok(Reply::Forked { id }) => match children.forked(id) {
                Ok(()) => continue,
                Err(problem) => Err(problem),
            },
            Ok(Reply::Ready(_)) => Err("it reports a second time that it is ready".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let Err(problem) = problem else {
            continue;
        };
        invalid += 1;
        if let Some(left_out) = told.admit(Instant::now()) {
            // The problem may quote the message.
            tracing::warn!(?problem, left_out, "a template sent an invalid message");
        }
        if invalid == INVALID_MAX {
            tracing::warn!(
                invalid,
                left_out = told.left_out(),
                "a template sent too many invalid messages: it is not used any more"
            );
            break;
        }
    }
    let left_out = told.left_out();
    if left_out > 0 {
        tracing::warn!(
            left_out,
            "a template that has ended had sent further invalid messages"
        );
    }
    children.end();
}

/// Invalid messages of a template that are logged per interval.
const INVALID_TOLD_MAX: u32 = 5;
/// A template that sent so many invalid messages is not used any more. Each costs the daemon a little time.
const INVALID_MAX: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_template_that_ends_is_asked_once_how_it_ended() {
        let (control, theirs) = Channel::pair().unwrap();
        // Its end is known before the end of its channel: the first of the two futures is polled first.
        let ended = async { ChildEnd::Exited(3) };
        let closing = async move { drop(theirs) };
        let (message, ()) = tokio::join!(first_message(&control, ended), closing);
        assert!(
            matches!(message, Err(Silence::Ended(ChildEnd::Exited(3)))),
            "{:?}",
            message.is_ok()
        );
    }

    #[test]
    fn a_template_says_of_each_child_once_that_it_is_forked() {
        let children = Children {
            waiting: Mutex::default(),
            alive: AtomicBool::new(true),
        };
        let awaited = Awaited {
            end: Arc::new(SetOnce::new()),
            is_forked: false,
        };
        children.waiting.lock().insert(7, awaited);
        assert!(children.forked(8).is_err());
        assert!(children.forked(7).is_ok());
        assert!(children.forked(7).is_err());
        assert!(children.tell(7, ChildEnd::Exited(0)).is_ok());
        assert!(children.forked(7).is_err());
    }
}
