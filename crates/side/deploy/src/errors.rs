//! Maps the errors of this crate to errors of the control API: whether the user or the machine has to fix them, and their stable
//! codes.

use pilot_model::deployment::DeployError;
use pilot_model::ports::StartError;
use pilot_model::runtime::Trial;
use pilot_model::size::Size;
use pilot_model::spec::SpecError;
use pilot_model::version::there_are;
use pilot_model::{Exception, FunctionName};

use crate::archive::ArchiveError;
use crate::environment::{ComponentError, EnvironmentError};
use crate::registry::RegistryError;
use crate::reserve::{self, Reserve};
use crate::state::Function;

pub(crate) fn from_spec(error: &SpecError) -> DeployError {
    invalid("bad_config", error.to_string(), "")
}

pub(crate) fn from_archive(error: &ArchiveError) -> DeployError {
    let message = error.to_string();
    match error {
        ArchiveError::Unreadable { .. } | ArchiveError::Entry { .. } | ArchiveError::Empty => {
            invalid("bad_archive", message, "")
        }
        ArchiveError::TooLarge { .. } => invalid("too_large", message, ""),
        ArchiveError::Disk { .. } => DeployError::Internal { message },
    }
}

pub(crate) fn from_environment(error: &EnvironmentError) -> DeployError {
    let message = error.to_string();
    match error {
        EnvironmentError::NotFound(_) => invalid("runtime_missing", message, ""),
        EnvironmentError::Requirements(_) | EnvironmentError::Package(_) => {
            invalid("bad_requirements", message, "")
        }
        EnvironmentError::Failed { tail, .. }
        | EnvironmentError::TooLong { tail, .. }
        | EnvironmentError::Killed { tail, .. }
        | EnvironmentError::OverLimit { tail, .. } => invalid("requirement_failed", message, tail),
        EnvironmentError::Outcome { .. } => invalid("requirement_failed", message, ""),
        EnvironmentError::Unreachable { tail, .. } => {
            invalid("registry_unreachable", message, tail)
        }
        EnvironmentError::NoPip { tail, .. } => invalid("installer_missing", message, tail),
        EnvironmentError::NoNpm { .. } => invalid("installer_missing", message, ""),
        EnvironmentError::Disk { .. }
        | EnvironmentError::Record { .. }
        | EnvironmentError::Build(_) => DeployError::Internal { message },
    }
}

pub(crate) fn from_component(
    function: &FunctionName,
    component: &str,
    error: &ComponentError,
) -> DeployError {
    let message = format!(
        "functions.{function}.component \"{}\": {error}",
        component.escape_debug()
    );
    match error {
        ComponentError::Refused(_) => invalid("bad_component", message, ""),
        ComponentError::Failed(_) => DeployError::Internal { message },
    }
}

pub(crate) fn from_registry(error: &RegistryError) -> DeployError {
    DeployError::Internal {
        message: error.to_string(),
    }
}

/// An error of a deployment for want of room on the disk says so, and what to do.
pub(crate) fn from_full_disk(error: DeployError, reserve: &Reserve) -> DeployError {
    match error {
        DeployError::Internal { message } if reserve::says_full(&message) => {
            invalid("disk_full", format!("{}: {message}", reserve.advice()), "")
        }
        error => error,
    }
}

/// There is no such function.
pub(crate) fn no_function(name: &FunctionName) -> DeployError {
    let message = format!("there is no function named '{name}'");
    invalid("not_found", message, "")
}

/// The function has no such version; `None`: no version that is older than the live one.
pub(crate) fn no_version(
    name: &FunctionName,
    number: Option<u32>,
    function: &Function,
) -> DeployError {
    let live = function.live.version.number;
    let mut there = there_are(live, &function.other_numbers());
    for (number, problem) in function.older_broken() {
        there.push_str(&format!("; version {number} cannot run: {problem}"));
    }
    let missing = match number {
        Some(number) => format!("no version {number}"),
        None => format!("no version older than {live}"),
    };
    let message = format!("function '{name}' has {missing}: {there}");
    invalid("unknown_version", message, "")
}

/// The function has this version, but something that it needs was missing when the daemon started.
pub(crate) fn broken_version(name: &FunctionName, number: u32, problem: &str) -> DeployError {
    let message = format!(
        "version {number} of function '{name}' cannot run: {problem}. Bring it back and restart the daemon, or deploy that code again"
    );
    invalid("broken", message, "")
}

