//! `pilot bench load`: sends requests at the times of a profile, paced by the clock, and prints what became of them. What a
//! request took counts from the instant at which it was meant to be sent: whatever is late, the server or the generator itself,
//! is in the figures, and the generator's own part is told apart.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use pilot_loadgen::open::{Plan, Shot, run as run_open};
use pilot_workload::{Arrival, Overrides, Profile};

use self::document::Document;
use self::tally::{Tag, Tally, Watch};
use self::targets::Targets;
use super::super::client::Client;
use super::super::connection::Connection;
use super::super::failure::Failure;
use super::super::output;
use super::target::{CallArgs, body_of};

mod document;
mod tally;
mod targets;

/// What `pilot bench load` takes.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// When to send: a TOML file with phases or a trace
    profile: PathBuf,
    /// A function, or an http:// URL. {index} and {name} in it stand for each function of a trace
    #[arg(short, long, value_name = "NAME|URL")]
    target: String,
    #[command(flatten)]
    call: CallArgs,
    /// A file with the requests' body. {service_ms} in it becomes the time that the trace gives each request
    #[arg(long, value_name = "FILE", conflicts_with = "body_text")]
    body: Option<PathBuf>,
    /// The body itself
    #[arg(long, value_name = "TEXT")]
    body_text: Option<String>,
    /// The folder that has the trace's files
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Replace a value of the profile: time_scale=2, trace.minutes=10, warm-up.duration_s=60; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Threads that send; one does for thousands of requests a second
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Open no more connections than this; a request that finds none free is not sent, and counted
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    connections_max: u32,
    /// Give up a request after this
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    timeout_s: u32,
    /// Count the requests that took longer than this, or had no answer; may be repeated
    #[arg(long, value_name = "MS")]
    over_ms: Vec<u32>,
    /// Write every request there, as CSV
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Replays the profile, and prints what came of it.
pub(super) fn run(client: &Client, connection: &Connection, args: &LoadArgs) -> anyhow::Result<()> {
    let overrides = Overrides {
        data: args.data.clone(),
        set: args.set.clone(),
    };
    let profile = Profile::read_with(&args.profile, &overrides)
        .map_err(|error| Failure::usage(error.to_string()))?;
    let body = match &args.body {
        Some(path) => Some(body_of(path)?),
        None => args.body_text.clone().map(String::into_bytes),
    };
    let targets = Targets::new(client, connection, &args.call, &args.target, body, &profile)?;
    let address = targets.site().address;
    // Said now and once, not a thousand times later.
    TcpStream::connect_timeout(&address, CONNECT_PATIENCE)
        .with_context(|| format!("{address}: is a server listening there?"))?;
    let samples = args.samples.as_deref().map(create).transpose()?;
    output::note(&format!(
        "{}: about {:.0} requests in {} to {}",
        profile.name(),
        profile.expected(),
        output::duration(profile.duration()),
        args.target
    ));
    let watch = Watch {
        over: args
            .over_ms
            .iter()
            .copied()
            .map(u64::from)
            .map(Duration::from_millis)
            .collect(),
        samples: samples.is_some(),
    };
    let began = Instant::now();
    let tally = send(&profile, &targets, args, &watch)?;
    let took = began.elapsed();
    if let Some((mut file, path)) = samples {
        tally
            .write_samples(&profile, &mut file)
            .and_then(|()| file.flush())
            .with_context(|| path.display().to_string())?;
    }
    let document = Document::new(
        &profile,
        &args.target,
        &args.over_ms,
        &targets,
        &tally,
        took,
    );
    if args.json {
        output::print_json(&document)?;
    } else {
        output::print(&document.table())?;
    }
    if tally.answered() == 0 {
        anyhow::bail!("no request was answered");
    }
    Ok(())
}

/// Sends everything, on all threads, and puts their results together.
fn send(
    profile: &Profile,
    targets: &Targets,
    args: &LoadArgs,
    watch: &Watch,
) -> anyhow::Result<Tally> {
    let threads = args.threads as usize;
    let connections = (args.connections_max as usize).div_ceil(threads);
    let plan = Plan {
        address: targets.site().address,
        start: Instant::now() + LEAD,
        connections_max: connections,
        timeout: Duration::from_secs(args.timeout_s.into()),
    };
    let one = |number: usize| {
        let mut tally = Tally::new(profile, watch);
        let shots = profile.arrivals().skip(number).step_by(threads).map(shot);
        run_open(
            &plan,
            shots,
            |tag, bytes| targets.fill(tag, bytes),
            |outcome| tally.take(outcome),
        )?;
        anyhow::Ok(tally)
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let mut all = one(0)?;
        for other in others {
            // A panic of another thread is ours too.
            let other = other
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.add(other);
        }
        Ok(all)
    })
}

fn shot(arrival: Arrival) -> Shot<Tag> {
    Shot {
        at: arrival.at,
        tag: Tag {
            function: arrival.function,
            service: arrival.service,
        },
    }
}

fn create(path: &Path) -> anyhow::Result<(BufWriter<File>, &Path)> {
    let file = File::create(path);
    let file =
        file.map_err(|error| Failure::usage(format!("--samples {}: {error}", path.display())))?;
    Ok((BufWriter::new(file), path))
}

const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Before the first request, for the threads to come up.
const LEAD: Duration = Duration::from_millis(20);
