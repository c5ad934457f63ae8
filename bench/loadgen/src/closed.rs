//! Closed loops and bursts: writes requests, reads responses and measures the times from just before `write` to the first and to the
//! last byte of the response.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::answer::Answer;
use crate::control::{Control, LOOK_EVERY};
use crate::error::LoadError;
use crate::report::{Report, Want};
use crate::stream::{Peer, Stream};

/// What to send, and how often.
#[derive(Debug)]
pub struct Plan {
    /// The server.
    pub peer: Peer,
    /// The request's bytes.
    pub request: Vec<u8>,
    /// Pause between what is done before and the measured request.
    pub pause: Duration,
    /// Number of connections; also the number of requests of a burst.
    pub connections: usize,
    /// When the next requests are sent.
    pub shape: Shape,
    /// Ends after this number of requests, or of rounds for bursts.
    pub count: u64,
    /// Ends after this time.
    pub duration: Duration,
    /// Number of requests or rounds at the beginning that are not measured.
    pub warm_up: u64,
}

/// When the next requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// When the previous request on the same connection is answered.
    Closed,
    /// On all connections at once, when all requests of the previous round are answered.
    Burst,
}

/// Done before every measured request or round; it is not measured.
pub type Before<'a> = Box<dyn FnMut() -> Result<(), String> + 'a>;

/// Runs the plan, until its end or until it is stopped.
///
/// # Errors
/// The server cannot be reached, closes a connection, does not answer for 30 s, does not speak HTTP/1.1, or `before` fails. An
/// error status is not an error here: the report counts it.
pub fn run(
    plan: &Plan,
    before: Option<Before<'_>>,
    control: &Control,
    report: &mut Report,
) -> Result<(), LoadError> {
    let mut connections = (0..plan.connections.max(1))
        .map(|_| Connection::open(&plan.peer))
        .collect::<Result<Vec<_>, LoadError>>()?;
    let mut run = Run {
        plan,
        before,
        control,
    };
    if plan.warm_up > 0 {
        let mut scratch = Report::new(Want::default());
        run.part(plan.warm_up, Duration::MAX, &mut connections, &mut scratch)?;
    }
    control.begin();
    let began = Instant::now();
    run.part(plan.count, plan.duration, &mut connections, report)?;
    report.finished(began.elapsed());
    Ok(())
}

struct Run<'a> {
    plan: &'a Plan,
    before: Option<Before<'a>>,
    control: &'a Control,
}

