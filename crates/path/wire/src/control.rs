//! Messages of the control channel: the daemon's requests to a template, and the template's replies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Daemon → template.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request<'a> {
    /// Fork a child.
    Fork {
        /// Chosen by the daemon; repeated in the replies.
        id: u64,
        /// What the child becomes.
        r#as: Role,
        /// Names of the attached descriptors, in order.
        fds: &'a [&'a str],
        /// Absent: a worker of the template's own function.
        #[serde(skip_serializing_if = "Option::is_none")]
        spec: Option<&'a TemplateSpec>,
    },
}

/// The short form of [`Request::Fork`] for a worker of a template's own function. A template with a native loop reads it without
/// its interpreter. Names of descriptors are as in the long form.
///
/// # Errors
/// A name that has no short form.
pub fn short_fork(id: u64, fds: &[&str]) -> Result<Vec<u8>, UnknownDescriptor> {
    let mut message = Vec::with_capacity(16 + fds.len());
    message.extend_from_slice(b"FORK");
    message.extend_from_slice(&u32::try_from(fds.len()).unwrap_or(u32::MAX).to_le_bytes());
    message.extend_from_slice(&id.to_le_bytes());
    for name in fds {
        message.push(match *name {
            "channel" => 0,
            "log" => 1,
            "pid" => 2,
            "mnt" | "ipc" | "uts" | "net" => 3,
            "cgroup" => 4,
            other => {
                return Err(UnknownDescriptor {
                    name: other.to_owned(),
                });
            }
        });
    }
    Ok(message)
}

/// A descriptor's name that the protocol does not define.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the protocol has no descriptor named {name}")]
pub struct UnknownDescriptor {
    name: String,
}

/// What a forked child becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Serves invocations.
    Worker,
    /// Forks others.
    Template,
}

/// The properties of a template, or of a worker that has no template of its own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TemplateSpec {
    /// `environment` or `function`.
    pub level: &'static str,
    /// Working directory in the sandbox.
    pub cwd: String,
    /// Inserted at the beginning of `sys.path`, in this order.
    pub sys_path: Vec<String>,
    /// Modules to import if possible.
    pub imports: Vec<String>,
    /// `module.attribute`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// `event`, `asgi`, `wsgi`.
    pub interface: String,
    /// All of `os.environ`.
    pub environment: BTreeMap<String, String>,
    /// User inside the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group inside the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Whether the process keeps the capabilities for `setns`, as a template.
    pub keep_caps: bool,
    /// The workers' system call filter: base64 of a `struct sock_filter` array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Invocations of one worker at the same time.
    pub concurrency: u32,
    /// Absent for the template of an environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionInfo>,
    /// Whether a worker waits for a frame `SECRETS` before user code runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub secrets: bool,
    /// The kinds of stores for whose clients there are drop-ins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_ins: Vec<&'static str>,
}

/// The function's properties in a handler's context.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionInfo {
    /// Name.
    pub name: String,
    /// Version in Lambda's form.
    pub version: String,
    /// Memory limit, MiB.
    pub memory_mb: u64,
    /// Timeout, seconds.
    pub timeout_s: f64,
    /// ARN without qualifier.
    pub arn: String,
}

/// Template → daemon.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    /// `fork` returned.
    Forked {
        /// The request's id.
        id: u64,
    },
    /// `fork` failed.
    ForkFailed {
        /// The request's id.
        id: u64,
        /// Why.
        error: String,
    },
    /// A child ended and was reaped.
    Exited {
        /// The request's id.
        id: u64,
        /// Exit status, if it exited.
        code: Option<i32>,
        /// Signal, if it was killed by one.
        signal: Option<i32>,
    },
    /// The template is ready, or failed and says why.
    Ready(Box<TemplateReady>),
}

/// A template's first message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TemplateReady {
    /// Threads after the imports; it must be one to fork.
    pub threads: u32,
    /// Why it must not fork although it has one thread. From the worker's own code, but user code could change it.
    #[serde(default)]
    pub must_not_fork: Option<String>,
    /// Only of a function: why it must not be forked from a template that has imported packages. Then it has imported nothing. From user
    /// code, which could say it falsely.
    #[serde(default)]
    pub own_imports: Option<String>,
    /// Slowest first.
    #[serde(default)]
    pub imports: Vec<Import>,
    /// Declared packages that could not be imported.
    #[serde(default)]
    pub failed: Vec<FailedImport>,
    /// What the imports left that a fork cannot carry. From user code.
    #[serde(default)]
    pub findings: Vec<Finding>,
    /// The interpreter's version.
    #[serde(default)]
    pub python: String,
    /// Whether it accepts the short form of a fork request.
    #[serde(default)]
    pub native: bool,
    /// Only of a function: whether the imports wrote to `/tmp` or `/dev/shm`. From the worker's own code, but user code could change it.
    #[serde(default)]
    pub wrote_files: bool,
    /// Only of a function: the modules of the environment's packages that its code imported, in this order, without those that
    /// these import, and without those that the environment's template imports. From user code.
    #[serde(default)]
    pub modules: Vec<String>,
    /// Lambda's error body, if the handler could not be imported.
    #[serde(default)]
    pub error: Option<serde_json::Value>,
}

/// Something that the imports left and that a fork cannot carry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Finding {
    /// File and line; may be empty.
    pub r#where: String,
    /// What it is.
    pub what: String,
    /// What each worker gets or does instead.
    pub instead: String,
}

/// One import and its time.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Import {
    /// Module.
    pub module: String,
    /// Time including everything that it imports, ms.
    pub ms: f64,
}

/// One import that failed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FailedImport {
    /// Module.
    pub module: String,
    /// The exception, one line.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_is_magic_count_id_and_a_role_each() {
        let message = short_fork(7, &["channel", "log", "pid", "mnt", "cgroup"]).unwrap();
        assert_eq!(
            message,
            b"FORK\x05\0\0\0\x07\0\0\0\0\0\0\0\x00\x01\x02\x03\x04"
        );
        assert!(short_fork(7, &["user"]).is_err());
    }
}
