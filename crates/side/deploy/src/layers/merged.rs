//! Where the merged layers of a version lie.

use std::path::Path;

use pilot_model::runtime::NeededBy;
use pilot_model::{Environment, FunctionConfig, MergedLayers};

use crate::data_dir::MERGED;
use crate::hash::Fields;

/// The merged layers of a version, whether they are there or not. Python modules in them are compiled for the version's
/// interpreter, so that versions with other interpreters have another folder.
pub(crate) fn merged(
    layers: &Path,
    config: &FunctionConfig,
    environment: &Environment,
) -> Option<MergedLayers> {
    if config.layers.is_empty() {
        return None;
    }
    let runs_python = config
        .runtime
        .python()
        .is_some_and(|need| need.always == Some(NeededBy::Runtime));
    let python = environment.python.as_ref().filter(|_| runs_python);
    let mut hash = Fields::default();
    hash.add(python.map_or(&b""[..], |python| {
        python.executable.as_os_str().as_encoded_bytes()
    }));
    for layer in &config.layers {
        hash.add(layer.id.as_str());
    }
    let dir = layers.join(format!("{MERGED}{}", hash.hex()));
    let lib = dir.join("lib").symlink_metadata();
    Some(MergedLayers {
        // A link may lead to a folder in the sandbox. Here, nobody follows it.
        has_lib: lib.is_ok_and(|found| found.is_dir() || found.is_symlink()),
        dir,
    })
}
