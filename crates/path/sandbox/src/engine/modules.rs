//! Which functions share the imports of modules that only their code asks for.
//!
//! The template of an environment imports the packages of its requirements, but not each of their modules: `import PIL` does not import
//! `PIL.Image`. What the code of a function imports of them, its deployment finds out ([`Version::modules`]). Functions of an environment
//! with the same list get a template between that of the environment and their own, from the second one on.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::ports::StartError;
use pilot_model::{EnvironmentId, FunctionName, Version, VersionId};

use super::nodes::Function;
use super::{TemplateTree, trial};

impl TemplateTree {
    /// Makes the node of a function that has just been deployed again, if others import the same `modules`. The one that it has stays if it
    /// cannot share them. Returns the new one.
    pub(super) async fn share_modules(
        self: &Arc<Self>,
        version: &Version,
        modules: &[String],
    ) -> Option<Arc<Function>> {
        let version = Arc::new(Version {
            modules: modules.to_vec(),
            ..version.clone()
        });
        if !self.modules.are_shared(&version) {
            return None;
        }
        let build = || async {
            let function = Arc::new(self.with_shared_modules(&version).await.ok()??);
            match trial::run(self, &function).await {
                Ok(()) => Some(function),
                Err(StartError::Full { .. }) => None,
                Err(error) => {
                    self.share_no_modules(&version, &error.to_string());
                    None
                }
            }
        };
        self.functions.replace(&version.id, build).await
    }
}

/// The functions by the modules that they import.
#[derive(Debug, Default)]
pub(super) struct SharedModules {
    users: Mutex<Users>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Users {
    /// By the hash of an environment and a list.
    lists: HashMap<u64, User>,
    /// Versions whose template cannot be forked from one that has imported the modules.
    refused: HashSet<VersionId>,
}

/// Who imports the modules of a list.
#[derive(Debug, PartialEq, Eq)]
enum User {
    One(FunctionName),
    Several,
    /// They cannot be imported without a function.
    Nobody,
}

/// Most lists, and most refused versions, that are remembered. Functions with another one do not share their imports.
const LISTS_MAX: usize = 10_000;

impl SharedModules {
    /// Whether the template of this version is to be forked from one that has imported its modules. It is not for the first function
    /// that asks, because then nobody shares them.
    pub(super) fn are_shared(&self, version: &Version) -> bool {
        if version.modules.is_empty() {
            return false;
        }
        let list = self.list(&version.environment.id, &version.modules);
        let mut users = self.users.lock();
        if users.refused.contains(&version.id) {
            return false;
        }
        let name = &version.config.name;
        if users.lists.len() >= LISTS_MAX && !users.lists.contains_key(&list) {
            return false;
        }
        let user = users
            .lists
            .entry(list)
            .or_insert_with(|| User::One(name.clone()));
        if matches!(user, User::One(first) if first != name) {
            *user = User::Several;
        }
        *user == User::Several
    }

    /// No template can import these modules for several functions. Nobody tries again.
    pub(super) fn refuse_list(&self, environment: &EnvironmentId, modules: &[String]) {
        let list = self.list(environment, modules);
        if let Some(user) = self.users.lock().lists.get_mut(&list) {
            *user = User::Nobody;
        }
    }

    /// Whether that is known of them.
    pub(super) fn is_list_refused(&self, environment: &EnvironmentId, modules: &[String]) -> bool {
        let list = self.list(environment, modules);
        self.users.lock().lists.get(&list) == Some(&User::Nobody)
    }

    /// Whether this version, with these modules, was found not to share them.
    pub(super) fn is_refused(&self, version: &Version, modules: &[String]) -> bool {
        self.is_list_refused(&version.environment.id, modules)
            || self.users.lock().refused.contains(&version.id)
    }

    fn list(&self, environment: &EnvironmentId, modules: &[String]) -> u64 {
        self.hasher.hash_one((environment, modules))
    }

    /// The template of this version cannot be forked from one that has imported its modules.
    pub(super) fn refuse(&self, version: &Version) {
        let mut users = self.users.lock();
        if users.refused.len() >= LISTS_MAX {
            // They will be tried once more.
            users.refused.clear();
        }
        users.refused.insert(version.id.clone());
    }
}

#[cfg(test)]
mod tests {
    use pilot_testkit::version as deployed;

    use super::*;

    fn version(name: &str, modules: &[&str]) -> Version {
        let mut version = Version::clone(&deployed(name, 1));
        version.id = VersionId::from_hex(name);
        version.modules = modules.iter().map(|&module| module.to_owned()).collect();
        version
    }

    #[test]
    fn the_second_function_with_the_same_modules_shares_them_and_then_the_first_one_too() {
        let shared = SharedModules::default();
        let (one, other) = (
            version("one", &["PIL.Image"]),
            version("other", &["PIL.Image"]),
        );
        assert!(!shared.are_shared(&one));
        assert!(!shared.are_shared(&one), "the same function once more");
        assert!(!shared.are_shared(&version("different", &["PIL.Image", "PIL.ImageOps"])));
        assert!(!shared.are_shared(&version("none", &[])));
        assert!(shared.are_shared(&other));
        assert!(shared.are_shared(&one));
    }

    #[test]
    fn a_version_that_cannot_share_does_not_and_others_do() {
        let shared = SharedModules::default();
        let versions = ["one", "other", "third"].map(|name| version(name, &["m.n"]));
        shared.are_shared(&versions[0]);
        shared.refuse(&versions[1]);
        assert!(!shared.are_shared(&versions[1]));
        assert!(shared.are_shared(&versions[2]));
    }

    #[test]
    fn a_list_that_nobody_can_share_is_not_tried_again() {
        let shared = SharedModules::default();
        let versions = ["one", "other", "third"].map(|name| version(name, &["m.n"]));
        let (environment, modules) = (&versions[0].environment.id, &versions[0].modules);
        shared.are_shared(&versions[0]);
        assert!(shared.are_shared(&versions[1]));
        assert!(!shared.is_refused(&versions[1], modules));
        shared.refuse_list(environment, modules);
        assert!(versions.iter().all(|version| !shared.are_shared(version)));
        assert!(shared.is_refused(&versions[2], modules));
        assert!(!shared.is_refused(&versions[2], &["m.o".to_owned()]));
    }

    #[test]
    fn a_limited_number_of_lists_is_remembered() {
        let shared = SharedModules::default();
        for number in 0..LISTS_MAX {
            shared.are_shared(&version("one", &[&format!("m{number}")]));
        }
        assert!(!shared.are_shared(&version("one", &["another"])));
        assert!(!shared.are_shared(&version("other", &["another"])));
        assert!(shared.are_shared(&version("other", &["m0"])));
    }
}
