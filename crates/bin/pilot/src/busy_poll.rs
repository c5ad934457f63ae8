//! Busy polling: a thread of the daemon polls for events for a short time before it sleeps. An event that arrives then does not wait
//! until a sleeping processor is awake: `docs/decisions/0075-a-thread-polls-before-it-sleeps.md`.
//!
//! A thread polls only where it may expect an event at once ([`History`]), and where nobody else needs its processor
//! ([`BusyPoll::has_processor`], [`Delay`], [`Pause`]).

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

/// Polls before the threads of a tokio runtime sleep.
pub(crate) struct BusyPoll {
    /// The longest that a thread polls before it sleeps.
    longest: Duration,
    /// How many threads of the daemon and its workers can compute at the same time.
    processors: usize,
    /// The runtime's epoll instance.
    epoll: OnceLock<OwnedFd>,
    /// How many invocations run.
    running: OnceLock<Arc<AtomicUsize>>,
    /// Of all threads. Held for no longer than it takes to read and write it.
    history: Mutex<History>,
    /// A thread polls. One is enough.
    polls: AtomicBool,
    /// For how long threads have polled, nanoseconds.
    spent: AtomicU64,
}

/// What says whether polling is worth it.
#[derive(Debug, Default)]
struct History {
    /// How many of the last waits were short, without a long one between them, since the running invocations did not need all processors.
    short_waits: u8,
    pause: Pause,
}

/// The time without polling after others needed the processors.
#[derive(Debug, Default)]
struct Pause {
    /// When the last one ends.
    until: Option<Instant>,
    length: Duration,
}

thread_local! {
    /// Since when this thread waits.
    static WAITS: Cell<Option<Instant>> = const { Cell::new(None) };
    static DELAY: RefCell<Delay> = RefCell::default();
}

/// How long a thread was ready to run and had no processor (the second number of `schedstat` in `/proc/thread-self`:
/// Documentation/scheduler/ sched-stats.rst of Linux).
#[derive(Debug, Default)]
struct Delay {
    /// The file. `None`: it was not opened yet.
    file: Option<File>,
    /// When it was last read, and what it said.
    last: Option<(Instant, Duration)>,
}

/// Threads poll after so many short waits. One long wait begins the count again, so that few polls are in vain.
const SHORT_WAITS: u8 = 8;

/// How often a thread looks whether it had to wait for a processor. One time slice of another thread (a few milliseconds) is no
/// reason for a pause.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// Between looks that are further apart, the thread did something else than to poll and to serve short calls.
const LOOKS_TOGETHER: Duration = Duration::from_millis(200);

/// Others need the processors if a thread had to wait for one for more than this share of the time. It is 1 to 5 % beside a client
/// and a worker, and 30 to 40 % beside a program that computes.
const DELAY_SHARE: u32 = 8;

