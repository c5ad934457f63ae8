//! One build of a part: the sandbox where its commands run, and what they print.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pilot_model::ports::{BuildCommand, BuildEnd, BuildError, BuildHost, BuildSandbox, BuildSpec};

use super::error::{EnvironmentError, Unreachable};
use super::settings::Settings;
use crate::data_dir::make_dir;
use crate::process::Lines;

/// The folders of a build and what it may use.
#[derive(Debug)]
pub(super) struct Needs<'a> {
    /// A staging folder of the daemon.
    pub(super) stage: &'a Path,
    /// Folders in it to which the commands write.
    pub(super) writable: Vec<PathBuf>,
    /// Other files and folders that they see.
    pub(super) shown: Vec<(PathBuf, PathBuf)>,
    /// `None`: no network, and no configuration.
    pub(super) settings: Option<&'a Settings>,
    pub(super) time_max: Duration,
}

/// A build that has begun.
#[derive(Debug)]
pub(super) struct Confined {
    sandbox: Box<dyn BuildSandbox>,
    variables: Vec<(String, String)>,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) end: BuildEnd,
    /// Its last lines.
    pub(super) tail: String,
}

impl Confined {
    pub(super) async fn begin(
        builds: &dyn BuildHost,
        needs: Needs<'_>,
    ) -> Result<Self, EnvironmentError> {
        let home = needs.stage.join(HOME);
        let disk = |source| EnvironmentError::Disk {
            path: home.clone(),
            source,
        };
        make_dir(&home.join(TMP)).map_err(disk)?;
        let nothing = Settings::default();
        let settings = needs.settings.unwrap_or(&nothing);
        for (name, content) in &settings.files {
            let path = home.join(name);
            path.parent().map_or(Ok(()), make_dir).map_err(disk)?;
            fs::write(&path, content).map_err(disk)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(disk)?;
        }
        let same = settings
            .shown
            .iter()
            .map(|path| (path.clone(), path.clone()));
        let mut writable = needs.writable;
        writable.push(home.clone());
        let sandbox = builds
            .open(BuildSpec {
                folder: needs.stage.to_owned(),
                writable,
                shown: needs.shown.into_iter().chain(same).collect(),
                hosts: settings.hosts.clone(),
                time_max: needs.time_max,
            })
            .await?;
        let mut variables: Vec<(String, String)> = settings.variables.clone().into_iter().collect();
        let inside = sandbox.inside(&home).display().to_string();
        variables.push(("TMPDIR".to_owned(), format!("{inside}/{TMP}")));
        variables.push(("HOME".to_owned(), inside));
        Ok(Self { sandbox, variables })
    }

    /// The path at which commands see a path of the host, as an argument.
    pub(super) fn inside(&self, host: &Path) -> String {
        self.sandbox.inside(host).display().to_string()
    }

    /// Runs a command. Its environment comes before that of all commands.
    pub(super) async fn run(
        &self,
        mut command: BuildCommand,
        mut on_line: impl FnMut(&str) + Send,
    ) -> Result<Ended, BuildError> {
        command.environment.extend(self.variables.iter().cloned());
        let mut lines = Lines::default();
        let end = self
            .sandbox
            .run(command, &mut |bytes| lines.push(bytes, &mut on_line))
            .await?;
        Ok(Ended {
            end,
            tail: lines.finish(&mut on_line),
        })
    }

    /// What its commands did not reach.
    pub(super) fn unreachable(&self) -> Option<Unreachable> {
        let mut all = self.sandbox.unreached();
        let refused = all.iter().position(|one| one.problem.is_none());
        if all.is_empty() {
            return None;
        }
        let one = all.swap_remove(refused.unwrap_or(0));
        Some(Unreachable {
            address: one.address,
            problem: one.problem,
        })
    }

    /// Ends every process of the build.
    pub(super) async fn close(self) -> Result<(), BuildError> {
        self.sandbox.close().await
    }
}

const HOME: &str = "home";
const TMP: &str = "tmp";
