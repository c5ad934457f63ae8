//! The records as CSV, a piece at a time. The same columns are read by `trace`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use pilot_model::ports::{CostsOf, UsageRecords};

use crate::log::Entries;
use crate::log::time::LogTime;
use crate::record::{Call, Entry, Function, STAMPS, WorkerEnd};

/// The first columns of invocations; then there is one per stamp, `STAMP_ns`, the time since it was received.
const COLUMNS: &str = "unix_ms,function,version,start,outcome,memory_mb,cpu_milli,execution_ns,init_ns,cpu_user_ns,cpu_system_ns,memory_used_bytes,bytes_in,bytes_out";
/// The columns of workers.
const COLUMNS_OF_WORKERS: &str = "unix_ms,worker,function,version,memory_mb,cpu_milli,lived_ns,cpu_user_ns,cpu_system_ns,memory_used_bytes,reason\n";

/// The calls of a function, or of all; or the workers that have ended.
pub(crate) fn csv(
    entries: Entries,
    records: UsageRecords,
    function: Option<CostsOf>,
    since_unix_ms: Option<u64>,
) -> impl Iterator<Item = io::Result<Vec<u8>>> + Send {
    Csv {
        entries,
        records,
        wanted: function,
        since_unix_ms: since_unix_ms.unwrap_or(0),
        functions: HashMap::new(),
        memory_before: HashMap::new(),
        time: LogTime::default(),
        daemon_ms: 0,
        began: false,
        ended: false,
    }
}

struct Csv {
    entries: Entries,
    records: UsageRecords,
    wanted: Option<CostsOf>,
    since_unix_ms: u64,
    /// What indices stand for: functions with index 0.
    functions: HashMap<u32, Arc<Function>>,
    /// The last memory use of each that was measured.
    memory_before: HashMap<Arc<Function>, u64>,
    time: LogTime,
    /// When the daemon of these entries began, Unix milliseconds: workers are numbered anew by each. 0: its beginning is not in the log any
    /// more.
    daemon_ms: u64,
    began: bool,
    ended: bool,
}

impl Iterator for Csv {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let mut text = String::new();
        if !std::mem::replace(&mut self.began, true) {
            self.header(&mut text);
        }
        while text.len() < PIECE_BYTES {
            match self.entries.next() {
                None => {
                    self.ended = true;
                    break;
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Err(error));
                }
                Some(Ok(Entry::Began { unix_ms })) => {
                    self.daemon_ms = unix_ms;
                    self.time.began(unix_ms);
                }
                Some(Ok(Entry::Daemon(daemon))) => {
                    self.daemon_ms = daemon.began_unix_ms;
                    self.time.daemon(daemon);
                }
                Some(Ok(Entry::Clock(clock))) => self.time.clock(clock),
                Some(Ok(Entry::Function(function))) => {
                    let index = function.index;
                    let function = Function {
                        index: 0,
                        ..function
                    };
                    self.functions.insert(index, Arc::new(function));
                }
                Some(Ok(Entry::Call(call))) if self.records == UsageRecords::Invocations => {
                    self.call(&call, &mut text);
                }
                Some(Ok(Entry::WorkerEnded(end))) if self.records == UsageRecords::Workers => {
                    self.worker(&end, &mut text);
                }
                Some(Ok(_)) => {}
            }
        }
        (!text.is_empty()).then(|| Ok(text.into_bytes()))
    }
}

impl Csv {
    fn header(&self, text: &mut String) {
        match self.records {
            UsageRecords::Workers => text.push_str(COLUMNS_OF_WORKERS),
            UsageRecords::Invocations => {
                text.push_str(COLUMNS);
                for stamp in STAMPS {
                    // Writing to a String cannot fail.
                    let _ = write!(text, ",{stamp}_ns");
                }
                text.push_str(
                    ",throttled_ns,pss_bytes,thawed_ns,worker,elapsed_ms,memory_before_bytes\n",
                );
            }
        }
    }

    /// The function with this index, if records of this time are wanted of it.
    fn wanted(&self, function: u32, unix_ms: u64) -> Option<Arc<Function>> {
        let function = self.functions.get(&function)?;
        let is_wanted = unix_ms >= self.since_unix_ms && function.is_of(self.wanted.as_ref());
        is_wanted.then(|| Arc::clone(function))
    }

    /// A worker's name: no other worker of the log has it.
    fn name(&self, worker: Option<u64>) -> String {
        worker.map_or_else(String::new, |worker| format!("{}-{worker}", self.daemon_ms))
    }

    fn call(&mut self, call: &Call, text: &mut String) {
        let place = self.time.place(call.unix_ms);
        let took_ms = i64::try_from(call.total_ns() / 1_000_000).unwrap_or(i64::MAX);
        self.time.seen(place.saturating_add(took_ms));
        let Some(function) = self.wanted(call.function, call.unix_ms) else {
            return;
        };
        let usage = call.usage();
        // The same is billed for a call whose memory was not measured by the report of the records.
        let before = usage.and_then(|_| self.memory_before.get(&function).copied());
        let _ = write!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            call.unix_ms,
            function.name,
            function.version,
            call.start.as_str(),
            call.outcome.as_str(),
            function.memory_bytes >> 20,
            function.cpu_milli,
            or_empty(usage.map(|usage| usage.execution_ns)),
            or_empty(usage.map(|usage| usage.init_ns)),
            or_empty(call.cpu_ns.map(|(user, _)| user)),
            or_empty(call.cpu_ns.map(|(_, system)| system)),
            or_empty(call.memory_used),
            call.bytes_in,
            call.bytes_out,
        );
        for stamp in call.stamps {
            let _ = write!(text, ",{}", or_empty(stamp));
        }
        let _ = writeln!(
            text,
            ",{},{},{},{},{},{}",
            or_empty(call.throttled_ns),
            or_empty(call.pss_bytes),
            or_empty(call.thawed_ns),
            self.name(call.worker),
            place.max(0),
            or_empty(before.filter(|_| call.memory_used.is_none())),
        );
        if let Some(used) = call.memory_used.filter(|_| usage.is_some()) {
            self.memory_before.insert(function, used);
        }
    }

    fn worker(&self, end: &WorkerEnd, text: &mut String) {
        let Some(function) = self.wanted(end.function, end.unix_ms) else {
            return;
        };
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{}",
            end.unix_ms,
            self.name(end.worker),
            function.name,
            function.version,
            function.memory_bytes >> 20,
            function.cpu_milli,
            end.lived_ns,
            or_empty(end.cpu_ns.map(|(user, _)| user)),
            or_empty(end.cpu_ns.map(|(_, system)| system)),
            or_empty(end.memory_max),
            end.reason,
        );
    }
}

fn or_empty(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

/// Length of a piece.
const PIECE_BYTES: usize = 64 << 10;
