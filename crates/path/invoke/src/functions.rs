//! The table of names: the functions with their versions, and those that cannot be invoked. It is immutable: every change
//! replaces it as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use pilot_model::Version;
use pilot_pool::Pool;

use crate::error::InvokeError;

/// The table of names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Functions {
    running: HashMap<String, Function>,
    /// Functions that cannot be invoked: why, and what to do.
    broken: HashMap<String, Arc<str>>,
}

/// A function that can be invoked.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) live: Arc<Pool>,
    /// Newest first. They keep no workers, but can still be invoked.
    pub(crate) older: Vec<Arc<Pool>>,
}

impl Functions {
    /// The function of that name.
    ///
    /// # Errors
    /// [`InvokeError::FunctionNotFound`], [`InvokeError::Broken`].
    pub(crate) fn find(&self, name: &str) -> Result<&Function, InvokeError> {
        if let Some(function) = self.running.get(name) {
            return Ok(function);
        }
        Err(match self.broken.get(name) {
            Some(problem) => InvokeError::Broken {
                name: name.to_owned(),
                problem: problem.to_string(),
            },
            None => InvokeError::FunctionNotFound { name: cut(name) },
        })
    }

    /// The function of that name, if it can be invoked.
    pub(crate) fn running(&self, name: &str) -> Option<&Function> {
        self.running.get(name)
    }

    /// The live versions of all functions that can be invoked.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Arc<Pool>> {
        self.running.values().map(|function| &function.live)
    }

    /// As [`Functions::running`], mutable.
    pub(crate) fn running_mut(&mut self, name: &str) -> Option<&mut Function> {
        self.running.get_mut(name)
    }

    /// Inserts a function that can be invoked. It may have been broken before.
    pub(crate) fn insert(&mut self, name: String, function: Function) {
        self.broken.remove(&name);
        self.running.insert(name, function);
    }

    /// Inserts a function that cannot be invoked, unless one of its versions can.
    pub(crate) fn insert_broken(&mut self, name: &str, problem: &str) {
        self.broken.insert(name.to_owned(), problem.into());
    }

    /// Removes a function.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Function> {
        self.broken.remove(name);
        self.running.remove(name)
    }
}

impl Function {
    pub(crate) fn pools(&self) -> impl Iterator<Item = &Arc<Pool>> {
        std::iter::once(&self.live).chain(&self.older)
    }

    /// The version that a qualifier means: `None` or `$LATEST` for the live one, a version's number, or its id.
    ///
    /// # Errors
    /// [`InvokeError::VersionNotFound`].
    pub(crate) fn version(&self, qualifier: Option<&str>) -> Result<&Arc<Version>, InvokeError> {
        let Some(qualifier) = qualifier.filter(|qualifier| *qualifier != "$LATEST") else {
            return Ok(self.live.version());
        };
        let number: Option<u32> = qualifier.parse().ok();
        self.pools()
            .map(|pool| pool.version())
            .find(|version| number == Some(version.number) || version.id.as_str() == qualifier)
            .ok_or_else(|| self.version_not_found(qualifier))
    }

    /// The pool of a version that was found before.
    ///
    /// # Errors
    /// [`InvokeError::VersionNotFound`]: it has been removed in the meantime.
    pub(crate) fn pool(&self, version: &Arc<Version>) -> Result<&Arc<Pool>, InvokeError> {
        self.pools()
            .find(|pool| same(pool.version(), version))
            .ok_or_else(|| self.version_not_found(&version.number.to_string()))
    }

    fn version_not_found(&self, qualifier: &str) -> InvokeError {
        InvokeError::VersionNotFound {
            name: self.live.version().config.name.to_string(),
            qualifier: cut(qualifier),
        }
    }
}

/// Whether they are one version, even if it was loaded twice.
pub(crate) fn same(one: &Arc<Version>, other: &Arc<Version>) -> bool {
    Arc::ptr_eq(one, other) || (one.id == other.id && one.number == other.number)
}

fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}
