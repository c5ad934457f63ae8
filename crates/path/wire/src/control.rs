//! Messages of the control channel: what the daemon asks of a template, and what that answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Daemon → template.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request<'a> {
    /// Fork a child.
    Fork {
        /// Chosen by the daemon; comes back in the answers.
        id: u64,
        /// What the child becomes.
        r#as: Role,
        /// Names of the attached descriptors, in order.
        fds: &'a [&'a str],
        /// Absent: a worker of this very template.
        #[serde(skip_serializing_if = "Option::is_none")]
        spec: Option<&'a TemplateSpec>,
    },
}

/// The short form of [`Request::Fork`] for a worker of a template's own function: what a template with a native loop reads
/// without its interpreter. Names of descriptors are as in the long form.
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

/// A descriptor's name that the protocol does not have.
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

/// What a template, or a worker that has none of its own, is to be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TemplateSpec {
    /// `environment` or `function`.
    pub level: &'static str,
    /// Working directory in the sandbox.
    pub cwd: String,
    /// Put before `sys.path`, in this order.
    pub sys_path: Vec<String>,
    /// Imported if they can be.
    pub imports: Vec<String>,
    /// `module.attribute`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
    /// `event`, `asgi`, `wsgi`.
    pub interface: String,
    /// The whole of `os.environ`.
    pub environment: BTreeMap<String, String>,
    /// User inside the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group inside the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// A template keeps what `setns` needs.
    pub keep_caps: bool,
    /// The workers' system call filter: base64 of a `struct sock_filter` array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Invocations of one worker at the same time.
    pub concurrency: u32,
    /// Absent at the level of an environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionInfo>,
}

/// What a handler's context says of its function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FunctionInfo {
    /// Name.
    pub name: String,
    /// Version as Lambda shows it.
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
        /// As asked.
        id: u64,
    },
    /// It did not.
    ForkFailed {
        /// As asked.
        id: u64,
        /// Why.
        error: String,
    },
    /// A child ended and was reaped.
    Exited {
        /// As asked.
        id: u64,
        /// Exit status, when it exited.
        code: Option<i32>,
        /// Signal, when one ended it.
        signal: Option<i32>,
    },
    /// The template is up, or says why not.
    Ready(Box<TemplateReady>),
}

/// A template's first message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TemplateReady {
    /// Threads after the imports; it must be one to fork.
    pub threads: u32,
    /// Slowest first.
    #[serde(default)]
    pub imports: Vec<Import>,
    /// Declared packages that would not import.
    #[serde(default)]
    pub failed: Vec<FailedImport>,
    /// The interpreter's version.
    #[serde(default)]
    pub python: String,
    /// Whether it takes the short form of a fork request.
    #[serde(default)]
    pub native: bool,
    /// Lambda's error body, when the handler would not import.
    #[serde(default)]
    pub error: Option<serde_json::Value>,
}

/// One import and its time.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Import {
    /// Module.
    pub module: String,
    /// With all it imports, ms.
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
