//! `Admin`: what the control API's handlers share. Their router is in `routes`.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_model::ports::{ControlPlane, TemplateMemory};
use pilot_telemetry::Metrics;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::access::{Access, Token};
use crate::observe::Observations;

/// How the control API behaves.
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// Asked of every call, if there is one.
    pub token: Option<Token>,
    /// Whether `/metrics` asks for it too.
    pub metrics: Access,
    /// Largest archive taken, bytes.
    pub archive_bytes_max: usize,
    /// Deployments whose archives may be in memory at the same time; more wait.
    pub uploads_max: usize,
    /// The daemon's version.
    pub version: &'static str,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            token: None,
            metrics: Access::Open,
            archive_bytes_max: 50 << 20,
            uploads_max: 4,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// What the control API translates to.
pub struct AdminParts {
    /// Deploys, lists, removes.
    pub control: Arc<dyn ControlPlane>,
    /// Counts and logs.
    pub observations: Arc<Observations>,
    /// What `/metrics` prints.
    pub metrics: Arc<Metrics>,
    /// The templates that are up.
    pub templates: Arc<dyn Fn() -> Vec<TemplateMemory> + Send + Sync>,
    /// Whether the daemon can take requests.
    pub readiness: Arc<dyn Fn() -> Readiness + Send + Sync>,
}

impl fmt::Debug for AdminParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminParts")
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// The answer of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// Whether requests are taken.
    pub ready: bool,
    /// If not, why; otherwise what is not enforced or does not work.
    pub reasons: Vec<String>,
}

/// The control API. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Admin {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) parts: AdminParts,
    pub(crate) config: AdminConfig,
    /// One permit for each archive in memory.
    pub(crate) uploads: Arc<Semaphore>,
    /// Deployments under way: they go on when their clients hang up. Guards the set alone.
    pub(crate) deployments: Mutex<JoinSet<()>>,
}

impl Admin {
    /// Puts the control API together.
    #[must_use]
    pub fn new(parts: AdminParts, config: AdminConfig) -> Self {
        Self {
            inner: Arc::new(Inner {
                uploads: Arc::new(Semaphore::new(config.uploads_max)),
                parts,
                config,
                deployments: Mutex::default(),
            }),
        }
    }

    /// Waits for the deployments under way.
    pub async fn finish(&self) {
        let mut deployments = std::mem::take(&mut *self.inner.deployments.lock());
        while deployments.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests;
