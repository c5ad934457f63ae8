use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use super::*;

/// A server with a thread per connection. `answer` gets the number of the request on its connection, from 1, and may wait. `None`
/// closes the connection.
fn server(answer: fn(u32) -> Option<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || serve(BufReader::new(stream), answer));
        }
    });
    address
}

fn serve(mut stream: BufReader<std::net::TcpStream>, answer: fn(u32) -> Option<String>) {
    for number in 1.. {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).is_err() {
            return;
        }
        match answer(number) {
            Some(text) => stream.get_mut().write_all(text.as_bytes()).unwrap(),
            None => return,
        }
    }
}

fn ok(_: u32) -> Option<String> {
    Some("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned())
}

const FORTY: u32 = 40;

/// Answers nobody before it has forty requests.
fn after_forty(number: u32) -> Option<String> {
    static ARRIVED: AtomicU32 = AtomicU32::new(0);
    ARRIVED.fetch_add(1, Ordering::SeqCst);
    while ARRIVED.load(Ordering::SeqCst) < FORTY {
        thread::sleep(Duration::from_millis(1));
    }
    ok(number)
}

/// Longer than it takes to send some requests.
fn slow(number: u32) -> Option<String> {
    thread::sleep(Duration::from_secs(2));
    ok(number)
}

fn plan(address: SocketAddr) -> Plan {
    Plan {
        peer: Peer { address, tls: None },
        start: Instant::now(),
        connections_max: 100,
        timeout: Duration::from_secs(10),
    }
}

fn every(gap: Duration, number: u32) -> impl Iterator<Item = Shot<u32>> {
    (0..number).map(move |tag| Shot { at: gap * tag, tag })
}

fn get(_: u32, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
}

/// The part of an outcome that the tests check.
#[derive(Debug, Clone, Copy)]
struct Seen {
    tag: u32,
    at: Duration,
    taken_up: Duration,
    sent: Option<Duration>,
    first_byte: Option<Duration>,
    done: Duration,
    end: Result<u16, Failure>,
}

fn run_all(
    plan: &Plan,
    shots: impl Iterator<Item = Shot<u32>>,
    fill: impl FnMut(u32, &mut Vec<u8>),
) -> Vec<Seen> {
    let mut seen = Vec::new();
    run(plan, &Control::default(), shots, fill, |outcome| {
        seen.push(Seen {
            tag: outcome.shot.tag,
            at: outcome.shot.at,
            taken_up: outcome.taken_up,
            sent: outcome.sent,
            first_byte: outcome.first_byte,
            done: outcome.done,
            end: outcome.end.map(Answer::status),
        });
    })
    .unwrap();
    seen.sort_by_key(|seen| seen.tag);
    seen
}

#[test]
fn every_request_is_told_of_once_and_its_times_follow_one_another() {
    let seen = run_all(&plan(server(ok)), every(Duration::from_millis(1), 100), get);
    let tags: Vec<u32> = seen.iter().map(|seen| seen.tag).collect();
    assert_eq!(tags, (0..100).collect::<Vec<_>>());
    for seen in seen {
        assert_eq!(seen.end, Ok(200), "{seen:?}");
        let times = [
            Some(seen.at),
            Some(seen.taken_up),
            seen.sent,
            seen.first_byte,
            Some(seen.done),
        ];
        assert!(
            times.iter().all(Option::is_some) && times.is_sorted(),
            "{seen:?}"
        );
    }
}

#[test]
fn slow_answers_hold_nothing_back() {
    // A closed loop would wait for the first answer in vain.
    let seen = run_all(
        &plan(server(after_forty)),
        every(Duration::from_millis(5), FORTY),
        get,
    );
    assert!(seen.iter().all(|seen| seen.end == Ok(200)));
    // All requests are sent before the first one is answered.
    let first_answer = seen.iter().map(|seen| seen.done).min().unwrap();
    let last_sent = seen.iter().map(|seen| seen.sent.unwrap()).max().unwrap();
    assert!(last_sent < first_answer, "{last_sent:?} {first_answer:?}");
}

#[test]
fn connections_are_used_again_and_closed_ones_replaced() {
    // Each connection serves two requests.
    let answer = |number| {
        let close = if number == 2 {
            "connection: close\r\n"
        } else {
            ""
        };
        Some(format!(
            "HTTP/1.1 200 OK\r\n{close}x: {number}\r\ncontent-length: 2\r\n\r\nok"
        ))
    };
    let mut numbers = Vec::new();
    let shots = every(Duration::from_millis(100), 10);
    let control = Control::default();
    run(&plan(server(answer)), &control, shots, get, |outcome| {
        numbers.push(outcome.end.unwrap().header("x").unwrap().to_owned());
    })
    .unwrap();
    let count = |wanted: &str| numbers.iter().filter(|number| *number == wanted).count();
    // Five of each; fewer second ones if an answer took so long that the next request needed another connection.
    assert!(
        count("2") >= 3 && count("1") + count("2") == 10,
        "{numbers:?}"
    );
}

#[test]
fn what_has_no_free_connection_is_counted_and_not_sent() {
    let plan = Plan {
        connections_max: 3,
        ..plan(server(slow))
    };
    let seen = run_all(&plan, every(Duration::ZERO, 10), get);
    let refused: Vec<&Seen> = seen
        .iter()
        .filter(|seen| seen.end == Err(Failure::NoConnectionFree))
        .collect();
    assert_eq!(refused.len(), 7);
    assert!(refused.iter().all(|seen| seen.sent.is_none()));
}

#[test]
fn a_silent_server_a_closing_one_one_that_is_not_there_and_one_that_talks_nonsense_are_told_apart()
{
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let nonsense = |_| Some("SSH-2.0-x\r\n\r\n".to_owned());
    for (address, failure) in [
        (silent.local_addr().unwrap(), Failure::TimedOut),
        (server(|_| None), Failure::Closed),
        (nobody, Failure::NotConnected),
        (server(nonsense), Failure::NotHttp),
    ] {
        let mut plan = plan(address);
        if failure == Failure::TimedOut {
            plan.timeout = Duration::from_millis(200);
        }
        for seen in run_all(&plan, every(Duration::from_millis(1), 5), get) {
            assert_eq!(seen.end, Err(failure), "{seen:?}");
        }
    }
}

#[test]
fn a_body_larger_than_a_sockets_buffer_is_sent_without_blocking() {
    let body = vec![b'x'; 8 << 20];
    let fill = |_, bytes: &mut Vec<u8>| {
        bytes.extend_from_slice(
            format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(),
        );
        bytes.extend_from_slice(&body);
    };
    let seen = run_all(&plan(server(ok)), every(Duration::from_millis(1), 3), fill);
    assert!(seen.iter().all(|seen| seen.end == Ok(200)), "{seen:?}");
}

#[test]
fn nothing_is_sent_before_the_start() {
    let plan = Plan {
        start: Instant::now() + Duration::from_millis(100),
        ..plan(server(ok))
    };
    let mut filled = Vec::new();
    let fill = |_, bytes: &mut Vec<u8>| {
        filled.push(Instant::now());
        get(0, bytes);
    };
    let seen = run_all(&plan, every(Duration::from_millis(1), 2), fill);
    assert!(seen.iter().all(|seen| seen.end == Ok(200)));
    assert_eq!(filled.len(), 2);
    assert!(filled.iter().all(|instant| *instant >= plan.start));
}

#[test]
fn a_run_that_is_stopped_sends_no_more() {
    let control = Control::default();
    let shots = (0..100).map(|second| Shot {
        at: Duration::from_secs(second),
        tag: (),
    });
    let get = |(), bytes: &mut Vec<u8>| bytes.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
    let began = Instant::now();
    let mut ended = 0;
    run(&plan(server(ok)), &control, shots, get, |_| {
        ended += 1;
        control.stop();
    })
    .unwrap();
    assert_eq!((ended, control.done()), (1, 1));
    assert!(began.elapsed() < Duration::from_secs(10));
}
