//! The control side of the daemon: the control API with its OpenAPI document, observations of invocations, the functions' logs,
//! the metrics' text and health.
//!
//! Not here: deploying (it calls a [`ControlPlane`](pilot_model::ports::ControlPlane)) and serving connections (the gateway uses
//! its [`axum::Router`]).

pub mod admin;
pub mod logs;
pub mod observe;

mod access;
mod durable;
mod error;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), expect(dead_code, reason = "the tests use the rest"))]
mod fakes;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod long_reads;
mod openapi;
mod router;
mod routes;
mod scrapes;
mod secrets;
mod shares;
mod tokens;

pub use admin::{Admin, AdminConfig, AdminParts, Readiness};
pub use durable::{remove_unfinished, unfinished};
pub use logs::LogStore;
pub use observe::Observations;
pub use secrets::SecretStore;
pub use tokens::TokenStore;

/// Runs work that waits for the disk or a lock on a blocking thread. A panic in it is passed on to the caller.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The async runtime is shutting down, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
}
