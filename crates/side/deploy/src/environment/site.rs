//! What both kinds of parts need to build one: the inputs of a build, and two small functions.

use std::path::Path;

use pilot_model::Runtime;

use super::config::EnvironmentConfig;
use super::part::Parts;

/// Says how far a build is.
pub(crate) type Say<'a> = &'a (dyn Fn(String) + Send + Sync);

/// What one build of a part is given.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) parts: &'a Parts,
    pub(super) config: &'a EnvironmentConfig,
    pub(super) code: &'a Path,
    pub(super) say: Say<'a>,
}

/// The program that a command begins with, when it is one of an interpreter's: its name as typed.
pub(super) fn program_of(runtime: &Runtime) -> Option<&str> {
    match runtime {
        Runtime::Provided { command } | Runtime::Http { command, .. } => {
            command.first().map(String::as_str)
        }
        Runtime::Python { .. } | Runtime::Node { .. } | Runtime::Container { .. } => None,
    }
}

/// Where the code is staged means nothing to anybody.
pub(super) fn without_stage(text: &str, stage: &Path) -> String {
    text.replace(&format!("{}/", stage.display()), "")
}
