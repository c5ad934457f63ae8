//! Which part of a trace is read: files, functions, minutes.

use std::path::{Path, PathBuf};

use super::table::data_error;
use crate::error::WorkloadError;

/// The files, and what is read from them.
#[derive(Debug)]
pub(crate) struct TraceConfig {
    pub(crate) path: PathBuf,
    pub(crate) durations: Option<PathBuf>,
    pub(crate) memory: Option<PathBuf>,
    pub(crate) chosen: Chosen,
    pub(crate) window: Window,
    /// 2.0 replays the trace twice as fast.
    pub(crate) scale: f64,
}

/// Which functions.
#[derive(Debug, Clone)]
pub(crate) enum Chosen {
    All,
    /// This many, in the order of the file.
    First(usize),
    /// Those with the most invocations in the window, the most frequent first.
    Busiest(usize),
    /// Whole hashes or prefixes of hashes.
    Named(Vec<String>),
}

/// Which minutes of the trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Minutes that are skipped at the beginning.
    pub(crate) start_minute: u32,
    /// `None`: all remaining ones.
    pub(crate) minutes: Option<u32>,
}

/// An item of a trace that can be chosen.
pub(super) trait Candidate {
    fn name(&self) -> &str;
    fn invocations(&self) -> u64;
}

/// The chosen items among all that were read from `path`.
pub(super) fn choose<T: Candidate>(
    mut all: Vec<T>,
    chosen: &Chosen,
    path: &Path,
) -> Result<Vec<T>, WorkloadError> {
    let number = match chosen {
        Chosen::All => return Ok(all),
        Chosen::Named(names) => {
            let mut found = Vec::with_capacity(names.len());
            for name in names {
                let at = position(&all, name, path)?;
                found.push(all.remove(at));
            }
            return Ok(found);
        }
        Chosen::First(number) | Chosen::Busiest(number) => *number,
    };
    if number > all.len() {
        let problem = format!("has {} functions, but {number} are wanted", all.len());
        return Err(data_error(path, None, problem));
    }
    if matches!(chosen, Chosen::Busiest(_)) {
        // The sort is stable: equal ones keep the order of the file.
        all.sort_by_key(|function| std::cmp::Reverse(function.invocations()));
    }
    all.truncate(number);
    Ok(all)
}

fn position<T: Candidate>(all: &[T], name: &str, path: &Path) -> Result<usize, WorkloadError> {
    let beginning: Vec<usize> = (0..all.len())
        .filter(|at| all[*at].name().starts_with(name))
        .collect();
    match beginning[..] {
        [at] => Ok(at),
        [] => {
            let problem = format!("there is no function '{name}', or it is in the list twice");
            Err(data_error(path, None, problem))
        }
        _ => {
            let problem = format!(
                "{} functions begin with '{name}'; give more of the hash",
                beginning.len()
            );
            Err(data_error(path, None, problem))
        }
    }
}
