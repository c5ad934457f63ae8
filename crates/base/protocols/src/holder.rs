//! Inputs as files, for programs that cannot receive descriptors: Node.js, runtimes behind the Lambda Runtime API, servers, containers.
//!
//! A memfd has no path, and cannot be mounted (`do_loopback` in fs/namespace.c refuses the kernel's own mounts). But every open file has
//! one in `/proc`, for those who may look into the process that has it (proc_pid_fd(5)). So a tiny program of ours, the *holder*
//! (`base/sys/native/holder.c`), runs beside the worker as the worker's user and has the inputs open: `/proc/PID/fd/N` is the input,
//! without a copy. A sandbox's init cannot have them open itself, because its memory is none of the worker's business.
//!
//! A worker has one holder, which is started in advance and gets the inputs of each invocation over its socket. When an invocation
//! ends, the holder closes its inputs. Each gets a number of its own, so that a path of an ended invocation leads nowhere. When the
//! numbers are used up, the next holder is started in advance.
//!
//! The holder has nothing that the worker may not have. A worker that kills it, stops it or opens its descriptors harms its own
//! invocations, or keeps its own inputs. How a process is started is the business of a [`HolderHost`].

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::BoxFuture;
use pilot_model::ports::Input;
use pilot_sys::seqpacket::{self, FDS_MAX};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::HeldFiles;

/// Starts holders where a worker runs.
pub trait HolderHost: Send + Sync + Debug {
    /// Starts the program of descriptor 0 (`/proc/self/fd/0`) as the worker's user, without arguments, with these descriptors as its 0, 1
    /// and 2. Returns its process id as the worker sees it. The descriptors are closed then.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn start(&self, fds: [OwnedFd; 3]) -> BoxFuture<'_, Result<i32, String>>;
}

/// Shows inputs to one worker.
#[derive(Debug)]
pub struct Holders {
    shared: Arc<HolderSlot>,
    /// The task that starts the next one. Guards only the value.
    ahead: Mutex<Option<AbortHandle>>,
}

#[derive(Debug)]
struct HolderSlot {
    host: Box<dyn HolderHost>,
    /// Guards only the value.
    state: Mutex<HolderState>,
    /// One start or request at a time. Held across awaits, each with a time limit.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct HolderState {
    current: Option<Arc<Holder>>,
    is_closed: bool,
    /// How often all holders were given up. One that began to start before is not used.
    given_up: u64,
}

/// A running holder. It ends when this is dropped.
#[derive(Debug)]
struct Holder {
    pid: i32,
    /// A message socket. Only the readiness of tokio's stream socket is used, and calls that are common to both types.
    line: UnixStream,
    /// The next number of a descriptor.
    next: AtomicU32,
}

impl Holders {
    /// Starts none yet.
    #[must_use]
    pub fn new(host: impl HolderHost + 'static) -> Self {
        Self {
            shared: Arc::new(HolderSlot {
                host: Box::new(host),
                state: Mutex::default(),
                turn: tokio::sync::Mutex::default(),
            }),
            ahead: Mutex::default(),
        }
    }

    /// Starts to start the holder that the next invocation will use. Must be called within a tokio runtime.
    pub fn start_ahead(&self) {
        self.start_ahead_for(1);
    }

    /// As [`Holders::start_ahead`], unless the present one can show this many inputs.
    fn start_ahead_for(&self, count: u32) {
        let shared = Arc::clone(&self.shared);
        let task = tokio::spawn(async move {
            let _turn = shared.turn.lock().await;
            if shared.current(count).is_some() {
                return;
            }
            if let Err(problem) = shared.start().await {
                // The invocation that needs one tries again, and tells it.
                tracing::debug!(problem, "no holder of inputs could be started in advance");
            }
        });
        if let Some(before) = self.ahead.lock().replace(task.abort_handle()) {
            before.abort();
        }
    }

