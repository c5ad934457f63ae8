//! The deployer's state in memory: the functions, and the folders in use. One mutex guards all of it. It is never held across an
//! await, and the only disk access under it is a rename.
//!
//! A folder is in use while a version in the registry uses it, while a deployment has reserved it, or while the path still has a
//! version that uses it (its workers run from there).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pilot_model::deployment::TemplateReport;
use pilot_model::{FunctionName, Version};

/// A version in the registry.
#[derive(Debug, Clone)]
pub(crate) struct Deployed {
    pub(crate) version: Arc<Version>,
    /// The result of its trial start.
    pub(crate) template: TemplateReport,
    pub(crate) deployed_unix_s: u64,
}

/// A function in the registry.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) live: Deployed,
    /// The other kept versions, the last live one first.
    pub(crate) older: Vec<Deployed>,
    /// Why the live version cannot run.
    pub(crate) problem: Option<String>,
}

/// The functions and folders in use.
#[derive(Debug, Default)]
pub(crate) struct DeployState {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    functions: BTreeMap<FunctionName, Function>,
    /// Folders that running deployments need.
    reserved: HashMap<PathBuf, usize>,
    /// Versions that are no longer in the registry, but may still be used by the path.
    retired: Vec<Weak<Version>>,
}

/// Protects a folder from the sweep as long as it exists.
#[derive(Debug)]
pub(crate) struct Reservation {
    state: Arc<DeployState>,
    folder: PathBuf,
}

impl DeployState {
    pub(crate) fn function(&self, name: &FunctionName) -> Option<Function> {
        self.inner.lock().functions.get(name).cloned()
    }

    pub(crate) fn functions(&self) -> Vec<(FunctionName, Function)> {
        let inner = self.inner.lock();
        inner
            .functions
            .iter()
            .map(|(name, function)| (name.clone(), function.clone()))
            .collect()
    }

    pub(crate) fn put(&self, name: FunctionName, function: Function) {
        let mut inner = self.inner.lock();
        let kept: Vec<Arc<Version>> = function.versions().cloned().collect();
        if let Some(before) = inner.functions.insert(name, function) {
            inner.retire(&before, &kept);
        }
    }

    /// Removes a function. False: there was none.
    pub(crate) fn take(&self, name: &FunctionName) -> bool {
        let mut inner = self.inner.lock();
        let Some(function) = inner.functions.remove(name) else {
            return false;
        };
        inner.retire(&function, &[]);
        true
    }

    pub(crate) fn reserve(self: &Arc<Self>, folder: PathBuf) -> Reservation {
        *self
            .inner
            .lock()
            .reserved
            .entry(folder.clone())
            .or_default() += 1;
        Reservation {
            state: Arc::clone(self),
            folder,
        }
    }

    /// Whether a sweep may have left folders because the path still used a version.
    pub(crate) fn waits_for_release(&self) -> bool {
        !self.inner.lock().retired.is_empty()
    }

    /// Moves every unused folder directly below `parents` into `rubbish`.
    pub(crate) fn sweep(&self, parents: &[PathBuf], rubbish: &Path) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let needed = inner.needed();
        let mut count = 0_u32;
        for parent in parents {
            for entry in fs::read_dir(parent)? {
                let folder = entry?.path();
                if !needed.contains(&folder) {
                    fs::rename(&folder, rubbish.join(count.to_string()))?;
                    count += 1;
                }
            }
        }
        Ok(())
    }
}

impl Function {
    /// The numbers of the kept versions except the live one, the highest first.
    pub(crate) fn other_numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.older.iter().map(|one| one.version.number).collect();
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        numbers
    }

    fn versions(&self) -> impl Iterator<Item = &Arc<Version>> {
        self.older
            .iter()
            .chain([&self.live])
            .map(|one| &one.version)
    }
}

impl Inner {
    /// Remembers the versions that are not kept.
    fn retire(&mut self, function: &Function, kept: &[Arc<Version>]) {
        let gone = function
            .versions()
            .filter(|version| !kept.iter().any(|one| Arc::ptr_eq(one, version)));
        self.retired.extend(gone.map(Arc::downgrade));
    }

    fn needed(&mut self) -> HashSet<PathBuf> {
        let mut needed: HashSet<PathBuf> = self.reserved.keys().cloned().collect();
        self.retired.retain(|version| version.strong_count() > 0);
        let retired: Vec<Arc<Version>> = self.retired.iter().filter_map(Weak::upgrade).collect();
        for version in &retired {
            needed.extend(folders(version));
        }
        for function in self.functions.values() {
            for version in function.versions() {
                needed.extend(folders(version));
            }
        }
        needed
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut inner = self.state.inner.lock();
        if let Some(count) = inner.reserved.get_mut(&self.folder) {
            *count -= 1;
            if *count == 0 {
                inner.reserved.remove(&self.folder);
            }
        }
    }
}

/// The folders that a version runs from: those of its code, of its environment and of its layers.
fn folders(version: &Version) -> Vec<PathBuf> {
    let environment = &version.environment;
    let packages = environment.packages_dir();
    let modules = environment.modules_dir();
    // Installed packages are in a subfolder of their part.
    let parts = packages.into_iter().chain(modules).filter_map(Path::parent);
    let mut folders: Vec<PathBuf> = [version.code_dir.as_path()]
        .into_iter()
        .chain(parts)
        .map(Path::to_owned)
        .collect();
    if let Some(merged) = &version.layers {
        folders.push(merged.dir.clone());
        // The layers themselves are kept, so that they need not be uploaded again.
        let layers = version.config.layers.iter();
        folders.extend(layers.map(|layer| merged.dir.with_file_name(layer.id.as_str())));
    }
    folders
}
