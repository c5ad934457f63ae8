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

use crate::data_dir;

/// A version in the registry.
#[derive(Debug, Clone)]
pub(crate) struct Deployed {
    pub(crate) version: Arc<Version>,
    /// The result of its trial start.
    pub(crate) template: TemplateReport,
    pub(crate) deployed_unix_s: u64,
    /// Why it cannot run. Its folders are kept all the same: what is missing may come back.
    pub(crate) problem: Option<String>,
}

/// A function in the registry.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) live: Deployed,
    /// The other kept versions, the last live one first.
    pub(crate) older: Vec<Deployed>,
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
    /// Names that running deployments may add. Those of one name wait for each other, so each is here once.
    admitted: HashSet<FunctionName>,
    /// Versions that are no longer in the registry, but may still be used by the path.
    retired: Vec<Weak<Version>>,
}

/// Protects a folder from the sweep as long as it exists.
#[derive(Debug)]
pub(crate) struct Reservation {
    state: Arc<DeployState>,
    folder: PathBuf,
}

/// The place of a function that is being deployed.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Arc<DeployState>,
    name: FunctionName,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.state.inner.lock().admitted.remove(&self.name);
    }
}

/// A folder that is not used, and where it is now.
pub(crate) type Unused = (PathBuf, PathBuf);

impl DeployState {
    /// Counts a function that is being deployed. `None`: with it there would be more than `max`. The function's lock must be held.
    pub(crate) fn admit(self: &Arc<Self>, name: &FunctionName, max: usize) -> Option<Admission> {
        let mut inner = self.inner.lock();
        if !inner.functions.contains_key(name) {
            let new = inner.admitted.iter();
            let new = new.filter(|one| !inner.functions.contains_key(*one));
            if inner.functions.len() + new.count() >= max {
                return None;
            }
        }
        inner.admitted.insert(name.clone());
        Some(Admission {
            state: Arc::clone(self),
            name: name.clone(),
        })
    }

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

    /// Whether the path still uses a version that is not in the registry any more.
    pub(crate) fn is_held(&self) -> bool {
        let inner = self.inner.lock();
        let mut retired = inner.retired.iter();
        retired.any(|version| version.strong_count() > 0)
    }

    /// Moves every unused folder directly below `parents` into `rubbish`. What has none of our names stays, and so does what is
    /// in `named`.
    pub(crate) fn sweep(
        &self,
        parents: &[PathBuf],
        named: &HashSet<PathBuf>,
        rubbish: &Path,
    ) -> io::Result<Vec<Unused>> {
        let mut inner = self.inner.lock();
        let needed = inner.needed(&HashSet::new());
        let mut moved = Vec::new();
        for folder in below(parents)? {
            if !needed.contains(&folder) && !named.contains(&folder) {
                let now = rubbish.join(moved.len().to_string());
                fs::rename(&folder, &now)?;
                moved.push((folder, now));
            }
        }
        Ok(moved)
    }

    /// The folders that [`DeployState::sweep`] would move if these versions were not there.
    pub(crate) fn unused(
        &self,
        parents: &[PathBuf],
        named: &HashSet<PathBuf>,
        without: &HashSet<(FunctionName, u32)>,
    ) -> io::Result<Vec<Unused>> {
        let needed = self.inner.lock().needed(without);
        let mut folders = below(parents)?;
        folders.retain(|folder| !needed.contains(folder) && !named.contains(folder));
        let unused = folders.into_iter();
        Ok(unused.map(|folder| (folder.clone(), folder)).collect())
    }
}

impl Function {
    /// Why the live version cannot run, and what to do.
    pub(crate) fn problem(&self) -> Option<String> {
        let problem = self.live.problem.as_ref();
        problem.map(|problem| format!("{problem}; deploy it again"))
    }

    /// The older versions that can run, the last live one first.
    pub(crate) fn older_whole(&self) -> impl DoubleEndedIterator<Item = &Deployed> {
        self.older.iter().filter(|one| one.problem.is_none())
    }

    /// The older versions that cannot run, and why.
    pub(crate) fn older_broken(&self) -> impl Iterator<Item = (u32, &str)> {
        let broken = self.older.iter();
        broken.filter_map(|one| Some((one.version.number, one.problem.as_deref()?)))
    }

    /// The numbers of the older versions that can run, the highest first.
    pub(crate) fn other_numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.older_whole().map(|one| one.version.number).collect();
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

    fn needed(&mut self, without: &HashSet<(FunctionName, u32)>) -> HashSet<PathBuf> {
        let mut needed: HashSet<PathBuf> = self.reserved.keys().cloned().collect();
        self.retired.retain(|version| version.strong_count() > 0);
        let retired: Vec<Arc<Version>> = self.retired.iter().filter_map(Weak::upgrade).collect();
        for version in &retired {
            needed.extend(folders(version));
        }
        for (name, function) in &self.functions {
            for version in function.versions() {
                if without.is_empty() || !without.contains(&(name.clone(), version.number)) {
                    needed.extend(folders(version));
                }
            }
        }
        needed
    }
}

/// The daemon's entries of these folders.
fn below(parents: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for parent in parents {
        folders.extend(data_dir::ours(parent)?);
    }
    Ok(folders)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_takes_what_was_deployed_and_leaves_files_of_others() {
        let (root, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (code, rubbish) = (root.path().join("code"), root.path().join("rubbish"));
        std::os::unix::fs::symlink(disk.path(), &code).unwrap();
        fs::create_dir(&rubbish).unwrap();
        for name in [
            "f99b1bbba009551d",
            "1a8fe207b1b19272",
            "0123456789abcdef",
            "photos",
        ] {
            fs::create_dir(code.join(name)).unwrap();
        }
        fs::write(code.join("notes.txt"), "").unwrap();
        let state = Arc::new(DeployState::default());
        let _needed = state.reserve(code.join("1a8fe207b1b19272"));
        let parents = [code.clone()];
        let named = HashSet::from([code.join("0123456789abcdef")]);
        let unused = state.unused(&parents, &named, &HashSet::new()).unwrap();
        let swept = state.sweep(&parents, &named, &rubbish).unwrap();
        for found in [unused, swept] {
            let folders: Vec<PathBuf> = found.into_iter().map(|(folder, _)| folder).collect();
            assert_eq!(folders, [code.join("f99b1bbba009551d")]);
        }
        assert!(!code.join("f99b1bbba009551d").exists());
        for name in [
            "1a8fe207b1b19272",
            "0123456789abcdef",
            "photos",
            "notes.txt",
        ] {
            assert!(disk.path().join(name).exists(), "{name}");
        }
    }
}
