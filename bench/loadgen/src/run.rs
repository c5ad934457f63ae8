//! The loop: writes requests, reads answers, stamps both. Closed (a connection's next request follows its answer) or in
//! bursts (all connections at one instant).

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::answer::Answer;
use crate::report::Report;

/// Longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to send, how often.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) request: Vec<u8>,
    pub(crate) before: Option<Vec<u8>>,
    pub(crate) pause: Duration,
    pub(crate) connections: usize,
    pub(crate) shape: Shape,
    pub(crate) count: u64,
    pub(crate) duration: Duration,
    pub(crate) warm_up: u64,
}

/// When the next request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Closed,
    Burst,
}

struct Connection {
    stream: TcpStream,
    answer: Answer,
    sent: Instant,
    first_byte: Option<Duration>,
    waiting: bool,
}

/// Runs the plan.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut connections = (0..plan.connections)
        .map(|_| Connection::open(plan.address))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut aside = plan
        .before
        .is_some()
        .then(|| Connection::open(plan.address))
        .transpose()?;
    let mut prepare = |pause: Duration| -> anyhow::Result<()> {
        if let (Some(before), Some(aside)) = (&plan.before, &mut aside) {
            aside.send(before)?;
            aside.wait()?;
            let status = aside.answer.status()?;
            if status >= 400 {
                bail!(
                    "--before was answered {status}: {}",
                    aside.answer.body_text()
                );
            }
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        Ok(())
    };

    let mut scratch = Report::new(Vec::new(), false, false);
    let stepwise = plan.before.is_some() || !plan.pause.is_zero();
    let mut phase = |count: u64, duration: Duration, report: &mut Report| match plan.shape {
        Shape::Burst => bursts(
            plan,
            count,
            duration,
            &mut connections,
            &mut prepare,
            report,
        ),
        Shape::Closed if stepwise => one_by_one(
            plan,
            count,
            duration,
            &mut connections,
            &mut prepare,
            report,
        ),
        Shape::Closed => closed(plan, count, duration, &mut connections, report),
    };
    if plan.warm_up > 0 {
        phase(plan.warm_up, Duration::MAX, &mut scratch)?;
    }
    let began = Instant::now();
    phase(plan.count, plan.duration, report)?;
    report.finished(began.elapsed());
    Ok(())
}

/// Each connection in turn, with what comes before.
fn one_by_one(
    plan: &Plan,
    count: u64,
    duration: Duration,
    connections: &mut [Connection],
    prepare: &mut impl FnMut(Duration) -> anyhow::Result<()>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let turns = connections.len();
    for (round, turn) in (0..count).zip((0..turns).cycle()) {
        if round > 0 && began.elapsed() >= duration {
            break;
        }
        prepare(plan.pause)?;
        let connection = &mut connections[turn];
        connection.send(&plan.request)?;
        let complete = connection.wait()?;
        connection.report(complete, report)?;
    }
    Ok(())
}

/// Every connection sends its next request as soon as it has its answer.
fn closed(
    plan: &Plan,
    count: u64,
    duration: Duration,
    connections: &mut [Connection],
    report: &mut Report,
) -> anyhow::Result<()> {
    let began = Instant::now();
    if let [connection] = connections {
        // Blocking reads: no poll between an answer and the next request.
        for round in 0..count {
            if round > 0 && began.elapsed() >= duration {
                break;
            }
            connection.send(&plan.request)?;
            let complete = connection.wait()?;
            connection.report(complete, report)?;
        }
        return Ok(());
    }
    set_blocking(connections, Blocking::No)?;
    let mut sent = 0;
    for connection in connections.iter_mut() {
        if sent < count {
            connection.send(&plan.request)?;
            sent += 1;
        }
    }
    while connections.iter().any(|connection| connection.waiting) {
        for at in readable(connections)? {
            let connection = &mut connections[at];
            let Some(complete) = connection.read_some()? else {
                continue;
            };
            connection.report(complete, report)?;
            if sent < count && began.elapsed() < duration {
                connection.send(&plan.request)?;
                sent += 1;
            }
        }
    }
    set_blocking(connections, Blocking::Yes)
}