    /// Shows inputs, in their order, until the result is dropped.
    ///
    /// # Errors
    /// Why they cannot be shown.
    pub async fn hold(&self, inputs: &[Input]) -> Result<HeldFiles, String> {
        let count = u32::try_from(inputs.len()).unwrap_or(u32::MAX);
        let shared = &self.shared;
        let turn = shared.turn.lock().await;
        // The worker may have killed or stopped it: then there is a new one.
        let mut shown = None;
        if let Some(holder) = shared.current(count) {
            shown = timeout(KEPT_TIME_MAX, shared.show(&holder, inputs))
                .await
                .ok()
                .and_then(Result::ok);
        }
        let shown = if let Some(shown) = shown {
            shown
        } else {
            let holder = shared.start().await?;
            let shown = timeout(START_TIME_MAX, shared.show(&holder, inputs)).await;
            shown.map_err(|_| failed("it does not answer"))??
        };
        drop(turn);
        if shared.current(count).is_none() {
            self.start_ahead_for(count);
        }
        let numbers = shown.numbers.clone();
        let pid = shown.holder.pid;
        let paths = numbers.map(|number| format!("/proc/{pid}/fd/{number}"));
        Ok(HeldFiles::new(paths.collect(), shown))
    }

    /// The host is about to end the present holder together with all processes of the worker: the next invocation gets another one.
    /// To be called before.
    pub fn give_up(&self) {
        if let Some(task) = self.ahead.lock().take() {
            task.abort();
        }
        let mut state = self.shared.state.lock();
        state.given_up += 1;
        state.current = None;
    }

    /// Ends the holder once no inputs are shown any more, and starts no more. Idempotent.
    pub fn close(&self) {
        if let Some(task) = self.ahead.lock().take() {
            task.abort();
        }
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        state.current = None;
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        self.close();
    }
}

impl HolderSlot {
    /// The running holder, if it has this many numbers left.
    fn current(&self, count: u32) -> Option<Arc<Holder>> {
        let current = self.state.lock().current.clone();
        current.filter(|holder| {
            let next = holder.next.load(Ordering::Relaxed);
            next.saturating_add(count) <= NUMBERS.end
        })
    }

    /// It is not used any more, and ends when nothing that it shows is needed.
    fn forget(&self, holder: &Arc<Holder>) {
        let mut state = self.state.lock();
        if (state.current.as_ref()).is_some_and(|current| Arc::ptr_eq(current, holder)) {
            state.current = None;
        }
    }

    /// Starts one. Only in one's turn.
    async fn start(&self) -> Result<Arc<Holder>, String> {
        let cannot = |what: &str, error: io::Error| failed(&format!("{what}: {error}"));
        let program = pilot_sys::holder::program().map_err(|error| cannot("its program", error))?;
        let made = || {
            let (line, theirs) = seqpacket::pair_with_untrusted()?;
            let line = StdUnixStream::from(line);
            line.set_nonblocking(true)?;
            let null = std::fs::File::open("/dev/null")?;
            Ok((UnixStream::from_std(line)?, theirs, OwnedFd::from(null)))
        };
        let given_up = self.state.lock().given_up;
        let (line, theirs, null) = made().map_err(|error| cannot("its descriptors", error))?;
        let pid = self.host.start([program, theirs, null]).await?;
        // Before it has said so, its descriptors are not in place, and nobody may look into it.
        let said = timeout(START_TIME_MAX, answered(&line)).await;
        match said {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(failed("it could not be started")),
            Err(_) => return Err(failed("it did not start in time")),
        }
        let holder = Arc::new(Holder {
            pid,
            line,
            next: AtomicU32::new(NUMBERS.start),
        });
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(failed("the worker ends"));
        }
        if state.given_up != given_up {
            return Err(failed("it was ended"));
        }
        state.current = Some(Arc::clone(&holder));
        Ok(holder)
    }

    /// Gives the holder files. Only in one's turn. If it fails, or the future is dropped, the holder is not used again.
    async fn show(
        self: &Arc<Self>,
        holder: &Arc<Holder>,
        inputs: &[Input],
    ) -> Result<Shown, String> {
        let mut attempt = Attempt {
            shared: self,
            holder,
            is_complete: false,
        };
        let first = holder.next.load(Ordering::Relaxed);
        let mut shown = Shown {
            shared: Arc::downgrade(self),
            holder: Arc::clone(holder),
            numbers: first..first,
        };
        for some in inputs.chunks(FDS_MAX) {
            let fds: Vec<_> = some.iter().map(|input| input.descriptor.as_fd()).collect();
            let message = request(shown.numbers.end, 0);
            let count = u32::try_from(some.len()).unwrap_or(u32::MAX);
            shown.numbers.end = shown.numbers.end.saturating_add(count);
            holder.next.store(shown.numbers.end, Ordering::Relaxed);
            let line = &holder.line;
            let send = || seqpacket::send(line.as_fd(), &message, &fds);
            let sent = line.async_io(Interest::WRITABLE, send).await;
            sent.map_err(|error| failed(&error.to_string()))?;
            // The turn is ours, so this is the answer to our request.
            let answer = answered(line).await;
            answer.map_err(|error| failed(&error.to_string()))?;
        }
        attempt.is_complete = true;
        Ok(shown)
    }
}

