//! Busy polling: a thread of the daemon polls for events for a short time before it sleeps. An event that arrives then does not wait
//! until a sleeping processor is awake: `docs/decisions/0075-a-thread-polls-before-it-sleeps.md`.
//!
//! A thread polls only where it may expect an event at once ([`Waits`]), and where nobody else needs its processor ([`BusyPoll::awaited`],
//! [`Pause`]).

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

/// Says how many invocations run.
pub(crate) type Running = Box<dyn Fn() -> usize + Send + Sync>;

/// Polls before the threads of a tokio runtime sleep.
pub(crate) struct BusyPoll {
    /// The longest that a thread polls before it sleeps.
    longest: Duration,
    /// How many threads of the daemon and its workers can compute at the same time.
    processors: usize,
    /// The runtime's epoll instance.
    epoll: OnceLock<OwnedFd>,
    running: OnceLock<Running>,
    /// Of all threads. Held for no longer than it takes to read and write it.
    history: Mutex<History>,
    /// A thread polls. One is enough.
    polls: AtomicBool,
    /// For how long threads have polled, nanoseconds.
    spent: AtomicU64,
}

/// What a thread waits for when it has nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The next request.
    Request,
    /// The next step of an invocation: its worker's answer, for example.
    Step,
}

/// What says whether polling is worth it.
#[derive(Debug, Default)]
struct History {
    waits: Waits,
    pause: Pause,
}

/// The last waits, since the running invocations did not need all processors.
#[derive(Debug, Default)]
struct Waits {
    /// How many of the last waits for a request were short, without a long one between them.
    short_for_request: u8,
    /// The same for steps.
    short_for_step: u8,
}

/// The time without polling after somebody else needed the processor.
#[derive(Debug)]
struct Pause {
    until: Option<Instant>,
    /// How long the next one is.
    next: Duration,
    /// How many polls in succession were not disturbed.
    undisturbed: u32,
}

thread_local! {
    /// Since when this thread waits, and for what.
    static WAITS: Cell<Option<(Instant, Awaited)>> = const { Cell::new(None) };
}

/// Threads poll after so many short waits. One long wait begins the count again, so that few polls are in vain.
const SHORT_WAITS: u8 = 4;

/// If a poll is interrupted for longer, another program needed the processor. A worker that takes it from the thread that called it needs less:
/// for longer ones, nobody polls.
const INTERRUPTED: Duration = Duration::from_millis(1);

/// The first pause. Each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// After so many polls without a disturbance, the next pause is a first one.
const UNDISTURBED: u32 = 500;

impl BusyPoll {
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            longest,
            // It knows the limits of the process: an affinity, or a CPU quota of its control group.
            processors: std::thread::available_parallelism().map_or(1, Into::into),
            epoll: OnceLock::new(),
            running: OnceLock::new(),
            history: Mutex::default(),
            polls: AtomicBool::new(false),
            spent: AtomicU64::new(0),
        }
    }

    /// The epoll instance of the runtime. Call it once.
    pub(crate) fn watch(&self, epoll: OwnedFd) {
        let _ = self.epoll.set(epoll);
    }

    /// From now on, threads poll, if the longest time is not zero. Call it once.
    pub(crate) fn begin(&self, running: Running) {
        if !self.longest.is_zero() {
            let _ = self.running.set(running);
        }
    }

    /// For how long threads have polled.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    /// A thread has nothing to do (`on_thread_park` of tokio's `Builder`).
    pub(crate) fn before_sleep(&self) {
        let (Some(epoll), Some(running)) = (self.epoll.get(), self.running.get()) else {
            return;
        };
        let Some(awaited) = self.awaited(running()) else {
            self.history.lock().waits = Waits::default();
            return;
        };
        let now = Instant::now();
        WAITS.set(Some((now, awaited)));
        let is_expected = self.history.lock().expects(awaited, now);
        if is_expected && !self.polls.swap(true, Ordering::Acquire) {
            let disturbed = self.poll(epoll, now);
            self.polls.store(false, Ordering::Release);
            self.history.lock().pause.note(disturbed, Instant::now());
        }
    }

    /// It has something to do again (`on_thread_unpark`).
    pub(crate) fn after_sleep(&self) {
        if let Some((begun, awaited)) = WAITS.take() {
            let is_short = begun.elapsed() <= self.longest;
            self.history.lock().waits.note(awaited, is_short);
        }
    }

    /// `None`: nobody polls, because the running invocations need all other processors.
    fn awaited(&self, running: usize) -> Option<Awaited> {
        match running {
            some if some >= self.processors => None,
            0 if self.processors == 1 => None,
            0 => Some(Awaited::Request),
            _ => Some(Awaited::Step),
        }
    }

    /// Polls until there is an event, or for the longest time. Returns whether somebody else needed the processor meanwhile.
    fn poll(&self, epoll: &OwnedFd, begun: Instant) -> bool {
        let (mut waited, mut disturbed) = (Duration::ZERO, false);
        loop {
            // An epoll instance is readable when it has events, and keeps them (epoll(7)).
            let mut asked = [PollFd::new(epoll.as_fd(), PollFlags::POLLIN)];
            let is_quiet = poll(&mut asked, PollTimeout::ZERO) == Ok(0);
            let now = begun.elapsed();
            disturbed |= now - waited > INTERRUPTED;
            waited = now;
            if !is_quiet || waited >= self.longest {
                break;
            }
            std::hint::spin_loop();
        }
        let nanoseconds = waited.as_nanos().try_into().unwrap_or(u64::MAX);
        self.spent.fetch_add(nanoseconds, Ordering::Relaxed);
        disturbed
    }
}

