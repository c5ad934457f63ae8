//! `pilot bench load`: an open loop that sends requests at the times of a profile and prints the results. The time of a request
//! counts from its intended send time, so it includes every delay, also those of the generator. The generator's own delay is
//! reported separately.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use pilot_loadgen::LoadError;
use pilot_loadgen::control::Control;
use pilot_loadgen::open::{Plan, Shot, run as run_open};
use pilot_workload::{Arrival, Overrides, Profile};

use self::document::Document;
use self::tally::{Tag, Tally, Watch};
use self::targets::Targets;
use super::super::client::Client;
use super::super::connection::Connection;
use super::super::failure::Failure;
use super::super::output;
use super::target::{CallArgs, body_of, not_measured};
use super::watched::{Ending, Extent, watched};

mod document;
mod tally;
mod targets;

/// The arguments of `pilot bench load`.
#[derive(Debug, Args)]
pub(super) struct LoadArgs {
    /// The load profile: a TOML file with phases or a trace
    profile: PathBuf,
    /// A function, or an http:// URL. {index} and {name} are placeholders for each function of a trace
    #[arg(short, long, value_name = "NAME|URL")]
    target: String,
    #[command(flatten)]
    call: CallArgs,
    /// A file with the request body. {service_ms} is a placeholder for the request's duration in the trace
    #[arg(long, value_name = "FILE", conflicts_with = "body_text")]
    body: Option<PathBuf>,
    /// The request body
    #[arg(long, value_name = "TEXT")]
    body_text: Option<String>,
    /// The folder with the trace's files
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Replace a value of the profile: time_scale=2, trace.minutes=10, warm-up.duration_s=60; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Number of sending threads; one is enough for thousands of requests per second
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Highest number of connections; a request that finds none free is counted and not sent
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    connections_max: u32,
    /// Give up a request after this time
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    timeout_s: u32,
    /// Count the requests that took longer than this, failed, or had no response; may be repeated
    #[arg(long, value_name = "MS")]
    over_ms: Vec<u32>,
    /// Write every request to this file, as CSV
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Replays the profile, and prints the result.
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
    // If no server listens, or it is not trusted, this reports it once instead of for every request.
    targets.peer().check().map_err(|error| match error {
        LoadError::Connect { address, source } => {
            let problem = format!("{address}: {source}; is a server listening there?");
            Failure::NoServer { problem }.into()
        }
        error => not_measured(error),
    })?;
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
    let extent = Extent {
        requests: None,
        duration: Some(profile.duration()),
    };
    let (tally, ending) = watched(extent, |control| {
        send(&profile, &targets, args, &watch, control)
    })?;
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
        ending,
    );
    let printed = match args.json {
        true => output::print_json(&document),
        false => output::print(&document.table()),
    };
    if let Some(failures) = document.failures() {
        output::error(&failures);
    }
    match ending {
        Ending::Interrupted => {
            output::note(
                "interrupted: these are the figures until then; requests under way are not counted",
            );
            Err(Failure::Interrupted.into())
        }
        Ending::Whole if document.failures().is_some() => Err(Failure::Reported.into()),
        Ending::Whole => printed,
    }
}

/// Sends all requests, on all threads, and adds up their results.
fn send(
    profile: &Profile,
    targets: &Targets,
    args: &LoadArgs,
    watch: &Watch,
    control: &Control,
) -> anyhow::Result<Tally> {
    let threads = args.threads as usize;
    let connections = (args.connections_max as usize).div_ceil(threads);
    let plan = Plan {
        peer: targets.peer().clone(),
        start: Instant::now() + LEAD,
        connections_max: connections,
        timeout: Duration::from_secs(args.timeout_s.into()),
    };
    let one = |number: usize| {
        let mut tally = Tally::new(profile, watch);
        let shots = profile.arrivals().skip(number).step_by(threads).map(shot);
        run_open(
            &plan,
            control,
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
            // A panic of another thread is passed on.
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

/// Time before the first request, for the threads to start.
const LEAD: Duration = Duration::from_millis(20);
