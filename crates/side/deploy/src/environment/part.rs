//! Parts of environments on disk: the packages of one set, in a folder `environments/ID`, shared by all environments with the same
//! set. A part is built in a staging folder and appears atomically, by a rename. Its record is written last and marks it as complete.

use std::fs;
use std::io;
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

    /// Its record; `None`: it does not exist.
    pub(super) fn record<R: DeserializeOwned>(&self) -> Option<R> {
        serde_json::from_slice(&fs::read(self.place.join(RECORD)).ok()?).ok()
    }

    /// Starts to build it.
    pub(super) fn begin(self) -> Result<Unfinished, EnvironmentError> {
        let begin = || {
            // A folder without a record is damaged, or not a part.
            clear(&self.place)?;
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
    /// The folder that becomes the part.
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

    /// Makes it durable and moves it to its place.
    pub(super) async fn finish<R: Serialize + Send + 'static>(
        self,
        record: R,
    ) -> Result<(PathBuf, R), EnvironmentError> {
        blocking(move || {
            // The stage and the claim are moved here, because they must outlive the work.
            let Self { stage, claimed } = self;
            let staged = stage.path().join(PART);
            let kept = keep(&record, &staged, &claimed.place);
            drop(stage);
            match kept {
                Ok(()) => Ok((claimed.place.clone(), record)),
                Err(source) => Err(disk(&claimed.place, source)),
            }
        })
        .await
    }
}

fn keep(record: &impl Serialize, staged: &Path, place: &Path) -> io::Result<()> {
    let json = serde_json::to_vec_pretty(record)?;
    fs::write(staged.join(RECORD), json)?;
    durable::finish_tree(staged)?;
    durable::settle(staged, place)
}

fn clear(place: &Path) -> io::Result<()> {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
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
