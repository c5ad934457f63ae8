//! Parts of environments on disk: the packages of one set, in a folder `environments/ID`, shared by all environments with the same
//! set. A part is built in a staging folder and appears atomically, by a rename. Its record is written last and marks it as complete.
//!
//! A build writes to a folder of the stage, and may leave anything there: links, pipes, a record. So the part is another folder, to
//! which no build can write. Only what was checked is moved into it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::EnvironmentId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use tokio::sync::OwnedMutexGuard;

use super::error::EnvironmentError;
use crate::blocking::blocking;
use crate::data_dir::{DataDir, Stage, make_dir};
use crate::durable;
use crate::keyed_locks::KeyedLocks;

/// All parts of a data directory.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) data_dir: Arc<DataDir>,
    building: KeyedLocks,
}

/// A part that is locked, so that no other task builds it.
#[derive(Debug)]
pub(super) struct Claimed {
    data_dir: Arc<DataDir>,
    place: PathBuf,
    _building: OwnedMutexGuard<()>,
}

/// A part that is being built. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Unfinished {
    stage: Stage,
    claimed: Claimed,
}

impl Parts {
    pub(super) fn new(data_dir: Arc<DataDir>) -> Self {
        Self {
            data_dir,
            building: KeyedLocks::default(),
        }
    }

    /// Locks the part. Waits until no other task builds it.
    pub(super) async fn claim(&self, id: &EnvironmentId) -> Claimed {
        Claimed {
            _building: self.lock(id.as_str()).await,
            place: self.data_dir.environments().join(id.as_str()),
            data_dir: Arc::clone(&self.data_dir),
        }
    }

    /// Locks `key`.
    pub(super) async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        self.building.lock(key).await
    }
}

impl Claimed {
    /// The folder of the part, which may not exist yet.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Its record; `None`: there is none, so the part must be built. A record that cannot be read now is an error: versions may
    /// run from this part, and it is whole.
    pub(super) fn record<R: DeserializeOwned>(&self) -> Result<Option<R>, EnvironmentError> {
        let path = self.place.join(RECORD);
        let read = match fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json).map(Some).map_err(Into::into),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        read.map_err(|source| EnvironmentError::Record { path, source })
    }

    /// Starts to build it. What is in its place stays there until the new part is complete.
    pub(super) fn begin(self) -> Result<Unfinished, EnvironmentError> {
        let begin = || {
            let stage = self.data_dir.stage()?;
            make_dir(&stage.path().join(PART))?;
            make_dir(&stage.path().join(WORK))?;
            Ok(stage)
        };
        match begin() {
            Ok(stage) => Ok(Unfinished {
                stage,
                claimed: self,
            }),
            Err(source) => Err(disk(&self.place, source)),
        }
    }
}

impl Unfinished {
    /// The folder in which the build makes the content of the part.
    pub(super) fn folder(&self) -> PathBuf {
        self.stage.path().join(PART)
    }

    /// The folder with all its folders.
    pub(super) fn stage(&self) -> &Path {
        self.stage.path()
    }

    /// A folder for temporary files.
    pub(super) fn work(&self) -> PathBuf {
        self.stage.path().join(WORK)
    }

    /// Makes it durable and moves it to its place. `content` is the folder in [`Unfinished::folder`] that was checked; nothing else
    /// of it is used. No process of the build runs any more.
    pub(super) async fn finish<R: Serialize + Send + 'static>(
        self,
        content: &'static str,
        record: R,
    ) -> Result<(PathBuf, R), EnvironmentError> {
        blocking(move || {
            // The stage and the claim are moved here, because they must outlive the work.
            let Self { stage, claimed } = self;
            let kept = take_over(stage.path(), content)
                .and_then(|staged| keep(&record, &staged, &claimed));
            drop(stage);
            match kept {
                Ok(()) => Ok((claimed.place.clone(), record)),
                Err(source) => Err(disk(&claimed.place, source)),
            }
        })
        .await
    }
}

/// Moves the content of the part out of the folder to which the build could write.
fn take_over(stage: &Path, content: &str) -> io::Result<PathBuf> {
    let whole = stage.join(WHOLE);
    // It must be new: where a build owns the stage, it could have made a link of this name.
    fs::DirBuilder::new().mode(0o755).create(&whole)?;
    fs::rename(stage.join(PART).join(content), whole.join(content))?;
    Ok(whole)
}

