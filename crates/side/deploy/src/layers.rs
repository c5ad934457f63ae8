//! Layers on disk. An uploaded layer is unpacked, checked against its id and kept in `layers/ID`. The layers of a version are
//! merged, in their order, into one folder of hard links (`layers/merged-HASH`), which sandboxes show at `/opt`.
//!
//! Invariants: a folder in `layers/` is complete, because it is made in the staging folder and renamed. A layer has files, folders
//! and symbolic links only, and none of Pilotlight's own names at its top. A link may lead anywhere, also out of the data directory
//! or to nothing: only functions follow it, in their sandboxes, and nothing here does. A layer that no version uses is removed by
//! the sweep, unless it was uploaded or asked for a short time ago ([`HELD_FOR`]): the deployment that needs it is then on its way.

pub(crate) mod merged;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pilot_model::api::LayerInfo;
use pilot_model::deployment::DeployError;
use pilot_model::layer::RESERVED;
use pilot_model::{Layer, LayerId};
use pilot_sys::tree;

use crate::archive::{self, ArchiveLimits, Links};
use crate::content::Part;
use crate::data_dir::{DataDir, Stage, make_dir};
use crate::durable;
use crate::errors;
use crate::state::{DeployState, Reservation};

/// The layers of a data directory.
#[derive(Debug)]
pub(crate) struct LayerStore {
    data_dir: Arc<DataDir>,
    state: Arc<DeployState>,
    limits: ArchiveLimits,
    /// Guards the layers that wait for their deployment, oldest first.
    held: Mutex<VecDeque<Held>>,
}

/// A layer that is kept for a while without a version.
#[derive(Debug)]
struct Held {
    id: LayerId,
    until: Instant,
    _reservation: Reservation,
}

/// Merged layers in a staging folder.
#[derive(Debug)]
pub(crate) struct StagedLayers {
    stage: Stage,
    folder: PathBuf,
}

impl LayerStore {
    pub(crate) fn new(
        data_dir: Arc<DataDir>,
        state: Arc<DeployState>,
        limits: ArchiveLimits,
    ) -> Self {
        Self {
            data_dir,
            state,
            limits,
            held: Mutex::default(),
        }
    }

    /// A layer that is there, and is kept for a while from now on. Blocks.
    pub(crate) fn find(&self, id: &LayerId) -> Result<Option<LayerInfo>, DeployError> {
        let folder = self.folder(id);
        // Reserved first: between the look and the hold, the sweep could remove it.
        let _reservation = self.state.reserve(folder.clone());
        if !folder.is_dir() {
            return Ok(None);
        }
        self.hold(id);
        info(id, &folder).map(Some)
    }

    /// Unpacks an uploaded layer, checks it, and keeps it for a while. Blocks.
    pub(crate) fn add(&self, id: &LayerId, mut archive: File) -> Result<LayerInfo, DeployError> {
        if let Some(there) = self.find(id)? {
            return Ok(there);
        }
        let place = self.folder(id);
        let _reservation = self.state.reserve(place.clone());
        let disk = |source: io::Error| DeployError::Internal {
            message: format!(
                "the layer could not be written to {}: {source}",
                place.display()
            ),
        };
        let stage = self.data_dir.stage().map_err(disk)?;
        let folder = stage.path().join("layer");
        make_dir(&folder).map_err(disk)?;
        archive.rewind().map_err(disk)?;
        let content = archive::unpack(archive, &folder, Links::Kept, &self.limits)
            .map_err(|error| errors::from_archive(&error))?;
        if content.files() == 0 {
            return Err(bad_layer("the layer has no files".to_owned()));
        }
        let hash = content.hash();
        if hash != id.as_str() {
            return Err(bad_layer(format!(
                "the content that arrived has the id {hash}, not {id}; it changed on the way or while it was packed: send it again"
            )));
        }
        let has = |name: &&&str| folder.join(name).symlink_metadata().is_ok();
        if let Some(name) = RESERVED.iter().find(has) {
            return Err(bad_layer(format!(
                "the layer has '{name}' at its top, which would be /opt/{name}; Pilotlight needs that name itself: rename it"
            )));
        }
        durable::finish_tree(&folder)
            .and_then(|()| durable::settle(&folder, &place))
            .map_err(disk)?;
        // Only now: an upload that fails must not shorten the time of another layer.
        self.hold(id);
        Ok(LayerInfo {
            id: id.clone(),
            files: content.files() as u64,
            bytes: content.bytes(),
        })
    }

