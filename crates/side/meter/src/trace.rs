//! The bill of a trace: a CSV file of requests, larger than memory. The file is read once, in blocks that end with a row; threads parse
//! and bill the blocks, and their sums are added up. The sums are whole numbers, so the result does not depend on the order.
//!
//! A row that is malformed is counted and left out, or is an error (`Strictness`). The first ones are named by their line.

mod analysis;
mod columns;
mod distribution;
mod parse;
mod starts;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pilot_model::cost::CostReport;

use self::analysis::Sums;
pub use self::analysis::{Analysis, Rounding, Utilisation};
pub use self::columns::Columns;
use self::distribution::Distributions;
pub use self::distribution::{Amounted, Billed, Distribution};
pub(crate) use self::parse::Row;
pub use self::starts::{Starts, Workers};
use crate::bill::{Amounts, Usage};
use crate::platform::{Match, Size};
use crate::report::{Counted, Sizes, Span, Tally};
use crate::table::Table;

/// How a trace is read.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// What happens with malformed rows.
    pub strictness: Strictness,
    /// How sizes are chosen where CPU follows memory.
    pub matched: Match,
    /// The allocation of requests whose row does not say it.
    pub default_size: Size,
    /// Threads that parse. `None`: one per CPU.
    pub threads: Option<NonZeroUsize>,
}

/// What happens with malformed rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// They are counted and left out.
    Skip,
    /// The first one is an error.
    Refuse,
}

/// The bill of a trace.
#[derive(Debug)]
pub struct TraceReport {
    /// The bill.
    pub report: CostReport,
    /// What the requests used of what was allocated, and what is rounded up.
    pub analysis: Analysis,
    /// Rows that were left out.
    pub malformed: u64,
    /// The first of them: line, and what is wrong.
    pub first_malformed: Vec<(u64, String)>,
    /// The line of the last row, if that has no line end: it may be cut off. It is billed.
    pub unended: Option<u64>,
}

/// Why there is no bill.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The header has no known set of columns.
    #[error("{0}")]
    Header(String),
    /// A row is malformed.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Its line, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
    },
}

impl TraceError {
    fn unended(line: u64) -> Self {
        Self::Malformed {
            line,
            problem: UNENDED.to_owned(),
        }
    }
}

/// Bills a trace under all platforms of a table.
///
/// # Errors
/// See [`TraceError`].
pub fn bill(
    source: impl Read + Send,
    table: &Table,
    options: &TraceOptions,
) -> Result<TraceReport, TraceError> {
    bill_with_starts(source, table, options, &Workers::default())
}

