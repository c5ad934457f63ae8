//! `Admin`: what the control API's handlers share. Their router is in `router`.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::access::Caller;
use pilot_model::ports::{AsyncControl, ControlPlane, Costs, TemplateMemory, TriggerControl};
use pilot_telemetry::Metrics;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::error::Failure;
use crate::long_reads::LongReads;
use crate::observe::Observations;
use crate::routes::Spool;
use crate::scrapes::Scrapes;
use crate::secrets::SecretStore;
use crate::shares::{Shares, share_of};
use crate::tokens::TokenStore;

/// Configuration of the control API.
#[derive(Debug, Clone)]
pub struct AdminConfig {
    /// Largest accepted archive, bytes.
    pub archive_bytes_max: u64,
    /// Limit of all archives that arrive or wait together, bytes. Uploads beyond it are refused. An owner has at most half of what others
    /// leave.
    pub arriving_bytes_max: u64,
    /// Highest number of deployments that run or wait. Further ones are refused. An owner has at most half of what others leave.
    pub deployments_max: u64,
    /// Where functions are called, `http://ADDRESS`; set when the daemon listens there.
    pub functions_url: Arc<OnceLock<String>>,
    /// The daemon's version.
    pub version: &'static str,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            archive_bytes_max: 280 << 20,
            arriving_bytes_max: 2 << 30,
            deployments_max: 256,
            functions_url: Arc::default(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The services behind the control API.
pub struct AdminParts {
    /// Deploys, lists, removes.
    pub control: Arc<dyn ControlPlane>,
    /// The tokens.
    pub tokens: Arc<TokenStore>,
    /// The secrets.
    pub secrets: Arc<SecretStore>,
    /// When the certificates of the listeners end, seconds since 1970-01-01, by the configuration's key that names them.
    pub certificates: Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>,
    /// How many connections were turned away, by reason.
    pub refused_connections: Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>,
    /// The buffers that functions hand to each other, and their bytes.
    pub handed: Arc<dyn Fn() -> (u64, u64) + Send + Sync>,
    /// The time for which threads of the daemon polled for events before they slept.
    pub busy_polled: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Counts and logs of invocations.
    pub observations: Arc<Observations>,
    /// Usage records of invocations, and what they would have cost.
    pub costs: Arc<dyn Costs>,
    /// Asynchronous invocations.
    pub queue: Arc<dyn AsyncControl>,
    /// Triggers.
    pub triggers: Arc<dyn TriggerControl>,
    /// The metrics of `/metrics`.
    pub metrics: Arc<Metrics>,
    /// The running templates.
    pub templates: Arc<dyn Fn() -> Vec<TemplateMemory> + Send + Sync>,
    /// Whether the daemon accepts requests.
    pub readiness: Arc<dyn Fn() -> Readiness + Send + Sync>,
}

impl fmt::Debug for AdminParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminParts")
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// The response of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Readiness {
    /// Whether the daemon accepts requests.
    pub ready: bool,
    /// If not ready, why; otherwise what is not enforced or does not work.
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
    /// The bytes of archives that arrive or wait.
    pub(crate) arriving: Shares,
    /// The deployments that run or wait.
    pub(crate) places: Shares,
    pub(crate) scrapes: Scrapes,
    pub(crate) long_reads: LongReads,
    /// Running deployments, which continue when their clients disconnect. The lock guards only the set.
    pub(crate) deployments: Mutex<JoinSet<()>>,
}

impl Admin {
    /// Creates the control API.
    #[must_use]
    pub fn new(parts: AdminParts, config: AdminConfig) -> Self {
        Self {
            inner: Arc::new(Inner {
                arriving: Shares::new(config.arriving_bytes_max),
                places: Shares::new(config.deployments_max),
                scrapes: Scrapes::default(),
                long_reads: LongReads::default(),
                parts,
                config,
                deployments: Mutex::default(),
            }),
        }
    }

    /// A file for an upload by this caller, which messages call `name`.
    pub(crate) async fn spool(
        &self,
        caller: &Caller,
        name: &'static str,
    ) -> Result<Spool, Failure> {
        let inner = &self.inner;
        Spool::new(
            Arc::clone(&inner.parts.control),
            inner.arriving.of(&share_of(caller)),
            inner.config.archive_bytes_max,
            name,
        )
        .await
    }

    /// Waits for the running deployments until then, and gives up the others: each is complete or has no effect. What one writes
    /// in this moment is written to its end on its own thread.
    pub async fn finish(&self, until: Instant) {
        let mut deployments = std::mem::take(&mut *self.inner.deployments.lock());
        let ended = async { while deployments.join_next().await.is_some() {} };
        if timeout_at(until, ended).await.is_err() {
            let count = deployments.len();
            tracing::warn!(
                count,
                "deployments were still running at the end of the grace period; they are given up"
            );
            deployments.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests;
