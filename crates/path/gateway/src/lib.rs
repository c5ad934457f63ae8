//! HTTP in and out: accept, auth, limits, routes, streaming, drain; one table from errors to statuses.
//!
//! A request's way: `accept` → `connection` → `dispatch` → `route` → `lambda_api` or `function_url` (→ `application`, or
//! `function_url/passing` for functions that are HTTP servers) → the invoker → `reply`, or `tunnel` for a connection that is
//! upgraded. It stays in its connection's task all along. Everything that is not on the data path goes to the control handler,
//! which comes from outside: this crate knows no control API.

mod accept;
mod application;
mod body;
mod config;
mod connection;
mod dispatch;
mod errors;
mod event_stream;
mod forward;
mod function_url;
mod gate;
mod headers;
mod lambda_api;
mod percent;
mod reply;
mod request_context;
mod route;
mod timing;
mod token;
mod tunnel;
mod upload;

use std::future::Future;
use std::sync::Arc;

use pilot_invoke::Invoker;
use tokio::net::TcpListener;

pub use accept::Drained;
pub use config::GatewayConfig;
pub use forward::TrustForwarded;
pub use gate::Control;
pub use reply::{BoxError, ControlBody};
pub use token::InvokeToken;

/// The HTTP server.
#[derive(Debug, Clone, Copy)]
pub struct Gateway;

impl Gateway {
    /// Serves `listener` until `shutdown` resolves; then stops accepting, lets running requests finish within
    /// [`GatewayConfig::grace`] and cuts off the rest. Dropping the future cuts off everything at once.
    pub async fn serve(
        listener: TcpListener,
        config: GatewayConfig,
        invoker: Arc<Invoker>,
        control: Control,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Drained {
        let gate = gate::Gate::new(config, invoker, control);
        accept::run(listener, Arc::new(gate), shutdown).await
    }
}