/// The same, with the starts of its workers.
///
/// # Errors
/// See [`TraceError`].
pub fn bill_with_starts(
    source: impl Read + Send,
    table: &Table,
    options: &TraceOptions,
    workers: &Workers,
) -> Result<TraceReport, TraceError> {
    let mut source = BufReader::with_capacity(1 << 20, unpacked(source)?);
    let mut header = Vec::new();
    (&mut source)
        .take(HEADER_BYTES_MAX)
        .read_until(b'\n', &mut header)?;
    let columns = workers.columns(Columns::of(&header).map_err(TraceError::Header)?)?;
    let is_cut = !header.ends_with(b"\n");
    let threads = options.threads.map_or_else(
        || thread::available_parallelism().map_or(1, NonZeroUsize::get),
        NonZeroUsize::get,
    );
    let (sender, receiver) = sync_channel::<Block>(threads);
    let receiver = Arc::new(Mutex::new(receiver));
    let total = thread::scope(|scope| {
        let parsers: Vec<_> = (0..threads)
            .map(|_| {
                let (receiver, columns) = (Arc::clone(&receiver), &columns);
                let job = Job {
                    table,
                    columns,
                    options,
                    workers,
                };
                scope.spawn(move || Part::run(&receiver, &job))
            })
            .collect();
        // Only the threads hold the receiver: if they have all ended, sending fails.
        drop(receiver);
        let sent = send_blocks(source, &sender);
        drop(sender);
        let mut total = Part::new(table);
        let sent = sent.map(|end| match end {
            End::Whole => total.unended = is_cut.then_some(1),
            End::Unended(line) => total.unended = Some(line),
            End::Cut(line, problem) => total.malformed.add(line, problem),
        });
        for parser in parsers {
            match parser.join() {
                Ok(part) => total.add(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        sent.map(|()| total)
    })?;
    total.finish(table, options, workers)
}

/// Calls `visit` with each row, in order. A malformed row is an error. Returns the line of the last one, if that has no line end.
///
/// # Errors
/// See [`TraceError`].
pub(crate) fn each_row(
    source: impl Read + Send,
    mut visit: impl FnMut(&Row),
) -> Result<Option<u64>, TraceError> {
    each_line(source, Columns::of, |line, row| {
        visit(&row.map_err(|problem| TraceError::Malformed { line, problem })?);
        Ok(())
    })
}

/// Calls `visit` with the line and content of each row, in order, until it fails. Returns the line of the last one, if that has no
/// line end.
fn each_line(
    source: impl Read + Send,
    columns: impl FnOnce(&[u8]) -> Result<Columns, String>,
    mut visit: impl FnMut(u64, Result<Row, String>) -> Result<(), TraceError>,
) -> Result<Option<u64>, TraceError> {
    let mut source = BufReader::with_capacity(1 << 20, unpacked(source)?);
    let mut line = Vec::new();
    (&mut source)
        .take(HEADER_BYTES_MAX)
        .read_until(b'\n', &mut line)?;
    let columns = columns(&line).map_err(TraceError::Header)?;
    if !line.ends_with(b"\n") {
        return Ok(Some(1));
    }
    for number in 2.. {
        line.clear();
        // A longer line is cut, so it is malformed.
        let read = (&mut source)
            .take(HEADER_BYTES_MAX)
            .read_until(b'\n', &mut line);
        if let Err(error) = read {
            let problem = cut_off(error)?;
            visit(number, Err(problem))?;
            break;
        }
        if line.is_empty() {
            break;
        }
        let row = trimmed(&line);
        if row.is_empty() {
            continue;
        }
        visit(number, columns.row(row))?;
        if !line.ends_with(b"\n") && (line.len() as u64) < HEADER_BYTES_MAX {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// What is wrong with a compressed file from here on.
///
/// # Errors
/// The error is of something else.
fn cut_off(error: io::Error) -> io::Result<String> {
    match error.get_ref() {
        Some(inner) if inner.is::<Damaged>() => Ok(error.to_string()),
        _ => Err(error),
    }
}

/// A compressed file ends too early, or is not what was compressed.
#[derive(Debug, thiserror::Error)]
#[error("the compressed file is cut off or damaged here, and what comes after it is missing ({0})")]
struct Damaged(io::Error);

/// Tells errors of the compression from those of the file.
struct Unpacking<R>(R);

impl<R: Read> Read for Unpacking<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput => io::Error::other(Damaged(error)),
            _ => error,
        })
    }
}

/// What `--strict` says of a last row that is not ended.
const UNENDED: &str =
    "the last row has no line end, so it may be cut off: if the file is complete, add a line end";

/// Unpacks a file that is compressed with gzip.
fn unpacked<'a>(source: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    let mut source = BufReader::new(source);
    let packed = source.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if packed {
        Box::new(Unpacking(flate2::read::MultiGzDecoder::new(source)))
    } else {
        Box::new(source)
    })
}

/// Rows, and the line of the first.
struct Block {
    bytes: Vec<u8>,
    line: u64,
}

/// How a trace ends.
enum End {
    /// With a whole row, or because nobody reads it any more.
    Whole,
    /// With a row without a line end: its line.
    Unended(u64),
    /// A compressed file cannot be read from this line on, and why.
    Cut(u64, String),
}

