//! Records of ended invocations, in the format of AWS Lambda's destinations, and where they go. A record for a function or a file is an
//! invocation of the queue itself: it is stored in the transaction that ends the other one, and is repeated until it has arrived.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use pilot_model::asynchronous::Destination;
use pilot_model::calendar::Utc;
use pilot_model::ports::{AsyncRequest, AsyncRunner, AsyncTarget, AttemptEnd, Deliver, NoTarget};
use pilot_model::trigger::FaasTrigger;
use pilot_model::{AsyncConfig, InvocationId};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::rules::Condition;
use crate::shared::QueueShared;
use crate::store::{self, Dead, Record};

/// An ended invocation.
pub(crate) struct Ended<'a> {
    pub(crate) record: &'a Record,
    /// `None`: the function is gone.
    pub(crate) target: Option<&'a AsyncTarget>,
    pub(crate) config: &'a AsyncConfig,
    pub(crate) end: &'a AttemptEnd,
    pub(crate) condition: Condition,
    pub(crate) attempts: u32,
    pub(crate) now_ms: i64,
}

/// The record for the destination of an ended invocation. `None`: it has none.
pub(crate) fn record(runner: &dyn AsyncRunner, ended: &Ended<'_>) -> Option<Record> {
    let (from, config) = (ended.record, ended.config);
    let destination = match ended.condition {
        Condition::Success => config.on_success.as_ref(),
        _ => config.on_failure.as_ref(),
    }?;
    let mut record = Record {
        request: AsyncRequest {
            id: InvocationId::new(&uuid::Uuid::new_v4().to_string()),
            function: from.request.function.clone(),
            owner: from.request.owner.clone(),
            qualifier: None,
            payload: Bytes::from(text(ended)),
            client_context: None,
            trace: from.request.trace.clone(),
            key: None,
            trigger: FaasTrigger::Other,
        },
        file: None,
        hops: from.hops + 1,
        accepted_ms: ended.now_ms,
        due_ms: ended.now_ms,
        dead: None,
        mark: None,
    };
    match destination {
        Destination::Function(function) => {
            let problem = match runner.target(function, None) {
                // Whose function it is, is not known then.
                Err(NoTarget::Broken { problem }) => Some((Condition::FunctionNotFound, problem)),
                Err(NoTarget::Gone) => Some((
                    Condition::FunctionNotFound,
                    format!("there is no function '{function}': deploy it, and redrive this"),
                )),
                Ok(target) if config.own_only && target.owner != from.request.owner => Some((
                    Condition::Forbidden,
                    format!(
                        "'{}' was deployed with a token for the owner '{}', and '{function}' has another owner",
                        from.request.function, from.request.owner
                    ),
                )),
                Ok(target) => {
                    record.request.function = function.clone();
                    record.request.owner = target.owner;
                    (record.hops > HOPS_MAX).then(|| {
                        (
                            Condition::RecursiveLoop,
                            format!("more than {HOPS_MAX} destinations lie before it: does a function lead to itself?"),
                        )
                    })
                }
            };
            record.dead = problem.map(|(condition, error)| Dead {
                condition,
                error,
                attempts: 0,
            });
        }
        elsewhere => record.file = Some(store::place(elsewhere)),
    }
    Some(record)
}

/// Lambda's JSON (AWS Lambda, "Retaining records of asynchronous invocations").
fn text(ended: &Ended<'_>) -> String {
    let request = &ended.record.request;
    let arn = ended.target.map_or_else(
        || {
            format!(
                "arn:aws:lambda:us-east-1:000000000000:function:{}",
                request.function
            )
        },
        |target| target.arn.clone(),
    );
    let (context, answer) = match ended.end {
        AttemptEnd::Done { version, body } => (
            json!({"statusCode": 200, "executedVersion": version.to_string()}),
            body.as_ref(),
        ),
        AttemptEnd::Failed { version, body } => (
            json!({"statusCode": 200, "executedVersion": version.to_string(), "functionError": "Unhandled"}),
            Some(body),
        ),
        AttemptEnd::NotRun { .. } | AttemptEnd::Gone { .. } | AttemptEnd::Stopping => {
            (Value::Null, None)
        }
    };
    let head = json!({
        "requestId": request.id.as_str(),
        "functionArn": arn,
        "condition": ended.condition.as_str(),
        "approximateInvokeCount": ended.attempts,
    });
    let answer = answer.map_or_else(|| "null".to_owned(), |body| as_json(body));
    format!(
        "{{\"version\":\"1.0\",\"timestamp\":\"{}\",\"requestContext\":{head},\"requestPayload\":{},\"responseContext\":{context},\
         \"responsePayload\":{answer}}}",
        timestamp(ended.now_ms),
        as_json(&request.payload),
    )
}

/// JSON as it is; anything else as a text.
fn as_json(bytes: &[u8]) -> String {
    serde_json::from_slice::<&RawValue>(bytes).map_or_else(
        |_| Value::String(String::from_utf8_lossy(bytes).into_owned()).to_string(),
        // One record is one line.
        |raw| raw.get().replace(['\n', '\r'], " "),
    )
}