impl Run<'_> {
    fn part(
        &mut self,
        count: u64,
        duration: Duration,
        connections: &mut [Connection],
        report: &mut Report,
    ) -> Result<(), LoadError> {
        let stepwise = self.before.is_some() || !self.plan.pause.is_zero();
        match self.plan.shape {
            Shape::Burst => self.bursts(count, duration, connections, report),
            Shape::Closed if stepwise || connections.len() == 1 => {
                self.one_by_one(count, duration, connections, report)
            }
            Shape::Closed => self.all_at_once(count, duration, connections, report),
        }
    }

    fn prepare(&mut self) -> Result<(), LoadError> {
        if let Some(before) = &mut self.before {
            before().map_err(|problem| LoadError::Before { problem })?;
        }
        let end = Instant::now() + self.plan.pause;
        while !self.control.is_stopped()
            && let Some(left) = end.checked_duration_since(Instant::now())
            && !left.is_zero()
        {
            std::thread::sleep(left.min(LOOK_EVERY));
        }
        Ok(())
    }

    /// One connection after another, with blocking reads: there is no poll between a response and the next request.
    fn one_by_one(
        &mut self,
        count: u64,
        duration: Duration,
        connections: &mut [Connection],
        report: &mut Report,
    ) -> Result<(), LoadError> {
        let began = Instant::now();
        let turns = connections.len();
        for (round, turn) in (0..count).zip((0..turns).cycle()) {
            if round > 0 && began.elapsed() >= duration {
                break;
            }
            self.prepare()?;
            if self.control.is_stopped() {
                break;
            }
            let connection = &mut connections[turn];
            connection.send(&self.plan.request)?;
            let Some(complete) = connection.wait(&self.plan.request, self.control)? else {
                break;
            };
            connection.report(complete, report);
            self.control.count();
        }
        Ok(())
    }

    /// Every connection sends its next request as soon as it has its response.
    fn all_at_once(
        &mut self,
        count: u64,
        duration: Duration,
        connections: &mut [Connection],
        report: &mut Report,
    ) -> Result<(), LoadError> {
        let began = Instant::now();
        let request = &self.plan.request;
        set_blocking(connections, Blocking::No)?;
        let mut sent = 0;
        for connection in connections.iter_mut() {
            if sent < count {
                connection.send(request)?;
                sent += 1;
            }
        }
        while !self.control.is_stopped() && connections.iter().any(|connection| connection.waiting)
        {
            for at in ready(connections, request, self.control)? {
                let connection = &mut connections[at];
                let Some(complete) = connection.go_on(request)? else {
                    continue;
                };
                connection.report(complete, report);
                self.control.count();
                if sent < count && began.elapsed() < duration {
                    connection.send(request)?;
                    sent += 1;
                }
            }
        }
        set_blocking(connections, Blocking::Yes)
    }

    /// All connections send at once; the next round begins when all have their responses.
    fn bursts(
        &mut self,
        count: u64,
        duration: Duration,
        connections: &mut [Connection],
        report: &mut Report,
    ) -> Result<(), LoadError> {
        let began = Instant::now();
        set_blocking(connections, Blocking::No)?;
        for round in 0..count {
            if round > 0 && began.elapsed() >= duration {
                break;
            }
            self.prepare()?;
            if self.control.is_stopped() {
                break;
            }
            let request = &self.plan.request;
            let failed = report.failed();
            let instant = Instant::now();
            for connection in connections.iter_mut() {
                connection.send(request)?;
            }
            while connections.iter().any(|connection| connection.waiting) {
                if self.control.is_stopped() {
                    return Ok(());
                }
                for at in ready(connections, request, self.control)? {
                    if let Some(complete) = connections[at].go_on(request)? {
                        connections[at].report(complete, report);
                        self.control.count();
                    }
                }
            }
            // The time of a round in which a request failed says nothing about the others.
            if report.failed() == failed {
                report.round(instant.elapsed());
            }
        }
        set_blocking(connections, Blocking::Yes)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocking {
    Yes,
    No,
}

fn set_blocking(connections: &mut [Connection], blocking: Blocking) -> Result<(), LoadError> {
    for connection in connections {
        connection.blocking = blocking;
        connection
            .stream
            .set_nonblocking(blocking == Blocking::No)
            .map_err(LoadError::io("set_nonblocking"))?;
    }
    Ok(())
}

/// The indexes of the waiting connections that are ready. None if the run was stopped.
fn ready(
    connections: &[Connection],
    request: &[u8],
    control: &Control,
) -> Result<Vec<usize>, LoadError> {
    let mut places = Vec::with_capacity(connections.len());
    let mut fds = Vec::with_capacity(connections.len());
    for (place, connection) in connections.iter().enumerate() {
        if connection.waiting {
            let mut what = PollFlags::POLLIN;
            if connection.written < request.len() || connection.stream.wants_write() {
                what |= PollFlags::POLLOUT;
            }
            places.push(place);
            fds.push(PollFd::new(connection.stream.as_fd(), what));
        }
    }
    let timeout = PollTimeout::try_from(LOOK_EVERY).unwrap_or(PollTimeout::MAX);
    let began = Instant::now();
    loop {
        match poll(&mut fds, timeout) {
            // A signal, for example the one that stops the run.
            Ok(0) | Err(nix::Error::EINTR) if control.is_stopped() => return Ok(Vec::new()),
            Ok(0) if began.elapsed() >= PATIENCE => {
                return Err(LoadError::Silent {
                    waiting: fds.len(),
                    patience: PATIENCE,
                });
            }
            Ok(0) | Err(nix::Error::EINTR) => {}
            Ok(_) => break,
            Err(error) => return Err(LoadError::io("poll")(error.into())),
        }
    }
    Ok(places
        .into_iter()
        .zip(&fds)
        .filter(|(_, fd)| fd.any().unwrap_or(true))
        .map(|(place, _)| place)
        .collect())
}

struct Connection {
    peer: Peer,
    stream: Stream,
    blocking: Blocking,
    answer: Answer,
    sent: Instant,
    /// How many bytes of the request are written.
    written: usize,
    first_byte: Option<Duration>,
    waiting: bool,
}

impl Connection {
    fn open(peer: &Peer) -> Result<Self, LoadError> {
        Ok(Self {
            stream: Stream::connect(peer)?,
            peer: peer.clone(),
            blocking: Blocking::Yes,
            answer: Answer::default(),
            sent: Instant::now(),
            written: 0,
            first_byte: None,
            waiting: false,
        })
    }

    /// Starts the next request.
    fn send(&mut self, request: &[u8]) -> Result<(), LoadError> {
        if self.answer.closes() {
            self.stream = Stream::connect(&self.peer)?;
            self.stream
                .set_nonblocking(self.blocking == Blocking::No)
                .map_err(LoadError::io("set_nonblocking"))?;
        }
        self.answer.clear();
        self.first_byte = None;
        self.waiting = true;
        self.written = 0;
        self.sent = Instant::now();
        self.write(request)
    }

    /// Writes as much as fits into the socket's buffer, usually the whole request.
    fn write(&mut self, request: &[u8]) -> Result<(), LoadError> {
        while self.written < request.len() {
            match self.stream.write(&request[self.written..]) {
                Ok(0) => return Err(LoadError::Closed),
                Ok(length) => self.written += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(source) => {
                    return Err(LoadError::Io {
                        doing: "writing a request",
                        source,
                    });
                }
            }
        }
        if !self.stream.wants_write() {
            return Ok(());
        }
        match self.stream.flush() {
            Err(source) if source.kind() != ErrorKind::WouldBlock => Err(LoadError::Io {
                doing: "writing a request",
                source,
            }),
            _ => Ok(()),
        }
    }

    /// Blocks until the response is complete, and returns its time. `None`: the run was stopped.
    fn wait(&mut self, request: &[u8], control: &Control) -> Result<Option<Duration>, LoadError> {
        loop {
            if let Some(complete) = self.go_on(request)? {
                return Ok(Some(complete));
            }
            if control.is_stopped() {
                return Ok(None);
            }
            if self.sent.elapsed() > PATIENCE {
                return Err(LoadError::Silent {
                    waiting: 1,
                    patience: PATIENCE,
                });
            }
        }
    }

    /// Writes the rest of the request, if there is one, then reads what is there, once from the socket. Returns the time of the
    /// response when it is complete.
    fn go_on(&mut self, request: &[u8]) -> Result<Option<Duration>, LoadError> {
        self.write(request)?;
        let mut buffer = [0; 16 * 1024];
        loop {
            let length = match self.stream.read(&mut buffer) {
                Ok(0) if self.answer.ends_here() => {
                    self.waiting = false;
                    return Ok(Some(self.sent.elapsed()));
                }
                Ok(0) => return Err(LoadError::Closed),
                Ok(length) => length,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) =>
                {
                    return Ok(None);
                }
                Err(source) => {
                    return Err(LoadError::Io {
                        doing: "reading an answer",
                        source,
                    });
                }
            };
            let now = self.sent.elapsed();
            self.first_byte.get_or_insert(now);
            if self.answer.push(&buffer[..length])? {
                self.waiting = false;
                return Ok(Some(now));
            }
            if !self.stream.holds_bytes() {
                return Ok(None);
            }
        }
    }

    fn report(&self, complete: Duration, report: &mut Report) {
        report.answered(self.first_byte.unwrap_or(complete), complete, &self.answer);
    }
}