/// All connections at one instant; the next round when all have their answers.
fn bursts(
    plan: &Plan,
    count: u64,
    duration: Duration,
    connections: &mut [Connection],
    prepare: &mut impl FnMut(Duration) -> anyhow::Result<()>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let began = Instant::now();
    set_blocking(connections, Blocking::No)?;
    for round in 0..count {
        if round > 0 && began.elapsed() >= duration {
            break;
        }
        prepare(plan.pause)?;
        let instant = Instant::now();
        for connection in connections.iter_mut() {
            connection.send(&plan.request)?;
        }
        while connections.iter().any(|connection| connection.waiting) {
            for at in readable(connections)? {
                if let Some(complete) = connections[at].read_some()? {
                    connections[at].report(complete, report)?;
                }
            }
        }
        report.round(instant.elapsed());
    }
    set_blocking(connections, Blocking::Yes)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocking {
    Yes,
    No,
}

fn set_blocking(connections: &[Connection], blocking: Blocking) -> anyhow::Result<()> {
    for connection in connections {
        connection
            .stream
            .set_nonblocking(blocking == Blocking::No)
            .context("set_nonblocking")?;
    }
    Ok(())
}

/// The places of the connections that wait and have something to read.
fn readable(connections: &[Connection]) -> anyhow::Result<Vec<usize>> {
    let mut places = Vec::with_capacity(connections.len());
    let mut fds = Vec::with_capacity(connections.len());
    for (place, connection) in connections.iter().enumerate() {
        if connection.waiting {
            places.push(place);
            fds.push(PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN));
        }
    }
    let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    if poll(&mut fds, timeout).context("poll")? == 0 {
        bail!("{} requests had no answer within {PATIENCE:?}", fds.len());
    }
    Ok(places
        .into_iter()
        .zip(&fds)
        .filter(|(_, fd)| fd.any().unwrap_or(true))
        .map(|(place, _)| place)
        .collect())
}

impl Connection {
    fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))
            .with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true).context("TCP_NODELAY")?;
        stream
            .set_read_timeout(Some(PATIENCE))
            .context("read time-out")?;
        Ok(Self {
            stream,
            answer: Answer::default(),
            sent: Instant::now(),
            first_byte: None,
            waiting: false,
        })
    }

    /// Requests here fit into a socket's buffer, so one write does also when it may not block.
    fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        self.answer.clear();
        self.first_byte = None;
        self.waiting = true;
        self.sent = Instant::now();
        self.stream.write_all(request).context("write")
    }

    /// Blocks until the answer is complete; the time it took.
    fn wait(&mut self) -> anyhow::Result<Duration> {
        loop {
            if let Some(complete) = self.read_some()? {
                return Ok(complete);
            }
        }
    }

    /// One read. The time of the whole answer once that is complete.
    fn read_some(&mut self) -> anyhow::Result<Option<Duration>> {
        let mut buffer = [0; 16 * 1024];
        let length = match self.stream.read(&mut buffer) {
            Ok(0) => bail!("the server closed the connection before its answer was complete"),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(None),
            Err(error)
                if error.kind() == ErrorKind::WouldBlock && self.sent.elapsed() < PATIENCE =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error).context("read"),
        };
        let now = self.sent.elapsed();
        self.first_byte.get_or_insert(now);
        if !self.answer.push(&buffer[..length])? {
            return Ok(None);
        }
        self.waiting = false;
        Ok(Some(now))
    }

    fn report(&self, complete: Duration, report: &mut Report) -> anyhow::Result<()> {
        report.answered(self.first_byte.unwrap_or(complete), complete, &self.answer)
    }
}