    /// The folders of a function's layers, to be reserved by its deployment.
    pub(crate) fn folders(&self, layers: &[Layer]) -> Vec<PathBuf> {
        layers.iter().map(|layer| self.folder(&layer.id)).collect()
    }

    /// The sizes of a function's layers. Their folders must be reserved. Blocks.
    pub(crate) fn parts(&self, layers: &[Layer]) -> Result<Vec<Part>, DeployError> {
        let part = |layer: &Layer| {
            let folder = self.folder(&layer.id);
            if !folder.is_dir() {
                return Err(DeployError::Invalid {
                    code: "unknown_layer",
                    message: format!(
                        "layer '{}' ({}) is not on this daemon; upload it first, as `pilot deploy` does",
                        layer.name,
                        layer.id.short()
                    ),
                    detail: String::new(),
                });
            }
            let files = files_of(&folder).map_err(|error| unreadable(&folder, &error))?;
            Ok(Part::new(
                format!("layer '{}'", layer.name),
                files.into_iter(),
            ))
        };
        layers.iter().map(part).collect()
    }

    /// Merges layers into a staging folder: a file of a later one replaces that of an earlier one. Blocks.
    pub(crate) fn merge(&self, layers: &[Layer]) -> Result<StagedLayers, DeployError> {
        let disk = |source: io::Error| DeployError::Internal {
            message: format!("the layers could not be merged: {source}"),
        };
        let stage = self.data_dir.stage().map_err(disk)?;
        let folder = stage.path().join("layers");
        make_dir(&folder).map_err(disk)?;
        for place in MOUNT_PLACES {
            make_dir(&folder.join(place)).map_err(disk)?;
        }
        let mut merging = Merging {
            to: &folder,
            made_by: BTreeMap::new(),
        };
        for layer in layers {
            merging.add(layer, &self.folder(&layer.id), Path::new(""))?;
        }
        Ok(StagedLayers { stage, folder })
    }

    /// Whether a layer's time without a version has ended since the last call. The sweep may remove such layers.
    pub(crate) fn release_expired(&self) -> bool {
        let now = Instant::now();
        let mut held = self.held.lock();
        let before = held.len();
        held.retain(|held| held.until > now);
        held.len() < before
    }

    fn hold(&self, id: &LayerId) {
        let reservation = self.state.reserve(self.folder(id));
        let mut held = self.held.lock();
        held.retain(|held| held.id != *id);
        if held.len() >= HELD_MAX {
            held.pop_front();
        }
        held.push_back(Held {
            id: id.clone(),
            until: Instant::now() + HELD_FOR,
            _reservation: reservation,
        });
    }

    fn folder(&self, id: &LayerId) -> PathBuf {
        self.data_dir.layers().join(id.as_str())
    }
}

impl StagedLayers {
    /// Where Python modules of the layers are, if they have a folder for them. A link is none: it may lead anywhere.
    pub(crate) fn python(&self) -> Option<PathBuf> {
        let python = self.folder.join("python");
        let found = python.symlink_metadata();
        found.is_ok_and(|found| found.is_dir()).then_some(python)
    }

    /// Makes the folder durable and moves it to its place. `replace`: an existing folder there may be damaged. Blocks.
    pub(crate) fn settle(self, place: &Path, replace: bool) -> Result<(), DeployError> {
        let settle = || {
            if replace && place.exists() {
                tree::remove(place)?;
            }
            durable::finish_tree(&self.folder)?;
            durable::settle(&self.folder, place)
        };
        let settled = settle().map_err(|source| DeployError::Internal {
            message: format!(
                "the layers could not be written to {}: {source}",
                place.display()
            ),
        });
        drop(self.stage);
        settled
    }
}

