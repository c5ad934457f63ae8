//! `pilot bench serving`: what each way of serving a function adds to one that does nothing (Fig. 8 of "Demystifying Serverless
//! Costs", §3.2), warm, on one connection. It deploys tiny functions to the daemon itself and takes them away again
//! (`serving/stage.rs`); the architectures take turns, the first of a turn changing, so that whatever else the machine does falls
//! on all of them.
//!
//! What is *added*: the function does nothing, so all of a round trip is added, the daemon's own HTTP and this client's in it
//! (`GET /healthz` is there for comparison). Of the HTTP server, whose requests would come over HTTP in any case, it is what the
//! round trip takes beyond calling the same program directly. What the daemon *reports* is its `handler` phase, which is what
//! clouds bill and what the paper's figure is of: for Runtime API polling from the answer to the poll to the response's arrival,
//! the client's work in it.

use std::time::Duration;

use clap::Args;
use pilot_loadgen::closed::{Plan, Shape, run as run_plan};
use pilot_loadgen::report::{Document, Report, Want};
use pilot_loadgen::times::Summary;
use serde::Serialize;

use self::stage::{Called, Stage};
use super::super::Connection;
use super::super::client::Client;
use super::super::failure::Failure;
use super::super::output::{self, Align, Table};
use super::closed::check_seconds;

mod stage;

/// What `pilot bench serving` takes.
#[derive(Debug, Args)]
pub(super) struct ServingArgs {
    /// How often each architecture has its turn
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turns: u32,
    /// How long a turn lasts
    #[arg(short, long, value_name = "S", default_value = "1", value_parser = check_seconds)]
    seconds: f64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Architecture {
    /// The daemon itself, no function.
    Daemon,
    /// A worker forked from its template, which gets its events as frames.
    ForkWorker,
    /// A program that polls the Lambda Runtime API.
    RuntimeApi,
    /// The function's own HTTP server.
    HttpServer,
    /// The same server, without a daemon in between.
    HttpDirect,
    /// A WASM instance.
    Wasm,
}

impl Architecture {
    const ALL: [Self; 6] = [
        Self::Daemon,
        Self::ForkWorker,
        Self::RuntimeApi,
        Self::HttpServer,
        Self::HttpDirect,
        Self::Wasm,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::Daemon => "the daemon alone (/healthz)",
            Self::ForkWorker => "fork worker (python)",
            Self::RuntimeApi => "Runtime API polling (provided)",
            Self::HttpServer => "HTTP server (http)",
            Self::HttpDirect => "the same server, directly",
            Self::Wasm => "WASM",
        }
    }

    /// What the paper's text says of its kind (§3.2, of Fig. 8): means of what providers report.
    fn paper(self) -> &'static str {
        match self {
            Self::RuntimeApi => "~1.17 ms (AWS)",
            Self::HttpServer => "up to 5.93 ms (GCP, Azure)",
            Self::Wasm => "< 0.01 ms (Cloudflare)",
            Self::Daemon | Self::ForkWorker | Self::HttpDirect => "",
        }
    }
}

/// One architecture in its turns.
struct Side {
    architecture: Architecture,
    plan: Plan,
    report: Report,
}

/// What is told of one.
#[derive(Debug, Serialize)]
struct Row {
    architecture: Architecture,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
    /// Why nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    paper: &'static str,
}

/// Times are µs.
#[derive(Debug, Serialize)]
struct Measured {
    /// From the request's write to the answer's last byte.
    round_us: Summary,
    /// The daemon's `handler` phase.
    reported_us: Option<Summary>,
    /// The median that serving this way adds; none of what is there for comparison.
    added_us_p50: Option<f64>,
    /// The round trip's median less that of the `handler` phase.
    outside_us_p50: Option<f64>,
    /// Requests that waited for a start: with them it is not the warm case alone.
    cold: u64,
}

#[derive(Debug, Serialize)]
struct Told {
    kind: &'static str,
    turns: u32,
    turn_s: f64,
    rows: Vec<Row>,
}

