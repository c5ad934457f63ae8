//! The tail of an invocation's log, as `X-Amz-Log-Type: Tail` requests it.

use bytes::Bytes;
use pilot_model::InvocationRecord;

/// Lambda returns the last 4 KiB.
const TAIL_BYTES_MAX: usize = 4096;

/// START line, output, END and REPORT line: the last 4 KiB.
pub(crate) fn of(record: &InvocationRecord) -> Bytes {
    let report = record.report_line();
    let id = record.id.as_str();
    let printed = &record.output;
    // Output beyond the tail is not copied.
    let kept = &printed[printed.len().saturating_sub(TAIL_BYTES_MAX)..];
    let mut tail = Vec::with_capacity(kept.len() + report.len() + 2 * id.len() + 80);
    if kept.len() == printed.len() {
        let version = record.version.number;
        tail.extend_from_slice(format!("START RequestId: {id} Version: {version}\n").as_bytes());
    }
    tail.extend_from_slice(kept);
    if tail.last().is_some_and(|last| *last != b'\n') {
        tail.push(b'\n');
    }
    for part in ["END RequestId: ", id, "\n", &report, "\n"] {
        tail.extend_from_slice(part.as_bytes());
    }
    let excess = tail.len().saturating_sub(TAIL_BYTES_MAX);
    Bytes::from(tail).slice(excess..)
}