struct Merging<'a> {
    to: &'a Path,
    /// What was made by which layer.
    made_by: BTreeMap<PathBuf, (Kind, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
    Link,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Folder => "folder",
            Self::Link => "symbolic link",
        }
    }

    fn of(found: fs::FileType) -> Self {
        match () {
            () if found.is_dir() => Self::Folder,
            () if found.is_symlink() => Self::Link,
            () => Self::File,
        }
    }

    /// Whether one of them cannot replace the other: what is in a folder would be lost, or be written through a link.
    fn conflicts(self, other: Self) -> bool {
        (self == Self::Folder) != (other == Self::Folder)
    }
}

impl Merging<'_> {
    fn add(&mut self, layer: &Layer, root: &Path, inside: &Path) -> Result<(), DeployError> {
        let from = root.join(inside);
        let disk = |error: io::Error| unreadable(&from, &error);
        for entry in fs::read_dir(&from).map_err(disk)? {
            let entry = entry.map_err(disk)?;
            let inside = inside.join(entry.file_name());
            let kind = Kind::of(entry.file_type().map_err(disk)?);
            let before = self.made_by.get(&inside);
            if let Some((before, other)) = before.filter(|(before, _)| before.conflicts(kind)) {
                return Err(bad_layer(format!(
                    "layer '{}' has the {} '{}', and layer '{other}' has a {} there; rename one of them, or list only one of the \
                     layers",
                    layer.name,
                    kind.as_str(),
                    inside.display(),
                    before.as_str(),
                )));
            }
            let (there, to) = (before.is_some(), self.to.join(&inside));
            match kind {
                Kind::Folder => {
                    make_dir(&to).map_err(disk)?;
                    self.add(layer, root, &inside)?;
                }
                Kind::File | Kind::Link => {
                    if there {
                        fs::remove_file(&to).map_err(disk)?;
                    }
                    match kind {
                        Kind::Link => fs::read_link(entry.path()).and_then(|at| symlink(at, &to)),
                        _ => share(&entry.path(), &to),
                    }
                    .map_err(disk)?;
                }
            }
            self.made_by.insert(inside, (kind, layer.name.clone()));
        }
        Ok(())
    }
}

/// The same file at another path: a hard link, or a copy where the file system has no more links to it.
fn share(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

fn info(id: &LayerId, folder: &Path) -> Result<LayerInfo, DeployError> {
    let files = files_of(folder).map_err(|error| unreadable(folder, &error))?;
    Ok(LayerInfo {
        id: id.clone(),
        files: files.len() as u64,
        bytes: files.iter().map(|(_, bytes)| bytes).sum(),
    })
}

/// The files and links below a folder, with their sizes: those of the links themselves.
fn files_of(root: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(inside) = folders.pop() {
        for entry in fs::read_dir(root.join(&inside))? {
            let entry = entry?;
            let inside = inside.join(entry.file_name());
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(inside);
            } else {
                files.push((inside, metadata.len()));
            }
        }
    }
    Ok(files)
}

fn unreadable(folder: &Path, error: &io::Error) -> DeployError {
    DeployError::Internal {
        message: format!("the layer in {} cannot be used: {error}", folder.display()),
    }
}

fn bad_layer(message: String) -> DeployError {
    DeployError::Invalid {
        code: "bad_layer",
        message,
        detail: String::new(),
    }
}

/// The empty folders in which a sandbox mounts Pilotlight's own files. The first component of each is a reserved name.
const MOUNT_PLACES: [&str; 3] = ["environment", "pilot/node", "pilot/python"];
/// How long a layer is kept without a version: long enough to upload the rest of a deployment.
const HELD_FOR: Duration = Duration::from_secs(15 * 60);
/// How many such layers are kept.
const HELD_MAX: usize = 64;

#[cfg(test)]
mod tests;
