//! `pilot bench cold`, `warm` and `burst`: closed loops, in which a request waits for the previous response.

use std::time::Duration;

use clap::Args;
use pilot_loadgen::closed::{Before, Plan, Shape, run};
use pilot_loadgen::report::{Document, Report, Want};
use pilot_loadgen::times::Summary;
use pilot_model::FunctionName;
use pilot_model::api::ScaleRequest;
use pilot_model::status::PoolStatus;
use serde::Serialize;

use super::super::client::Client;
use super::super::connection::Connection;
use super::super::failure::Failure;
use super::super::output::{self, Align, Table};
use super::target::{RequestArgs, Subject, not_measured};
use super::watched::{Ending, Extent, watched};

/// The arguments of `pilot bench cold`.
#[derive(Debug, Args)]
pub(super) struct ColdArgs {
    /// Which function
    name: FunctionName,
    /// Number of requests
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Pause between retiring the idle workers and the request, in which their sandboxes are removed
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pause_ms: u64,
    /// Number of requests before the measurement
    #[arg(long, value_name = "N", default_value_t = 1)]
    warm_up: u64,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The arguments of `pilot bench warm`.
#[derive(Debug, Args)]
pub(super) struct WarmArgs {
    /// Which function
    name: Option<FunctionName>,
    /// Measure any other server instead of a function
    #[arg(long, value_name = "URL", conflicts_with = "name")]
    url: Option<String>,
    /// Stop after this number of requests
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time, in seconds [default: 5, unless there is a count]
    #[arg(short, long, value_name = "S", value_parser = check_seconds)]
    seconds: Option<f64>,
    /// Number of connections; each sends its next request when it has its response
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = check_connections)]
    connections: usize,
    /// Pause before each request; with a pause, the connections take turns
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pause_ms: u64,
    /// Number of requests before the measurement
    #[arg(long, value_name = "N", default_value_t = 10)]
    warm_up: u64,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The arguments of `pilot bench burst`.
#[derive(Debug, Args)]
pub(super) struct BurstArgs {
    /// Which function
    name: Option<FunctionName>,
    /// Measure any other server instead of a function
    #[arg(long, value_name = "URL", conflicts_with = "name")]
    url: Option<String>,
    /// Number of bursts
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Number of requests per burst, each on its own connection
    #[arg(short, long, value_name = "N", default_value_t = 50, value_parser = check_connections)]
    connections: usize,
    /// Keep the workers of the previous burst instead of retiring them
    #[arg(long)]
    keep_workers: bool,
    /// Pause before each burst
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pause_ms: u64,
    /// Number of bursts before the measurement
    #[arg(long, value_name = "N", default_value_t = 0)]
    warm_up: u64,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// How the result is printed.
#[derive(Debug, Args)]
struct OutputArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// With --json: include the time of every request, µs
    #[arg(long, requires = "json")]
    samples: bool,
}

#[derive(Serialize)]
struct ClosedReport<'a> {
    kind: &'a str,
    target: &'a str,
    connections: usize,
    /// Whether Ctrl-C ended it. Then the figures are those until then.
    interrupted: bool,
    #[serde(flatten)]
    measured: &'a Document,
}

/// Cold requests, one after another.
pub(super) fn cold(
    client: &Client,
    connection: &Connection,
    args: &ColdArgs,
) -> anyhow::Result<()> {
    let subject = Subject::Function(&args.name);
    let target = args.request.target(client, connection, subject)?;
    let plan = Plan {
        peer: target.peer,
        request: target.request,
        pause: Duration::from_millis(args.pause_ms),
        connections: 1,
        shape: Shape::Closed,
        count: args.count,
        duration: Duration::MAX,
        warm_up: args.warm_up,
    };
    let measured = measure(
        &plan,
        retire(client, target.retires),
        Phases::Collect,
        &args.output,
    )?;
    tell("cold", subject, &plan, &measured, &args.output)
}

