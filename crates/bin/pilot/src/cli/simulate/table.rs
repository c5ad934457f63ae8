//! A comparison as tables: one per cell, and one for all cells. P50, P99 and MAX are the time of a request without its service time.

use std::fmt::Write as _;
use std::time::Duration;

use pilot_forecast::simulate::{Cell, Comparison, Standing, WEIGHTS};

use super::report::Speed;
use crate::cli::output::{self, Align, DIM, GOOD, STRONG, Table, WARN};

/// The whole report as text.
pub(super) fn render(comparison: &Comparison, speed: Speed) -> String {
    let mut text = String::new();
    let mut rest = comparison.cells.as_slice();
    while let Some(first) = rest.first() {
        let alike = rest
            .iter()
            .take_while(|cell| (&cell.profile, &cell.start) == (&first.profile, &first.start));
        let (cells, others) = rest.split_at(alike.count());
        text.push_str(&cells_table(first, cells));
        text.push('\n');
        rest = others;
    }
    if comparison.standings.len() > 1 {
        text.push_str(&standings_table(&comparison.standings));
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "{DIM}{} invocations and {} ticks simulated in {} of one core: {} invocations/s{DIM:#}",
        speed.invocations,
        speed.ticks,
        output::duration(Duration::from_secs_f64(speed.core_s)),
        whole(speed.invocations_per_s),
    );
    text
}

fn cells_table(first: &Cell, cells: &[Cell]) -> String {
    let outcome = &first.outcome;
    let mut text = format!(
        "{STRONG}{}{STRONG:#}, a start takes {}: {} invocations in {}\n",
        first.profile,
        first.start,
        outcome.invocations + outcome.refused,
        output::duration(Duration::from_secs_f64(outcome.span_s)),
    );
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("COLD", Align::Right),
        ("SHARED", Align::Right),
        ("COLD-WAIT", Align::Right),
        ("QUEUED", Align::Right),
        ("QUEUE-WAIT", Align::Right),
        ("P50", Align::Right),
        ("P99", Align::Right),
        ("MAX", Align::Right),
        ("GB·S", Align::Right),
        ("FORKS", Align::Right),
        ("WORKERS", Align::Right),
        ("WORSE THAN", Align::Left),
    ]);
    for cell in cells {
        let outcome = &cell.outcome;
        table.row(vec![
            cell.policy.clone(),
            outcome.cold.to_string(),
            outcome.cold_shared.to_string(),
            format!("{} s", figure(outcome.cold_wait_s)),
            outcome.queued.to_string(),
            format!("{} s", figure(outcome.queue_wait_s)),
            output::duration(output::from_ms(outcome.beyond_service.p50_ms)),
            output::duration(output::from_ms(outcome.beyond_service.p99_ms)),
            output::duration(output::from_ms(outcome.beyond_service.max_ms)),
            figure(outcome.gb_s),
            outcome.forks.to_string(),
            outcome.workers_max.to_string(),
            worse_than(&cell.dominated_by),
        ]);
    }
    text.push_str(&table.render());
    for cell in cells.iter().filter(|cell| cell.outcome.refused > 0) {
        let _ = writeln!(
            text,
            "{WARN}{}: {} refused, the queue was full{WARN:#}",
            cell.policy, cell.outcome.refused
        );
    }
    text
}

fn standings_table(standings: &[Standing]) -> String {
    let cells = standings.first().map_or(0, |standing| standing.cells);
    let mut text = format!(
        "{STRONG}all {}{STRONG:#}; WAIT + w·GB·S is the geometric mean of cold-wait seconds + w × GB·s\n",
        output::count(cells as u64, "cell")
    );
    let weights = WEIGHTS.map(|weight| format!("w={weight}"));
    let mut table = Table::new(&[
        ("POLICY", Align::Left),
        ("COLD", Align::Right),
        ("COLD-WAIT", Align::Right),
        ("GB·S", Align::Right),
        (&weights[0], Align::Right),
        (&weights[1], Align::Right),
        (&weights[2], Align::Right),
        ("WORSE IN", Align::Right),
        ("WORSE THAN", Align::Left),
    ]);
    for standing in standings {
        let score = |at: usize| {
            let score = figure(standing.scores[at]);
            if standing.best[at] {
                format!("{GOOD}{score}{GOOD:#}")
            } else {
                score
            }
        };
        table.row(vec![
            standing.policy.clone(),
            standing.cold.to_string(),
            format!("{} s", figure(standing.cold_wait_s)),
            figure(standing.gb_s),
            score(0),
            score(1),
            score(2),
            standing.dominated.to_string(),
            worse_than(&standing.dominated_by),
        ]);
    }
    text.push_str(&table.render());
    text
}

/// The policies that are better in both: none, the only one, or their number.
fn worse_than(policies: &[String]) -> String {
    match policies {
        [] => String::new(),
        [one] => format!("{WARN}{one}{WARN:#}"),
        [one, others @ ..] => format!("{WARN}{one}{WARN:#} and {} more", others.len()),
    }
}

/// A number with three significant digits.
fn figure(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 0.0995 => format!("{value:.4}"),
        value if value < 9.95 => format!("{value:.2}"),
        value if value < 99.5 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}
