//! Files that are not received, because their name is not UTF-8: an event is JSON, and cannot have such a name. Each is said once.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::status::Status;

/// Names that are not UTF-8, as many as are kept.
#[derive(Debug, Default)]
pub(super) struct OddNames(BTreeSet<OsString>);

impl OddNames {
    /// Adds one. False: it was there, or there are too many.
    pub(super) fn add(&mut self, name: OsString) -> bool {
        self.0.len() < NAMES_MAX && self.0.insert(name)
    }

    /// A file is gone. One of this name that comes is said again.
    pub(super) fn forget(&mut self, name: &OsStr) {
        self.0.remove(name);
    }

    /// The folder has these now: says those that are new.
    pub(super) fn replace(&mut self, now: Self, folder: &Path, status: &Status) {
        for name in now.0.difference(&self.0) {
            status.failed(&problem(folder, name));
        }
        *self = now;
    }
}

/// What is shown for such a file.
pub(super) fn problem(folder: &Path, name: &OsStr) -> String {
    format!(
        "\"{}\" in {} is not received: its name is not UTF-8. Rename the file",
        name.as_bytes().escape_ascii(),
        folder.display()
    )
}

/// Whether a name ends so, also if it is not UTF-8.
pub(super) fn ends_with(name: &OsStr, suffix: &str) -> bool {
    name.as_bytes().ends_with(suffix.as_bytes())
}

/// Names that are kept. Others are not said.
const NAMES_MAX: usize = 100;