/// Requests on connections that each wait for their responses.
pub(super) fn warm(
    client: &Client,
    connection: &Connection,
    args: &WarmArgs,
) -> anyhow::Result<()> {
    let subject = subject(args.name.as_ref(), args.url.as_deref())?;
    let target = args.request.target(client, connection, subject)?;
    let seconds = match (args.seconds, args.count) {
        (None, None) => Some(SECONDS_DEFAULT),
        (seconds, _) => seconds,
    };
    let plan = Plan {
        peer: target.peer,
        request: target.request,
        pause: Duration::from_millis(args.pause_ms),
        connections: args.connections,
        shape: Shape::Closed,
        count: args.count.unwrap_or(u64::MAX),
        duration: seconds.map_or(Duration::MAX, Duration::from_secs_f64),
        warm_up: args.warm_up,
    };
    // With many connections the throughput counts. Reading the phases would cost time that other servers do not cost.
    let phases = if args.connections == 1 {
        Phases::Collect
    } else {
        Phases::Ignore
    };
    let measured = measure(&plan, None, phases, &args.output)?;
    tell("warm", subject, &plan, &measured, &args.output)
}

/// Requests on all connections at once.
pub(super) fn burst(
    client: &Client,
    connection: &Connection,
    args: &BurstArgs,
) -> anyhow::Result<()> {
    let subject = subject(args.name.as_ref(), args.url.as_deref())?;
    let target = args.request.target(client, connection, subject)?;
    let plan = Plan {
        peer: target.peer,
        request: target.request,
        pause: Duration::from_millis(args.pause_ms),
        connections: args.connections,
        shape: Shape::Burst,
        count: args.count,
        duration: Duration::MAX,
        warm_up: args.warm_up,
    };
    let retires = target.retires.filter(|_| !args.keep_workers);
    let measured = measure(
        &plan,
        retire(client, retires),
        Phases::Collect,
        &args.output,
    )?;
    tell("burst", subject, &plan, &measured, &args.output)
}

fn subject<'a>(
    name: Option<&'a FunctionName>,
    url: Option<&'a str>,
) -> anyhow::Result<Subject<'a>> {
    match (name, url) {
        (Some(name), _) => Ok(Subject::Function(name)),
        (None, Some(url)) => Ok(Subject::Url(url)),
        (None, None) => Err(Failure::usage("name a function, or a server with --url").into()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phases {
    Collect,
    Ignore,
}

/// What was measured, and whether to the end.
struct Measured {
    document: Document,
    ending: Ending,
}

/// What is done before every measured request: the function's idle workers are retired.
fn retire(client: &Client, function: Option<FunctionName>) -> Option<Before<'_>> {
    let function = function?;
    let none = ScaleRequest {
        workers: Some(0),
        policy: None,
    };
    Some(Box::new(move || {
        let retired = client.post_function::<PoolStatus>(&function, "/scale", &none);
        retired.map(drop).map_err(|error| format!("{error:#}"))
    }))
}

fn measure(
    plan: &Plan,
    before: Option<Before<'_>>,
    phases: Phases,
    output: &OutputArgs,
) -> anyhow::Result<Measured> {
    let mut report = Report::new(Want {
        start_header: Some("x-pilot-start"),
        failure_header: Some("x-amz-function-error"),
        phases: phases == Phases::Collect,
        samples: output.samples,
    });
    let each = match plan.shape {
        Shape::Closed => 1,
        Shape::Burst => plan.connections as u64,
    };
    let extent = Extent {
        requests: (plan.count < u64::MAX).then(|| plan.count.saturating_mul(each)),
        duration: (plan.duration < Duration::MAX).then_some(plan.duration),
    };
    let ((), ending) = watched(extent, |control| {
        run(plan, before, control, &mut report).map_err(not_measured)
    })?;
    Ok(Measured {
        document: report.document(),
        ending,
    })
}

/// Prints the figures, which are those of successful responses, and then what failed.
fn tell(
    kind: &str,
    subject: Subject<'_>,
    plan: &Plan,
    measured: &Measured,
    output: &OutputArgs,
) -> anyhow::Result<()> {
    let Measured { document, ending } = measured;
    let answers = document.complete_us.count;
    let printed = if output.json {
        output::print_json(&ClosedReport {
            kind,
            target: subject.name(),
            connections: plan.connections,
            interrupted: *ending == Ending::Interrupted,
            measured: document,
        })
    } else if answers > 0 {
        output::print(&table(kind, subject.name(), plan.connections, document))
    } else {
        Ok(())
    };
    let warm = document.start.get("warm").copied().unwrap_or(0);
    if kind == "cold" && warm > 0 {
        output::note(&format!(
            "{warm} of {answers} requests found a worker: the function keeps workers ready (min, spare, policy), or \
             another client calls it"
        ));
    }
    if document.failed > 0 {
        output::error(&failures(document));
        output::detail(document.first_problem.as_deref().unwrap_or_default());
    }
    match ending {
        Ending::Interrupted => {
            output::note("interrupted: these are the figures until then");
            Err(Failure::Interrupted.into())
        }
        Ending::Whole if document.failed > 0 => Err(Failure::Reported.into()),
        Ending::Whole => printed,
    }
}

/// `3 of 20 responses were errors (2 × 403, 1 × 503 …)`.
fn failures(measured: &Document) -> String {
    let failed = measured.failed;
    let refused: Vec<String> = measured
        .status
        .iter()
        .filter(|(status, _)| **status >= 400)
        .map(|(status, count)| format!("{count} × {status}"))
        .collect();
    let refused = if refused.is_empty() {
        String::new()
    } else {
        format!(" ({})", refused.join(", "))
    };
    format!(
        "{failed} of {} responses were errors{refused}, and are in no figure; the first begins:",
        measured.complete_us.count + failed
    )
}

fn table(kind: &str, name: &str, connections: usize, measured: &Document) -> String {
    let mut table = Table::new(&[
        (&kind.to_uppercase(), Align::Left),
        ("P50", Align::Right),
        ("P90", Align::Right),
        ("P99", Align::Right),
        ("P99.9", Align::Right),
        ("MAX", Align::Right),
    ]);
    let mut row = |what: String, times: &Summary| {
        let cells = [times.p50, times.p90, times.p99, times.p999, times.max];
        let cells = cells.map(output::micros);
        table.row([what].into_iter().chain(cells).collect());
    };
    if let Some(round) = &measured.round_us {
        row("all answered".to_owned(), round);
    }
    row("first byte".to_owned(), &measured.first_byte_us);
    row("whole answer".to_owned(), &measured.complete_us);
    for phase in &measured.phases {
        row(format!("  {}", phase.name), &phase.times);
    }
    let answers = measured.complete_us.count;
    let mut said = format!(
        "{name}: {} on {} in {}, {:.0} a second",
        output::count(answers, "answer"),
        output::count(connections as u64, "connection"),
        output::duration(Duration::try_from_secs_f64(measured.seconds).unwrap_or_default()),
        measured.per_second,
    );
    for (start, count) in &measured.start {
        said.push_str(&format!(", {count} {start}"));
    }
    format!("{}{said}\n", table.render())
}

pub(super) fn check_connections(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=CONNECTIONS_MAX).contains(&number) => Ok(number),
        _ => Err(format!("must be a number from 1 to {CONNECTIONS_MAX}")),
    }
}

