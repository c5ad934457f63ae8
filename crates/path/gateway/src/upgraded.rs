//! What a connection becomes after a 101 response. It runs in the connection's task, so a drain waits for it and closes it like any
//! request.

use std::time::Duration;

use crate::tunnel::Tunnel;
use crate::websocket::WebSocket;

/// An upgraded connection.
#[derive(Debug)]
pub(crate) enum Upgraded {
    /// Joined with the connection of the function's server.
    Tunnel(Tunnel),
    /// The messages of an ASGI application.
    WebSocket(Box<WebSocket>),
}

impl Upgraded {
    /// Serves it to its end. Dropping the future closes it. `idle_max`: longest time without traffic. `ending` resolves when the
    /// daemon is about to cut it off. The daemon does not know what passes through a tunnel, and cannot say goodbye there.
    pub(crate) async fn run(self, idle_max: Duration, ending: impl Future<Output = ()>) {
        match self {
            Self::Tunnel(tunnel) => tunnel.run(idle_max).await,
            Self::WebSocket(websocket) => websocket.run(idle_max, ending).await,
        }
    }
}

impl From<Tunnel> for Upgraded {
    fn from(tunnel: Tunnel) -> Self {
        Self::Tunnel(tunnel)
    }
}

impl From<WebSocket> for Upgraded {
    fn from(websocket: WebSocket) -> Self {
        Self::WebSocket(Box::new(websocket))
    }
}
