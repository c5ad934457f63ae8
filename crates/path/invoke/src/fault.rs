//! How a function failed, in Lambda's words: the error body for the caller, and the lines for the log.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use pilot_model::calendar::{Utc, unix_ms};
use pilot_model::ports::{InputFault, WorkerFault};
use pilot_model::{EndReason, FunctionName, InvocationId, Outcome};

use crate::error::InvokeError;

/// How a function failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) outcome: Outcome,
    /// Lambda's error body, JSON.
    pub(crate) body: Bytes,
    /// What it printed, and the platform's line about its end.
    pub(crate) output: LastOutput,
    /// Why the worker ends.
    pub(crate) reason: EndReason,
}

/// Lambda's error body for what the function did wrong in the middle of its response: the same as before its first byte. `None`: it is not
/// the function's error.
#[must_use]
pub fn function_error(error: &InvokeError, id: &InvocationId) -> Option<Bytes> {
    match error {
        InvokeError::BodyRaised { body } => Some(body.clone()),
        InvokeError::BodyTimedOut { after } => Some(Failure::timeout(id, *after, b"").body),
        InvokeError::BodyBroken { fault } => Some(Failure::fault(id, fault).body),
        _ => None,
    }
}

/// The output of an invocation that ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastOutput {
    /// What the function printed, and then what is said about its end.
    pub(crate) bytes: Bytes,
    /// Bytes at the front that the function printed.
    pub(crate) printed: usize,
}

impl LastOutput {
    /// What the function printed.
    pub(crate) fn printed(bytes: Bytes) -> Self {
        let printed = bytes.len();
        Self { bytes, printed }
    }

    /// What the function printed, and a line about its end.
    fn and_line(printed: &[u8], line: &str) -> Self {
        let bytes = joined(printed, line.as_bytes());
        Self {
            printed: bytes.len() - line.len(),
            bytes,
        }
    }

    /// The same, and a line that the function has not printed.
    pub(crate) fn and(self, line: &str) -> Self {
        if self.printed == self.bytes.len() {
            return Self::and_line(&self.bytes, line);
        }
        Self {
            bytes: joined(&self.bytes, line.as_bytes()),
            printed: self.printed,
        }
    }

    /// The same, and what the initscript said: a line each.
    pub(crate) fn and_script(self, id: &InvocationId, said: &str) -> Self {
        let now = utc(SystemTime::now());
        let lines = said.lines();
        let lines: String = lines
            .map(|line| format!("{now} {id} initscript: {line}\n"))
            .collect();
        self.and(&lines)
    }

    /// The same, after what was `printed` before.
    pub(crate) fn after(self, printed: Bytes) -> Self {
        if printed.is_empty() {
            return self;
        }
        if self.bytes.is_empty() {
            return Self::printed(printed);
        }
        let bytes = joined(&printed, &self.bytes);
        Self {
            printed: bytes.len() - self.bytes.len() + self.printed,
            bytes,
        }
    }
}

impl Failure {
    /// It ran longer than its timeout.
    pub(crate) fn timeout(id: &InvocationId, timeout: Duration, printed: &[u8]) -> Self {
        let message = format!("Task timed out after {:.2} seconds", timeout.as_secs_f64());
        let line = format!("{} {id} {message}\n\n", utc(SystemTime::now()));
        Self {
            outcome: Outcome::Timeout,
            body: body("Sandbox.Timedout", id, &message),
            output: LastOutput::and_line(printed, &line),
            reason: EndReason::Timeout,
        }
    }

    /// The log line for a tunnel that was silent for this long.
    pub(crate) fn silence(id: &InvocationId, after: Duration) -> LastOutput {
        let after = after.as_secs_f64();
        let message =
            format!("Nothing passed through the upgraded connection for {after:.2} seconds");
        let line = format!("{} {id} {message}\n\n", utc(SystemTime::now()));
        LastOutput::and_line(b"", &line)
    }

    /// The function's own HTTP server did not answer, or not completely.
    pub(crate) fn server(name: &FunctionName, id: &InvocationId, fault: &WorkerFault) -> Self {
        let told = match fault {
            WorkerFault::Protocol { problem, output } => FaultText {
                outcome: Outcome::Crash,
                kind: SERVER_ERROR,
                message: problem.clone(),
                output,
            },
            fault => FaultText::of(fault),
        };
        let message = format!(
            "the HTTP server of function '{name}' failed: {}",
            told.message
        );
        FaultText { message, ..told }.into_failure(id)
    }

    /// An input could not be fetched, so there is no call. Returns the answer and the log lines.
    pub(crate) fn input(id: &InvocationId, fault: &InputFault) -> (Bytes, LastOutput) {
        let kind = fault.kind.as_str();
        let message = fault.to_string();
        let line = format!("RequestId: {id} Error: {message}\n{kind}\n");
        (body(kind, id, &message), LastOutput::and_line(b"", &line))
    }

    /// The worker ended.
    pub(crate) fn fault(id: &InvocationId, fault: &WorkerFault) -> Self {
        FaultText::of(fault).into_failure(id)
    }
}

/// The type of the error of a function's own server.
const SERVER_ERROR: &str = "Runtime.ServerError";

/// The description of a fault.
struct FaultText<'a> {
    outcome: Outcome,
    kind: &'static str,
    message: String,
    output: &'a Bytes,
}

