//! HTTP in and out: accept, auth, limits, routes, streaming, drain; one table from errors to statuses.
//!
//! A request's way: `accept` → `connection` → `request_context` → `route` → `lambda_api` or `function_url` (→ `application`, or
//! `function_url/passing` for functions that are HTTP servers) → the invoker → `reply`, or `tunnel` for a connection that is
//! upgraded. It stays in its connection's task all along. Everything that is not on the data path goes to the control handler,
//! which comes from outside: this crate knows no control API.

mod accept;
mod application;
mod body;
mod config;
mod connection;
mod errors;
mod event_stream;
mod forward;
mod function_url;
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

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use hyper::body::Incoming;
use pilot_invoke::Invoker;
use pilot_model::BoxFuture;
use tokio::net::TcpListener;

pub use accept::Drained;
pub use config::GatewayConfig;
pub use forward::TrustForwarded;
pub use reply::{BoxError, ControlBody};
pub use token::InvokeToken;

/// Answers what is not on the data path: the control API, metrics, health. Its authorisation is its own.
pub type Control = Arc<
    dyn Fn(http::Request<Incoming>) -> BoxFuture<'static, http::Response<ControlBody>>
        + Send
        + Sync,
>;

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
        let gate = Gate {
            bodies: body::BodyReader::new(
                config.body_bytes_max,
                config.body_timeout,
                config.bodies_bytes_max,
            ),
            config,
            invoker,
            control,
        };
        accept::run(listener, Arc::new(gate), shutdown).await
    }
}

/// What every connection shares.
struct Gate {
    config: GatewayConfig,
    invoker: Arc<Invoker>,
    control: Control,
    bodies: body::BodyReader,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
