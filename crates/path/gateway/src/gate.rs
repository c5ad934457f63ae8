//! What all connections of a gateway share.

use std::fmt;
use std::sync::Arc;

use hyper::body::Incoming;
use pilot_invoke::Invoker;
use pilot_model::BoxFuture;

use crate::body::BodyReader;
use crate::config::GatewayConfig;
use crate::reply::ControlBody;

/// Answers requests that are not on the data path: the control API, metrics, health. It does its own authorisation.
pub type Control = Arc<
    dyn Fn(http::Request<Incoming>) -> BoxFuture<'static, http::Response<ControlBody>>
        + Send
        + Sync,
>;

/// See the module.
pub(crate) struct Gate {
    pub(crate) config: GatewayConfig,
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) control: Control,
    pub(crate) bodies: BodyReader,
}

impl Gate {
    pub(crate) fn new(config: GatewayConfig, invoker: Arc<Invoker>, control: Control) -> Self {
        Self {
            bodies: BodyReader::new(
                config.body_bytes_max,
                config.body_timeout,
                config.bodies_bytes_max,
            ),
            config,
            invoker,
            control,
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