impl<'a> FaultText<'a> {
    fn of(fault: &'a WorkerFault) -> Self {
        let (outcome, kind, message, output) = match fault {
            WorkerFault::NotTaken(fault) => return Self::of(fault),
            WorkerFault::Exited { code: 0, output } => (
                Outcome::Crash,
                "Runtime.ExitError",
                "Runtime exited without providing a reason".to_owned(),
                output,
            ),
            WorkerFault::Exited { code, output } => (
                Outcome::Crash,
                "Runtime.ExitError",
                format!("Runtime exited with error: exit status {code}"),
                output,
            ),
            WorkerFault::Signalled { signal, output } => (
                Outcome::Crash,
                "Runtime.ExitError",
                format!(
                    "Runtime exited with error: signal: {}",
                    signal_name(*signal)
                ),
                output,
            ),
            WorkerFault::OutOfMemory {
                shortage,
                limit_bytes,
                output,
            } => (
                Outcome::OutOfMemory,
                "Runtime.OutOfMemory",
                shortage.of_runtime(*limit_bytes),
                output,
            ),
            WorkerFault::Protocol { problem, output } => (
                Outcome::Crash,
                "Runtime.ProtocolError",
                format!("Runtime violated the protocol: {problem}"),
                output,
            ),
            WorkerFault::Unanswered { problem, output } => (
                Outcome::FunctionError,
                SERVER_ERROR,
                problem.clone(),
                output,
            ),
        };
        Self {
            outcome,
            kind,
            message,
            output,
        }
    }

    fn into_failure(self, id: &InvocationId) -> Failure {
        let Self {
            outcome,
            kind,
            message,
            output,
        } = self;
        let line = format!("RequestId: {id} Error: {message}\n{kind}\n");
        Failure {
            outcome,
            body: body(kind, id, &message),
            output: LastOutput::and_line(output, &line),
            reason: EndReason::Crash,
        }
    }
}

fn body(kind: &str, id: &InvocationId, message: &str) -> Bytes {
    let message = format!("RequestId: {id} Error: {message}");
    serde_json::json!({ "errorType": kind, "errorMessage": message })
        .to_string()
        .into()
}

/// What was printed, and a line of its own.
fn joined(printed: &[u8], line: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(printed.len() + 1 + line.len());
    text.extend_from_slice(printed);
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
    text.extend_from_slice(line);
    text.into()
}

/// signal(7), in the words Lambda uses.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        24 => "CPU time limit exceeded",
        25 => "file size limit exceeded",
        31 => "bad system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

/// `2024-05-01T12:00:00.000Z`.
fn utc(time: SystemTime) -> String {
    let at = Utc::of_unix_ms(unix_ms(time));
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        at.year, at.month, at.day, at.hour, at.minute, at.second, at.millisecond,
    )
}

/// How long to wait for the output of a killed worker.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(100);

/// What a worker printed before it ended.
pub(crate) fn output_of(fault: WorkerFault) -> Bytes {
    match fault {
        WorkerFault::Exited { output, .. }
        | WorkerFault::Signalled { output, .. }
        | WorkerFault::OutOfMemory { output, .. }
        | WorkerFault::Protocol { output, .. }
        | WorkerFault::Unanswered { output, .. } => output,
        WorkerFault::NotTaken(fault) => output_of(*fault),
    }
}

#[cfg(test)]
mod tests {
    use pilot_model::ports::MemoryShortage;

    use super::*;

    fn id() -> InvocationId {
        InvocationId::new("52fdfc07-2182-454f-963f-5f0f9a621d72")
    }

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_time_reads_as_in_rfc_3339() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_709_251_199_007);
        assert_eq!(utc(at), "2024-02-29T23:59:59.007Z");
    }

    #[test]
    fn a_timeout_reads_as_in_lambda() {
        let failure = Failure::timeout(&id(), Duration::from_secs(1), b"half a line");
        assert_eq!(
            text(&failure.body),
            r#"{"errorMessage":"RequestId: 52fdfc07-2182-454f-963f-5f0f9a621d72 Error: Task timed out after 1.00 seconds","errorType":"Sandbox.Timedout"}"#
        );
        let mut lines = text(&failure.output.bytes).lines();
        assert_eq!(lines.next(), Some("half a line"));
        let line = lines.next().unwrap();
        assert!(
            line.ends_with(
                "Z 52fdfc07-2182-454f-963f-5f0f9a621d72 Task timed out after 1.00 seconds"
            )
        );
    }

    #[test]
    fn each_fault_says_how_the_worker_ended() {
        let output = Bytes::new();
        let said = |fault| {
            let failure = Failure::fault(&id(), &fault);
            let body: serde_json::Value = serde_json::from_slice(&failure.body).unwrap();
            let message = body["errorMessage"].as_str().unwrap();
            let (_, message) = message.split_once("Error: ").unwrap();
            (failure.outcome, message.to_owned())
        };
        let exited = WorkerFault::Exited {
            code: 3,
            output: output.clone(),
        };
        let crashed = WorkerFault::Signalled {
            signal: 11,
            output: output.clone(),
        };
        let large = |shortage| WorkerFault::OutOfMemory {
            shortage,
            limit_bytes: 256 << 20,
            output: output.clone(),
        };
        assert_eq!(
            said(exited),
            (
                Outcome::Crash,
                "Runtime exited with error: exit status 3".to_owned()
            )
        );
        assert_eq!(
            said(crashed),
            (
                Outcome::Crash,
                "Runtime exited with error: signal: segmentation fault".to_owned()
            )
        );
        let (outcome, message) = said(large(MemoryShortage::Outside));
        assert_eq!(outcome, Outcome::OutOfMemory);
        assert!(
            message.contains("memory_mb was not reached") && !message.contains("256"),
            "{message}"
        );
        let (outcome, message) = said(large(MemoryShortage::Own));
        assert_eq!(outcome, Outcome::OutOfMemory);
        assert!(
            message.contains("256 MB") && message.contains("memory_mb"),
            "{message}"
        );
    }
}
