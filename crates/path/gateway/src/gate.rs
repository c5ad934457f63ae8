//! What all connections of a listener share.

use std::fmt;
use std::sync::Arc;

use pilot_invoke::Invoker;
use pilot_model::BoxFuture;

use crate::body::BodyReader;
use crate::config::GatewayConfig;
use crate::listener::{Access, Door};
use crate::peers::RefusedConnections;
use crate::reply::ControlBody;
use crate::request_body::RequestBody;

/// Answers requests that are not on the data path: the control API, metrics, health. The request has a
/// [`Caller`](pilot_model::access::Caller) as an extension; the handler decides what that caller may do.
pub type Control = Arc<
    dyn Fn(http::Request<RequestBody>) -> BoxFuture<'static, http::Response<ControlBody>>
        + Send
        + Sync,
>;

/// See the module.
pub(crate) struct Gate {
    pub(crate) config: GatewayConfig,
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) control: Control,
    /// Shared by all listeners.
    pub(crate) bodies: BodyReader,
    pub(crate) refused: Arc<RefusedConnections>,
    /// The rules of this listener.
    pub(crate) door: Door,
}

impl Gate {
    pub(crate) fn new(config: GatewayConfig, invoker: Arc<Invoker>, control: Control) -> Self {
        Self {
            bodies: BodyReader::new(
                config.body_bytes_max,
                config.body_timeout,
                config.bodies_bytes_max,
                config.slow_bodies.clone(),
            ),
            refused: Arc::clone(&config.refused),
            config,
            invoker,
            control,
            door: Door::default(),
        }
    }

    /// The same for a listener with these rules.
    pub(crate) fn of(&self, door: Door) -> Self {
        Self {
            config: self.config.clone(),
            invoker: Arc::clone(&self.invoker),
            control: Arc::clone(&self.control),
            bodies: self.bodies.clone(),
            refused: Arc::clone(&self.refused),
            door,
        }
    }

    /// Whether a web page could call functions through this listener, because neither a token nor a Unix socket prevents it.
    pub(crate) fn is_open_to_pages(&self) -> bool {
        self.door.calls == Access::Open && self.door.everyone.is_none()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("config", &self.config)
            .field("door", &self.door)
            .finish_non_exhaustive()
    }
}