/// A request whose answer may not have been read.
struct Attempt<'a> {
    shared: &'a HolderSlot,
    holder: &'a Arc<Holder>,
    is_complete: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_complete {
            self.shared.forget(self.holder);
        }
    }
}

/// What a holder shows for one invocation.
#[derive(Debug)]
struct Shown {
    shared: Weak<HolderSlot>,
    holder: Arc<Holder>,
    numbers: Range<u32>,
}

impl Drop for Shown {
    fn drop(&mut self) {
        let message = request(self.numbers.start, self.numbers.end - self.numbers.start);
        // It has no answer. Requests are read in order, so the inputs of the next invocation come after it.
        let told = seqpacket::send(self.holder.line.as_fd(), &message, &[]);
        if told.is_err()
            && let Some(shared) = self.shared.upgrade()
        {
            // It is gone or reads nothing. What it still has open ends with it.
            shared.forget(&self.holder);
        }
    }
}

/// Waits for a holder's answer: one byte, 0 or the kernel's error.
async fn answered(line: &UnixStream) -> io::Result<()> {
    loop {
        line.readable().await?;
        let mut said = [0];
        match line.try_read(&mut said) {
            Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
            Ok(_) if said == [0] => return Ok(()),
            Ok(_) => return Err(io::Error::from_raw_os_error(i32::from(said[0]))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// `struct request` of the program, in this machine's byte order.
fn request(first: u32, count: u32) -> [u8; 8] {
    let mut message = [0; 8];
    let (at_first, at_count) = message.split_at_mut(4);
    at_first.copy_from_slice(&first.to_ne_bytes());
    at_count.copy_from_slice(&count.to_ne_bytes());
    message
}

fn failed(problem: &str) -> String {
    format!("the holder of inputs: {problem}")
}

/// The numbers that inputs get. Below are those that the kernel chooses for files that arrive (`FIRST` of the program). Above, the usual
/// limit of a process's open files would forbid them.
const NUMBERS: Range<u32> = 32..1024;
/// Longest time for a new holder to run, and to answer.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time for a kept holder to answer. Then a new one is started.
const KEPT_TIME_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use pilot_model::ports::InputKind;

    use super::*;

    /// Starts holders as its own children, and ends them.
    #[derive(Debug, Clone, Default)]
    struct Here(Arc<Mutex<Vec<Child>>>);

    impl HolderHost for Here {
        fn start(&self, [program, line, null]: [OwnedFd; 3]) -> BoxFuture<'_, Result<i32, String>> {
            let holder = Command::new("/proc/self/fd/0")
                .stdin(program)
                .stdout(line)
                .stderr(Stdio::from(null))
                .spawn();
            let holder = holder.unwrap();
            let pid = i32::try_from(holder.id()).unwrap();
            self.0.lock().push(holder);
            Box::pin(std::future::ready(Ok(pid)))
        }
    }

    impl Here {
        fn started(&self) -> usize {
            self.0.lock().len()
        }

        fn kill_last(&self) {
            let mut holders = self.0.lock();
            let last = holders.last_mut().unwrap();
            last.kill().unwrap();
            last.wait().unwrap();
        }

        /// Waits until the `at`-th has ended by itself.
        fn ends(&self, at: usize) {
            assert!(self.0.lock()[at].wait().unwrap().success());
        }
    }

    fn inputs(texts: &[String]) -> Vec<Input> {
        let input = |text: &String| {
            let file = tempfile(text);
            Input {
                name: "x".to_owned(),
                kind: InputKind::Memory {
                    len: text.len() as u64,
                },
                descriptor: Arc::new(file),
                object: None,
                decoded: None,
            }
        };
        texts.iter().map(input).collect()
    }

    fn tempfile(text: &str) -> OwnedFd {
        use std::io::Write as _;

        let mut file = pilot_sys::memfd::create(c"test").unwrap();
        file.write_all(text.as_bytes()).unwrap();
        pilot_sys::memfd::reopen(file.as_fd()).unwrap()
    }

    fn texts(count: usize, of: &str) -> Vec<String> {
        (0..count).map(|number| format!("{of}{number}")).collect()
    }

    fn read(held: &HeldFiles) -> Vec<String> {
        let read = |path: &String| std::fs::read_to_string(path).unwrap();
        held.paths.iter().map(read).collect()
    }

    #[tokio::test]
    async fn one_holder_shows_the_inputs_of_many_invocations_and_no_path_comes_back() {
        let host = Here::default();
        let holders = Holders::new(host.clone());
        let mut before: Vec<String> = Vec::new();
        for turn in 0..4 {
            let texts = texts(20, &format!("turn {turn} "));
            let held = holders.hold(&inputs(&texts)).await.unwrap();
            assert_eq!(read(&held), texts);
            assert!(
                before
                    .iter()
                    .all(|path| !std::path::Path::new(path).exists())
            );
            before.clone_from(&held.paths);
        }
        assert_eq!(host.started(), 1);
        drop(holders);
        host.ends(0);
    }

    #[tokio::test]
    async fn invocations_at_the_same_time_have_their_own_inputs() {
        let host = Here::default();
        let holders = Holders::new(host.clone());
        let (one, two) = (texts(2, "one"), texts(3, "two"));
        let first = holders.hold(&inputs(&one)).await.unwrap();
        let second = holders.hold(&inputs(&two)).await.unwrap();
        assert_eq!((read(&first), read(&second)), (one, two.clone()));
        drop(first);
        let third = holders.hold(&inputs(&two)).await.unwrap();
        assert_eq!((read(&second), read(&third)), (two.clone(), two.clone()));
        // They can be read to the end, also if the worker is to have no more.
        holders.close();
        assert_eq!(read(&second), two);
        assert!(holders.hold(&inputs(&two)).await.is_err());
        drop((second, third));
        host.ends(0);
    }

    #[tokio::test]
    async fn a_holder_that_is_gone_is_replaced() {
        let host = Here::default();
        let holders = Holders::new(host.clone());
        holders.start_ahead();
        let texts = texts(1, "x");
        let held = holders.hold(&inputs(&texts)).await.unwrap();
        host.kill_last();
        assert!(std::fs::read(&held.paths[0]).is_err());
        let held = holders.hold(&inputs(&texts)).await.unwrap();
        assert_eq!((read(&held), host.started()), (texts, 2));
    }

    #[tokio::test]
    async fn a_holder_that_is_given_up_is_not_used_although_it_still_answers() {
        let host = Here::default();
        let holders = Holders::new(host.clone());
        let texts = texts(1, "x");
        let first = holders.hold(&inputs(&texts)).await.unwrap();
        holders.give_up();
        let second = holders.hold(&inputs(&texts)).await.unwrap();
        assert_eq!((read(&first), host.started()), (texts.clone(), 2));
        assert_eq!(read(&second), texts);
        drop((first, second));
        holders.close();
        host.ends(0);
    }

    #[tokio::test]
    async fn a_holder_whose_numbers_are_used_up_ends() {
        let host = Here::default();
        let holders = Holders::new(host.clone());
        let texts = texts(60, "x");
        for _ in 0..17 {
            let held = holders.hold(&inputs(&texts)).await.unwrap();
            assert_eq!(read(&held), texts);
        }
        assert_eq!(host.started(), 2);
        host.ends(0);
    }
}
