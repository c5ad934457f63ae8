//! The layers of a function: read from a folder or a zip file, identified by their content, and uploaded if the daemon does not have
//! them yet. A zip file is unpacked first, so that the daemon gets one form of archive only.

mod unzip;

use std::path::{Path, PathBuf};

use anyhow::Context;
use pilot_deploy::content::{self, Content, Part};
use pilot_model::layer::RESERVED;
use pilot_model::size::Size;
use pilot_model::{Layer, LayerId};
use tempfile::TempDir;

use super::client::Client;
use super::output;
use super::pack::{self, Kind};

/// A layer of the manifest.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LayerSource {
    /// Its name.
    pub(super) name: String,
    /// A folder or a zip file.
    pub(super) path: PathBuf,
}

/// A layer that was read and not sent yet.
#[derive(Debug)]
pub(super) struct ReadLayer {
    source: LayerSource,
    /// Its files; for a zip file the folder in which it is unpacked.
    folder: PathBuf,
    kind: Kind,
    _unpacked: Option<TempDir>,
    content: Content,
    id: LayerId,
}

impl LayerSource {
    /// Reads the layer's files and computes its id.
    pub(super) fn read(&self) -> anyhow::Result<ReadLayer> {
        self.try_read().with_context(|| self.described())
    }

    fn try_read(&self) -> anyhow::Result<ReadLayer> {
        let (folder, kind, unpacked) = if self.path.is_dir() {
            (self.path.clone(), Kind::Layer, None)
        } else {
            let unpacked = tempfile::tempdir().context("cannot make a temporary folder")?;
            unzip::unzip(&self.path, unpacked.path())?;
            (unpacked.path().to_owned(), Kind::Unzipped, Some(unpacked))
        };
        let content = pack::content(&folder, kind)?;
        if content.files() == 0 {
            anyhow::bail!("it has no file");
        }
        let has = |name: &&&str| folder.join(name).symlink_metadata().is_ok();
        if let Some(name) = RESERVED.iter().find(has) {
            anyhow::bail!(
                "it has '{name}' at its top, which would be /opt/{name}; Pilotlight needs that name itself: rename it"
            );
        }
        let id = content.hash().parse().context("the hash is not an id")?;
        Ok(ReadLayer {
            source: self.clone(),
            folder,
            kind,
            _unpacked: unpacked,
            content,
            id,
        })
    }

    fn described(&self) -> String {
        format!("layer '{}' ({})", self.name, self.path.display())
    }
}

impl ReadLayer {
    /// As the daemon reads it in a function's configuration.
    pub(super) fn reference(&self) -> String {
        let layer = Layer {
            name: self.source.name.clone(),
            id: self.id.clone(),
        };
        layer.to_string()
    }

    /// Its sizes, for messages.
    pub(super) fn part(&self) -> Part {
        self.content.part(format!("layer '{}'", self.source.name))
    }

    /// Uploads it, unless the daemon has it already.
    pub(super) fn upload(&self, client: &Client, tell: impl Fn(&str)) -> anyhow::Result<()> {
        let name = &self.source.name;
        if client.has_layer(&self.id)? {
            tell(&format!("layer '{name}' is there already"));
            return Ok(());
        }
        let archive = pack::pack(&self.folder, self.kind)?;
        if archive.content != self.content {
            anyhow::bail!(
                "{}: changed while it was packed; try again",
                self.source.described()
            );
        }
        tell(&format!(
            "uploading layer '{name}' ({}, {})",
            output::count(archive.content.files() as u64, "file"),
            Size(archive.bytes)
        ));
        client
            .upload_layer(&self.id, archive)
            .with_context(|| self.source.described())
    }
}

/// Checks the size of a function's code and layers before anything is sent.
pub(super) fn check_size(
    function: &str,
    code: &Content,
    layers: &[ReadLayer],
) -> anyhow::Result<()> {
    let mut parts = vec![code.part("code".to_owned())];
    parts.extend(layers.iter().map(ReadLayer::part));
    let bytes_max = pilot_deploy::ArchiveLimits::DEFAULT.unpacked_bytes_max;
    content::check_size(function, &parts, bytes_max).map_err(anyhow::Error::msg)
}

/// Whether a path can be a layer: a folder or a file.
pub(super) fn is_there(path: &Path) -> bool {
    path.is_dir() || path.is_file()
}
