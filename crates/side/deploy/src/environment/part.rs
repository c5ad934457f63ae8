//! Parts of environments on disk: what one installer made for one set, in a folder `environments/ID` of its own, shared by every
//! environment with the same set. A part is built in a stage and appears by a rename, whole or not at all; its record, written last,
//! says that it is whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_model::EnvironmentId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::sync::OwnedMutexGuard;

use super::error::EnvironmentError;
use crate::blocking::blocking;
use crate::data_dir::{DataDir, make_dir};
use crate::durable;
use crate::keyed_locks::KeyedLocks;

/// All parts of a data directory.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) data_dir: Arc<DataDir>,
    building: KeyedLocks,
}

/// A part that nobody else builds meanwhile.
#[derive(Debug)]
pub(super) struct Claimed {
    data_dir: Arc<DataDir>,
    place: PathBuf,
    _building: OwnedMutexGuard<()>,
}

/// A part under construction; dropped unfinished, it is gone.
#[derive(Debug)]
pub(super) struct Unfinished {
    stage: TempDir,
    claimed: Claimed,
}

impl Parts {
    pub(super) fn new(data_dir: Arc<DataDir>) -> Self {
        Self {
            data_dir,
            building: KeyedLocks::default(),
        }
    }

    /// Waits until nobody else builds the part.
    pub(super) async fn claim(&self, id: &EnvironmentId) -> Claimed {
        Claimed {
            _building: self.lock(id.as_str()).await,
            place: self.data_dir.environments().join(id.as_str()),
            data_dir: Arc::clone(&self.data_dir),
        }
    }

    /// Keeps others from building what `key` names.
    pub(super) async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        self.building.lock(key).await
    }
}

impl Claimed {
    /// Where the part lies, or is to lie.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// What is remembered of it; `None`: it is not there.
    pub(super) fn record<R: DeserializeOwned>(&self) -> Option<R> {
        serde_json::from_slice(&fs::read(self.place.join(RECORD)).ok()?).ok()
    }

    /// Begins to build it.
    pub(super) fn begin(self) -> Result<Unfinished, EnvironmentError> {
        let begin = || {
            // A folder without its record is none of ours, or damaged.
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
    /// What will be the part.
    pub(super) fn folder(&self) -> PathBuf {
        self.stage.path().join(PART)
    }

    /// Room for what is needed on the way alone.
    pub(super) fn work(&self) -> PathBuf {
        self.stage.path().join(WORK)
    }

    /// Makes it durable and moves it to its place.
    pub(super) async fn finish<R: Serialize + Send + 'static>(
        self,
        record: R,
    ) -> Result<(PathBuf, R), EnvironmentError> {
        blocking(move || {
            // Stage and claim move along: they are to outlive the work on them.
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