pub(super) fn check_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number of seconds, above 0 and up to 86400".to_owned()),
    }
}

const SECONDS_DEFAULT: f64 = 5.0;
/// About as many files as a process may open without raised limits.
const CONNECTIONS_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pilot_loadgen::report::PhaseTimes;

    use super::*;

    fn times(us: f64) -> Summary {
        Summary {
            count: 50,
            mean: us,
            min: us,
            p50: us,
            p90: us,
            p99: us * 2.0,
            p999: us * 2.0,
            max: us * 2.0,
        }
    }

    fn a_document() -> Document {
        Document {
            seconds: 1.25,
            per_second: 40.0,
            first_byte_us: times(2_000.0),
            complete_us: times(2_100.0),
            round_us: None,
            status: BTreeMap::from([(200, 50)]),
            failed: 0,
            start: BTreeMap::from([("cold".to_owned(), 50)]),
            phases: vec![PhaseTimes {
                name: "fork".to_owned(),
                times: times(700.0),
            }],
            samples: None,
            first_problem: None,
        }
    }

    #[test]
    fn failures_are_counted_by_their_status() {
        let mut measured = a_document();
        measured.failed = 5;
        measured.status.extend([(403, 2), (503, 1)]);
        assert_eq!(
            failures(&measured),
            "5 of 55 responses were errors (2 × 403, 1 × 503), and are in no figure; the first begins:"
        );
        measured.status = BTreeMap::from([(200, 55)]);
        assert!(failures(&measured).starts_with("5 of 55 responses were errors, and"));
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let text = table("cold", "invert", 1, &a_document());
        let text = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            text,
            "COLD              P50      P90      P99    P99.9      MAX\n\
             first byte    2.00 ms  2.00 ms  4.00 ms  4.00 ms  4.00 ms\n\
             whole answer  2.10 ms  2.10 ms  4.20 ms  4.20 ms  4.20 ms\n  \
               fork         700 µs   700 µs  1.40 ms  1.40 ms  1.40 ms\n\
             invert: 50 answers on 1 connection in 1.25 s, 40 a second, 50 cold\n"
        );
    }
}
