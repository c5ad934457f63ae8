//! HTTP in and out: accept, auth, limits, routes, streaming, drain; one table from errors to statuses.
//!
//! The path of a request: `accept` → `connection` → `dispatch` → `route` → `lambda_api` or `function_url` (→ `application`, or
//! `function_url/passing` for functions that are HTTP servers) → the invoker → `reply`, or `tunnel` for an upgraded connection. It
//! stays in its connection's task. Requests that are not on the data path go to the control handler, which the daemon provides.
//!
//! Each `listener` has its rules: what it serves, to whom, and how many connections it has (`peers`).

mod accept;
mod application;
mod body;
mod config;
mod connection;
mod control;
mod cors;
mod deadline;
mod dispatch;
mod errors;
mod event_stream;
mod expectation;
mod forward;
mod function_url;
#[cfg(any(test, fuzzing))]
pub mod fuzzed;
mod gate;
mod headers;
mod host;
mod lambda_api;
mod leftover;
mod list_headers;
mod listener;
mod peers;
mod refusal;
mod reply;
mod request_body;
mod request_context;
mod requested_inputs;
mod route;
mod signature;
mod timing;
mod token;
mod trace;
mod tunnel;
mod upgraded;
mod upload;
mod web_page;
mod websocket;

use std::future::Future;
use std::sync::Arc;

use pilot_invoke::Invoker;

pub use accept::Drained;
pub use body::disk::BodyFiles;
pub use config::GatewayConfig;
pub use connection::pace::ReadPace;
pub use forward::TrustForwarded;
pub use gate::Control;
pub use listener::{Access, Door, Listener, Serves, Transport};
pub use peers::RefusedConnections;
pub use reply::{BoxError, ControlBody};
pub use request_body::RequestBody;

/// The HTTP server.
#[derive(Debug, Clone, Copy)]
pub struct Gateway;

impl Gateway {
    /// Serves all `listeners` until `shutdown` resolves. Then stops accepting, lets running requests finish within
    /// [`GatewayConfig::grace`] and closes the remaining connections. Dropping the future closes all connections at once.
    pub async fn serve(
        listeners: Vec<Listener>,
        config: GatewayConfig,
        invoker: Arc<Invoker>,
        control: Control,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Drained {
        let gate = gate::Gate::new(config, invoker, control);
        accept::run(listeners, gate, shutdown).await
    }
}