/// Longest time of a response.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;
    use std::io::BufReader;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    /// Answers this number of requests of 64 KB and more, each on its own connection.
    fn server(requests: usize, answer: &'static str) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            for _ in 0..requests {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream);
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.strip_prefix("content-length: ") {
                        length = value.trim().parse().unwrap();
                    }
                    if line == "\r\n" {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                reader.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        (address, serving)
    }

    fn plan(
        address: SocketAddr,
        request: Vec<u8>,
        shape: Shape,
        connections: usize,
        count: u64,
    ) -> Plan {
        Plan {
            peer: Peer { address, tls: None },
            request,
            pause: Duration::ZERO,
            connections,
            shape,
            count,
            duration: Duration::MAX,
            warm_up: 0,
        }
    }

    #[test]
    fn a_connection_that_the_server_closes_is_opened_again() {
        let answer = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
        let (address, serving) = server(3, answer);
        let plan = plan(
            address,
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            Shape::Closed,
            1,
            3,
        );
        let mut report = Report::new(Want::default());
        run(&plan, None, &Control::default(), &mut report).unwrap();
        assert_eq!(report.document().status[&200], 3);
        serving.join().unwrap();
    }

    #[test]
    fn a_request_larger_than_a_sockets_buffer_goes_out_in_a_burst_too() {
        let (address, serving) = server(2, "HTTP/1.0 200 OK\r\n\r\nends with the connection");
        let body = vec![b'x'; 8 << 20];
        let mut request =
            format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        request.extend(body);
        let plan = plan(address, request, Shape::Burst, 2, 1);
        let mut report = Report::new(Want {
            samples: true,
            ..Want::default()
        });
        run(&plan, None, &Control::default(), &mut report).unwrap();
        let document = report.document();
        assert_eq!(document.status[&200], 2);
        assert_eq!(document.samples.unwrap().round_us.len(), 1);
        serving.join().unwrap();
    }

    #[test]
    fn a_run_that_is_stopped_ends_soon_with_what_is_complete() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for shape in [Shape::Closed, Shape::Burst] {
            for connections in [1, 2] {
                let control = Control::default();
                let request = b"GET / HTTP/1.1\r\n\r\n".to_vec();
                let plan = plan(address, request, shape, connections, 100);
                let mut report = Report::new(Want::default());
                let began = Instant::now();
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        // Answers one request and never again.
                        let (mut first, _) = listener.accept().unwrap();
                        let mut others: Vec<TcpStream> = (1..connections)
                            .map(|_| listener.accept().unwrap().0)
                            .collect();
                        for stream in others.iter_mut().chain([&mut first]) {
                            let mut head = [0; 18];
                            stream.read_exact(&mut head).unwrap();
                        }
                        first
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                            .unwrap();
                        while control.done() == 0 {
                            std::thread::yield_now();
                        }
                        control.stop();
                        // Open until the client has ended.
                        let mut rest = Vec::new();
                        let _ = first.read_to_end(&mut rest);
                    });
                    run(&plan, None, &control, &mut report).unwrap();
                });
                assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
                assert_eq!(report.document().complete_us.count, 1, "{shape:?}");
            }
        }
    }

    #[test]
    fn a_server_that_hangs_up_is_an_error_that_says_so() {
        let (address, serving) = server(1, "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nok");
        let plan = plan(
            address,
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            Shape::Closed,
            1,
            1,
        );
        let error = run(
            &plan,
            None,
            &Control::default(),
            &mut Report::new(Want::default()),
        )
        .unwrap_err();
        assert!(matches!(error, LoadError::Closed), "{error}");
        serving.join().unwrap();
    }
}