/// Measures, and prints what came of it.
pub(super) fn run(
    client: &Client,
    connection: &Connection,
    args: &ServingArgs,
) -> anyhow::Result<()> {
    let mut stage = Stage::new(client, connection)?;
    let mut sides = Vec::new();
    let mut problems = Vec::new();
    for architecture in Architecture::ALL {
        match call(&mut stage, architecture) {
            Ok(Some(called)) => sides.push(Side::new(architecture, called, args.seconds)),
            Ok(None) => problems.push((architecture, NOT_YET.to_owned())),
            // With nobody there, there is nothing to compare.
            Err(error) if matches!(error.downcast_ref(), Some(Failure::Unreachable { .. })) => {
                return Err(error);
            }
            Err(error) => problems.push((architecture, format!("{error:#}"))),
        }
    }
    for _ in 0..args.turns {
        for side in &mut sides {
            run_plan(&side.plan, &mut side.report)?;
        }
        sides.rotate_left(1);
    }
    drop(stage);
    let told = Told {
        kind: "serving",
        turns: args.turns,
        turn_s: args.seconds,
        rows: rows(&sides, problems),
    };
    if args.json {
        output::print_json(&told)?;
    } else {
        output::print(&table(&told.rows))?;
    }
    complain(&told.rows, &sides)
}

/// `None`: there is no such thing yet.
fn call(stage: &mut Stage<'_>, architecture: Architecture) -> anyhow::Result<Option<Called>> {
    Ok(Some(match architecture {
        Architecture::Daemon => stage.healthz()?,
        Architecture::ForkWorker => stage.fork_worker()?,
        Architecture::RuntimeApi => stage.runtime_api()?,
        Architecture::HttpServer => stage.http_server()?,
        Architecture::HttpDirect => stage.http_direct()?,
        Architecture::Wasm => return Ok(None),
    }))
}

impl Side {
    fn new(architecture: Architecture, called: Called, turn_s: f64) -> Self {
        Self {
            architecture,
            plan: Plan {
                address: called.address,
                request: called.request,
                before: None,
                pause: Duration::ZERO,
                connections: 1,
                shape: Shape::Closed,
                count: u64::MAX,
                duration: Duration::from_secs_f64(turn_s),
                warm_up: WARM_UP,
            },
            report: Report::new(Want {
                start_header: Some("x-pilot-start"),
                failure_header: Some("x-amz-function-error"),
                phases: true,
                samples: false,
            }),
        }
    }
}

fn rows(sides: &[Side], problems: Vec<(Architecture, String)>) -> Vec<Row> {
    let documents: Vec<(Architecture, Document)> = sides
        .iter()
        .map(|side| (side.architecture, side.report.document()))
        .collect();
    let direct = documents
        .iter()
        .find(|(architecture, _)| *architecture == Architecture::HttpDirect)
        .map(|(_, document)| document.complete_us.p50);
    let measured = documents.into_iter().map(|(architecture, document)| Row {
        architecture,
        measured: Some(Measured::new(architecture, document, direct)),
        problem: None,
        paper: architecture.paper(),
    });
    let failed = problems.into_iter().map(|(architecture, problem)| Row {
        architecture,
        measured: None,
        problem: Some(problem),
        paper: architecture.paper(),
    });
    let mut rows: Vec<Row> = measured.chain(failed).collect();
    rows.sort_by_key(|row| {
        Architecture::ALL
            .iter()
            .position(|architecture| *architecture == row.architecture)
    });
    rows
}

impl Measured {
    /// `direct`: the median of calling the HTTP server without a daemon.
    fn new(architecture: Architecture, document: Document, direct: Option<f64>) -> Self {
        let round = document.complete_us;
        let handler = document
            .phases
            .into_iter()
            .find(|phase| phase.name == "handler")
            .map(|phase| phase.times);
        let added = match architecture {
            Architecture::ForkWorker | Architecture::RuntimeApi => Some(round.p50),
            Architecture::HttpServer => direct.map(|direct| round.p50 - direct),
            Architecture::Daemon | Architecture::HttpDirect | Architecture::Wasm => None,
        };
        Self {
            added_us_p50: added,
            outside_us_p50: handler.as_ref().map(|handler| round.p50 - handler.p50),
            reported_us: handler,
            cold: document.start.get("cold").copied().unwrap_or(0),
            round_us: round,
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        ("SERVED BY", Align::Left),
        ("ROUND TRIP P50", Align::Right),
        ("P99", Align::Right),
        ("REPORTED P50", Align::Right),
        ("ADDED P50", Align::Right),
        ("PAPER", Align::Left),
    ]);
    for row in rows {
        let cells = match (&row.measured, &row.problem) {
            (Some(measured), _) => [
                super::time(measured.round_us.p50),
                super::time(measured.round_us.p99),
                told(measured.reported_us.as_ref().map(|times| times.p50)),
                told(measured.added_us_p50),
            ],
            (None, problem) => {
                let problem = problem.as_deref().unwrap_or_default();
                let word = if problem == NOT_YET {
                    NOT_YET
                } else {
                    "failed"
                };
                [word.to_owned(), String::new(), String::new(), String::new()]
            }
        };
        let name = row.architecture.words().to_owned();
        let cells = [name].into_iter().chain(cells);
        table.row(cells.chain([row.paper.to_owned()]).collect());
    }
    table.render()
}