/// Nothing is removed while a backup is made.
pub(crate) fn held() -> DeployError {
    let message = "a backup of the data directory is being made (it has the lock of sweep.lock), so nothing is removed: prune again when it has \
                   ended"
        .to_owned();
    invalid("in_use", message, "")
}

/// Another function would be one too many.
pub(crate) fn too_many_functions(name: &FunctionName, max: usize) -> DeployError {
    let message = format!(
        "function '{name}' would be one more than the {max} functions that this daemon may have (limits.functions in pilotd.toml): \
         remove one that is not needed (`pilot list`, `pilot remove NAME`), or raise the limit"
    );
    invalid("too_many_functions", message, "")
}

/// Code, environments and layers take too much of the disk.
pub(crate) fn disk_is_full(name: &FunctionName, used: u64, more: u64, max: u64) -> DeployError {
    let message = format!(
        "function '{name}' has {} of code, and the code, environments and layers of all functions have {} of the {} that they may have \
         (limits.disk_mb in pilotd.toml): remove functions that are not needed (`pilot remove NAME`) or old versions (`pilot prune \
         --versions`), or raise the limit",
        Size(more),
        Size(used),
        Size(max)
    );
    invalid("disk_limit", message, "")
}

/// The function belongs to somebody else.
pub(crate) fn of_another_owner(name: &FunctionName, only_of: &str) -> DeployError {
    let message = format!(
        "the token is for functions of '{only_of}', and '{name}' has another owner: choose another name"
    );
    invalid("forbidden", message, "")
}

/// The right to change the function has ended while the change waited.
pub(crate) fn not_permitted_any_more(name: &FunctionName) -> DeployError {
    let message =
        format!("the token was revoked before '{name}' had its turn: nothing was changed");
    invalid("forbidden", message, "")
}

/// The deployment or rollback was ended by a later change of the same function.
pub(crate) fn overtaken(name: &FunctionName, by: &str) -> DeployError {
    let message = format!(
        "function '{name}' was {by} meanwhile, so this was given up: run it again if it is still wanted"
    );
    invalid("overtaken", message, "")
}

/// More workers than the function may have.
pub(crate) fn too_many_workers(name: &FunctionName, wanted: u32, max: u32) -> DeployError {
    let message = format!(
        "function '{name}' has at most {max} workers (scale.max), and {wanted} were asked for: ask for fewer, or raise scale.max in \
         pilot.toml and deploy again"
    );
    invalid("bad_request", message, "")
}

/// A function that cannot be scaled, because no worker of it can start. The problem says what to do.
pub(crate) fn broken(name: &FunctionName, problem: &str) -> DeployError {
    let message =
        format!("function '{name}' is broken, and no worker of it can be started: {problem}");
    invalid("broken", message, "")
}

/// A command whose program is in the code but cannot run.
pub(crate) fn from_command(problem: String) -> DeployError {
    invalid("bad_command", problem, "")
}

/// `subject` is what was started, `done` how (`imported`, `started`); `hint` says what to change, if the deployer knows more than
/// the exception says.
pub(crate) fn from_start(
    error: &StartError,
    trial: &Trial,
    hint: impl FnOnce() -> Option<String>,
) -> DeployError {
    let (subject, done) = (&trial.subject, trial.done);
    let hinted = |mut message: String| {
        if let Some(hint) = hint() {
            message.push_str("; ");
            message.push_str(&hint);
        }
        message
    };
    match error {
        StartError::Import { body, output } => {
            let raised = Exception::of_text(body);
            let message = format!("{subject} could not be {done}: {raised}");
            invalid("import_failed", hinted(message), &detail(&raised, output))
        }
        StartError::Runtime { problem, output } => {
            let message = format!("{subject} did not come up: {problem}");
            invalid("start_failed", hinted(message), output)
        }
        StartError::Inputs { problem } => invalid("inputs", problem.clone(), ""),
        StartError::Triggers { problem } => invalid("triggers", problem.clone(), ""),
        StartError::Initscript { problem } => invalid("initscript", problem.clone(), ""),
        StartError::Full { problem } => invalid("no_room", problem.clone(), ""),
        StartError::Sandbox { .. } => DeployError::Internal {
            message: error.to_string(),
        },
    }
}

fn invalid(code: &'static str, message: String, detail: &str) -> DeployError {
    DeployError::Invalid {
        code,
        message,
        detail: detail.to_owned(),
    }
}

