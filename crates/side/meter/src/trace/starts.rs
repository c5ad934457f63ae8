//! What the starts of workers took beside the requests that they served afterwards: Figure 4 of the paper. The starts are of a table of
//! their own (Huawei's cold starts), or of the requests that waited for them (our records).
//!
//! The memory that this takes grows with the number of workers, up to [`WORKERS_MAX`], and not with the number of requests. The sums do not
//! depend on the order of the rows.

use std::collections::HashMap;
use std::hash::RandomState;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use super::{Malformed, Row, Strictness, TraceError, each_line};
use crate::bill::Usage;
use crate::platform::Size;
use crate::trace::Columns;

/// Starts of workers beside their requests. A difference is the time of all requests of a worker less the time of its start: below 0, the
/// start took longer. There are its 5th, 25th, 50th, 75th and 95th percentile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Starts {
    /// Workers whose start and requests are known.
    pub known: u64,
    /// Of them, thousandths whose start took at least as long as all of their requests.
    pub not_positive_thousandths: u64,
    /// Differences of the times, microseconds.
    pub difference_us: [i64; 5],
    /// The same, with the CPU that is allocated: milliseconds of a vCPU.
    pub difference_vcpu_ms: [i64; 5],
    /// The same, with the memory that is allocated: milliseconds of a GB.
    pub difference_gb_ms: [i64; 5],
    /// Workers with a start and without a request in the trace. Neither they nor requests of workers without a start are in the others.
    pub without_requests: u64,
    /// Starts, or requests, beyond the workers that can be remembered.
    pub left_out: u64,
}

/// The workers of a trace.
#[derive(Debug)]
pub struct Workers {
    /// By the upper bits of the hash of their names. Each is held for one addition.
    shards: Vec<Mutex<HashMap<u64, Worker>>>,
    hasher: RandomState,
    /// Whether the starts were read before: requests of other workers do not matter.
    are_known: bool,
    left_out: AtomicU64,
    /// Of the table of starts.
    malformed: Malformed,
    unended: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Worker {
    start_ns: u64,
    requests_ns: u64,
    requests: u32,
    allocated: Size,
}

impl Default for Workers {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            are_known: false,
            left_out: AtomicU64::new(0),
            malformed: Malformed::default(),
            unended: None,
        }
    }
}