/// The shortest pause.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// If others need the processors so soon after a pause, the next pause is twice as long.
const SOON: Duration = Duration::from_secs(1);

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
    pub(crate) fn begin(&self, running: Arc<AtomicUsize>) {
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
        if !self.has_processor(running.load(Ordering::Relaxed)) {
            self.history.lock().short_waits = 0;
            return;
        }
        let now = Instant::now();
        WAITS.set(Some(now));
        let is_expected = self.history.lock().expects_event(now);
        if !is_expected {
            return;
        }
        if DELAY.with_borrow_mut(|delay| delay.is_long(now)) {
            self.history.lock().pause.begin(now);
        } else if !self.polls.swap(true, Ordering::Acquire) {
            self.poll(epoll, now);
            self.polls.store(false, Ordering::Release);
        }
    }

    /// It has something to do again (`on_thread_unpark`).
    pub(crate) fn after_sleep(&self) {
        if let Some(begun) = WAITS.take() {
            let is_short = begun.elapsed() <= self.longest;
            self.history.lock().note(is_short);
        }
    }

    /// Whether there is a processor for a thread that polls, beside those that the running invocations need.
    fn has_processor(&self, running: usize) -> bool {
        running.max(1) < self.processors
    }

    /// Polls until there is an event, or for the longest time.
    fn poll(&self, epoll: &OwnedFd, begun: Instant) {
        let waited = loop {
            // An epoll instance is readable when it has events, and keeps them (epoll(7)).
            let mut asked = [PollFd::new(epoll.as_fd(), PollFlags::POLLIN)];
            let is_quiet = poll(&mut asked, PollTimeout::ZERO) == Ok(0);
            let waited = begun.elapsed();
            if !is_quiet || waited >= self.longest {
                break waited;
            }
            std::hint::spin_loop();
        };
        let nanoseconds = waited.as_nanos().try_into().unwrap_or(u64::MAX);
        self.spent.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl History {
    /// Whether an event is expected soon, and nobody needed the processors a moment ago.
    fn expects_event(&self, now: Instant) -> bool {
        self.short_waits >= SHORT_WAITS && self.pause.until.is_none_or(|until| now >= until)
    }

    /// A wait is over.
    fn note(&mut self, is_short: bool) {
        self.short_waits = if is_short {
            self.short_waits.saturating_add(1)
        } else {
            0
        };
    }
}

impl Pause {
    fn begin(&mut self, now: Instant) {
        let is_soon = self.until.is_some_and(|until| now < until + SOON);
        self.length = if is_soon {
            (self.length * 2).min(PAUSE_MAX)
        } else {
            PAUSE
        };
        self.until = Some(now + self.length);
    }
}

impl Delay {
    /// Whether this thread had to wait for a processor for long, since the last look. `false` between looks, and without a look
    /// shortly before. `true` where the kernel does not say: nobody knows then who needs the processor.
    fn is_long(&mut self, now: Instant) -> bool {
        let last = self.last;
        if last.is_some_and(|(at, _)| now < at + LOOK_EVERY) {
            return false;
        }
        let Some(delay) = self.read() else {
            return true;
        };
        self.last = Some((now, delay));
        last.filter(|(at, _)| now < *at + LOOKS_TOGETHER)
            .is_some_and(|(at, before)| is_long(delay.saturating_sub(before), now - at))
    }

    /// `None`: there is no such file, or the kernel does not count.
    fn read(&mut self) -> Option<Duration> {
        if self.file.is_none() {
            self.file = File::open("/proc/thread-self/schedstat").ok();
        }
        // Three numbers: nanoseconds that it ran, that it waited for a processor, and how often it ran.
        let mut text = [0; 64];
        let len = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..len]).ok()?;
        let mut numbers = text
            .split_whitespace()
            .map_while(|number| number.parse().ok());
        let (_, delay, runs): (u64, u64, u64) = (numbers.next()?, numbers.next()?, numbers.next()?);
        // This thread runs. A kernel that does not count says 0.
        (runs > 0).then(|| Duration::from_nanos(delay))
    }
}

fn is_long(delay: Duration, of: Duration) -> bool {
    delay * DELAY_SHARE > of
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

    use nix::unistd::Pid;

    use super::*;

    const LONGEST: Duration = Duration::from_micros(200);

    #[test]
    fn threads_poll_after_eight_short_waits_and_not_after_a_long_one() {
        let mut history = History::default();
        for _ in 0..8 {
            assert!(!history.expects_event(Instant::now()));
            history.note(true);
        }
        assert!(history.expects_event(Instant::now()));
        history.note(false);
        assert!(!history.expects_event(Instant::now()));
    }

    #[test]
    fn pauses_become_longer_while_others_need_the_processor_and_short_again_later() {
        let mut history = History {
            short_waits: SHORT_WAITS,
            ..History::default()
        };
        let mut now = Instant::now();
        for length in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            assert!(history.expects_event(now));
            history.pause.begin(now);
            now += Duration::from_millis(length);
            let before = now.checked_sub(Duration::from_micros(1)).unwrap();
            assert!(!history.expects_event(before), "{length}");
            // Others needed it again before that time was over.
            now += SOON / 2;
        }
        now += SOON;
        history.pause.begin(now);
        assert!(history.expects_event(now + PAUSE));
    }

    #[test]
    fn a_thread_that_shares_its_processor_had_to_wait_for_it() {
        let mut delay = Delay::default();
        let before = delay
            .read()
            .expect("this kernel says how long threads wait");
        assert!(!delay.is_long(Instant::now()), "nothing to compare with");
        assert!(!is_long(
            Duration::from_millis(1),
            Duration::from_millis(10)
        ));
        assert!(is_long(Duration::from_millis(2), Duration::from_millis(10)));
        let mut processors = CpuSet::new();
        let mine = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let one = (0..CpuSet::count()).find(|&cpu| mine.is_set(cpu) == Ok(true));
        processors.set(one.unwrap()).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            sched_setaffinity(Pid::from_raw(0), &processors).unwrap();
            // It inherits the processor.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let begun = Instant::now();
            let mut long = false;
            while !long && begun.elapsed() < Duration::from_secs(30) {
                long = delay.is_long(Instant::now());
            }
            stop.store(true, Ordering::Relaxed);
            assert!(long);
        });
        assert!(delay.read().unwrap() > before);
    }

    #[test]
    fn a_processor_is_left_for_each_running_invocation() {
        let with = |processors| {
            let mut poll = BusyPoll::new(LONGEST);
            poll.processors = processors;
            [0, 1, 2, 3].map(|running| poll.has_processor(running))
        };
        assert_eq!(with(1), [false; 4]);
        assert_eq!(with(2), [true, true, false, false]);
        assert_eq!(with(4), [true; 4]);
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
        poll.begin(Arc::default());
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
