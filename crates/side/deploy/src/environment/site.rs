//! What both kinds of parts need for a build.

use std::path::Path;

use super::config::EnvironmentConfig;
use super::part::Parts;

/// Reports the progress of a build.
pub(crate) type Say<'a> = &'a (dyn Fn(String) + Send + Sync);

/// The inputs of one build.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) parts: &'a Parts,
    pub(super) config: &'a EnvironmentConfig,
    pub(super) code: &'a Path,
    pub(super) say: Say<'a>,
}

/// Removes the path of the staging folder from a text.
pub(super) fn without_stage(text: &str, stage: &Path) -> String {
    text.replace(&format!("{}/", stage.display()), "")
}
