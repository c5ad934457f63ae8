//! `contract = "shim"`, as in HotC: a function is a program that runs once per invocation in a running container (as OpenFaaS's
//! classic watchdog does). It reads the event from its standard input and writes the answer to its standard output. Its
//! standard error is the invocation's output. Inputs are files, whose paths are in its environment.
//!
//! Processes that an invocation leaves are killed at its end if the container serves one at a time, otherwise at the
//! container's cleaning.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_model::ports::{
    Answer, BoxFuture, Call, Done, Input, Part, Resources, ShownInputs, StartStamps, Worker,
    WorkerFault,
};
use pilot_model::{Instant, InvocationHead, Version, WorkerId};
use pilot_protocols::{FunctionBudget, HeldFiles, Holders, input_variables};
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;

use crate::cgroup::Shortages;
use crate::container::Container;
use crate::folder::CODE_INSIDE;
use crate::hold::{hold, holders};
use crate::output::{Output, Whole};
use crate::parts::now;
use crate::shim::{Ended, Process, Program, Shim, ShimError, Whom};

/// A container with a function's code.
#[derive(Debug)]
pub(crate) struct ProgramWorker {
    id: WorkerId,
    stamps: StartStamps,
    container: Arc<Container>,
    version: Arc<Version>,
    command: Vec<String>,
    variables: BTreeMap<String, String>,
    let_go: AtomicBool,
    holders: Holders,
    /// What the program whose caller left last had printed until then.
    last_output: Mutex<Bytes>,
}

/// A running program; killed if its caller is gone.
struct Running<'a> {
    shim: &'a Shim,
    last_output: &'a Mutex<Bytes>,
    process: Process,
    /// Closed after the event is written.
    input: Option<Sender>,
    answer: Output,
    log: Output,
    shortages_before: Shortages,
}

impl ProgramWorker {
    pub(crate) fn new(
        id: WorkerId,
        asked: Instant,
        container: Arc<Container>,
        version: Arc<Version>,
        command: Vec<String>,
        variables: BTreeMap<String, String>,
    ) -> Self {
        // No process is started before the first event.
        let ready = now();
        let holders = holders(&container);
        Self {
            id,
            stamps: StartStamps {
                asked,
                template: asked,
                forked: ready,
                sandboxed: ready,
                initialised: ready,
            },
            container,
            version,
            command,
            variables,
            let_go: AtomicBool::new(false),
            holders,
            last_output: Mutex::default(),
        }
    }

    async fn serve(&self, call: Call) -> Result<Answer, WorkerFault> {
        let started = now();
        // Until the program has ended.
        let held = self
            .hold(&call)
            .await
            .map_err(|problem| WorkerFault::Protocol {
                problem,
                output: Bytes::new(),
            })?;
        let paths = held.as_ref().map_or(&[][..], |held| &held.paths);
        let mut running = match self.start(&call, paths).await {
            Ok(running) => running,
            Err(error @ ShimError::Failed { .. }) => {
                let message = format!(
                    "`{}` could not be started in {CODE_INSIDE}: {}",
                    self.command.join(" "),
                    self.container.why_not_started(&error)
                );
                let done = done(started, now(), None, Bytes::new());
                return Ok(Answer::Error(
                    error_body("Runtime.InvalidEntrypoint", &message),
                    done,
                ));
            }
            Err(error) => {
                return Err(WorkerFault::Protocol {
                    problem: error.to_string(),
                    output: Bytes::new(),
                });
            }
        };
        let ended = running.feed(&call.payload).await;
        let returned = now();
        if self.version.config.concurrency == 1 {
            // It ends with the others. The shim starts the next one behind the kill.
            self.holders.give_up();
            self.container.shim.kill_all_soon();
        }
        let before = running.shortages_before;
        let shortage = match ended {
            Ended::Exited(0) => None,
            _ => self.container.counters.shortage_since(before),
        };
        let answer = running.answer.whole().await;
        let output = running.log.take();
        if let Some(shortage) = shortage {
            return Err(WorkerFault::OutOfMemory {
                shortage,
                limit_bytes: self.version.config.memory_bytes,
                output,
            });
        }
        let done = done(started, returned, answer.first_byte, output);
        match ended {
            Ended::Exited(0) => Ok(as_answer(answer, &self.memory_of_answers(), done)),
            Ended::Exited(status) => Ok(failure(&format!("exit status {status}"), done)),
            Ended::Signalled(signal) => Ok(failure(&format!("signal {signal}"), done)),
            Ended::Unknown => Err(WorkerFault::Protocol {
                problem: ShimError::Gone.to_string(),
                output: done.output,
            }),
        }
    }

