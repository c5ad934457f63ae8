//! The one place where this crate's errors become the control API's: what is the user's to mend and what the machine's, under
//! which stable word.

use pilot_model::api::DeployError;
use pilot_model::ports::StartError;
use pilot_model::spec::SpecError;
use serde::Deserialize;

use crate::archive::ArchiveError;
use crate::environment::EnvironmentError;
use crate::registry::RegistryError;

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
        EnvironmentError::Interpreter(_) => invalid("runtime_missing", message, ""),
        EnvironmentError::Requirements(_) => invalid("bad_requirements", message, ""),
        EnvironmentError::Failed { tail, .. } | EnvironmentError::TooLong { tail, .. } => {
            invalid("requirement_failed", message, tail)
        }
        EnvironmentError::NoPip { tail, .. } => invalid("installer_missing", message, tail),
        EnvironmentError::Disk { .. } => DeployError::Internal { message },
    }
}

pub(crate) fn from_registry(error: &RegistryError) -> DeployError {
    DeployError::Internal {
        message: error.to_string(),
    }
}

/// `hint` is what to change, where the deployer knows better than the exception.
pub(crate) fn from_start(
    error: &StartError,
    handler: &str,
    hint: impl FnOnce() -> Option<String>,
) -> DeployError {
    match error {
        StartError::Import { body, output } => {
            let raised: Raised = serde_json::from_str(body).unwrap_or_else(|_| Raised {
                error_type: "Error".to_owned(),
                error_message: body.clone(),
                stack_trace: Vec::new(),
            });
            let mut message = format!(
                "handler '{handler}' could not be imported: {}",
                raised.in_words()
            );
            if let Some(hint) = hint() {
                message.push_str("; ");
                message.push_str(&hint);
            }
            invalid("import_failed", message, &raised.detail(output))
        }
        StartError::Runtime { problem, output } => invalid(
            "start_failed",
            format!("handler '{handler}' did not come up: {problem}"),
            output,
        ),
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

/// Lambda's error body.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raised {
    #[serde(default)]
    error_type: String,
    #[serde(default)]
    error_message: String,
    #[serde(default)]
    stack_trace: Vec<String>,
}

impl Raised {
    /// `ValueError: no`, or `AssertionError`; as many lines as the message has.
    fn in_words(&self) -> String {
        if self.error_message.is_empty() {
            return self.error_type.clone();
        }
        format!("{}: {}", self.error_type, self.error_message)
    }

    /// Where the worker logged the exception, its last words, as Lambda does: to show it once is enough.
    fn logged_at(&self, output: &str) -> Option<usize> {
        let logged = format!("[ERROR] {}", self.error_type);
        let mut found = output.rmatch_indices(&logged);
        found.find_map(|(at, _)| {
            let next = output[at + logged.len()..].chars().next();
            matches!(next, None | Some(':' | '\n')).then_some(at)
        })
    }

    /// As Python prints a traceback, and then what the module had printed before it.
    fn detail(&self, output: &str) -> String {
        let mut text = String::new();
        if !self.stack_trace.is_empty() {
            text.push_str("Traceback (most recent call last):\n");
            for frame in &self.stack_trace {
                text.push_str(frame.trim_end_matches('\n'));
                text.push('\n');
            }
            text.push_str(&self.in_words());
            text.push('\n');
        }
        let printed = self.logged_at(output).map_or(output, |at| &output[..at]);
        if !printed.trim().is_empty() {
            text.push_str("Output:\n");
            text.push_str(printed);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        match from_start(&error, "app.handler", || None) {
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
}
