//! `pilot prune`: removes files that nothing uses, and if asked for, versions that are not live. The files of versions go with each sweep,
//! too; here it is said what they are.
//!
//! A function that is being deployed or rolled back is left as it is: its lock is taken. Folders that a deployment needs are reserved, so
//! the sweep leaves them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pilot_model::FunctionName;
use pilot_model::api::{PruneReport, PruneRequest, Pruned};
use pilot_model::deployment::DeployError;

use super::Inner;
use crate::errors;
use crate::state::{Deployed, Function};

impl Inner {
    /// Blocks. On a full disk, the reserve makes the room that the removal itself needs.
    pub(super) fn prune(&self, request: &PruneRequest) -> Result<PruneReport, DeployError> {
        if request.dry_run {
            return self.prune_now(request);
        }
        self.reserve.make_room();
        let pruned = self.prune_now(request);
        self.reserve.refill();
        pruned
    }

    fn prune_now(&self, request: &PruneRequest) -> Result<PruneReport, DeployError> {
        let turn = match request.dry_run {
            true => None,
            false => Some(
                self.turn_to_sweep()
                    .map_err(disk)?
                    .ok_or_else(errors::held)?,
            ),
        };
        let mut report = PruneReport {
            dry_run: request.dry_run,
            ..PruneReport::default()
        };
        let mut without = HashSet::new();
        if request.versions || request.older_than_s.is_some() {
            let newest = newest(request.older_than_s);
            for (name, _) in self.state.functions() {
                self.prune_versions(&name, newest, &mut report, &mut without)?;
            }
        }
        if !without.is_empty() && !request.dry_run {
            self.await_release();
        }
        let rubbish = self.data_dir.stage().map_err(disk)?;
        let folders = self.kept_folders();
        let named = self.registry.folders(&without);
        let named = named.map_err(|error| errors::from_registry(&error))?;
        let unused = if request.dry_run {
            self.state.unused(&folders, &named, &without)
        } else {
            self.state.sweep(&folders, &named, rubbish.path())
        };
        drop(turn);
        for (folder, now) in unused.map_err(disk)? {
            let pruned = Pruned {
                kind: self.kind(&folder).to_owned(),
                name: folder
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                bytes: self.disk_use.of(&now),
            };
            report.bytes += pruned.bytes;
            report.removed.push(pruned);
        }
        rubbish.close().map_err(disk)?;
        report.kept_bytes = self.kept_bytes()?;
        if request.dry_run {
            report.kept_bytes = report.kept_bytes.saturating_sub(report.bytes);
        } else {
            let (removed, bytes) = (report.removed.len(), report.bytes);
            tracing::info!(removed, bytes, "pruned");
        }
        Ok(report)
    }

    /// Removes the versions of a function that are not live and were deployed until then.
    fn prune_versions(
        &self,
        name: &FunctionName,
        newest_unix_s: u64,
        report: &mut PruneReport,
        without: &mut HashSet<(FunctionName, u32)>,
    ) -> Result<(), DeployError> {
        let Some(_function_lock) = self.function_locks.try_lock(name.as_str()) else {
            report.busy.push(name.clone());
            return Ok(());
        };
        // It may have been removed meanwhile.
        let Some(function) = self.state.function(name) else {
            return Ok(());
        };
        let (gone, kept): (Vec<Deployed>, Vec<Deployed>) = function
            .older
            .into_iter()
            .partition(|one| one.deployed_unix_s <= newest_unix_s);
        if gone.is_empty() {
            return Ok(());
        }
        for one in &gone {
            let number = one.version.number;
            without.insert((name.clone(), number));
            report.removed.push(Pruned {
                kind: "version".to_owned(),
                name: format!("{name}:{number}"),
                bytes: 0,
            });
        }
        if report.dry_run {
            return Ok(());
        }
        let numbers: Vec<u32> = kept.iter().map(|one| one.version.number).collect();
        self.registry
            .keep_versions(name, &numbers)
            .map_err(|error| errors::from_registry(&error))?;
        let mut invocable = numbers;
        invocable.push(function.live.version.number);
        self.platform.keep_versions(name, &invocable);
        let function = Function {
            older: kept,
            ..function
        };
        self.state.put(name.clone(), function);
        Ok(())
    }

    /// Waits for a moment until no worker runs from the files of versions that are gone. Files that are still in use then are removed
    /// later, like those of any version that is replaced.
    fn await_release(&self) {
        for _ in 0..RELEASE_ROUNDS_MAX {
            if !self.state.is_held() {
                return;
            }
            std::thread::sleep(RELEASE_ROUND);
        }
    }

    fn kind(&self, folder: &Path) -> &'static str {
        let is_below = |parent: PathBuf| folder.starts_with(parent);
        if is_below(self.data_dir.code()) {
            "code"
        } else if is_below(self.data_dir.layers()) {
            "layer"
        } else {
            "environment"
        }
    }
}

impl Inner {
    pub(super) async fn prune_aside(
        self: Arc<Self>,
        request: PruneRequest,
    ) -> Result<PruneReport, DeployError> {
        crate::blocking::blocking(move || self.prune(&request)).await
    }
}

/// Idle workers end within some milliseconds.
const RELEASE_ROUND: Duration = Duration::from_millis(20);
const RELEASE_ROUNDS_MAX: usize = 100;

/// The latest time of deployment, Unix seconds.
fn newest(older_than_s: Option<u64>) -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    older_than_s.map_or(u64::MAX, |age| now.saturating_sub(age))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn disk(error: std::io::Error) -> DeployError {
    DeployError::Internal {
        message: format!("cannot remove unused files: {error}"),
    }
}