impl History {
    /// Whether an event is expected soon, and nobody else needs the processor.
    fn expects(&mut self, awaited: Awaited, now: Instant) -> bool {
        *self.waits.short(awaited) >= SHORT_WAITS && self.pause.is_over(now)
    }
}

impl Waits {
    /// A wait is over.
    fn note(&mut self, awaited: Awaited, is_short: bool) {
        let short = self.short(awaited);
        *short = if is_short { short.saturating_add(1) } else { 0 };
    }

    fn short(&mut self, awaited: Awaited) -> &mut u8 {
        match awaited {
            Awaited::Request => &mut self.short_for_request,
            Awaited::Step => &mut self.short_for_step,
        }
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self {
            until: None,
            next: PAUSE,
            undisturbed: 0,
        }
    }
}

impl Pause {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// The thread has polled.
    fn note(&mut self, disturbed: bool, now: Instant) {
        if disturbed {
            self.until = Some(now + self.next);
            self.next = (self.next * 2).min(PAUSE_MAX);
            self.undisturbed = 0;
        } else if self.undisturbed < UNDISTURBED {
            self.undisturbed += 1;
        } else {
            self.next = PAUSE;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

    use super::*;

    const LONGEST: Duration = Duration::from_micros(200);

    fn expects(history: &mut History, awaited: Awaited) -> bool {
        history.expects(awaited, Instant::now())
    }

    #[test]
    fn threads_poll_after_four_short_waits_and_not_after_a_long_one() {
        let mut history = History::default();
        for _ in 0..4 {
            assert!(!expects(&mut history, Awaited::Request));
            history.waits.note(Awaited::Request, true);
        }
        assert!(expects(&mut history, Awaited::Request));
        history.waits.note(Awaited::Request, false);
        assert!(!expects(&mut history, Awaited::Request));
    }

    #[test]
    fn a_handler_that_computes_for_long_does_not_hide_that_requests_follow_each_other() {
        let mut history = History::default();
        for _ in 0..4 {
            history.waits.note(Awaited::Request, true);
            history.waits.note(Awaited::Step, false);
        }
        assert!(expects(&mut history, Awaited::Request));
        assert!(!expects(&mut history, Awaited::Step));
    }

    #[test]
    fn pauses_become_longer_while_others_need_the_processor_and_short_again_later() {
        let mut pause = Pause::default();
        let mut now = Instant::now();
        for length in [10, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000] {
            assert!(pause.is_over(now));
            pause.note(true, now);
            now += Duration::from_millis(length);
            let before = now.checked_sub(Duration::from_micros(1));
            assert!(!pause.is_over(before.unwrap()), "{length}");
        }
        for _ in 0..=UNDISTURBED {
            pause.note(false, now);
        }
        pause.note(true, now);
        assert!(pause.is_over(now + PAUSE));
    }

    #[test]
    fn a_processor_is_left_for_each_running_invocation() {
        let with = |processors| {
            let mut poll = BusyPoll::new(LONGEST);
            poll.processors = processors;
            [0, 1, 2].map(|running| poll.awaited(running))
        };
        let (request, step) = (Some(Awaited::Request), Some(Awaited::Step));
        assert_eq!(with(1), [None, None, None]);
        assert_eq!(with(2), [request, step, None]);
        assert_eq!(with(4), [request, step, step]);
    }

    /// An epoll instance that watches the reading end of a pipe, and the pipe.
    fn watched() -> (OwnedFd, (OwnedFd, OwnedFd)) {
        let pipe = nix::unistd::pipe().unwrap();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        epoll.add(&pipe.0, event).unwrap();
        (epoll.0, pipe)
    }

    #[test]
    fn a_poll_ends_with_an_event_and_without_one_after_the_longest_time() {
        let (epoll, (_reader, writer)) = watched();
        let poll = BusyPoll::new(Duration::from_millis(20));
        poll.poll(&epoll, Instant::now());
        assert!(poll.spent() >= Duration::from_millis(20));
        nix::unistd::write(&writer, b"x").unwrap();
        let patient = BusyPoll::new(Duration::from_secs(60));
        patient.poll(&epoll, Instant::now());
        assert!(patient.spent() < Duration::from_secs(30));
    }

    #[test]
    fn nobody_polls_before_it_begins_and_only_one_thread_polls() {
        let (epoll, _pipe) = watched();
        let mut poll = BusyPoll::new(Duration::from_millis(50));
        poll.processors = 2;
        poll.watch(epoll);
        let sleep_often = |poll: &BusyPoll| {
            for _ in 0..=SHORT_WAITS {
                poll.before_sleep();
                poll.after_sleep();
            }
        };
        sleep_often(&poll);
        assert_eq!(poll.spent(), Duration::ZERO);
        poll.begin(Box::new(|| 0));
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| sleep_often(&poll));
            }
        });
        assert!(poll.spent() >= Duration::from_millis(50));
        assert!(poll.spent() <= begun.elapsed());
    }
}
