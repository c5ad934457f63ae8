//! The control side of the daemon: the control API with its OpenAPI document, what is observed of invocations, the functions'
//! logs, metrics text and health.
//!
//! Not here: deploying (that is a [`ControlPlane`](pilot_model::ports::ControlPlane) given to it) and serving connections (its
//! [`axum::Router`] is mounted by whoever does).

pub mod admin;
pub mod logs;
pub mod observe;

mod access;
mod error;
mod openapi;
mod router;
mod routes;

pub use access::{Access, Token};
pub use admin::{Admin, AdminConfig, AdminParts, Readiness};
pub use observe::{Observations, Observer, ObserverConfig};

/// Runs what waits for the disk or a lock on a thread that may wait. A panic in it is the caller's.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down, and with it whoever waits here.
            Err(_) => std::future::pending().await,
        },
    }
}
