//! The open loop: every request is sent at its time, on a free connection or on a new one. It is one thread with one epoll. A
//! timerfd wakes it at the next request's time, with a precision of a microsecond. Nothing in it blocks.
//!
//! Times count from [`Plan::start`]. The caller gets the outcome of each request when it ends; nothing is kept.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use crate::answer::Answer;
use crate::control::{Control, LOOK_EVERY};
use crate::error::LoadError;
use crate::stream::Peer;

use self::connection::{Connection, Progress};

mod connection;

/// The server and the limits.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server.
    pub peer: Peer,
    /// The instant from which times count. It may be in the future.
    pub start: Instant,
    /// Highest number of open connections.
    pub connections_max: usize,
    /// A request fails if it has no complete response this long after its turn.
    pub timeout: Duration,
}

/// A request to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shot<T> {
    /// Its send time.
    pub at: Duration,
    /// The caller's name of the request.
    pub tag: T,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Outcome<'a, T> {
    /// The request.
    pub shot: Shot<T>,
    /// When its turn came: [`Shot::at`] plus the generator's own delay.
    pub taken_up: Duration,
    /// When its first byte was written, after a connection was made.
    pub sent: Option<Duration>,
    /// When the first byte of its response arrived.
    pub first_byte: Option<Duration>,
    /// When it ended.
    pub done: Duration,
    /// The complete response, or why there is none.
    pub end: Result<&'a Answer, Failure>,
}

/// Why a request has no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// All connections were busy, so it was not sent.
    NoConnectionFree,
    /// No connection could be made.
    NotConnected,
    /// The server closed the connection before the response was complete.
    Closed,
    /// It took too long.
    TimedOut,
    /// The response is not HTTP/1.1.
    NotHttp,
}

impl Failure {
    /// Its name in the results.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoConnectionFree => "no-connection-free",
            Self::NotConnected => "not-connected",
            Self::Closed => "closed",
            Self::TimedOut => "timed-out",
            Self::NotHttp => "not-http",
        }
    }
}

/// Sends all requests and waits until all have ended, or until the run is stopped. Requests under way at that time have no outcome.
/// `shots` are in the order of their times. `fill` writes a request's bytes into an empty buffer. `over` gets the outcome of each
/// request.
///
/// # Errors
/// The kernel provides no epoll or no timer. Failed requests are not errors; `over` gets them.
pub fn run<T: Copy>(
    plan: &Plan,
    control: &Control,
    shots: impl Iterator<Item = Shot<T>>,
    fill: impl FnMut(T, &mut Vec<u8>),
    over: impl FnMut(&Outcome<'_, T>),
) -> Result<(), LoadError> {
    raise_open_files();
    let failed = |doing| move |error: nix::Error| LoadError::io(doing)(error.into());
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("epoll_create"))?;
    let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).map_err(failed("timerfd_create"))?;
    // Edge-triggered, because the timer is set again and never read.
    let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll
        .add(timer.as_fd(), EpollEvent::new(wanted, TIMER))
        .map_err(failed("epoll_ctl"))?;
    let mut run = Run {
        plan,
        control,
        epoll,
        timer,
        timer_at: None,
        slots: Vec::new(),
        vacant: Vec::new(),
        idle: Vec::new(),
        flying: 0,
        deadlines: VecDeque::new(),
        fill,
        over,
        buffer: vec![0; READ_BYTES],
    };
    std::thread::sleep(plan.start.saturating_duration_since(Instant::now()));
    run.all(shots.peekable()).map_err(failed("epoll_wait"))
}

/// The state of one thread.
struct Run<'a, T, F, O> {
    plan: &'a Plan,
    control: &'a Control,
    epoll: Epoll,
    timer: TimerFd,
    /// The time of the timer.
    timer_at: Option<Duration>,
    slots: Vec<Slot<T>>,
    /// Slots without a connection.
    vacant: Vec<usize>,
    /// Slots with an idle connection. The last used one is used first.
    idle: Vec<usize>,
    /// Number of requests under way.
    flying: usize,
    /// Deadlines in the order of the requests' turns. Those of finished requests stay until they are over.
    deadlines: VecDeque<(Duration, Ticket)>,
    fill: F,
    over: O,
    buffer: Vec<u8>,
}