fn keep(record: &impl Serialize, staged: &Path, claimed: &Claimed) -> io::Result<()> {
    let json = serde_json::to_vec_pretty(record)?;
    fs::write(staged.join(RECORD), json)?;
    durable::finish_tree(staged)?;
    let place = &claimed.place;
    // A folder without a record is damaged, or not a part. Dropping its new folder removes it.
    let replaced = claimed.data_dir.stage()?;
    let aside = replaced.path().join(PART);
    match fs::rename(place, &aside) {
        Ok(()) => durable::settle(staged, place).inspect_err(|_| {
            let _ = fs::rename(&aside, place);
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => durable::settle(staged, place),
        Err(error) => Err(error),
    }
}

pub(super) fn disk(path: &Path, source: io::Error) -> EnvironmentError {
    EnvironmentError::Disk {
        path: path.to_owned(),
        source,
    }
}

pub(super) const RECORD: &str = "environment.json";
const PART: &str = "part";
const WORK: &str = "work";
const WHOLE: &str = "whole";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const CONTENT: &str = "packages";

    async fn claimed(folder: &Path) -> Claimed {
        let data_dir = DataDir::open(&folder.join("data")).unwrap().unwrap();
        let parts = Parts::new(Arc::new(data_dir));
        parts.claim(&EnvironmentId::from_hex("0011")).await
    }

    async fn begun(folder: &Path) -> Unfinished {
        let unfinished = claimed(folder).await.begin().unwrap();
        make_dir(&unfinished.folder().join(CONTENT)).unwrap();
        fs::write(unfinished.folder().join(CONTENT).join("module.py"), "").unwrap();
        unfinished
    }

    #[tokio::test]
    async fn what_a_build_leaves_beside_the_content_is_neither_written_to_nor_opened() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "as it was").unwrap();
        let unfinished = begun(folder.path()).await;
        let built = unfinished.folder();
        symlink(&victim, built.join(RECORD)).unwrap();
        symlink(folder.path(), built.join("link")).unwrap();
        nix::unistd::mkfifo(&built.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (place, _) = unfinished.finish(CONTENT, "a record").await.unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was");
        let record = place.join(RECORD);
        assert!(record.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read_to_string(record).unwrap(), "\"a record\"");
        assert!(place.join(CONTENT).join("module.py").is_file());
        assert_eq!(fs::read_dir(place).unwrap().count(), 2);
    }

    #[tokio::test]
    async fn a_link_in_place_of_the_folder_that_becomes_the_part_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let unfinished = begun(folder.path()).await;
        symlink(folder.path(), unfinished.stage().join(WHOLE)).unwrap();
        let refused = unfinished.finish(CONTENT, "a record").await;
        assert!(matches!(refused, Err(EnvironmentError::Disk { .. })));
        assert!(!folder.path().join(RECORD).exists());
        assert!(!folder.path().join(CONTENT).exists());
    }

    #[tokio::test]
    async fn only_a_part_without_a_record_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let claimed = claimed(folder.path()).await;
        let record = claimed.place().join(RECORD);
        assert!(claimed.record::<String>().unwrap().is_none());
        make_dir(claimed.place()).unwrap();
        assert!(claimed.record::<String>().unwrap().is_none());
        fs::write(&record, "{").unwrap();
        let damaged = claimed.record::<String>().unwrap_err().to_string();
        fs::remove_file(&record).unwrap();
        fs::create_dir(&record).unwrap();
        let unreadable = claimed.record::<String>().unwrap_err().to_string();
        for said in [damaged, unreadable] {
            assert!(said.contains(&record.display().to_string()), "{said}");
        }
        fs::remove_dir(&record).unwrap();
        fs::write(&record, "\"a record\"").unwrap();
        assert_eq!(claimed.record::<String>().unwrap().unwrap(), "a record");
    }

    #[tokio::test]
    async fn what_is_in_its_place_stays_until_the_part_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let before = claimed(folder.path()).await.place().join(CONTENT);
        make_dir(&before).unwrap();
        fs::write(before.join("old.py"), "").unwrap();
        let unfinished = begun(folder.path()).await;
        assert!(before.join("old.py").exists());
        drop(unfinished);
        assert!(before.join("old.py").exists(), "the build failed");
        let unfinished = begun(folder.path()).await;
        let (place, _) = unfinished.finish(CONTENT, "a record").await.unwrap();
        assert!(place.join(CONTENT).join("module.py").is_file());
        assert!(!before.join("old.py").exists());
    }
}