impl Workers {
    /// Reads a table of cold starts. Several starts of a worker count together.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn of_starts(source: impl Read + Send, strictness: Strictness) -> Result<Self, TraceError> {
        let mut workers = Self::default();
        let hasher = workers.hasher.clone();
        let columns = |header: &[u8]| Ok(Columns::of_starts(header)?.with_workers(hasher));
        let mut malformed = Malformed::default();
        let unended = each_line(source, columns, |line, row| {
            match row {
                Ok(row) => workers.add(&row, row.allocated(Size::default()), |worker| {
                    worker.start_ns = worker.start_ns.saturating_add(row.usage.init_ns);
                }),
                Err(problem) if strictness == Strictness::Refuse => {
                    return Err(TraceError::Malformed { line, problem });
                }
                Err(problem) => malformed.add(line, problem),
            }
            Ok(())
        })?;
        let named = |line: &u64| !malformed.first.iter().any(|(at, _)| at == line);
        workers.unended = unended.filter(named);
        if let (Strictness::Refuse, Some(line)) = (strictness, workers.unended) {
            return Err(TraceError::unended(line));
        }
        workers.malformed = malformed;
        workers.are_known = true;
        Ok(workers)
    }

    /// The columns, if they say which worker served a request and the starts are known or will be.
    pub(super) fn columns(&self, columns: Columns) -> Result<Columns, TraceError> {
        if self.are_known && !columns.names_workers() {
            let problem = "a table of cold starts is for request tables that say which worker served a request (podID)";
            return Err(TraceError::Header(problem.to_owned()));
        }
        Ok(if self.are_known || columns.has_starts() {
            columns.with_workers(self.hasher.clone())
        } else {
            columns
        })
    }

    /// Adds a request.
    pub(super) fn request(&self, row: &Row, allocated: Size, usage: &Usage) {
        let init_ns = if self.are_known { 0 } else { usage.init_ns };
        self.add(row, allocated, |worker| {
            // Several requests may have waited for the same start, and not all from its beginning.
            worker.start_ns = worker.start_ns.max(init_ns);
            worker.requests_ns = worker.requests_ns.saturating_add(usage.execution_ns);
            worker.requests = worker.requests.saturating_add(1);
        });
    }

    fn add(&self, row: &Row, allocated: Size, change: impl FnOnce(&mut Worker)) {
        let Some(name) = row.worker else { return };
        let shard = usize::try_from(name >> SHARD_SHIFT).unwrap_or(0);
        let Some(shard) = self.shards.get(shard) else {
            return;
        };
        let mut workers = shard.lock();
        if let Some(worker) = workers.get_mut(&name) {
            change(worker);
        } else if self.are_known {
            // Its start is not in the table.
        } else if workers.len() < WORKERS_MAX / SHARDS {
            let mut worker = Worker {
                allocated,
                ..Worker::default()
            };
            change(&mut worker);
            workers.insert(name, worker);
        } else {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was left out of the table of starts: how many rows, and the first of them.
    #[must_use]
    pub fn malformed(&self) -> (u64, &[(u64, String)]) {
        (self.malformed.count, &self.malformed.first)
    }

    /// The line of the last row of the table of starts, if that has no line end: it may be cut off.
    #[must_use]
    pub fn unended(&self) -> Option<u64> {
        self.unended
    }

    /// `None`: no start is known.
    pub(super) fn finish(&self) -> Option<Starts> {
        let mut differences: Vec<(i128, Size)> = Vec::new();
        let mut without_requests = 0;
        for shard in &self.shards {
            for worker in shard.lock().values() {
                match (worker.start_ns, worker.requests) {
                    (0, _) => {}
                    (_, 0) => without_requests += 1,
                    (start, _) => {
                        let difference = i128::from(worker.requests_ns) - i128::from(start);
                        differences.push((difference, worker.allocated));
                    }
                }
            }
        }
        let known = differences.len() as u64;
        let left_out = self.left_out.load(Ordering::Relaxed);
        if known + without_requests + left_out == 0 {
            return None;
        }
        let not_positive = differences.iter().filter(|(ns, _)| *ns <= 0).count() as u64;
        let of = |weigh: fn(i128, Size) -> i128| {
            let weighed = differences.iter().map(|(ns, size)| weigh(*ns, *size));
            percentiles(weighed.collect())
        };
        Some(Starts {
            known,
            not_positive_thousandths: not_positive * 1000 / known.max(1),
            difference_us: of(|ns, _| ns / 1000),
            difference_vcpu_ms: of(|ns, size| ns * i128::from(size.cpu_milli) / 1000 / MS),
            difference_gb_ms: of(|ns, size| ns * i128::from(size.memory_bytes >> 20) / 1024 / MS),
            without_requests,
            left_out,
        })
    }
}

/// The smallest values that so many percent of them do not exceed.
fn percentiles(mut values: Vec<i128>) -> [i64; 5] {
    values.sort_unstable();
    PERCENTILES.map(|percent| {
        let rank = (values.len() as u64 * percent)
            .div_ceil(100)
            .saturating_sub(1);
        let value = usize::try_from(rank).ok().and_then(|at| values.get(at));
        value.map_or(0, |value| i64::try_from(*value).unwrap_or(i64::MAX))
    })
}

/// Of differences, and of shares.
pub(super) const PERCENTILES: [u64; 5] = [5, 25, 50, 75, 95];
/// Most workers that are remembered: they take about 350 MB.
const WORKERS_MAX: usize = 4 << 20;
const SHARDS: usize = 64;
/// What is left of a hash of 64 bits is the number of a shard.
const SHARD_SHIFT: u32 = 58;
const MS: i128 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::Table;
    use crate::platform::Match;
    use crate::trace::{TraceOptions, TraceReport, bill, bill_with_starts};

    const STARTS: &str = "day,time,clusterName,funcName,userID,requestID,totalCost_cold_start,podAllocationCost,deployCodeCost,deployDependencyCost,schedulingCost,podID\n";
    const REQUESTS: &str = "time_worker,podID,runtimeCost,cpu_usage,memory_usage,requestBodySize\n";

    fn options(threads: usize, strictness: Strictness) -> TraceOptions {
        TraceOptions {
            strictness,
            matched: Match::MemoryAndCpu,
            default_size: Size::default(),
            threads: NonZeroUsize::new(threads),
        }
    }

    fn start(pod: &str, seconds: &str) -> String {
        format!("30,1.0,1,10,134,82f,{seconds},0.1,0.1,0.1,0.1,{pod}\n")
    }

    fn request(pod: &str, seconds: &str) -> String {
        format!("2.0,{pod},{seconds},0.1,20,5\n")
    }

    fn traced(starts: &str, requests: &str, threads: usize) -> TraceReport {
        let workers = Workers::of_starts(starts.as_bytes(), Strictness::Skip).unwrap();
        let options = options(threads, Strictness::Refuse);
        let table = Table::shipped().unwrap();
        bill_with_starts(requests.as_bytes(), &table, &options, &workers).unwrap()
    }

    #[test]
    fn starts_are_compared_with_the_requests_after_them() {
        let [one, other, idle, old] = [1, 2, 3, 4].map(|pod| format!("pool22-500-512-{pod}"));
        let starts = [
            STARTS.to_owned(),
            start(&one, "1.5"),
            start(&other, "0.5"),
            start(&idle, "0.5"),
        ];
        let requests = [
            REQUESTS.to_owned(),
            request(&one, "0.25"),
            request(&other, "1"),
            request(&one, "0.25"),
            request(&old, "9"),
        ];
        let found = traced(&starts.concat(), &requests.concat(), 2);
        let found = found.analysis.starts.unwrap();
        assert_eq!(
            (found.known, found.without_requests, found.left_out),
            (2, 1, 0)
        );
        assert_eq!(found.not_positive_thousandths, 500);
        // 0.5 s of requests after a start of 1.5 s; 1 s after 0.5 s.
        let us = [-1_000_000, -1_000_000, -1_000_000, 500_000, 500_000];
        assert_eq!(found.difference_us, us);
        // Half a vCPU, and half a GB.
        let half = us.map(|us| us / 2000);
        assert_eq!(
            (found.difference_vcpu_ms, found.difference_gb_ms),
            (half, half)
        );
    }

    #[test]
    fn our_records_have_their_starts_with_them() {
        let header = "unix_ms,memory_mb,cpu_milli,execution_ns,init_ns,worker\n";
        let rows = "1,128,1000,2000000,5000000,7-1\n2,128,1000,2000000,0,7-1\n3,128,1000,2000000,1000000,7-2\n\
                    4,128,1000,2000000,0,7-3\n5,128,1000,2000000,0,\n";
        let table = Table::shipped().unwrap();
        let options = options(1, Strictness::Refuse);
        let billed = bill(format!("{header}{rows}").as_bytes(), &table, &options).unwrap();
        let found = billed.analysis.starts.unwrap();
        // 5 ms of start and 4 of requests; 1 and 2; the third was started while nobody waited.
        assert_eq!((found.known, found.not_positive_thousandths), (2, 500));
        assert_eq!(found.difference_us, [-1000, -1000, -1000, 1000, 1000]);
        let older = "unix_ms,memory_mb,execution_ns,init_ns\n1,128,2000000,5000000\n";
        let billed = bill(older.as_bytes(), &table, &options).unwrap();
        assert_eq!(billed.analysis.starts, None);
    }

    #[test]
    fn malformed_starts_are_counted_and_named_or_refused() {
        let bad = [
            (start("pool22", "1"), "podID = 'pool22' is not like"),
            (start("pool22-300-128-1", ""), "it has no duration"),
            (
                start("pool22-300-128-1", "-1"),
                "totalCost_cold_start = '-1' is negative",
            ),
            (
                start("pool22-300-128-1", "NaN"),
                "totalCost_cold_start = 'NaN' is not a number",
            ),
            (
                start("pool22-300-128-1", "99999999"),
                "the initialisation is too large",
            ),
            ("1,2\n".to_owned(), "it has 2 fields instead of 12"),
        ];
        let rows: String = bad.iter().map(|(row, _)| row.as_str()).collect();
        let text = format!("{STARTS}{rows}");
        let workers = Workers::of_starts(text.as_bytes(), Strictness::Skip).unwrap();
        let (count, first) = workers.malformed();
        assert_eq!(count, bad.len() as u64);
        for ((line, problem), (expected, (_, told))) in first.iter().zip((2..).zip(&bad)) {
            assert_eq!(*line, expected);
            assert!(problem.starts_with(told), "{problem}");
        }
        let refused = Workers::of_starts(text.as_bytes(), Strictness::Refuse).unwrap_err();
        assert!(
            refused.to_string().starts_with("line 2: podID"),
            "{refused}"
        );
        let other = Workers::of_starts(REQUESTS.as_bytes(), Strictness::Skip).unwrap_err();
        assert!(
            other.to_string().contains("totalCost_cold_start"),
            "{other}"
        );
        let azure = "app,func,end_timestamp,duration\na,b,0.0794,0.078\n".as_bytes();
        let table = Table::shipped().unwrap();
        let known = Workers::of_starts(STARTS.as_bytes(), Strictness::Skip).unwrap();
        let refused = bill_with_starts(azure, &table, &options(1, Strictness::Skip), &known);
        assert!(refused.unwrap_err().to_string().contains("podID"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_order_of_rows_and_the_threads_do_not_matter(
            starts in prop::collection::vec((0..20_u8, 1..3000_u32), 0..30),
            requests in prop::collection::vec((0..20_u8, 0..3000_u32), 0..60),
        ) {
            let pod = |pod: u8| format!("pool22-300-128-{pod}");
            let seconds = |ms: u32| format!("{}.{:03}", ms / 1000, ms % 1000);
            let table = |rows: &[String], header: &str| [&[header.to_owned()], rows].concat().concat();
            let mut starts: Vec<String> = starts.iter().map(|(of, ms)| start(&pod(*of), &seconds(*ms))).collect();
            let mut requests: Vec<String> = requests.iter().map(|(of, ms)| request(&pod(*of), &seconds(*ms))).collect();
            let one = traced(&table(&starts, STARTS), &table(&requests, REQUESTS), 1);
            starts.reverse();
            requests.reverse();
            let other = traced(&table(&starts, STARTS), &table(&requests, REQUESTS), 3);
            prop_assert_eq!(one.analysis, other.analysis);
        }
    }
}