/// Cuts the rows into blocks. A line that is longer than a block is cut, so it is malformed.
fn send_blocks(mut source: impl Read, sender: &SyncSender<Block>) -> io::Result<End> {
    let mut rest: Vec<u8> = Vec::new();
    let mut line = 2;
    loop {
        let mut bytes = Vec::with_capacity(BLOCK_BYTES + rest.len());
        bytes.append(&mut rest);
        let wanted = (BLOCK_BYTES.saturating_sub(bytes.len())).max(1) as u64;
        // What was read before an error is in `bytes`.
        let read = match (&mut source).take(wanted).read_to_end(&mut bytes) {
            Ok(read) => Ok(read),
            Err(error) => Err(cut_off(error)?),
        };
        if read != Ok(0)
            && let Some(end) = memchr::memrchr(b'\n', &bytes)
        {
            rest = bytes.split_off(end + 1);
        }
        let is_last = read == Ok(0);
        if read.is_err() && rest.is_empty() && !bytes.ends_with(b"\n") {
            // Not even one row is whole.
            bytes.clear();
        }
        if bytes.is_empty() {
            return Ok(match read {
                Ok(_) => End::Whole,
                Err(problem) => End::Cut(line, problem),
            });
        }
        let lines = memchr::memchr_iter(b'\n', &bytes).count() as u64;
        let is_unended = is_last && !trimmed(&bytes).is_empty() && !bytes.ends_with(b"\n");
        if sender.send(Block { bytes, line }).is_err() {
            // A worker has found a malformed row that is an error, and the others have ended, too.
            return Ok(End::Whole);
        }
        line += lines;
        if is_unended {
            return Ok(End::Unended(line));
        }
        if let Err(problem) = read {
            return Ok(End::Cut(line, problem));
        }
    }
}

/// Rows that were left out, and the first of them: line, and what is wrong.
#[derive(Debug, Default)]
struct Malformed {
    count: u64,
    first: Vec<(u64, String)>,
}

impl Malformed {
    fn add(&mut self, line: u64, problem: String) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push((line, problem));
        }
    }

    fn append(&mut self, other: Self) {
        self.count += other.count;
        self.first.extend(other.first);
        self.first.sort_unstable();
        self.first.truncate(NAMED_MAX);
    }
}

/// What every thread needs.
struct Job<'a> {
    table: &'a Table,
    columns: &'a Columns,
    options: &'a TraceOptions,
    workers: &'a Workers,
}

/// What one thread has added up.
struct Part {
    tally: Tally,
    sums: Sums,
    distributions: Distributions,
    malformed: Malformed,
    sizes: HashMap<Size, Sizes>,
    /// Seconds of the trace's clock, in milliseconds: of the first request and of the last end.
    span_ms: Option<(u64, u64)>,
    /// The same on a clock that nobody sets.
    elapsed_ms: Option<(u64, u64)>,
    assumed: u64,
    unended: Option<u64>,
}

impl Part {
    fn new(table: &Table) -> Self {
        Self {
            tally: Tally::new(table),
            sums: Sums::new(),
            distributions: Distributions::new(table),
            malformed: Malformed::default(),
            sizes: HashMap::new(),
            span_ms: None,
            elapsed_ms: None,
            assumed: 0,
            unended: None,
        }
    }

    fn run(receiver: &Mutex<Receiver<Block>>, job: &Job<'_>) -> Self {
        let mut part = Self::new(job.table);
        loop {
            let block = receiver
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv();
            let Ok(block) = block else { return part };
            let rows = block.bytes.split_inclusive(|byte| *byte == b'\n');
            for (line, row) in (block.line..).zip(rows) {
                let row = trimmed(row);
                if row.is_empty() {
                    continue;
                }
                match job.columns.row(row) {
                    Ok(row) if row.did_not_run => {}
                    Ok(row) => part.add_row(&row, job),
                    Err(problem) => part.malformed.add(line, problem),
                }
            }
            if job.options.strictness == Strictness::Refuse && part.malformed.count > 0 {
                return part;
            }
        }
    }