/// Where the worker logged the exception at the end of its output, as Lambda does, so that it is not shown twice.
fn logged_at(exception: &Exception, output: &str) -> Option<usize> {
    let logged = format!("[ERROR] {}", exception.error_type);
    let mut found = output.rmatch_indices(&logged);
    found.find_map(|(at, _)| {
        let next = output[at + logged.len()..].chars().next();
        matches!(next, None | Some(':' | '\n')).then_some(at)
    })
}

/// The stack as its language prints it, and then the output before the error.
fn detail(exception: &Exception, output: &str) -> String {
    let mut text = String::new();
    if let Some(first) = exception.stack_trace.first() {
        // In Python, the innermost frame is the last one, before the exception. Other languages begin with the error.
        let is_python = first.trim_start().starts_with("File \"");
        if is_python {
            text.push_str("Traceback (most recent call last):\n");
        } else if !first.contains(&exception.error_message) || exception.error_message.is_empty() {
            text.push_str(&exception.to_string());
            text.push('\n');
        }
        for frame in &exception.stack_trace {
            text.push_str(frame.trim_end_matches('\n'));
            text.push('\n');
        }
        if is_python {
            text.push_str(&exception.to_string());
            text.push('\n');
        }
    }
    let printed = logged_at(exception, output).map_or(output, |at| &output[..at]);
    if !printed.trim().is_empty() {
        text.push_str("Output:\n");
        text.push_str(printed);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(subject: &str, done: &'static str) -> Trial {
        Trial {
            subject: subject.to_owned(),
            done,
            progress: String::new(),
        }
    }

    fn told(error_message: &str, output: &str) -> (String, String) {
        let body = serde_json::json!({
            "errorType": "AssertionError",
            "errorMessage": error_message,
            "stackTrace": ["  File \"/var/task/app.py\", line 2, in <module>\n    assert False\n"],
        });
        let error = StartError::Import {
            body: body.to_string(),
            output: output.to_owned(),
        };
        match from_start(&error, &trial("handler 'app.handler'", "imported"), || None) {
            DeployError::Invalid {
                message, detail, ..
            } => (message, detail),
            other @ DeployError::Internal { .. } => panic!("{other}"),
        }
    }

    #[test]
    fn an_exception_is_shown_once_with_or_without_a_message() {
        for (message, named) in [
            ("", "AssertionError"),
            ("no: way", "AssertionError: no: way"),
            ("two\nlines", "AssertionError: two\nlines"),
        ] {
            let logged = format!(
                "printed\n[ERROR] AssertionErrors: mine\n[ERROR] {named}\nTraceback (most recent call last):\n  File\n"
            );
            let (message, detail) = told(message, &logged);
            assert!(
                message.ends_with(&format!("imported: {named}")),
                "{message}"
            );
            assert_eq!(detail.matches("Traceback").count(), 1, "{detail}");
            assert!(
                detail.ends_with(&format!(
                    "{named}\nOutput:\nprinted\n[ERROR] AssertionErrors: mine\n"
                )),
                "{detail}"
            );
        }
    }
    #[test]
    fn a_stack_of_another_language_stands_as_that_language_prints_it() {
        let body = serde_json::json!({
            "errorType": "TypeError",
            "errorMessage": "x is not a function",
            "stackTrace": ["TypeError: x is not a function", "    at load (/var/task/index.js:1:1)"],
        });
        let error = StartError::Import {
            body: body.to_string(),
            output: "loading\n".to_owned(),
        };
        match from_start(&error, &trial("handler 'index.handler'", "loaded"), || {
            Some("set handler".to_owned())
        }) {
            DeployError::Invalid {
                message, detail, ..
            } => {
                assert_eq!(
                    message,
                    "handler 'index.handler' could not be loaded: TypeError: x is not a function; set handler"
                );
                assert_eq!(
                    detail,
                    "TypeError: x is not a function\n    at load (/var/task/index.js:1:1)\nOutput:\nloading\n"
                );
            }
            other @ DeployError::Internal { .. } => panic!("{other}"),
        }
    }

    #[test]
    fn what_was_tried_is_named_as_it_was_written() {
        let error = StartError::Runtime {
            problem: "gone".to_owned(),
            output: String::new(),
        };
        let tried = trial("image 'qr:1'", "started");
        assert_eq!(
            from_start(&error, &tried, || None).to_string(),
            "image 'qr:1' did not come up: gone"
        );
    }
}
