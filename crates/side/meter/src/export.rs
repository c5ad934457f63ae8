//! The records as CSV, a piece at a time. The same columns are read by `trace`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;

use pilot_model::ports::CostsOf;

use crate::log::Entries;
use crate::record::{Call, Entry, Function, STAMPS};

/// The first columns; then there is one per stamp, `STAMP_ns`, the time since it was received.
const COLUMNS: &str = "unix_ms,function,version,start,outcome,memory_mb,cpu_milli,execution_ns,init_ns,cpu_user_ns,cpu_system_ns,memory_used_bytes,bytes_in,bytes_out";

/// The calls of a function, or of all.
pub(crate) fn csv(
    entries: Entries,
    function: Option<CostsOf>,
    since_unix_ms: Option<u64>,
) -> impl Iterator<Item = io::Result<Vec<u8>>> + Send {
    Csv {
        entries,
        wanted: function,
        since_unix_ms: since_unix_ms.unwrap_or(0),
        functions: HashMap::new(),
        began: false,
        ended: false,
    }
}

struct Csv {
    entries: Entries,
    wanted: Option<CostsOf>,
    since_unix_ms: u64,
    functions: HashMap<u32, Function>,
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
            text.push_str(COLUMNS);
            for stamp in STAMPS {
                let _ = write!(text, ",{stamp}_ns");
            }
            text.push_str(",throttled_ns,pss_bytes\n");
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
                Some(Ok(Entry::Function(function))) => {
                    self.functions.insert(function.index, function);
                }
                Some(Ok(Entry::Call(call))) => self.row(&call, &mut text),
                Some(Ok(_)) => {}
            }
        }
        (!text.is_empty()).then(|| Ok(text.into_bytes()))
    }
}

impl Csv {
    fn row(&self, call: &Call, text: &mut String) {
        let Some(function) = self.functions.get(&call.function) else {
            return;
        };
        if call.unix_ms < self.since_unix_ms || !function.is_of(self.wanted.as_ref()) {
            return;
        }
        let usage = call.usage();
        // Writing to a String cannot fail.
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
            ",{},{}",
            or_empty(call.throttled_ns),
            or_empty(call.pss_bytes)
        );
    }
}

fn or_empty(number: Option<u64>) -> String {
    number.map_or_else(String::new, |number| number.to_string())
}

/// Length of a piece.
const PIECE_BYTES: usize = 64 << 10;