    fn add_row(&mut self, row: &Row, job: &Job<'_>) {
        let (table, options) = (job.table, job.options);
        let need = row.allocated(options.default_size);
        job.workers.request(row, need, &row.usage);
        self.assumed += u64::from(row.memory_bytes.is_none());
        if self.sizes.len() >= SIZES_MAX {
            self.sizes.clear();
        }
        let sizes = self
            .sizes
            .entry(need)
            .or_insert_with(|| Sizes::of(table, need, options.matched));
        let counted = Counted {
            cold: row.waited.unwrap_or(row.usage.init_ns > 0),
            bytes_in: row.bytes_in,
            bytes_out: row.bytes_out,
        };
        let (sums, tally, distributions) =
            (&mut self.sums, &mut self.tally, &mut self.distributions);
        let mut add = |usage: &Usage, memory_before: Option<u64>, count: u64| {
            sums.add(need, usage, count);
            let usage = Usage {
                memory_used: usage.memory_used.or(memory_before),
                ..*usage
            };
            distributions.used(need, &usage, count);
            let see = |at, billed: &Amounts| distributions.billed(at, billed, count);
            tally.requests(table, (need, sizes), &usage, (counted, count), see);
        };
        match row.bands {
            None => add(&row.usage, row.memory_before, 1),
            Some(bands) => {
                for (count, execution_ns) in bands.into_iter().filter(|(count, _)| *count > 0) {
                    let usage = Usage {
                        execution_ns,
                        ..row.usage
                    };
                    add(&usage, None, count);
                }
            }
        }
        let took = row.usage.execution_ns / 1_000_000;
        let until = |at: u64| (at, at.saturating_add(took));
        stretch(&mut self.span_ms, row.begin_ms.map(until));
        stretch(&mut self.elapsed_ms, row.elapsed_ms.map(until));
    }

    fn add(&mut self, other: Self) {
        self.tally += &other.tally;
        self.sums += &other.sums;
        self.distributions += &other.distributions;
        self.malformed.append(other.malformed);
        self.assumed += other.assumed;
        stretch(&mut self.span_ms, other.span_ms);
        stretch(&mut self.elapsed_ms, other.elapsed_ms);
    }

    fn finish(
        self,
        table: &Table,
        options: &TraceOptions,
        workers: &Workers,
    ) -> Result<TraceReport, TraceError> {
        if options.strictness == Strictness::Refuse
            && let Some((line, problem)) = self.malformed.first.first()
        {
            return Err(TraceError::Malformed {
                line: *line,
                problem: problem.clone(),
            });
        }
        // A row that is malformed anyway is named already.
        let named = |line: &u64| !self.malformed.first.iter().any(|(at, _)| at == line);
        let unended = self.unended.filter(named);
        if options.strictness == Strictness::Refuse
            && let Some(line) = unended
        {
            return Err(TraceError::unended(line));
        }
        let span = self.span_ms.map(|(since, until)| {
            let span = Span::between_dates(since, until);
            let elapsed = self.elapsed_ms.map(|(from, to)| to.saturating_sub(from));
            Span {
                lasted_ms: elapsed.unwrap_or(span.lasted_ms),
                ..span
            }
        });
        let mut report = self.tally.report(table, span);
        if self.assumed > 0 {
            report.notes.push(format!(
                "{} rows do not say what was allocated: {} MB and {} thousandths of a vCPU are assumed",
                self.assumed,
                options.default_size.memory_bytes >> 20,
                options.default_size.cpu_milli
            ));
        }
        Ok(TraceReport {
            report,
            analysis: Analysis {
                starts: workers.finish(),
                distribution: Some(self.distributions.finish(table)),
                ..self.sums.finish()
            },
            malformed: self.malformed.count,
            first_malformed: self.malformed.first,
            unended,
        })
    }
}

/// Makes a span longer, so that it has the other in it.
fn stretch(span: &mut Option<(u64, u64)>, other: Option<(u64, u64)>) {
    if let Some((from, to)) = other {
        let (first, last) = span.unwrap_or((from, to));
        *span = Some((first.min(from), last.max(to)));
    }
}

fn trimmed(mut row: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r'] = row {
        row = rest;
    }
    row
}

/// Length of a block.
const BLOCK_BYTES: usize = 1 << 20;
/// Longest header.
const HEADER_BYTES_MAX: u64 = 64 << 10;
/// So many malformed rows are named.
const NAMED_MAX: usize = 10;
/// Different sizes that a thread remembers.
const SIZES_MAX: usize = 4096;

#[cfg(test)]
mod tests;