    fn memory_of_answers(&self) -> FunctionBudget {
        let config = &self.container.parts.config;
        config.answers.of(&self.version.config.name)
    }

    async fn hold(&self, call: &Call) -> Result<Option<HeldFiles>, String> {
        if call.inputs.is_empty() {
            return Ok(None);
        }
        let held = hold(&self.holders, &self.container, &call.inputs).await;
        held.map(Some)
    }

    /// `paths` are those of the inputs.
    async fn start(&self, call: &Call, paths: &[String]) -> Result<Running<'_>, ShimError> {
        let head: &InvocationHead = &call.head;
        let mut variables = self.variables.clone();
        variables.extend(input_variables(&call.inputs, paths, &head.failed_inputs));
        let own = [
            ("AWS_LAMBDA_REQUEST_ID", Some(head.id.to_string())),
            ("AWS_LAMBDA_FUNCTION_ARN", Some(head.arn.clone())),
            (
                "AWS_LAMBDA_DEADLINE_MS",
                Some(head.deadline_unix_ms.to_string()),
            ),
            ("AWS_LAMBDA_CLIENT_CONTEXT", head.client_context.clone()),
            ("_X_AMZN_TRACE_ID", head.trace.clone()),
            (
                "TRACEPARENT",
                head.trace
                    .as_deref()
                    .and_then(pilot_model::trace::traceparent),
            ),
        ];
        variables.extend(
            own.into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?))),
        );
        let pipes = || {
            let (there, here) = io::pipe()?;
            let input = Sender::from_owned_fd(OwnedFd::from(here))?;
            Ok((
                (there, input),
                Output::pipe_of(ANSWER_LEN_MAX, Some(&self.memory_of_answers()))?,
                Output::pipe()?,
            ))
        };
        let ((stdin, input), (answer, stdout), (log, stderr)) =
            pipes().map_err(|error: io::Error| ShimError::Failed {
                what: "make pipes".to_owned(),
                error,
            })?;
        let program = Program {
            user: &self.container.user,
            dir: CODE_INSIDE,
            argv: &self.command,
            environment: &variables,
        };
        let shortages_before = self.container.counters.shortages();
        let shim = &self.container.shim;
        let process = shim
            .exec(&program, [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])
            .await?;
        Ok(Running {
            shim,
            last_output: &self.last_output,
            process,
            input: Some(input),
            answer,
            log,
            shortages_before,
        })
    }
}

impl Running<'_> {
    /// Writes the event and waits for the program's end. The program need not read all of it.
    async fn feed(&mut self, event: &[u8]) -> Ended {
        let input = self.input.take();
        let give = async {
            if let Some(mut input) = input {
                // The program may have closed its input.
                drop(input.write_all(event).await);
            }
        };
        let (mut give, mut ended) = (std::pin::pin!(give), std::pin::pin!(self.process.ended()));
        tokio::select! {
            biased;
            ended = &mut ended => return ended,
            // Closing the input is the end of the event for the program.
            () = &mut give => {}
        }
        ended.await
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.process.end().is_none() {
            *self.last_output.lock() = self.log.take();
            self.shim.signal(&self.process, SIGKILL, Whom::Group);
        }
    }
}

impl Worker for ProgramWorker {
    fn id(&self) -> WorkerId {
        self.id
    }

    fn stamps(&self) -> StartStamps {
        self.stamps
    }

    fn call(&self, call: Call) -> BoxFuture<'_, Result<Answer, WorkerFault>> {
        Box::pin(self.serve(call))
    }

    fn show(&self, inputs: Vec<Input>) -> BoxFuture<'_, Result<ShownInputs, String>> {
        Box::pin(async move {
            let mut held = hold(&self.holders, &self.container, &inputs).await?;
            Ok(ShownInputs {
                paths: std::mem::take(&mut held.paths),
                kept: Box::new(held),
            })
        })
    }

    fn next(&self, _stream: u32) -> BoxFuture<'_, Result<Part, WorkerFault>> {
        Box::pin(std::future::ready(Err(WorkerFault::Protocol {
            problem: "contract \"shim\" has no streamed answers".to_owned(),
            output: Bytes::new(),
        })))
    }

    fn last_output(&self) -> BoxFuture<'static, Bytes> {
        let output = std::mem::take(&mut *self.last_output.lock());
        Box::pin(std::future::ready(output))
    }

    fn is_alive(&self) -> bool {
        !self.let_go.load(Ordering::Relaxed) && self.container.shim.is_alive()
    }

    fn kill(&self) {
        self.let_go.store(true, Ordering::Relaxed);
        self.holders.close();
        self.container.shim.kill_all_soon();
    }

    fn resources(&self) -> &dyn Resources {
        &*self.container
    }
}