fn timestamp(unix_ms: i64) -> String {
    let utc = Utc::of_unix_ms(unix_ms.max(0).unsigned_abs());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.millisecond
    )
}

/// Delivers a record to the place where it goes.
pub(crate) async fn deliver(
    shared: &Arc<QueueShared>,
    delivery: &dyn Deliver,
    record: &Record,
    place: &str,
) -> AttemptEnd {
    let destination = match store::shown(place).parse() {
        Ok(Destination::File(file)) => return write(shared, record, &file).await,
        Ok(destination) => destination,
        Err(problem) => return AttemptEnd::NotRun { problem },
    };
    let request = &record.request;
    let payload = request.payload.clone();
    let delivered = delivery.deliver(
        &request.function,
        &destination,
        request.id.as_str(),
        payload,
    );
    match delivered.await {
        Ok(()) => AttemptEnd::Done {
            version: 0,
            body: None,
        },
        Err(problem) => AttemptEnd::NotRun {
            problem: format!("the record cannot be delivered to {destination}: {problem}"),
        },
    }
}

/// Appends a record to the destination's file, and synchronises it.
async fn write(shared: &Arc<QueueShared>, record: &Record, file: &str) -> AttemptEnd {
    let shared = Arc::clone(shared);
    let (folder, file) = (record.request.function.clone(), file.to_owned());
    let payload = record.request.payload.clone();
    let written = tokio::task::spawn_blocking(move || {
        let _one_line = shared.lines.lock();
        if !(shared.has_room)() {
            return Err("the disk is full: free some space".to_owned());
        }
        let folder = shared.files.join(folder.as_str());
        append(&folder, &file, &payload)
            .map_err(|error| format!("cannot write {}: {error}", folder.join(&file).display()))
    });
    match written.await {
        Ok(Ok(())) => AttemptEnd::Done {
            version: 0,
            body: None,
        },
        Ok(Err(problem)) => AttemptEnd::NotRun { problem },
        Err(_) => AttemptEnd::Stopping,
    }
}

fn append(folder: &Path, file: &str, line: &[u8]) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let path = folder.join(file);
    if !path.try_exists()? && folder.read_dir()?.take(FILES_MAX).count() == FILES_MAX {
        let problem = format!("its folder has {FILES_MAX} files: remove some");
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, problem));
    }
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)?;
    let len = whole_lines(&mut file)?;
    if len + line.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it has 64 MiB: move it away, and the daemon begins a new one",
        ));
    }
    let text = [line, b"\n"].concat();
    let written = file.write_all(&text).and_then(|()| file.sync_data());
    if written.is_err() {
        // A full disk takes a part of a line. The record comes again, as a whole.
        file.set_len(len)?;
    }
    written
}

/// Cuts the part of a line that the end of a daemon or a power failure has left. Its record did not count as delivered, so it comes
/// again. Returns the length of the file.
fn whole_lines(file: &mut File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut block = vec![0; BLOCK_BYTES];
    let mut end = len;
    while end > 0 {
        let begin = end.saturating_sub(BLOCK_BYTES as u64);
        let part = block.get_mut(..usize::try_from(end - begin).unwrap_or(BLOCK_BYTES));
        let part = part.unwrap_or_default();
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|byte| *byte == b'\n') {
            end = begin + at as u64 + 1;
            break;
        }
        end = begin;
    }
    if end < len {
        file.set_len(end)?;
    }
    Ok(end)
}

/// Lambda stops loops after about as many.
const HOPS_MAX: u32 = 16;
const FILE_BYTES_MAX: u64 = 64 << 20;
/// What is read at a time to find the end of the last whole line.
const BLOCK_BYTES: usize = 4096;
/// Of one function.
const FILES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_line_is_cut_before_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("f");
        let path = place.join("out");
        // The file may have no whole line, and the part may be longer than a block.
        for (before, torn) in [("", 7), ("{\"a\":1}\n", 7), ("1\n22\n", 3 * BLOCK_BYTES)] {
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(&path, format!("{before}{}", "x".repeat(torn))).unwrap();
            append(&place, "out", b"2").unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text, format!("{before}2\n"));
        }
    }

    #[test]
    fn a_function_has_a_bounded_number_of_files() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..FILES_MAX {
            append(folder.path(), &number.to_string(), b"1").unwrap();
        }
        let error = append(folder.path(), "one-more", b"1").unwrap_err();
        assert!(error.to_string().contains("16 files"), "{error}");
        append(folder.path(), "0", b"2").unwrap();
    }

    #[test]
    fn an_answer_of_several_lines_is_one_and_what_is_no_json_is_a_text() {
        assert_eq!(as_json(b"{\"a\":\n 1}"), "{\"a\":  1}");
        assert_eq!(as_json(b"plain \"text\""), "\"plain \\\"text\\\"\"");
    }

    #[test]
    fn a_time_is_written_as_lambda_writes_it() {
        assert_eq!(timestamp(1_709_251_199_007), "2024-02-29T23:59:59.007Z");
    }
}
