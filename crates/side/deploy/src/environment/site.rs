//! What both kinds of parts need for a build.

use std::path::Path;

use std::path::PathBuf;

use pilot_model::ports::{BuildEnd, BuildHost};

use super::config::EnvironmentConfig;
use super::confined::{Confined, Ended, Needs};
use super::error::{BuildLimit, EnvironmentError, InstallFailure, Unreachable};
use super::part::{Parts, Unfinished};
use super::settings::Settings;

/// Reports the progress of a build.
pub(crate) type Say<'a> = &'a (dyn Fn(String) + Send + Sync);

/// The inputs of one build.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) parts: &'a Parts,
    pub(super) config: &'a EnvironmentConfig,
    pub(super) builds: &'a dyn BuildHost,
    pub(super) code: &'a Path,
    pub(super) say: Say<'a>,
}

impl Site<'_> {
    /// Begins the build of a part: its commands write to the part's folder and work folder, and see `shown`.
    pub(super) async fn begin(
        &self,
        unfinished: &Unfinished,
        shown: Vec<PathBuf>,
    ) -> Result<Confined, EnvironmentError> {
        let settings = Settings::read(self.config);
        let needs = Needs {
            stage: unfinished.stage(),
            writable: vec![unfinished.folder(), unfinished.work()],
            shown: shown.into_iter().map(|path| (path.clone(), path)).collect(),
            settings: Some(&settings),
            time_max: self.config.install_time_max,
        };
        Confined::begin(self.builds, needs).await
    }

    /// The error of an installer that failed. `file` declares the packages, each of them a `noun`; `tail` ends its output.
    pub(super) fn check(
        &self,
        ended: &Ended,
        unreachable: Option<Unreachable>,
        (file, noun): (&'static str, &'static str),
        tail: String,
        failure: impl FnOnce(&str) -> InstallFailure,
    ) -> Result<(), EnvironmentError> {
        let limit = match ended.end {
            BuildEnd::Exited(0) => return Ok(()),
            BuildEnd::OutOfTime => {
                return Err(EnvironmentError::TooLong {
                    file,
                    time_max: self.config.install_time_max,
                    tail,
                });
            }
            BuildEnd::OutOfMemory(bytes) => BuildLimit::Memory(bytes),
            BuildEnd::OutOfMemoryAround(shortage) => BuildLimit::MemoryAround(shortage),
            BuildEnd::OutOfDisk(bytes) => BuildLimit::Disk(bytes),
            BuildEnd::TooMuchOutput(bytes) => BuildLimit::Output(bytes),
            BuildEnd::Signalled(signal) => {
                return Err(EnvironmentError::Killed { file, signal, tail });
            }
            BuildEnd::Exited(_) => {
                return Err(match unreachable {
                    Some(unreachable) => EnvironmentError::Unreachable {
                        file,
                        unreachable,
                        tail,
                    },
                    None => EnvironmentError::Failed {
                        failure: failure(&tail),
                        noun,
                        file,
                        tail,
                    },
                });
            }
        };
        Err(EnvironmentError::OverLimit { file, limit, tail })
    }
}

/// Removes the path of a folder of the build from a text.
pub(super) fn without_folder(text: &str, folder: &str) -> String {
    text.replace(&format!("{folder}/"), "")
}