/// A place for a connection. `turn` counts its requests and connections, to recognise events and deadlines of earlier ones.
struct Slot<T> {
    turn: u32,
    connection: Option<Connection>,
    flight: Option<Flight<T>>,
}

/// A request under way.
#[derive(Clone, Copy)]
struct Flight<T> {
    shot: Shot<T>,
    taken_up: Duration,
}

/// A request's place and turn.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ticket {
    slot: usize,
    turn: u32,
}

impl<T: Copy, F: FnMut(T, &mut Vec<u8>), O: FnMut(&Outcome<'_, T>)> Run<'_, T, F, O> {
    fn all(
        &mut self,
        mut shots: std::iter::Peekable<impl Iterator<Item = Shot<T>>>,
    ) -> nix::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            // A limited number at a time if it is late, so that responses are read in between.
            for _ in 0..BATCH {
                let now = self.now();
                match shots.next_if(|shot| shot.at <= now) {
                    Some(shot) => self.take_up(shot, now),
                    None => break,
                }
            }
            let next = shots.peek().map(|shot| shot.at);
            if (next.is_none() && self.flying == 0) || self.control.is_stopped() {
                return Ok(());
            }
            let timeout = self.sleep(next)?;
            let number = match self.epoll.wait(&mut events, timeout) {
                Ok(number) => number,
                Err(nix::Error::EINTR) => 0,
                Err(error) => return Err(error),
            };
            for event in &events[..number] {
                if event.data() != TIMER {
                    self.happened(event.data(), event.events());
                }
            }
            self.expire();
        }
    }

    fn now(&self) -> Duration {
        self.plan.start.elapsed()
    }

    /// Sets the timer to the next request's time. Returns epoll's timeout, which is the first deadline.
    fn sleep(&mut self, next: Option<Duration>) -> nix::Result<EpollTimeout> {
        let now = self.now();
        if let Some(at) = next {
            let wait = at.saturating_sub(now);
            if wait <= SPIN {
                return Ok(EpollTimeout::ZERO);
            }
            if self.timer_at != Some(at) {
                let once = Expiration::OneShot(TimeSpec::from_duration(wait));
                self.timer.set(once, TimerSetTimeFlags::empty())?;
                self.timer_at = Some(at);
            }
        }
        let deadline = self.deadlines.front().map(|(deadline, _)| {
            // Rounded up.
            deadline.saturating_sub(now) + Duration::from_millis(1)
        });
        let wait = deadline.map_or(LOOK_EVERY, |wait| wait.min(LOOK_EVERY));
        Ok(EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX))
    }

    /// Sends a request, whose time has come.
    fn take_up(&mut self, shot: Shot<T>, now: Duration) {
        let flight = Flight {
            shot,
            taken_up: now,
        };
        let slot = match self.idle.pop() {
            Some(slot) => slot,
            None => match self.open() {
                Ok(slot) => slot,
                Err(failure) => return self.tell(&flight, None, Err(failure)),
            },
        };
        let place = &mut self.slots[slot];
        place.turn = place.turn.wrapping_add(1);
        place.flight = Some(flight);
        self.flying += 1;
        let ticket = Ticket {
            slot,
            turn: place.turn,
        };
        self.deadlines
            .push_back((now.saturating_add(self.plan.timeout), ticket));
        if let Some(connection) = &mut place.connection {
            connection.begin(|bytes| (self.fill)(shot.tag, bytes));
            let progress = connection.write(self.plan.start);
            self.after(slot, progress, Stays::Open);
        }
    }

    /// A slot with a new connection, which is still connecting.
    fn open(&mut self) -> Result<usize, Failure> {
        if self.slots.len() - self.vacant.len() >= self.plan.connections_max {
            return Err(Failure::NoConnectionFree);
        }
        let connection = Connection::open(&self.plan.peer).map_err(|_| Failure::NotConnected)?;
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                turn: 0,
                connection: None,
                flight: None,
            });
            self.slots.len() - 1
        });
        let flags = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        let event = EpollEvent::new(flags, slot as u64);
        if self.epoll.add(connection.stream.as_fd(), event).is_err() {
            self.vacant.push(slot);
            return Err(Failure::NotConnected);
        }
        self.slots[slot].connection = Some(connection);
        Ok(slot)
    }

    /// Handles an event of the connection in a slot.
    fn happened(&mut self, data: u64, flags: EpollFlags) {
        let Some(slot) = usize::try_from(data)
            .ok()
            .filter(|slot| *slot < self.slots.len())
        else {
            return;
        };
        // The event may be of a connection that is already closed. Then the slot is vacant, or has a new connection, which reads
        // nothing.
        let place = &mut self.slots[slot];
        let gone =
            flags.intersects(EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        let Some(connection) = &mut place.connection else {
            return;
        };
        if place.flight.is_none() {
            if gone {
                self.idle.retain(|idle| *idle != slot);
                self.close(slot);
            }
            return;
        }
        let mut progress = connection.write(self.plan.start);
        if progress == Progress::Waits && (gone || flags.contains(EpollFlags::EPOLLIN)) {
            progress = connection.read(self.plan.start, &mut self.buffer);
        }
        self.after(
            slot,
            progress,
            if gone { Stays::Closed } else { Stays::Open },
        );
    }

    /// Continues after the progress of a connection.
    fn after(&mut self, slot: usize, progress: Progress, stays: Stays) {
        let result = match progress {
            Progress::Waits => return,
            Progress::Complete => Ok(()),
            Progress::Failed(failure) => Err(failure),
        };
        let place = &mut self.slots[slot];
        let (Some(flight), Some(connection)) = (place.flight.take(), place.connection.take())
        else {
            return;
        };
        place.turn = place.turn.wrapping_add(1);
        self.flying -= 1;
        let reusable = result.is_ok() && stays == Stays::Open && !connection.answer.closes();
        self.tell(&flight, Some(&connection), result);
        if reusable {
            self.slots[slot].connection = Some(connection);
            self.idle.push(slot);
        } else {
            drop(connection);
            self.vacant.push(slot);
        }
    }

    fn close(&mut self, slot: usize) {
        self.slots[slot].connection = None;
        self.vacant.push(slot);
    }

    /// Fails the requests whose deadline is over.
    fn expire(&mut self) {
        while let Some((deadline, ticket)) = self.deadlines.front().copied() {
            let is_over = self.slots[ticket.slot].turn != ticket.turn;
            if !is_over && deadline > self.now() {
                return;
            }
            self.deadlines.pop_front();
            if !is_over {
                self.after(
                    ticket.slot,
                    Progress::Failed(Failure::TimedOut),
                    Stays::Closed,
                );
            }
        }
    }

    fn tell(
        &mut self,
        flight: &Flight<T>,
        connection: Option<&Connection>,
        result: Result<(), Failure>,
    ) {
        self.control.count();
        let none = Answer::default();
        let answer = connection.map_or(&none, |connection| &connection.answer);
        (self.over)(&Outcome {
            shot: flight.shot,
            taken_up: flight.taken_up,
            sent: connection.and_then(|connection| connection.sent),
            first_byte: connection.and_then(|connection| connection.first_byte),
            done: connection
                .and_then(|connection| connection.done)
                .unwrap_or_else(|| self.plan.start.elapsed()),
            end: result.map(|()| answer),
        });
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stays {
    Open,
    Closed,
}

/// Raises the limit of open files, because a slow server needs a connection for each waiting request.
fn raise_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Without it, connections may fail, which is counted.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// The data of the timer's events; slots count from zero.
const TIMER: u64 = u64::MAX;
/// Number of requests that are sent before responses are read again.
const BATCH: usize = 32;
const EVENTS: usize = 256;
const READ_BYTES: usize = 64 << 10;
/// It does not sleep for shorter times, because setting the timer and waking up take about as long.
const SPIN: Duration = Duration::from_micros(20);

#[cfg(test)]
mod tests;
