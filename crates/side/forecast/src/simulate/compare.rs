//! Compares policies over many cells (a workload with a start cost): which policy is dominated in which cell, and one figure over
//! all cells.

use serde::Serialize;

use super::outcome::Outcome;

/// What a gigabyte-second of memory costs, in seconds of waiting for starts.
pub const WEIGHTS: [f64; 3] = [0.1, 1.0, 10.0];

/// One policy's outcome in one cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// The workload.
    pub profile: String,
    /// The start cost, as requested.
    pub start: String,
    /// The policy, as requested.
    pub policy: String,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// `cold_wait_s + w·gb_s` for each of [`WEIGHTS`].
    pub scores: [f64; 3],
    /// Policies that waited less for starts and used less memory in this cell.
    pub dominated_by: Vec<String>,
}

/// One policy over all cells.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// The policy.
    pub policy: String,
    /// The number of its cells.
    pub cells: usize,
    /// Cells in which another policy had both less waiting for starts and less memory.
    pub dominated: usize,
    /// Policies that had less of both, over all cells.
    pub dominated_by: Vec<String>,
    /// Sum over the cells.
    pub cold: u64,
    /// Sum over the cells.
    pub cold_wait_s: f64,
    /// Sum over the cells.
    pub gb_s: f64,
    /// Geometric means over the cells of `cold_wait_s + w·gb_s`, for each of [`WEIGHTS`]. A value below one microsecond counts as
    /// one microsecond.
    pub scores: [f64; 3],
    /// Whether its score is the lowest of all policies.
    pub best: [bool; 3],
}

/// All cells, and the summary of each policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// In their given order.
    pub cells: Vec<Cell>,
    /// In the order in which the policies first occur.
    pub standings: Vec<Standing>,
}

impl Cell {
    /// A cell that was not compared yet.
    #[must_use]
    pub fn new(profile: &str, start: &str, policy: &str, outcome: Outcome) -> Self {
        Self {
            profile: profile.to_owned(),
            start: start.to_owned(),
            policy: policy.to_owned(),
            scores: WEIGHTS.map(|weight| outcome.cold_wait_s + weight * outcome.gb_s),
            outcome,
            dominated_by: Vec::new(),
        }
    }
}

impl Comparison {
    /// Compares the cells with the same workload and start cost.
    #[must_use]
    pub fn new(mut cells: Vec<Cell>) -> Self {
        let points: Vec<_> = cells
            .iter()
            .map(|cell| {
                (
                    cell.profile.clone(),
                    cell.start.clone(),
                    point(&cell.outcome),
                )
            })
            .collect();
        let names: Vec<String> = cells.iter().map(|cell| cell.policy.clone()).collect();
        for cell in &mut cells {
            let own = point(&cell.outcome);
            let others = points.iter().zip(&names);
            let better = others.filter(|((profile, start, other), _)| {
                *profile == cell.profile && *start == cell.start && is_better(*other, own)
            });
            cell.dominated_by = better.map(|(_, policy)| policy.clone()).collect();
        }
        let standings = standings(&cells);
        Self { cells, standings }
    }
}

fn standings(cells: &[Cell]) -> Vec<Standing> {
    let mut policies: Vec<&str> = Vec::new();
    for cell in cells {
        if !policies.contains(&cell.policy.as_str()) {
            policies.push(&cell.policy);
        }
    }
    let mut standings: Vec<Standing> = policies
        .iter()
        .map(|policy| standing(policy, cells.iter().filter(|cell| cell.policy == *policy)))
        .collect();
    let sums: Vec<_> = standings
        .iter()
        .map(|standing| {
            (
                standing.policy.clone(),
                (standing.cold_wait_s, standing.gb_s),
            )
        })
        .collect();
    let least = [0, 1, 2].map(|at: usize| {
        let scores = standings.iter().map(|standing| standing.scores[at]);
        scores.fold(f64::INFINITY, f64::min)
    });
    for standing in &mut standings {
        let own = (standing.cold_wait_s, standing.gb_s);
        let better = sums.iter().filter(|(_, other)| is_better(*other, own));
        standing.dominated_by = better.map(|(policy, _)| policy.clone()).collect();
        standing.best = [0, 1, 2].map(|at: usize| standing.scores[at] <= least[at]);
    }
    standings
}

