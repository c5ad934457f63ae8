//! What the deployer holds in memory: the functions, and which folders are needed. One mutex guards all of it; it is never
//! held across an await, and what is done under it touches the disk only to rename.
//!
//! A folder is needed while the registry's versions use it, while a deployment has reserved it, or while the path still holds a
//! version that used it (its workers are running from there).

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
    /// What its deployment found.
    pub(crate) template: TemplateReport,
    pub(crate) deployed_unix_s: u64,
}

/// A function in the registry.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) live: Deployed,
    /// Newest first.
    pub(crate) older: Vec<Deployed>,
    /// Why the live version cannot be run.
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
    /// Folders that deployments under way count on.
    reserved: HashMap<PathBuf, usize>,
    /// Versions no longer in the registry, as long as the path may hold them.
    retired: Vec<Weak<Version>>,
}

/// Keeps a folder from being swept away while it lives.
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

    /// Takes a function away. False: there was none.
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

    /// Whether a sweep may have left something because the path still held a version.
    pub(crate) fn waits_for_release(&self) -> bool {
        !self.inner.lock().retired.is_empty()
    }

    /// Moves every folder directly below `parents` that nobody needs into `rubbish`.
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
    fn versions(&self) -> impl Iterator<Item = &Arc<Version>> {
        self.older
            .iter()
            .chain([&self.live])
            .map(|one| &one.version)
    }
}

impl Inner {
    /// Watches the versions that are not kept.
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

/// The folders that a version runs from: its code, and its environment's.
fn folders(version: &Version) -> Vec<PathBuf> {
    let environment = &version.environment;
    let packages = environment.packages_dir.as_deref();
    let modules = environment
        .node
        .as_ref()
        .and_then(|node| node.modules_dir.as_deref());
    // Installed packages lie in a folder of the part's.
    let parts = packages.into_iter().chain(modules).filter_map(Path::parent);
    [version.code_dir.as_path()]
        .into_iter()
        .chain(parts)
        .map(Path::to_owned)
        .collect()
}
