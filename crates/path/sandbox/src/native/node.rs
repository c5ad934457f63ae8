//! A pre-warmed Node.js: started in an empty sandbox, and told on its control socket which function to load (PROTOCOL.md,
//! "Node").

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::ports::StartError;
use pilot_model::timeline::Instant;
use pilot_model::{Version, WorkerId};
use pilot_protocols::FunctionBudget;
use pilot_sys::seqpacket;
use pilot_wire::control::FunctionInfo;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::child::{Child, or_end};
use crate::engine::function_info;
use crate::hold::holders;
use crate::machine::dev_null;
use crate::message::ExecSpec;
use crate::places::CODE_INSIDE;
use crate::refused::refused;
use crate::runtime_files::NODE_WORKER_INSIDE;
use crate::sandbox::Sandbox;
use crate::variables;
use crate::worker::{Body, Connection, ForkedWorker, Output, Released, SandboxOwner};

/// See the module.
#[derive(Debug)]
pub(super) struct WaitingNode {
    process: Child,
    /// Becomes the invocation channel.
    channel: OwnedFd,
    control: UnixStream,
    output: Output,
    user: Option<u32>,
}

/// Longest time for a Node.js to start.
const READY_TIME_MAX: Duration = Duration::from_secs(30);

/// Longest line on the control socket.
const LINE_LEN_MAX: usize = 4096;

/// The default of Node.js 20 and 22. Node.js 24 lets the space of young objects grow to twice as much, which takes 30 MiB more and no less
/// CPU time.
const YOUNG_LIMIT: &str = "--max-semi-space-size=16";

/// The variable with options for Node.
const OPTIONS: &str = "NODE_OPTIONS";

#[derive(Debug, Deserialize)]
struct WaitingMessage {
    op: String,
}

/// The specification that it gets.
#[derive(Debug, Serialize)]
struct Specification {
    cwd: &'static str,
    handler: String,
    environment: BTreeMap<String, String>,
    memory_mb: u64,
    concurrency: u32,
    /// The kinds of stores for whose clients there are drop-ins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drop_ins: Vec<&'static str>,
    function: FunctionInfo,
}

impl WaitingNode {
    /// With execution options it starts in the code's folder, which is already mounted, because they may name files there.
    pub(super) async fn start(
        sandbox: &Sandbox,
        node: &Path,
        execution: &BTreeMap<String, String>,
        user: Option<u32>,
    ) -> Result<Self, StartError> {
        let (channel, theirs) =
            seqpacket::stream_pair_with_untrusted().map_err(refused("a socket pair"))?;
        let (control, their_control) =
            seqpacket::stream_pair_with_untrusted().map_err(refused("a socket pair"))?;
        crate::channel::set_nonblocking(&channel).map_err(refused("a socket pair"))?;
        crate::channel::set_nonblocking(&control).map_err(refused("a socket pair"))?;
        let (output, log) = Output::pipe().map_err(refused("a pipe"))?;
        let null = dev_null()?;
        let mut environment = variables::base();
        environment.extend(execution.clone());
        let spec = ExecSpec {
            path: node.display().to_string(),
            arguments: arguments(execution),
            environment: environment.into_iter().collect(),
            cwd: PathBuf::from(if execution.is_empty() {
                "/"
            } else {
                CODE_INSIDE
            }),
            user,
            cgroup_files: 0,
            template: false,
            own_filter: false,
        };
        let fds = [
            null.as_fd(),
            log.as_fd(),
            log.as_fd(),
            theirs.as_fd(),
            their_control.as_fd(),
        ];
        let process = sandbox.exec(spec, &fds).await?;
        drop((theirs, their_control, log));
        let control =
            UnixStream::from_std(control.into()).map_err(refused("register a control socket"))?;
        let mut waiting = Self {
            process,
            channel,
            control,
            output,
            user,
        };
        waiting.hear().await?;
        Ok(waiting)
    }

