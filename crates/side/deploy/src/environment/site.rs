//! What both kinds of parts need for a build.

use std::path::Path;

use super::config::EnvironmentConfig;
use super::error::{EnvironmentError, InstallFailure};
use super::part::Parts;
use crate::process::Ended;

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

impl Site<'_> {
    /// The error of an installer that failed. `file` declares the packages, each of them a `noun`; `tail` ends its output.
    pub(super) fn check(
        &self,
        ended: &Ended,
        (file, noun): (&'static str, &'static str),
        tail: String,
        failure: impl FnOnce(&str) -> InstallFailure,
    ) -> Result<(), EnvironmentError> {
        match ended.status {
            _ if ended.succeeded() => Ok(()),
            None => Err(EnvironmentError::TooLong {
                file,
                time_max: self.config.install_time_max,
                tail,
            }),
            Some(_) => Err(EnvironmentError::Failed {
                failure: failure(&tail),
                noun,
                file,
                tail,
            }),
        }
    }
}

/// Removes the path of the staging folder from a text.
pub(super) fn without_stage(text: &str, stage: &Path) -> String {
    text.replace(&format!("{}/", stage.display()), "")
}
