//! A load client for `bench/peers`: closed loop, burst and cold rounds over raw HTTP/1.1, times in JSON on stdout.
//!
//! One thread, `poll(2)` over keep-alive connections, no runtime: on two cores the client must not be what is measured,
//! and must weigh the same on every server. A time runs from just before `write` to the first byte of the answer, and
//! again to its last. In a closed loop a slow answer delays the next request of that connection; the loop therefore
//! says what a client with so many connections sees, not what an open stream of arrivals would.

mod answer;
mod report;
mod run;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;

use crate::report::Report;
use crate::run::{Plan, Shape};

/// The command line.
#[derive(Debug, Parser)]
#[command(about)]
struct Arguments {
    /// Where the server listens.
    #[arg(long)]
    address: SocketAddr,
    /// `METHOD /path`.
    #[arg(long, default_value = "GET /")]
    request: String,
    /// The request's body.
    #[arg(long, default_value = "")]
    body: String,
    /// Another header, `name: value`; may be repeated.
    #[arg(long = "header")]
    headers: Vec<String>,
    /// Connections; with --burst also the number of requests of a round.
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Ends after so many requests (with --burst: rounds).
    #[arg(long)]
    count: Option<u64>,
    /// Ends after so many seconds.
    #[arg(long)]
    seconds: Option<f64>,
    /// Requests whose times are thrown away, before the others.
    #[arg(long, default_value_t = 0)]
    warm_up: u64,
    /// Rounds: every connection sends at one instant, then all answers are awaited.
    #[arg(long)]
    burst: bool,
    /// `METHOD /path` sent, and its answer awaited, before every timed request or round.
    #[arg(long)]
    before: Option<String>,
    /// Body of --before.
    #[arg(long, default_value = "")]
    before_body: String,
    /// Pause between requests or rounds (after --before), ms.
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
    /// Counts the values of this response header; may be repeated.
    #[arg(long = "count-header")]
    count_headers: Vec<String>,
    /// Collects the durations of the `Server-Timing` header.
    #[arg(long)]
    phases: bool,
    /// Adds every single time to the answer, µs.
    #[arg(long)]
    samples: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let plan = Plan {
        address: arguments.address,
        request: encode(&arguments.request, &arguments.body, &arguments.headers)?,
        before: arguments
            .before
            .as_deref()
            .map(|line| encode(line, &arguments.before_body, &arguments.headers))
            .transpose()?,
        pause: Duration::from_millis(arguments.pause_ms),
        connections: arguments.connections.max(1),
        shape: if arguments.burst {
            Shape::Burst
        } else {
            Shape::Closed
        },
        count: arguments
            .count
            .or(if arguments.seconds.is_none() {
                Some(1)
            } else {
                None
            })
            .unwrap_or(u64::MAX),
        duration: arguments
            .seconds
            .map_or(Duration::MAX, Duration::from_secs_f64),
        warm_up: arguments.warm_up,
    };
    let mut report = Report::new(arguments.count_headers, arguments.phases, arguments.samples);
    run::run(&plan, &mut report)?;
    println!("{}", report.to_json()?);
    Ok(())
}

/// The bytes of a request. `line` is `METHOD /path`.
fn encode(line: &str, body: &str, headers: &[String]) -> anyhow::Result<Vec<u8>> {
    let (method, target) = line
        .split_once(' ')
        .with_context(|| format!("'{line}' is not METHOD /path"))?;
    let mut text = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if method != "GET" || !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    text.push_str(body);
    Ok(text.into_bytes())
}