    /// Waits for its message that it is ready.
    async fn hear(&mut self) -> Result<(), StartError> {
        let control = &mut self.control;
        let line = async move {
            let mut line = Vec::new();
            while !line.ends_with(b"\n") && line.len() < LINE_LEN_MAX {
                if control.read_buf(&mut line).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            line
        };
        let heard = timeout(READY_TIME_MAX, or_end(line, self.process.end())).await;
        let problem = match heard {
            Ok(Ok(line)) => match serde_json::from_slice(&line) {
                Ok(WaitingMessage { op }) if op == "waiting" => return Ok(()),
                _ => "Node.js did not report that it is ready".to_owned(),
            },
            Ok(Err(end)) => format!("Node.js {} before it was ready", end.in_words()),
            Err(_) => format!(
                "Node.js did not start within {} s",
                READY_TIME_MAX.as_secs()
            ),
        };
        Err(StartError::Runtime {
            problem,
            output: self.output.take_text(),
        })
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.process.has_ended()
    }

    /// Makes it a version's worker. Code and packages are already mounted. `secrets`: variables that the version does not have.
    pub(super) async fn specialise(
        mut self,
        (sandbox, owner): (Sandbox, Arc<dyn SandboxOwner>),
        version: &Version,
        secrets: BTreeMap<String, String>,
        id: WorkerId,
        asked: Instant,
        answers: FunctionBudget,
    ) -> Result<ForkedWorker, StartError> {
        let config = &version.config;
        let mut environment = variables::of_lambda(version, NODE_WORKER_INSIDE);
        variables::add_paths(version, variables::python_of(version), &mut environment);
        variables::add_code_to_modules(version, &mut environment);
        variables::add_library_path(version, &mut environment);
        environment.extend(secrets);
        let specification = Specification {
            cwd: CODE_INSIDE,
            handler: config.handler.clone(),
            environment,
            memory_mb: config.memory_bytes >> 20,
            concurrency: config.concurrency,
            drop_ins: config.drop_ins(),
            function: function_info(version),
        };
        let mut line = serde_json::to_vec(&specification).map_err(|error| StartError::Sandbox {
            problem: format!("write a specification: {error}"),
        })?;
        line.push(b'\n');
        let holders = holders(&sandbox, self.user, config)?;
        let body = Body {
            sandbox,
            process: self.process,
        };
        if let Err(error) = self.control.write_all(&line).await {
            owner.take_back(Released { body, grace: None });
            return Err(refused("send Node.js its specification")(error));
        }
        let connection = Connection::new(self.channel, self.output, answers)?;
        let worker =
            ForkedWorker::when_ready(id, asked, asked, config, connection, body, owner).await?;
        Ok(worker.with_paths(holders))
    }
}

/// The arguments of Node. An argument has priority over `NODE_OPTIONS`, so that what the function says there must not be said again.
fn arguments(execution: &BTreeMap<String, String>) -> Vec<String> {
    let options = execution.get(OPTIONS).map_or("", String::as_str);
    // V8 takes both spellings.
    let is_said = options.replace('_', "-").contains("semi-space-size");
    let young = (!is_said).then(|| YOUNG_LIMIT.to_owned());
    let worker = [
        format!("{NODE_WORKER_INSIDE}/worker.js"),
        "prewarmed".to_owned(),
    ];
    young.into_iter().chain(worker).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_has_a_limit_for_young_objects_unless_the_function_says_one() {
        let limited = |options: &str| {
            let execution = [(OPTIONS.to_owned(), options.to_owned())];
            arguments(&execution.into()).contains(&YOUNG_LIMIT.to_owned())
        };
        assert!(limited("--max-old-space-size=230"));
        assert!(!limited("--max-semi-space-size=64"));
        assert!(!limited("--no-warnings --max_semi_space_size=4"));
        let usual = arguments(&BTreeMap::new());
        assert_eq!(usual[0], YOUNG_LIMIT);
        assert_eq!(usual[2], "prewarmed");
    }
}
