//! A version between its trial and its activation.

use std::sync::Arc;

use pilot_model::Version;
use pilot_model::ports::Platform;

/// A trial leaves a template, so that the first request finds it. Unless the version becomes live, the template ends when this is dropped:
/// because the trial or the commit has failed, or because nobody waits for the deployment any more.
#[derive(Debug)]
pub(super) struct Tried {
    platform: Arc<dyn Platform>,
    version: Arc<Version>,
    is_live: bool,
}

impl Tried {
    /// The version is going to be tried.
    pub(super) fn new(platform: &Arc<dyn Platform>, version: &Arc<Version>) -> Self {
        Self {
            platform: Arc::clone(platform),
            version: Arc::clone(version),
            is_live: false,
        }
    }

    /// Makes it the live version: `version` is the same one, with what the trial has found out.
    pub(super) fn activate(mut self, version: &Arc<Version>) {
        self.is_live = true;
        self.platform.activate(Arc::clone(version));
    }
}

impl Drop for Tried {
    fn drop(&mut self) {
        if !self.is_live {
            self.platform.discard(&self.version);
        }
    }
}