fn standing<'a>(policy: &str, cells: impl Iterator<Item = &'a Cell> + Clone) -> Standing {
    let number = cells.clone().count();
    let logarithm = |score: f64| score.max(SCORE_MIN).ln();
    let mean = |at: usize| {
        let sum: f64 = cells.clone().map(|cell| logarithm(cell.scores[at])).sum();
        (sum / number.max(1) as f64).exp()
    };
    Standing {
        policy: policy.to_owned(),
        cells: number,
        dominated: cells
            .clone()
            .filter(|cell| !cell.dominated_by.is_empty())
            .count(),
        dominated_by: Vec::new(),
        cold: cells
            .clone()
            .map(|cell| cell.outcome.cold + cell.outcome.cold_shared)
            .sum(),
        cold_wait_s: cells.clone().map(|cell| cell.outcome.cold_wait_s).sum(),
        gb_s: cells.clone().map(|cell| cell.outcome.gb_s).sum(),
        scores: [0, 1, 2].map(mean),
        best: [false; 3],
    }
}

/// Seconds of waiting for starts, gigabyte-seconds.
fn point(outcome: &Outcome) -> (f64, f64) {
    (outcome.cold_wait_s, outcome.gb_s)
}

fn is_better(other: (f64, f64), own: (f64, f64)) -> bool {
    other.0 < own.0 && other.1 < own.1
}

const SCORE_MIN: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::{Load, Simulation};

    fn cell(profile: &str, policy: &str, cold_wait_s: f64, gb_s: f64) -> Cell {
        let load = Load {
            functions: Vec::new(),
            span: std::time::Duration::ZERO,
            arrivals: Vec::new(),
        };
        let nothing = Simulation::default().run(load, &|_| None);
        let outcome = Outcome {
            cold_wait_s,
            gb_s,
            ..nothing
        };
        Cell::new(profile, "2", policy, outcome)
    }

    #[test]
    fn who_is_worse_in_both_is_dominated_and_who_ties_in_one_is_not() {
        let comparison = Comparison::new(vec![
            cell("a", "x", 1.0, 1.0),
            cell("a", "y", 2.0, 2.0),
            cell("a", "z", 1.0, 3.0),
            cell("b", "x", 9.0, 9.0),
        ]);
        let dominated: Vec<_> = comparison
            .cells
            .iter()
            .map(|cell| cell.dominated_by.join(" "))
            .collect();
        assert_eq!(dominated, ["", "x", "", ""]);
        assert_eq!(comparison.standings[1].dominated, 1);
        assert_eq!(comparison.standings[0].cells, 2);
    }

    #[test]
    fn a_score_over_cells_is_the_geometric_mean_of_weighted_sums() {
        let comparison = Comparison::new(vec![
            cell("a", "x", 1.0, 1.0),
            cell("b", "x", 7.0, 1.0),
            cell("a", "y", 3.0, 1.0),
            cell("b", "y", 3.0, 0.0),
        ]);
        let [x, y] = &comparison.standings[..] else {
            panic!("{comparison:?}");
        };
        assert!((x.scores[1] - 4.0).abs() < 1e-9, "{x:?}");
        assert!((y.scores[1] - 12.0_f64.sqrt()).abs() < 1e-9, "{y:?}");
        assert_eq!((x.best[1], y.best[1]), (false, true));
    }

    #[test]
    fn a_cell_without_cost_does_not_make_the_mean_nothing() {
        let comparison = Comparison::new(vec![cell("a", "x", 0.0, 0.0), cell("b", "x", 1.0, 0.0)]);
        assert!((comparison.standings[0].scores[0] - 1e-3).abs() < 1e-9);
    }
}