fn done(started: Instant, returned: Instant, first_byte: Option<Instant>, output: Bytes) -> Done {
    Done {
        started,
        returned,
        first_byte: first_byte.unwrap_or(returned),
        output,
        is_last: false,
    }
}

/// JSON stays as it is; anything else becomes a string without its last line break; nothing becomes `null`.
fn as_answer(answer: Whole, memory: &FunctionBudget, done: Done) -> Answer {
    if answer.dropped > 0 {
        let message = format!(
            "Response payload size exceeded maximum allowed payload size ({ANSWER_LEN_MAX} bytes)."
        );
        return Answer::Error(error_body("Function.ResponseSizeTooLarge", &message), done);
    }
    let whole = Bytes::from(answer.bytes);
    let whole = match answer.reserved {
        Some(reserved) => reserved.keep(whole),
        None => whole,
    };
    let bytes = whole.trim_ascii();
    if bytes.is_empty() {
        return Answer::Result(Bytes::from_static(b"null"), done);
    }
    if serde_json::from_slice::<&RawValue>(bytes).is_ok() {
        return Answer::Result(whole.slice_ref(bytes), done);
    }
    let json = {
        let text = String::from_utf8_lossy(&whole);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        serde_json::to_vec(text).expect("text is always JSON")
    };
    Answer::Result(memory.in_place_of(whole, json.into()), done)
}

/// The error of a program with a status other than 0. The end of its standard error says more than the status.
fn failure(how: &str, done: Done) -> Answer {
    let log = String::from_utf8_lossy(&done.output);
    let lines: Vec<&str> = log.trim_end().lines().rev().take(LINES_MAX).collect();
    let last: Vec<&str> = lines.into_iter().rev().collect();
    let mut message = format!("Runtime exited with error: {how}");
    if !last.is_empty() {
        message.push('\n');
        message.extend(last.join("\n").chars().take(WORDS_LEN_MAX));
    }
    Answer::Error(error_body("Runtime.ExitError", &message), done)
}

/// Lambda's error body.
fn error_body(kind: &str, message: &str) -> Bytes {
    serde_json::json!({ "errorType": kind, "errorMessage": message, "stackTrace": [] })
        .to_string()
        .into()
}

/// Longest answer, bytes: Lambda's 6 MiB plus what Lambda allows for the envelope.
const ANSWER_LEN_MAX: usize = 6 * 1024 * 1024 + 100;

/// Lines of standard error in an error's message.
const LINES_MAX: usize = 10;
const WORDS_LEN_MAX: usize = 4000;

/// signal(7).
const SIGKILL: i32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Done {
        done(Instant(1), Instant(2), None, Bytes::new())
    }

    fn answered(text: &str) -> String {
        let whole = Whole {
            bytes: text.as_bytes().to_vec(),
            dropped: 0,
            first_byte: None,
            reserved: None,
        };
        let memory = pilot_protocols::MemoryBudget::default();
        let memory = memory.of(&"lab".parse().unwrap());
        match as_answer(whole, &memory, nothing()) {
            Answer::Result(body, _) => String::from_utf8(body.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn json_is_the_answer_as_it_is() {
        assert_eq!(answered("{\"a\": [1, 2]}\n"), "{\"a\": [1, 2]}");
        assert_eq!(answered(" 7 "), "7");
    }

    #[test]
    fn text_is_a_string_and_nothing_is_null() {
        assert_eq!(answered("hello \"you\"\n"), r#""hello \"you\"""#);
        assert_eq!(answered("two\nlines\n"), r#""two\nlines""#);
        assert_eq!(answered(" \n"), "null");
    }

    #[test]
    fn a_failure_says_the_last_words() {
        let log = (0..20).map(|n| format!("line {n}\n")).collect::<String>();
        let done = done(Instant(1), Instant(2), None, log.into());
        let Answer::Error(body, _) = failure("exit status 3", done) else {
            panic!("no error");
        };
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["errorType"], "Runtime.ExitError");
        let message = body["errorMessage"].as_str().unwrap();
        assert!(message.starts_with("Runtime exited with error: exit status 3\nline 10\n"));
        assert!(message.ends_with("line 19"));
    }
}