fn told(us: Option<f64>) -> String {
    us.map_or_else(String::new, super::time)
}

/// Says what did not go as it should. `Err`: an architecture that should be there was not measured, or answered with failures.
fn complain(rows: &[Row], sides: &[Side]) -> anyhow::Result<()> {
    let mut wrong = false;
    for row in rows {
        let name = row.architecture.words();
        match (&row.problem, &row.measured) {
            (Some(problem), _) if problem != NOT_YET => {
                wrong = true;
                output::error(&format!("{name}: {problem}"));
            }
            (_, Some(measured)) if measured.cold > 0 => output::note(&format!(
                "{name}: {} of {} requests waited for a start",
                measured.cold, measured.round_us.count
            )),
            _ => {}
        }
    }
    for side in sides {
        let document = side.report.document();
        if document.failed > 0 {
            wrong = true;
            let name = side.architecture.words();
            output::error(&format!(
                "{name}: {} answers were failures; the first begins:",
                document.failed
            ));
            output::detail(document.first_problem.as_deref().unwrap_or_default());
        }
    }
    match wrong {
        true => Err(Failure::Reported.into()),
        false => Ok(()),
    }
}

const NOT_YET: &str = "not there yet";
/// Requests at the beginning of each turn that do not count: the first one starts a worker.
const WARM_UP: u64 = 20;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pilot_loadgen::report::PhaseTimes;

    use super::*;

    fn times(us: f64) -> Summary {
        Summary {
            count: 1_000,
            mean: us,
            min: us,
            p50: us,
            p90: us,
            p99: us * 2.0,
            p999: us * 2.0,
            max: us * 2.0,
        }
    }

    fn document(round_us: f64, handler_us: Option<f64>) -> Document {
        let phase = |us| PhaseTimes {
            name: "handler".to_owned(),
            times: times(us),
        };
        Document {
            seconds: 1.0,
            per_second: 1_000.0,
            first_byte_us: times(round_us),
            complete_us: times(round_us),
            round_us: None,
            status: BTreeMap::from([(200, 1_000)]),
            failed: 0,
            start: BTreeMap::from([("warm".to_owned(), 1_000)]),
            phases: handler_us.map(phase).into_iter().collect(),
            samples: None,
            first_problem: None,
        }
    }

    #[test]
    fn all_of_a_round_trip_is_added_but_for_http_what_is_beyond_the_direct_call() {
        use Architecture::{Daemon, HttpServer, RuntimeApi};
        let polled = Measured::new(RuntimeApi, document(150.0, Some(90.0)), Some(40.0));
        assert_eq!(polled.added_us_p50, Some(150.0));
        assert_eq!(polled.outside_us_p50, Some(60.0));
        let served = Measured::new(HttpServer, document(130.0, Some(70.0)), Some(40.0));
        assert_eq!(served.added_us_p50, Some(90.0));
        let alone = Measured::new(HttpServer, document(130.0, None), None);
        assert_eq!(alone.added_us_p50, None, "nothing to compare with");
        let daemon = Measured::new(Daemon, document(30.0, None), None);
        assert_eq!(daemon.added_us_p50, None);
    }

    #[test]
    fn the_table_has_the_papers_figures_beside_ours() {
        let row = |architecture: Architecture, measured, problem: Option<&str>| Row {
            architecture,
            measured,
            problem: problem.map(str::to_owned),
            paper: architecture.paper(),
        };
        let polled = Measured::new(Architecture::RuntimeApi, document(150.0, Some(90.0)), None);
        let text = table(&[
            row(Architecture::RuntimeApi, Some(polled), None),
            row(Architecture::Wasm, None, Some(NOT_YET)),
        ]);
        let text = anstream::adapter::strip_str(&text).to_string();
        assert_eq!(
            text,
            "SERVED BY                       ROUND TRIP P50     P99  REPORTED P50  ADDED P50  PAPER\n\
             Runtime API polling (provided)          150 µs  300 µs       90.0 µs     150 µs  ~1.17 ms (AWS)\n\
             WASM                             not there yet                                   < 0.01 ms (Cloudflare)\n"
        );
    }
}
